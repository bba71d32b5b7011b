"""Where a step's seconds go, and whether the parts that servers measure add up to the step.

Real processes on this machine: a bootstrap node, a trainer, and several servers a stage, for some
codecs and with the averaging before and beside the next step (`run.delay`). Each server measures
its own seconds; the trainer joins them (docs/slow.md). Here the sum of each stage's parts is held
against the step as the trainer's own events tell it.

    python bench/phases.py --json phases.json
"""

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from results import command_line, quantile, show, write_json
from swarm_processes import Run, RunFailed, Site, events, swarm

from p2pswarm.progress.events import Event, Phases, Stepped
from p2pswarm.progress.step_seconds import PARTS

ALLOWED = 0.03
"""How far the sum of a stage's parts may be from the step, of all steps of a run together."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run."""

    codec: str
    delay: int
    steps: int
    """Those whose phases were told, after the warm-up."""
    step_s: float
    """Median."""
    off_together: float
    """The sum of all parts over the sum of all steps, less 1; of the worst stage."""
    off_median: float
    """The same of single steps, without sign: the median over steps and stages."""
    off_p95: float
    stages: tuple[dict[str, float], ...]
    """Means of each stage's parts, as shares of the step."""


def measure(codec: str, delay: int, options: argparse.Namespace) -> Figures:
    """Train for a while, and compare."""
    run = Run(
        name="phases",
        steps=options.warmup_steps + options.steps,
        stages=options.stages,
        min_replicas=options.servers,
        d_model=options.d_model,
        layers=options.layers,
        microbatches=options.microbatches,
        codec=codec,
        delay=delay,
        optimizer="muon" if delay else "adamw",
    )
    serve = '[serve]\nthreads = 1\ndevice = "cpu"\n'
    servers = [serve] * options.stages * options.servers
    with swarm(Site(), run, servers, options.patience_s) as nodes:
        told = _pairs(events(nodes.lines("trainer")), options.warmup_steps, run.steps)
        pairs = [pair for pair in told if all(row.servers for row in pair[1].stages)]
    if not pairs:
        raise RunFailed("no step's phases were told: steps are far shorter than a second")
    return _figures(codec, delay, pairs, options.stages)


def _pairs(told: Iterator[Event], warmup: int, steps: int) -> Iterator[tuple[float, Phases]]:
    """The time of each step by the trainer's events, with its phases."""
    took_s: dict[int, float] = {}
    for event in told:
        if isinstance(event, Stepped):
            took_s[event.step] = event.took_s
            print(f"  step {event.step}, {event.took_s:.2f} s", flush=True)
            if event.step == steps:
                return
        elif isinstance(event, Phases) and event.step > warmup and took_s.get(event.step):
            yield took_s[event.step], event


def _figures(codec: str, delay: int, pairs: list[tuple[float, Phases]], stages: int) -> Figures:
    whole_s = sum(took_s for took_s, _ in pairs)
    together, single, rows = [], [], []
    for stage in range(stages):
        rows_here = [phases.stages[stage] for _, phases in pairs]
        together.append(sum(row.sum_s for row in rows_here) / whole_s - 1)
        single += [
            abs(row.sum_s / took_s - 1) for row, (took_s, _) in zip(rows_here, pairs, strict=True)
        ]
        rows.append(
            {name: sum(getattr(row, name) for row in rows_here) / whole_s for name in PARTS}
        )
    return Figures(
        codec,
        delay,
        len(pairs),
        statistics.median(took_s for took_s, _ in pairs),
        max(together, key=abs),
        statistics.median(single),
        quantile(single, 0.95),
        tuple(rows),
    )


def report(figures: list[Figures]) -> None:
    """Two tables: the sums, and where the seconds went."""
    columns = ("codec", "delay", "steps", "step, s", "sum, all steps", "one step", "p95")
    show(
        columns,
        [
            (
                *(one.codec, one.delay, one.steps, f"{one.step_s:.2f}"),
                *(f"{one.off_together:+.2%}", f"{one.off_median:.2%}", f"{one.off_p95:.2%}"),
            )
            for one in figures
        ],
    )
    show(
        ("codec", "delay", "stage", *(name.removesuffix("_s") for name in PARTS)),
        [
            (one.codec, one.delay, stage, *(f"{row[name]:.1%}" for name in PARTS))
            for one in figures
            for stage, row in enumerate(one.stages)
        ],
    )


def main() -> int:
    """Measure, print, write; 1 if a sum is off by more than is allowed."""
    options = _options()
    figures = []
    try:
        for delay in options.delay:
            for codec in options.codec:
                print(f"codec {codec}, delay {delay}")
                figures.append(measure(codec, delay, options))
    except RunFailed as error:
        print(f"error: {error}")
        return 1
    report(figures)
    write_json(options.json, [asdict(one) for one in figures])
    return int(any(abs(one.off_together) > ALLOWED for one in figures))


def _options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--codec", nargs="+", default=["bf16", "int8", "dither4"])
    parser.add_argument("--delay", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2, help="of each stage")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--patience-s", type=float, default=600.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
