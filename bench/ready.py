"""How soon a node is ready: listening, and in the DHT.

Starts a bootstrap node and then others, one after the other, each a process through the real
command line: alone, joining through one address, and through three of which one is dead.
`after import` is what the node says of itself; `process` is from its start to that word.

    python bench/ready.py --json ready.json
"""

import re
import socket
import statistics
import subprocess
import sys
import time

from results import command_line, show, write_json

NODE = (sys.executable, "-m", "p2pswarm.node", "--role", "bootstrap", "--listen", "127.0.0.1:0")


class Started:
    """One node, and how long it took."""

    def __init__(self, *bootstrap: str) -> None:
        begun_s = time.monotonic()
        flags = [part for address in bootstrap for part in ("--bootstrap", address)]
        self.process = subprocess.Popen([*NODE, *flags], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.process_s = time.monotonic() - begun_s
        found = re.search(r"at (\S+), ready after (\S+) s", line)
        assert found, line
        self.address = found[1]
        self.ready_s = float(found[2])

    def end(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait()


def dead_address() -> str:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def main() -> None:
    """Measure, print, write."""
    parser = command_line(__doc__)
    parser.add_argument("--nodes", type=int, default=10, help="of each kind")
    options = parser.parse_args()
    seeds = [Started()]
    seeds.append(Started(seeds[0].address))
    addresses = [seed.address for seed in seeds]
    kinds = {
        "alone": (),
        "one address": (addresses[0],),
        "three, one dead": (dead_address(), *addresses),
    }
    figures, rows = {}, []
    for kind, bootstrap in kinds.items():
        nodes = []
        for _ in range(options.nodes):
            node = Started(*bootstrap)
            nodes.append(node)
            node.end()
        ready_s = [node.ready_s for node in nodes]
        process_s = statistics.median(node.process_s for node in nodes)
        figures[kind] = {
            "p50_s": statistics.median(ready_s),
            "max_s": max(ready_s),
            "process_s": process_s,
        }
        rows.append((kind, *(f"{value:.3f} s" for value in figures[kind].values())))
    for seed in seeds:
        seed.end()
    show(("node", "after import p50", "max", "process p50"), rows)
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
