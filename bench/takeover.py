"""How long a run stands still when its coordinator is lost, in virtual time.

Three trainers and six servers in three regions; steps are short, so what is measured is the
takeover. The coordinator is killed (its kernel tells its peers), loses its power (nobody tells
them), or is stopped as by SIGSTOP, at a random moment. The time is from then to the end of the next
step: with the election, the servers' joining, and that step, done anew.

    python bench/takeover.py [--seeds N] [--json FILE]
"""

import asyncio
import random
import statistics

from results import command_line, write_json

from p2pswarm.progress.events import Report
from p2pswarm.settings.config import BatchConfig, ModelConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.reports.reports import StepDone

TRAINERS, STAGES, SERVERS, STEPS = 3, 3, 6, 400
WARM_S = 4.0  # by then the first records name the standbys, and three voters
LASTS_S = 60.0
REGIONS = ((0.1, 0.1), (0.9, 0.1), (0.5, 0.9))
KINDS = {
    "killed": (FaultKind.KILL, False),
    "power lost": (FaultKind.KILL, True),
    "stopped": (FaultKind.FREEZE, False),
}


class Takeover:
    """One run until the first step after the loss of its coordinator."""

    def __init__(self, seed: int, kind: FaultKind, *, silent: bool) -> None:
        at_s = WARM_S + random.Random(f"takeover {seed}").uniform(0.0, 1.0)
        fault = Fault(kind, at_s, LASTS_S, (0,), silent)
        config = SwarmConfig(
            seed=seed,
            run=small_run(
                stages=STAGES,
                steps=STEPS,
                model=ModelConfig(d_model=8, layers=4, heads=4, sequence_length=8),
                batch=BatchConfig(microbatches=8, rows=1, evaluate_every=0),
            ),
            trainers=TRAINERS,
            servers=SERVERS,
            regions=REGIONS,
            cost=Cost(forward_s=0.01, state_bytes=1 << 14),
            faults=FaultPlan(TRAINERS, (fault,)),
            patience_s=LASTS_S,
        )
        self.swarm = SimSwarm(config)
        self.swarm.heard = self._heard
        self.swarm.faults.changed = self._lost
        self._lost_s: float | None = None
        self._steps_s: list[float] = []
        self._done: asyncio.Future[float]

    async def play(self) -> tuple[float, float]:
        """The seconds from the loss to the next step, and those of an undisturbed step."""
        self._done = asyncio.get_running_loop().create_future()
        playing = asyncio.create_task(self.swarm.play())
        took_s = await self._done
        playing.cancel()
        await asyncio.wait((playing,))
        steps = [b - a for a, b in zip(self._steps_s, self._steps_s[1:], strict=False)]
        return took_s, statistics.median(steps)

    def _lost(self) -> None:
        if self._lost_s is None:
            self._lost_s = asyncio.get_running_loop().time()

    def _heard(self, report: Report) -> None:
        now_s = asyncio.get_running_loop().time()
        if not isinstance(report, StepDone) or self._done.done():
            return
        if self._lost_s is None:
            self._steps_s.append(now_s)
        elif now_s > self._lost_s:
            self._done.set_result(now_s - self._lost_s)


def measured(seeds: int, kind: FaultKind, *, silent: bool) -> dict[str, float]:
    """The distribution over so many seeds."""
    results = [run(Takeover(seed, kind, silent=silent).play(), seed) for seed in range(seeds)]
    took_s = sorted(took for took, _ in results)
    return {
        "median_s": round(statistics.median(took_s), 2),
        "p95_s": round(took_s[int(0.95 * (len(took_s) - 1))], 2),
        "max_s": round(took_s[-1], 2),
        "step_s": round(statistics.median(step for _, step in results), 2),
    }


def main() -> None:
    """Play all seeds of every kind, and print a line for each kind."""
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=50, metavar="N")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: at least 1 is needed")
    results = {}
    for name, (kind, silent) in KINDS.items():
        one = results[name] = measured(options.seeds, kind, silent=silent)
        print(
            f"{name}: next step after {one['median_s']} s in the median, {one['p95_s']} s at p95, "
            f"{one['max_s']} s at most (an undisturbed step: {one['step_s']} s)",
            flush=True,
        )
    write_json(options.json, {"seeds": options.seeds, **results})


if __name__ == "__main__":
    main()
