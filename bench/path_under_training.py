"""The direct path between two servers is cut while they train; the link goes on through a relay.

    python bench/path_under_training.py [--how reset|drop] [--apart-s 20] [--json FILE]

A bootstrap node, a trainer and two stages of one server each, every one a process through the real
command line, on a host of its own in the WAN lab (`tests/wanlab`). All hosts reach all others. Then
the two servers' hosts refuse each other's packets, by nftables: `reset` breaks the connections at
once, as a router that has forgotten them does; `drop` loses all packets without a word. Nobody has
named a relay: each server keeps a reservation at a member that it has met. After `--apart-s` the
servers' hosts let each other through again.

Printed, from what the servers log: the time from the loss of the path until a relayed one carries
the link, and from the road's return until a direct one does. The microbatches that were sent again
are those of the trainer's count; the weights are compared with those of a plain loop.
"""

import argparse
import datetime as dt
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab_run import LabRun, add_options, play_and_compare
from results import command_line
from swarm_processes import FIRST_SERVER, SERVE, TRAINER, Gone, NodeListener, Nodes, Run, RunFailed
from wan_lab import Lab, Link

from p2pswarm.progress.events import Ended, Stepped

STAGES = 2
HOSTS = FIRST_SERVER + STAGES
ROAD = Link(rate_bits_per_s=None, delay_s=0.02)
PAIR = (FIRST_SERVER, FIRST_SERVER + 1)
SETTLE_S = 12.0  # after the first step: a spare relay is sought after 5 s
BACK_S = 15.0  # what is better is tried every 5 s
LOGGED = re.compile(r"^(\S+ \S+) I p2pswarm\S*\.link_paths: (link to .*)$", re.MULTILINE)
WITHOUT = re.compile(r"after (\S+) s without any")
RULES = {
    "reset": "meta l4proto tcp ip daddr {other} reject with tcp reset",
    "drop": "ip daddr {other} drop",
}


@dataclass(frozen=True, slots=True)
class Moment:
    """A line that a server has logged about a path."""

    server: str
    at_s: float
    """Seconds since 1970."""
    text: str


class Follower:
    """What the trainer tells."""

    def __init__(self, nodes: Nodes) -> None:
        self.last: Stepped | None = None
        self.ended: Ended | None = None
        self._listener = NodeListener(nodes)
        self._listener.listen_to("trainer")

    def follow(self, seconds: float) -> None:
        """Listen for so long, or until the run has ended."""
        until_s = time.monotonic() + seconds
        while self.ended is None and (left_s := until_s - time.monotonic()) > 0:
            match self._listener.next(left_s):
                case _, Gone(failed) if failed:
                    raise failed
                case _, Ended() as ended:
                    if ended.failed:
                        raise RunFailed(ended.reason)
                    self.ended = ended
                case _, Stepped() as step:
                    self.last = step


def moments(folder: Path) -> Iterator[Moment]:
    """What both servers have logged of their paths, in order of time."""
    found = []
    for number in range(STAGES):
        for when, text in LOGGED.findall((folder / f"server {number}.log").read_text()):
            at = dt.datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").astimezone()
            found.append(Moment(f"server {number}", at.timestamp(), text))
    yield from sorted(found, key=lambda each: each.at_s)


def refuse(lab: Lab, how: str) -> None:
    """Let the pair's hosts refuse each other's packets."""
    for host, other in (PAIR, PAIR[::-1]):
        rule = RULES[how].format(other=lab.address(other))
        hook = "type filter hook output priority 0;"
        rules = f"table inet cut {{\n chain out {{\n {hook}\n {rule}\n }}\n}}\n"
        subprocess.run([*lab.enter(host), "nft", "-f", "-"], input=rules, text=True, check=True)


def allow(lab: Lab) -> None:
    """Let them through again."""
    for host in PAIR:
        subprocess.run([*lab.enter(host), "nft", "delete table inet cut"], check=True)


def first_after(seen: list[Moment], at_s: float, what: str) -> float | None:
    """The seconds until something was logged."""
    return next((each.at_s - at_s for each in seen if each.at_s > at_s and what in each.text), None)


def play(place: LabRun, options: argparse.Namespace) -> dict[str, object]:
    """One run, with its road cut and mended; what came of it."""
    lab, nodes = place.lab, place.nodes
    nodes.start_bootstrap()
    settings = nodes.joining + 'role = "trainer"\nlog_level = "info"\n' + place.run.settings()
    nodes.start("trainer", TRAINER, settings)
    for _ in range(STAGES):
        nodes.start_server('log_level = "info"\n' + SERVE)
    told = Follower(nodes)
    while told.last is None and told.ended is None:
        told.follow(1.0)
    told.follow(SETTLE_S)

    cut_s = time.time()
    refuse(lab, options.how)
    before = told.last
    print(f"  step {before.step}: the servers' hosts refuse each other", flush=True)
    told.follow(options.apart_s)
    back_s = time.time()
    allow(lab)
    after = told.last
    print(f"  step {after.step}: {options.apart_s:g} s later they do not any more", flush=True)
    told.follow(BACK_S)
    if told.ended is not None:
        raise RunFailed("the run was over too soon: give it more --steps")
    last = told.last
    while told.ended is None:
        told.follow(10.0)
    nodes.wait("trainer")

    seen = [each for each in moments(place.folder) if each.at_s > cut_s]
    for each in seen:
        print(f"  {each.at_s - cut_s:6.2f} s  {each.server}  {each.text}")
    relayed = next((each for each in seen if "by a relayed path" in each.text), None)
    without = WITHOUT.search(relayed.text) if relayed else None
    return {
        "how": options.how,
        "cut_to_relayed_s": relayed.at_s - cut_s if relayed else None,
        "relayed_after_s": float(without[1]) if without else None,
        "direct_after_s": first_after(seen, back_s, "by a direct path"),
        "steps_apart": after.step - before.step,
        "steps_after": last.step - after.step,
        "replayed": told.last.counts.replayed - before.counts.replayed,
    }


def main() -> int:
    """Train, cut, mend, compare, print, write."""
    options = _options()
    run = Run(
        name="path",
        steps=options.steps,
        stages=STAGES,
        d_model=32,
        heads=2,
        layers=2,
        sequence_length=32,
        microbatches=8,
        rows=2,
        dtype="float64",
        codec="raw",
    )
    return play_and_compare(run, (HOSTS, ROAD), options, lambda lab: play(lab, options))


def _options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--how", choices=tuple(RULES), default="reset")
    parser.add_argument("--apart-s", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=150)
    add_options(parser, patience_s=400.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
