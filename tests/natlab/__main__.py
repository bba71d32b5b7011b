"""The NAT lab by hand; `tests/natlab/__init__.py` tells how."""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.files import check_target, write_answer, write_target

from .classify import punch
from .lab import PUBLIC, LabUnavailable, NatLab
from .matrix import NodeFailed, PathKind, Plan, Row, attempts, public_nodes, summary, table
from .profiles import PROFILES

UNUSABLE, INTERRUPTED = 2, 130
AT_ONCE = 8  # pairs that punch; most of the time they wait
COMMANDS = """shell: open the lab and wait; punch: which pairs could get a TCP connection, if both
sides dialled at once from ports that the other knows; without nodes"""


def profiles_in(text: str) -> list[str]:
    """Names of profiles, with commas between."""
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in PROFILES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PROFILES)}")
    return names


def at_least(least: float, kind: type[int] | type[float]):
    """A type of argument: a number that is not below `least`."""

    def number(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = kind(-1)
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} on")
        return value

    return number


def flags_of(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line as values."""
    base = Plan()
    seconds = {"type": at_least(0, float), "metavar": "S"}
    parser = argparse.ArgumentParser(prog="python -m tests.natlab", description=__doc__)
    parser.add_argument("--profiles", type=profiles_in, default=list(PROFILES), metavar="A,B,...")
    parser.add_argument("--tries", type=at_least(1, int), default=base.tries, metavar="N")
    parser.add_argument("--delay-ms", default=0.0, help="one way, across the internet", **seconds)
    parser.add_argument("--limit-s", default=base.limit_s, help="of an attempt", **seconds)
    parser.add_argument("--settle-s", default=base.settle_s, help="before an attempt", **seconds)
    parser.add_argument(
        "--upgrade-s", default=base.upgrade_s, help="for a relayed link to become direct", **seconds
    )
    parser.add_argument(
        "--relays",
        type=int,
        choices=range(PUBLIC),
        default=base.relays,
        metavar="N",
        help="so many public nodes are relays of nodes behind a router",
    )
    parser.add_argument(
        "--at-once",
        type=at_least(1, int),
        default=base.at_once,
        metavar="N",
        help="attempts at a time",
    )
    parser.add_argument("--node", metavar="ARGS", help="reach `python -m p2pswarm.node ARGS`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a row for each attempt")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the table")
    parser.add_argument("command", nargs="?", choices=["shell", "punch"], help=COMMANDS)
    return parser.parse_args(argv)


def main() -> int:
    """Open a lab as the command line says and do what it asks for."""
    flags = flags_of()
    rows: list[Row] = []
    try:
        check_targets(flags)
        try:
            open_and_do(flags, rows)
        finally:
            tell(flags, rows)
    except (LabUnavailable, NodeFailed, SwarmError, ValueError) as problem:
        print(problem, file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def open_and_do(flags: argparse.Namespace, rows: list[Row]) -> None:
    """Do what was asked for, and add what was found to `rows`."""
    plan = Plan(
        tries=flags.tries,
        limit_s=flags.limit_s,
        upgrade_s=flags.upgrade_s,
        settle_s=flags.settle_s,
        relays=flags.relays,
        at_once=flags.at_once,
        node=None if flags.node is None else tuple(shlex.split(flags.node)),
    )
    sides = 1 if flags.command == "shell" else 2
    with NatLab(flags.profiles * sides, delay_s=flags.delay_ms / 1e3) as lab:
        print(lab.describe(), file=sys.stderr, flush=True)
        if flags.command == "shell":
            wait(lab)
        elif flags.command == "punch":
            punch_all(lab, plan, rows)
        else:
            reach(lab, plan, rows)


def check_targets(flags: argparse.Namespace) -> None:
    """Raise Unusable for a file that could not be written at the end."""
    if flags.plot is not None:
        from .picture import picture_format  # noqa: PLC0415  matplotlib takes a second to load

        picture_format(flags.plot)
    for target in filter(None, (flags.json, flags.plot)):
        check_target(target)


def tell(flags: argparse.Namespace, rows: list[Row]) -> None:
    """Print the table, and write the files that were asked for."""
    if not rows:
        return
    print(table(rows))
    if flags.command != "punch":
        print(summary(rows))
    if flags.json is not None:
        print(write_answer(flags.json, json.dumps(rows, indent=1) + "\n"))
    if flags.plot is not None:
        from .picture import draw, picture_format  # noqa: PLC0415  as above

        title = f"Who reaches whom, {flags.delay_ms:g} ms one way"
        kind = picture_format(flags.plot)
        drawn = write_target(flags.plot, lambda at: draw(rows, at, title, kind), replace=True)
        print(drawn)


def reach(lab: NatLab, plan: Plan, rows: list[Row]) -> None:
    """Try all pairs, add what comes of them to `rows`, and tell of each as it ends."""
    half = len(lab.sites) // 2
    with public_nodes(lab, plan.node or ()):
        for row in attempts(lab, lab.sites[:half], lab.sites[half:], plan):
            rows.append(row)
            print(f"{row['a']} -> {row['b']}: {words(row)}", file=sys.stderr, flush=True)


def punch_all(lab: NatLab, plan: Plan, rows: list[Row]) -> None:
    """Add to `rows` which pairs could punch a hole, whatever nodes do: plain sockets try it."""
    half = len(lab.sites) // 2
    pairs = [(a, b) for a in lab.sites[:half] for b in lab.sites[half:]] * plan.tries
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for (a, b), got in zip(pairs, pool.map(lambda pair: punch(lab, *pair), pairs), strict=True):
            kind = PathKind.PUNCHED if got else PathKind.NO
            rows.append({"a": a.profile.name, "b": b.profile.name, "path": kind, "seconds": None})


def words(row: Row) -> str:
    """What came of an attempt, for people."""
    if row["path"] is PathKind.NO:
        return f"no: {row['why']}"
    first = row.get("first")
    before = f"{first['path']} after {first['seconds']:.3f} s, " if first else ""
    dialled = "" if row["dialled_by"] == "a" else f", dialled by {row['b']}"
    return f"{before}{row['path']} after {row['seconds']:.3f} s{dialled}"


def wait(lab: NatLab) -> None:
    """Keep the lab open until Ctrl-C."""
    for site in lab.sites:
        print(f"{site.profile.name}: {' '.join(lab.enter(site.host))} bash")
    print("Ctrl-C ends the lab.", flush=True)
    signal.pause()


if __name__ == "__main__":
    sys.exit(main())
