"""Averaging among the members of one stage, beside hivemind 1.1.12's averager, in one run.

    python bench/averaging.py [--members 4] [--mb 256] [--rounds 5] [--json FILE]
    python bench/averaging.py --wan [--rate-mbit 200] [--rtt-ms 100] --members 2 --mb 32

Every member is a process of its own, all on this machine, each with `--mb` million bytes of float32
gradients, encrypted on the way, no compression. Both sides take turns. A turn is timed from the
order to average, which all members get at once, until the last one holds the result:
    ours        `Averaging.average`: the sum in the group's order, its digest and its norm
    hivemind    `DecentralizedAverager.step`, from the trigger: its search for a group is left out
The processor time is that of all processes of a side, hivemind's daemons included.

hivemind lives in .venv-peers, made by the first run (pip, a few minutes). Medians of all turns.

`--wan`: float32 beside sums on a grid (`int-grid`), each member on a host of its own in the WAN lab
(`tests/wanlab`), and the bytes that all links carried. The lab's emulator runs on the same
processors: with too many members it is what takes the time.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from peers import NoPeer, crew, hivemind_python, show
from proc import family_cpu_s
from results import command_line, write_json
from wan_lab import Lab, LabUnavailable, add_link_options, carried_bytes, link_of
from workers import Worker

MEMBERS_MAX = 64  # the most that one group holds

OURS = Path(__file__).with_name("peers_ours.py")
ACROSS = {"float32": "raw", "int-grid": "int-grid"}

Samples = dict[str, dict[str, list[float]]]


class Side:
    """The members of one side, told the same at once."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers
        self._threads = ThreadPoolExecutor(len(workers))

    def do(self, verb: str, **arguments: Any) -> list[Any]:
        """The answers of all members; if some failed, the reasons of all that did."""

        def one(worker: Worker) -> Any:
            try:
                return worker.do(verb, **arguments)
            except SystemExit as failed:
                return failed

        answers = list(self._threads.map(one, self._workers))
        if failures := [str(answer) for answer in answers if isinstance(answer, SystemExit)]:
            raise SystemExit("\n".join(failures))
        return answers

    def turn(self, number: int) -> tuple[float, float]:
        """Average once; returns the seconds that it took, and of processor time."""
        self.do("prepare", number=number)
        roots = [worker.pid for worker in self._workers]
        before_s = family_cpu_s(roots)
        answers = self.do("average", number=number)
        used_s = family_cpu_s(roots) - before_s
        if len({answer["result"] for answer in answers}) != 1:
            raise SystemExit("the members hold different results")
        begun, ended = (min(a["begun"] for a in answers), max(a["ended"] for a in answers))
        return ended - begun, used_s


def ours(hire: Any, members: int, mb: int) -> Side:
    python, script = Path(sys.executable), "peers_ours.py"
    return meeting([hire(python, script, "averaging", str(n), str(mb)) for n in range(members)])


def on_hosts(hire: Any, lab: Lab, codec: str, members: int, mb: int) -> Side:
    """Members on the hosts of a lab."""
    return meeting(
        hire(
            *lab.enter(n), sys.executable, OURS, "averaging", str(n), str(mb), codec, lab.address(n)
        )
        for n in range(members)
    )


def meeting(workers: Iterable[Worker]) -> Side:
    """Members that know where the others are."""
    side = Side(list(workers))
    side.do("meet", members=side.do("address"))
    return side


def theirs(hire: Any, python: Path, members: int, mb: int) -> Side:
    workers: list[Worker] = []
    seed: list[str] = []
    for number in range(members):
        about = "averaging", str(number), str(members), str(mb)
        workers.append(hire(python, "peers_hivemind.py", *about, *seed))
        seed = seed or workers[0].do("address")
    return Side(workers)


