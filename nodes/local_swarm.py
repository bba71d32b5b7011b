"""Start a swarm of processes on this machine, show what they say, stop them together.

    python nodes/local_swarm.py --servers 4                  # a bootstrap node and four servers
    python nodes/local_swarm.py --servers 4 --run run.toml   # and a trainer with these settings

Ctrl-C ends all of them. `p2pswarm demo` is the same with a page, a kill and a picture.
"""

import argparse
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

LEAVE_S = 6.0  # a node leaves within 5 s


def start(name: str, *flags: str) -> subprocess.Popen[str]:
    """One node; its words carry its name."""
    print(f"{name}: python -m p2pswarm.node {' '.join(flags)}", flush=True)
    return subprocess.Popen(
        [sys.executable, "-m", "p2pswarm.node", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def tail(name: str, process: subprocess.Popen[str]) -> None:
    """Print a node's lines until it ends."""
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{name}: {line}", end="", flush=True)


def address_of(process: subprocess.Popen[str]) -> str:
    """Where the first node can be joined."""
    assert process.stdout is not None
    for line in process.stdout:
        print(f"bootstrap: {line}", end="", flush=True)
        if found := re.search(r"--bootstrap (\S+)", line):
            return found[1]
    sys.exit("the bootstrap node has ended")


def main() -> None:
    """Start, wait, stop."""
    parser = argparse.ArgumentParser(description="A swarm of processes on this machine.")
    parser.add_argument("--servers", type=int, default=2, metavar="N")
    parser.add_argument(
        "--run", type=Path, metavar="FILE", help="start a trainer with these settings"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the nodes would outlive us
    nodes = {"bootstrap": start("bootstrap", "--role", "bootstrap", "--listen", "127.0.0.1:0")}
    try:
        joining = ("--bootstrap", address_of(nodes["bootstrap"]), "--listen", "127.0.0.1:0")
        for i in range(options.servers):
            nodes[f"server {i + 1}"] = start(f"server {i + 1}", "--role", "stage", *joining)
        last = nodes["bootstrap"]
        if options.run:
            settings = ("--role", "trainer", "--config", str(options.run))
            last = nodes["trainer"] = start("trainer", *settings, *joining)
        for name, process in nodes.items():
            threading.Thread(target=tail, args=(name, process), daemon=True).start()
        last.wait()
    except KeyboardInterrupt:
        print("stopping", flush=True)
    finally:
        for process in nodes.values():
            process.send_signal(signal.SIGTERM)
        for process in nodes.values():
            try:
                process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()


if __name__ == "__main__":
    main()
