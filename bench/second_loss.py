"""How long a run stands still when a voting server is lost soon after the coordinator, simulated.

Two trainers and eight servers; a step takes half a minute. The coordinator is killed at a random
moment of a step, and a while later the server that voted with both trainers. Each comes back after
five minutes with its disk. The time is from the second loss to the end of the next step; a run that
had to wait for a machine to come back needs minutes more than one that went on by itself.

    python bench/second_loss.py [--seeds N] [--json FILE]
"""

import argparse
import asyncio
import json
import random
import statistics
from pathlib import Path

from p2pswarm.progress.events import Report
from p2pswarm.settings.config import BatchConfig, ModelConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.reports.reports import StepDone

TRAINERS, STAGES, SERVERS, STEPS = 2, 3, 8, 20
FORWARD_S = 1.0
AFTER_STEPS = 4  # by then the standby and a server vote
AWAY_S = 300.0
LATER_S = {"0.5 to 2 s": (0.5, 2.0), "2 to 5 s": (2.0, 5.0), "5 to 15 s": (5.0, 15.0)}
"""How long after the coordinator the server is lost."""


class SecondLoss:
    """One run until the first step after both losses."""

    def __init__(self, seed: int, later_s: tuple[float, float]) -> None:
        chance = random.Random(f"second loss {seed}")
        self._first_s, self._later_s = chance.uniform(0.0, 20.0), chance.uniform(*later_s)
        config = SwarmConfig(
            seed=seed,
            run=small_run(
                stages=STAGES,
                steps=STEPS,
                model=ModelConfig(d_model=8, layers=4, heads=4, sequence_length=8),
                batch=BatchConfig(microbatches=16, rows=1, evaluate_every=0),
            ),
            trainers=TRAINERS,
            servers=SERVERS,
            cost=Cost(forward_s=FORWARD_S, state_bytes=1 << 14),
            patience_s=3600.0,
        )
        self.swarm = SimSwarm(config)
        self.swarm.heard = self._heard
        self._steps = 0
        self._lost_s: float | None = None
        self._done: asyncio.Future[float]

    async def play(self) -> float:
        """The seconds from the second loss to the next step."""
        self._done = asyncio.get_running_loop().create_future()
        playing = asyncio.create_task(self.swarm.play())
        took_s = await self._done
        playing.cancel()
        await asyncio.wait((playing,))
        return took_s

    def _heard(self, report: Report) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(report, StepDone) or self._done.done():
            return
        self._steps += 1
        if self._steps == AFTER_STEPS:
            loop.call_later(self._first_s, self._lose_the_coordinator)
        elif self._lost_s is not None:
            self._done.set_result(loop.time() - self._lost_s)

    def _lose_the_coordinator(self) -> None:
        seats = self.swarm.trainers.seats
        leader = next(seat for seat, machine in enumerate(seats) if machine.leads)
        disk = seats[leader].disk.restored(self.swarm.trainers.genesis)
        voters = [voter.peer for voter in disk.follower.chain.head.voters]
        servers = range(TRAINERS, TRAINERS + SERVERS)
        (voting,) = (s for s in servers if self.swarm.process_at(s).host.peer.raw in voters)
        self._lose(leader)
        asyncio.get_running_loop().call_later(self._later_s, self._lose_the_voter, voting)

    def _lose_the_voter(self, seat: int) -> None:
        self._lost_s = asyncio.get_running_loop().time()
        self._lose(seat)

    def _lose(self, seat: int) -> None:
        self.swarm.end(seat, silent=False, same=True)
        asyncio.get_running_loop().call_later(AWAY_S, lambda: self.swarm.begin(seat, same=True))


def measured(seeds: int, later_s: tuple[float, float]) -> dict[str, float]:
    """The distribution over so many seeds."""
    took_s = sorted(run(SecondLoss(seed, later_s).play(), seed) for seed in range(seeds))
    return {
        "median_s": round(statistics.median(took_s), 1),
        "max_s": round(took_s[-1], 1),
        "waited": sum(one_s >= AWAY_S - 2 * later_s[1] for one_s in took_s),
    }


def main() -> None:
    """Play all seeds for each delay, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: at least 1 is needed")
    results = {}
    for name, later_s in LATER_S.items():
        one = results[name] = measured(options.seeds, later_s)
        print(
            f"the voter {name} after the coordinator: next step after {one['median_s']} s in the "
            f"median, {one['max_s']} s at most; {one['waited']} of {options.seeds} waited for a "
            "machine to come back",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps({"seeds": options.seeds, **results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