def measured(sides: dict[str, Side], rounds: int, carried: Callable[[], int]) -> Samples:
    """The samples of all turns; the first of each side dials and warms up, and is left out.

    `carried`: the bytes that links have carried so far.
    """
    samples: Samples = {side: {"s": [], "cpu_s": [], "mb": []} for side in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            before = carried()
            took_s, used_s = side.turn(number + 1)
            if number:
                samples[name]["s"].append(took_s)
                samples[name]["cpu_s"].append(used_s)
                samples[name]["mb"].append((carried() - before) / 1e6)
        show(f"turn {number} of {rounds}")
    return samples


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--mb", type=int, default=256, help="million bytes of gradients each")
    parser.add_argument("--rounds", type=int, default=5, help="turns a side")
    parser.add_argument("--ours-only", action="store_true", help="without hivemind, to profile")
    parser.add_argument("--wan", action="store_true", help="float32 beside int-grid, in the lab")
    add_link_options(parser)
    args = parser.parse_args()
    if args.rounds < 1 or args.mb < 1:
        parser.error("--rounds and --mb: 1 or more")
    if not 2 <= args.members <= MEMBERS_MAX:
        parser.error(f"--members: 2 to {MEMBERS_MAX}")
    load_before = os.getloadavg()[0]
    try:
        samples = across(args) if args.wan else beside_hivemind(args)
    except (NoPeer, LabUnavailable) as error:
        print(error, file=sys.stderr)
        return 2
    report(samples, args, load_before)
    return 0


def beside_hivemind(args: argparse.Namespace) -> Samples:
    python = None if args.ours_only else hivemind_python()
    with crew() as hire:
        sides = {"ours": ours(hire, args.members, args.mb)}
        if python is not None:
            sides["hivemind"] = theirs(hire, python, args.members, args.mb)
        return measured(sides, args.rounds, lambda: 0)


def across(args: argparse.Namespace) -> Samples:
    """Float32 and sums on a grid, in the lab."""
    with Lab(args.members, link_of(args)) as lab, ExitStack() as stack:
        show(lab.describe())

        def hire(*command: str | Path) -> Worker:
            return stack.enter_context(Worker(command))

        given = args.members, args.mb
        sides = {name: on_hosts(hire, lab, codec, *given) for name, codec in ACROSS.items()}
        return measured(sides, args.rounds, lambda: carried_bytes(lab))


def report(samples: Samples, args: argparse.Namespace, load_before: float) -> None:
    medians = {
        side: {what: statistics.median(values) for what, values in row.items()}
        for side, row in samples.items()
    }
    show("")
    print(f"\n{'':10} {'s':>8} {'least':>8} {'most':>8} {'processor s':>12} {'MB/s a member':>14}")
    for side, row in medians.items():
        taken_s = samples[side]["s"]
        print(f"{side:10} {row['s']:8.2f} {min(taken_s):8.2f} {max(taken_s):8.2f}", end=" ")
        print(f"{row['cpu_s']:12.2f} {args.mb / row['s']:14.0f}")
    result: dict[str, Any] = {"members": args.members, "mb": args.mb, "rounds": args.rounds}
    result |= {side: {**medians[side], "samples": samples[side]} for side in medians}
    if "hivemind" in medians:
        result["ratio"] = medians["hivemind"]["s"] / medians["ours"]["s"]
        result["cpu_ratio"] = medians["hivemind"]["cpu_s"] / medians["ours"]["cpu_s"]
        print(f"ours is {result['ratio']:.1f}x as fast, with 1/{result['cpu_ratio']:.1f}", end=" ")
        print("of the processor time")
    if args.wan:
        result["ratio"] = medians["float32"]["s"] / medians["int-grid"]["s"]
        result["bytes_ratio"] = medians["int-grid"]["mb"] / medians["float32"]["mb"]
        print(f"int-grid is {result['ratio']:.1f}x as fast as float32, with", end=" ")
        print(f"{result['bytes_ratio']:.3f} of the bytes")
    print(f"medians of {args.rounds} turns, {args.members} members; {os.cpu_count()}", end=" ")
    print(f"processors, load {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")
    write_json(args.json, result)


if __name__ == "__main__":
    sys.exit(main())
