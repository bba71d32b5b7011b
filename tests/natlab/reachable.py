"""How long a node behind each NAT takes from its start until others can reach it, and how.

    python -m tests.natlab.reachable --delay-ms 25 --tries 5 --json reachable.json

Public nodes are up, and name nobody; the node behind the NAT is `python -m p2pswarm.node
--bootstrap ADDRESS` and nothing else. What counts is its own line `reachable: KIND at ADDRESS`,
from the moment when its process is started.

Units:   seconds.
Errors:  NodeFailed if a node does not come up.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from p2pswarm.base.files import check_target, write_answer

from .lab import PUBLIC, LabUnavailable, NatLab, Site
from .matrix import NODE, PORT, START_S, NodeFailed, Program, public_nodes
from .profiles import PROFILES

UNUSABLE = 2
SAID = "reachable: "


def times(lab: NatLab, sites: Sequence[Site], tries: int) -> Iterator[dict[str, Any]]:
    """A row for each start of a node: profile, path, at, seconds, ready (joined after)."""
    for number in range(1, tries + 1):
        for site in sites:
            yield {"profile": site.profile.name, "try": number, **_start(lab, site)}


def _start(lab: NatLab, site: Site) -> dict[str, Any]:
    through = lab.address6(0) if site.profile.ipv6 else lab.address(0)
    host = f"[{through}]" if site.profile.ipv6 else through
    listen = f"[{site.address}]:{PORT}" if site.profile.ipv6 else f":{PORT}"
    argv = (*NODE, "--role", "bootstrap", "--bootstrap", f"{host}:{PORT}", "--listen", listen)
    begun_s = time.monotonic()
    program = Program(lab, site.host, argv)
    try:
        ready = program.line(START_S)
        ready_s = time.monotonic() - begun_s
        if not ready.startswith("peer "):
            raise NodeFailed(ready)
        while True:
            line = program.line(START_S)
            if line.startswith(SAID):
                words = line.removeprefix(SAID).split()
                took_s = time.monotonic() - begun_s
                return {"path": words[0], "at": words[-1], "seconds": took_s, "ready": ready_s}
    finally:
        program.end()


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each profile: how it is reached, and the median and the longest time."""
    lines = []
    for name in dict.fromkeys(row["profile"] for row in rows):
        ours = [row for row in rows if row["profile"] == name]
        took_s = [row["seconds"] for row in ours]
        joined_s = statistics.median(row["ready"] for row in ours)
        kinds = ", ".join(dict.fromkeys(row["path"] for row in ours))
        middle_s = statistics.median(took_s)
        lines.append(
            f"{name:<20} {kinds:<16} {middle_s:6.2f} s, at most {max(took_s):.2f} s"
            f" (joined after {joined_s:.2f} s)"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.natlab.reachable")
    parser.add_argument("--profiles", default=",".join(PROFILES), metavar="A,B,...")
    parser.add_argument("--tries", type=int, default=1, metavar="N")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way")
    parser.add_argument("--public", type=int, default=PUBLIC, metavar="N", help="public nodes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    if flags.json:
        check_target(flags.json)
    rows = []
    try:
        names = flags.profiles.split(",")
        lab = NatLab(names, public=flags.public, delay_s=flags.delay_ms / 1000)
        with lab, public_nodes(lab):
            for row in times(lab, lab.sites, flags.tries):
                rows.append(row)
                print(table([row]), row["at"], flush=True)
    except (LabUnavailable, NodeFailed, ValueError) as failure:
        print(failure, file=sys.stderr)
        return UNUSABLE
    print(table(rows))
    if flags.json:
        write_answer(flags.json, json.dumps(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
