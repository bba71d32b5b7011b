"""In the home of `router.py`: real nodes in the world, and one here; tell what it says of itself.

Arguments: how many nodes there are in the world, each in a network of its own; how the last line
that is waited for begins; flags for those nodes.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from reach.nat.router import ENV

WORLDS = ("5.5.5.9", "6.6.6.9", "7.7.7.9")
NODE = [sys.executable, "-m", "p2pswarm.node", "--role", "bootstrap"]


def start(*command: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENV)


def main() -> None:
    count, last, *settings = int(sys.argv[1]), *sys.argv[2:]
    config = Path("/run/node.toml")  # of this namespace alone
    config.write_text("\n".join(settings))
    flags = ("--config", str(config))
    nodes = []
    for host in WORLDS[:count]:
        inside = ["ip", "netns", "exec", "world", *NODE, *flags, "--listen", f"{host}:4000"]
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
        if line.startswith(last) and (count == 1 or "one network" not in line):
            break
    seconds = time.monotonic() - begun_s
    for node in nodes:
        node.terminate()
        node.communicate()
    print(json.dumps({"said": said, "seconds": seconds}))


if __name__ == "__main__":
    main()
