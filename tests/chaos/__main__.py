"""Play seeds of random faults in the simulated world: python -m tests.chaos --seeds A:B."""

import argparse
import json
import logging
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import check_target, write_answer
from p2pswarm.sim.faults import FaultKind

from .chaos_run import Outcome, measure, measure_aimed
from .fault_draw import DRAWN, KINDS, kinds_named

MOST = 0.995  # of the seeds, which the upper figure of a spread is about

UNUSABLE = 2  # as argparse ends, too


def seeds_in(text: str) -> range:
    """The seeds A to B-1 of "A:B", or the one seed of "A"."""
    first, colon, end = text.partition(":")
    try:
        seeds = range(int(first), int(end) if colon else int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B, as in 0:100") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} holds no seed: write A:B with A < B")
    return seeds


def kinds_in(text: str) -> tuple[FaultKind, ...]:
    """The kinds of faults, by their names with commas between."""
    try:
        return kinds_named(text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def summary(outcomes: list[Outcome]) -> dict[str, object]:
    """The results of all seeds, as --json writes them."""
    failures = [{"seed": one.seed, "what": one.what} for one in outcomes if one.what is not None]
    return {
        "seeds": len(outcomes),
        "ok": len(outcomes) - len(failures),
        "failures": failures,
        "longest_stall_s": _spread([one.longest_stall_s for one in outcomes]),
        "calm_step_s": _spread([one.calm_step_s for one in outcomes]),
        "stall_less_step_s": _spread([one.stall_less_step_s for one in outcomes]),
    }


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    most_s = ordered[math.ceil(MOST * len(ordered)) - 1]
    return {
        "median": round(statistics.median(ordered), 3),
        "p99.5": round(most_s, 3),
        "max": round(ordered[-1], 3),
    }


def outcomes_of(seeds: range, one: Callable[[int], Outcome], processes: int) -> Iterator[Outcome]:
    """Play every seed, several at a time where there are processors; in the order of seeds."""
    if processes == 1 or len(seeds) == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(one, seeds, chunksize=4)


def tell(outcomes: Iterable[Outcome], options: str) -> list[Outcome]:
    """Print a line for each failure, with the command that repeats it."""
    done = []
    for one in outcomes:
        done.append(one)
        if one.what is not None:
            again = f"python -m tests.chaos --seeds {one.seed}:{one.seed + 1} {options}"
            print(f"seed {one.seed}: {one.what}\n    again: {again}", flush=True)
    return done


def main() -> int:
    """Play the seeds that the command line names; 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", type=seeds_in, required=True, metavar="A:B")
    parser.add_argument(
        "--faults",
        type=kinds_in,
        metavar="KIND,...",
        help=f"of {', '.join(KINDS)}; all but the last four by default",
    )
    parser.add_argument("--tied", action="store_true", help="of a tied model")
    parser.add_argument("--delay", type=int, choices=(0, 1), default=0, help="steps that overlap")
    parser.add_argument(
        "--aimed",
        action="store_true",
        help="faults at the n-th message of a kind, trainers frozen in turn, guests, slow servers",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N")
    options = parser.parse_args()
    if options.processes < 1:
        parser.error(f"--processes {options.processes}: at least 1 is needed")
    if options.json is not None:
        try:
            check_target(options.json)
        except Unusable as error:
            parser.error(str(error))
    if options.aimed and (options.faults or options.tied or options.delay):
        others = "--faults and --tied" if not options.delay else "--delay"
        parser.error(f"--aimed draws its own faults and shapes: leave {others} out")
    kinds = options.faults or DRAWN
    again = "--faults " + ",".join(kind.value for kind in kinds)
    again += " --tied" if options.tied else ""
    again += f" --delay {options.delay}" if options.delay else ""
    shape = {"kinds": kinds, "tied": options.tied, "delay": options.delay}
    one: Callable[[int], Outcome] = partial(measure, **shape)
    if options.aimed:
        again, one = "--aimed", measure_aimed
    logging.getLogger("p2pswarm").addHandler(logging.NullHandler())
    begun_s = time.monotonic()
    outcomes = tell(outcomes_of(options.seeds, one, options.processes), again)
    results = summary(outcomes)
    if len(outcomes) == 1:
        print(f"seed {outcomes[0].seed}: {'; '.join(outcomes[0].happened)}")
    if options.json is not None:
        try:
            written = write_answer(options.json, json.dumps(results, indent=2) + "\n")
        except Unusable as error:
            print(error, file=sys.stderr)
            return UNUSABLE
        print(f"results: {written}")
    minutes = (time.monotonic() - begun_s) / 60
    print(
        f"{results['ok']} of {results['seeds']} seeds held every invariant; "
        f"longest stall {results['longest_stall_s']} s, "
        f"longest step without faults {results['calm_step_s']} s, "
        f"the one less the other {results['stall_less_step_s']} s; "
        f"{len(outcomes) / minutes:.0f} seeds a minute"
    )
    return 1 if results["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
