"""In the home of `router.py`: real nodes in the world, and one here; tell what it says of itself.

Arguments: how many nodes there are in the world, each in a network of its own.
"""

import json
import subprocess
import sys
import time

from nat.router import ENV

WORLDS = ("5.5.5.9", "6.6.6.9", "7.7.7.9")
NODE = [sys.executable, "-m", "p2pswarm.node", "--role", "bootstrap"]


def start(*command: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENV)


def main() -> None:
    count = int(sys.argv[1])
    nodes = []
    for host in WORLDS[:count]:
        inside = ["ip", "netns", "exec", "world", *NODE, "--listen", f"{host}:4000"]
        nodes.append(start(*inside))
    for node in nodes:
        assert node.stdout is not None
        node.stdout.readline()
    through = [word for host in WORLDS[:count] for word in ("--bootstrap", f"{host}:4000")]
    begun_s = time.monotonic()
    home = start(*NODE, *through, "--listen", "0.0.0.0:4000")
    nodes.append(home)
    said = []
    assert home.stdout is not None
    for line in home.stdout:
        said.append(line.strip())
        if line.startswith("reachable: ") and len(said) > 1:
            if count == 1 or "one network" not in line:
                break
    seconds = time.monotonic() - begun_s
    for node in nodes:
        node.terminate()
        node.communicate()
    print(json.dumps({"said": said, "seconds": seconds}))


if __name__ == "__main__":
    main()
