"""Whether a run ends within the spread that it states, hour by hour of days of preemptions.

    python bench/end_estimate.py [--quick] [--trace NAME ...] [--seeds 3] [--hours 24] [--json FILE]

Each day is that of bench/preemptions.py, smaller: the rules that ship, in virtual time, on machines
that come and go as in a trace of a real cloud. The run's length is what the day had time for, so
its true end is the last step. At each full hour `TimeLeft` is asked, which has heard only of the
steps and the losses before. `within` is the share of hours whose stated spread holds the true end.
`width` is the median of latest minus earliest, as a share of the time that was left.

`--quick` plays no swarm: a step takes as long as the scarcest stage's machines need for it, and
each machine that is taken costs the step some seconds. That takes a second a day.
"""

import argparse
import asyncio
import logging
import statistics
import sys
from random import Random

from preemptions import Day, fleet_changes, options_of, turned
from results import command_line, write_json

from p2pswarm.progress.events import Departure, Report
from p2pswarm.progress.time_left import TimeLeft
from p2pswarm.sim.loop import run
from p2pswarm.sim.traces import HOUR_S, Trace, shipped_traces, trace_of
from p2pswarm.trainer.reports.reports import MemberLost, StepDone

WITHIN_LEAST = 0.8
STAGES = 4
STEP_MACHINES_S = 200.0  # of computing in a step of a quick day, by each stage
LOSSES_S = (2.0, 5.0, 15.0, 40.0)
"""What the loss of a machine costs a step: as measured, from a notice to a silent death."""


class TimedDay(Day):
    """A day, and when its steps were done and its servers lost, in seconds of the day."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.news: list[tuple[float, bool]] = []
        """When a step was done (True) or a server lost."""
        self._factor: float = options.pressed
        self._swarm.heard = self._timed

    def _timed(self, report: Report) -> None:
        lost = isinstance(report, MemberLost) and report.why is not Departure.MOVED
        if lost or isinstance(report, StepDone):
            now_s = asyncio.get_running_loop().time()
            self.news.append((self._factor * now_s, isinstance(report, StepDone)))
        self._heard(report)


def judged(news: list[tuple[float, bool]]) -> dict[str, float]:
    """What `TimeLeft` says at each full hour, beside the true end."""
    ends_s = max(at_s for at_s, done in news if done)
    steps = sum(done for _, done in news)
    left, done, hour, within, widths = TimeLeft(), 0, 1, [], []
    left.begin(0.0, 0)
    for at_s, is_step in news:
        while at_s > hour * HOUR_S and hour * HOUR_S < ends_s:
            found = left.estimate(hour * HOUR_S, steps)
            if found is not None:
                within.append(found.earliest_s <= ends_s - hour * HOUR_S <= found.latest_s)
                widths.append((found.latest_s - found.earliest_s) / found.left_s)
            hour += 1
        done += is_step
        left.on_step(at_s, done) if is_step else left.on_loss()
    return {
        "steps": steps,
        "hours": len(within),
        "within": round(statistics.fmean(within), 3),
        "width": round(statistics.median(widths), 3),
    }


def quick_day(trace: Trace, seed: int, hours: float, servers: int) -> list[tuple[float, bool]]:
    """The news of a day whose steps take what the machines of the scarcest stage need."""
    rng = Random(f"quick day {seed}")
    changes = fleet_changes(turned(trace, rng.random() * trace.seconds), servers, hours)
    news, there, now_s, lost_s = [], 0, 0.0, 0.0
    while now_s < hours * HOUR_S:
        while changes and changes[0].at_s <= now_s:
            change = changes.pop(0)
            there += change.machines
            for _ in range(-change.machines):
                news.append((change.at_s, False))
                lost_s += rng.choice(LOSSES_S)
        if there < STAGES:  # it stands still until machines come
            if not changes:
                break
            now_s = changes[0].at_s
            continue
        now_s += STEP_MACHINES_S / (there // STAGES) * rng.uniform(0.95, 1.2) + lost_s
        lost_s = 0.0
        news.append((now_s, True))
    return sorted(news)


def played_day(trace: str, seed: int, options: argparse.Namespace) -> list[tuple[float, bool]]:
    """The news of a day of a whole swarm."""
    words = ["--trace", trace, "--seed", str(seed), "--hours", str(options.hours)]
    words += ["--servers", str(options.servers), "--pressed", str(options.pressed)]
    words += ["--microbatches", str(options.microbatches), "--stages", str(options.stages)]
    words += ["--forward-s", str(options.forward_s)]
    day = TimedDay(options_of(words))
    run(day.play(), seed)
    return day.news


def main() -> int:
    """Play the days; 1 if too few hours hold the true end."""
    options = _options()
    logging.disable(logging.WARNING)  # each machine that is taken is one
    rows = []
    for trace in options.trace or shipped_traces():
        for seed in range(1, options.seeds + 1):
            if options.quick:
                news = quick_day(trace_of(trace), seed, options.hours, options.servers)
            else:
                news = played_day(trace, seed, options)
            rows.append({"trace": trace, "seed": seed, **judged(news)})
            print(rows[-1], flush=True)
    hours = sum(row["hours"] for row in rows)
    within = sum(row["within"] * row["hours"] for row in rows) / hours
    width = statistics.median(row["width"] for row in rows)
    print(f"{hours} hours: within {within:.3f}, width {width:.3f}")
    write_json(options.json, {"within": within, "width": width, "days": rows})
    return int(within < WITHIN_LEAST)


def _options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--trace", choices=shipped_traces(), action="append")
    parser.add_argument("--quick", action="store_true", help="without a swarm")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--servers", type=int, default=72)
    parser.add_argument("--stages", type=int, default=2, help="few, so that each keeps a server")
    parser.add_argument("--microbatches", type=int, default=24)
    parser.add_argument("--forward-s", type=float, default=24.0)
    parser.add_argument("--pressed", type=float, default=12.0, help="how much shorter than the day")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
