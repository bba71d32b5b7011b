"""A day of rented machines that are taken away, after traces of real clouds, in virtual time.

    python bench/preemptions.py [--trace NAME] [--hours 24] [--servers 100] [--seed 1] [--json FILE]

One trainer has a machine that stays. The servers' machines come and go as sim/spot_traces.json has
it: a trace with fewer machines is laid side by side, each zone at another hour of it, and scaled to
`--servers`. Which machine of a zone is taken is chance. A share of them (`--noticed`) hears of it
beforehand, as the cloud promises, and its server leaves; the others are ended without a word, half
of them as by a power cut. Nobody sees to it that a stage keeps a server.

`useful` is the share of the servers' computing that is in the weights: each microbatch once forward
and once backward in each stage, over all that was begun. What was done again, for whatever reason,
is in what was begun, and so is what a machine had begun when it was taken. The simulated weights
are counts, and raise an error unless each microbatch is counted once; the chain is checked besides,
by check_chain.py.

A hundred servers that speak each second for a day are a hundred million events. So the day is
pressed: what the trace, the processors and the links take is `--pressed` times shorter, and what
the protocol takes is not: a server still counts as silent after 4 s, a link as lost after 15 s.
These are the same preemptions in as many steps, under a protocol that is slower by that factor, so
it is harder than the day. `--pressed 1` plays every second. What is told is in seconds of the day,
but for `processor_s`, which the simulation took.
"""

import argparse
import asyncio
import logging
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from check_chain import Wrong, check
from results import command_line, write_json

from p2pswarm.progress.events import Report
from p2pswarm.run.chain.chain_log import log_entry, log_header
from p2pswarm.settings.config import BatchConfig, ModelConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.swarm import SimMachine, SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.sim.traces import HOUR_S, Trace, shipped_traces, trace_of
from p2pswarm.trainer.reports.reports import MemberLost, Replayed, RunFinished, StepDone, SumVoided

STATE_BYTES = 32 << 20
BYTES_PER_S = 1e6  # so a newcomer downloads for half a minute, as of many GB over a good link
MARGIN_S = 10.0  # between the end of a server's grace and that of its machine
REGIONS = ((0.1, 0.1), (0.9, 0.1), (0.5, 0.9))


@dataclass(frozen=True, slots=True)
class FleetChange:
    """Machines come to a zone (above 0), or are taken from it."""

    at_s: float
    zone: int
    machines: int


def fleet_changes(trace: Trace, servers: int, hours: float) -> list[FleetChange]:
    """Return the changes of a fleet that has at most about so many servers.

    A trace with fewer machines is laid side by side, each zone at another hour of it, and scaled.
    """
    zones = max(1, round(servers / trace.most))
    scale = servers / zones / trace.most
    found = []
    for zone in range(zones):
        there = 0
        for at_s, count in turned(trace, zone * trace.seconds / zones).for_hours(hours):
            wanted = round(count * scale)
            if wanted != there:
                found.append(FleetChange(at_s, zone, wanted - there))
            there = wanted
    return sorted(found, key=lambda change: (change.at_s, change.zone))


def turned(trace: Trace, later_s: float) -> Trace:
    """The same, but for its beginning: it begins so much later, and goes round."""
    before = [(at_s, count) for at_s, count in trace.counts if at_s <= later_s]
    after = [(at_s, count) for at_s, count in trace.counts if at_s > later_s]
    then = before[-1][1] if before else trace.counts[-1][1]
    counts = [(0.0, then), *((at_s - later_s, count) for at_s, count in after)]
    counts += [(at_s + trace.seconds - later_s, count) for at_s, count in before]
    return replace(trace, counts=tuple(counts))


class Day:
    """One run on such a fleet."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._trace = trace_of(options.trace)
        self._changes = fleet_changes(self._trace, options.servers, options.hours)
        self._noticed, self._pressed = options.noticed, options.pressed
        self._ends_s = options.hours * HOUR_S / options.pressed
        self._rng = Random(f"preemptions {options.seed}")
        self._config = SwarmConfig(
            seed=options.seed,
            run=small_run(
                stages=options.stages,
                steps=10**6,  # more than the day has time for
                min_replicas=1,
                model=ModelConfig(d_model=8, layers=options.stages, heads=4, sequence_length=8),
                batch=BatchConfig(microbatches=options.microbatches, rows=1, evaluate_every=0),
            ),
            trainers=options.trainers,
            servers=0,
            regions=REGIONS,
            cost=Cost(forward_s=options.forward_s / options.pressed, state_bytes=STATE_BYTES),
            world=WorldConfig(bandwidth_bytes_per_s=BYTES_PER_S * options.pressed),
            patience_s=2 * self._ends_s,
        )
        self._swarm = SimSwarm(self._config)
        self._swarm.heard = self._heard
        self._zones: dict[int, list[SimMachine]] = {}
        self._ends: list[asyncio.Task[None]] = []
        self._steps_s: list[float] = []
        self._hours_told = 0
        self._waste: Counter[str] = Counter()
        self.taken = self.told = 0
        self._there: list[int] = []

    async def play(self) -> dict[str, object]:
        """Train for the day; what came of it."""
        playing = asyncio.create_task(self._swarm.play())
        coming = asyncio.create_task(self._come_and_go())
        await asyncio.wait((playing, coming), return_when=asyncio.FIRST_COMPLETED)
        if playing.done():  # the run is over before the day: this raises what ended it
            ended = playing.result().ended
            coming.cancel()
        else:
            ended = None
        result = self._result(ended)
        playing.cancel()
        await asyncio.wait((playing,))
        return result

    async def _come_and_go(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.0)  # the trainer is there first
        for change in self._changes:
            await asyncio.sleep(max(0.0, change.at_s / self._pressed - loop.time()))
            zone = self._zones.setdefault(change.zone, [])
            for _ in range(abs(change.machines)):
                if change.machines > 0:
                    zone.append(self._swarm.join())
                else:
                    self._take(zone.pop(self._rng.randrange(len(zone))))
        await asyncio.sleep(self._ends_s - loop.time())

    def _take(self, machine: SimMachine) -> None:
        """A cloud takes a machine away."""
        self.taken += 1
        if self._rng.random() >= self._noticed:
            self._swarm.kill(machine, silent=self._rng.random() < 1 / 2)
            return
        self.told += 1
        notice_s = self._trace.notice_s / self._pressed
        grace_s = notice_s - MARGIN_S / self._pressed
        leaving = self._swarm.dismiss(machine, notice_s, grace_s)
        self._ends.append(asyncio.create_task(leaving))

    def _heard(self, report: Report) -> None:
        match report:
            case StepDone():
                self._steps_s.append(asyncio.get_running_loop().time())
                alive = sum(machine.died_s is None for machine in self._swarm.machines)
                self._there.append(alive)
                self._tell_hour()
            case MemberLost(reason=reason, voided=voided):
                self._waste[f"lost: {_short(reason)}"] += 1
                self._waste["counts that were void"] += voided
            case SumVoided(microbatches=voided):
                self._waste["counts that were void"] += voided
            case Replayed(microbatches=again):
                self._waste["attempts done again"] += len(again)

    def _tell_hour(self) -> None:
        """Print how the day stands, once an hour of it: a day that is cut off has told so much.

        The weights have raised an error if a microbatch of these steps is lost or doubled.
        """
        hours = int(self._pressed * self._steps_s[-1] / HOUR_S)
        if hours > self._hours_told:
            self._hours_told = hours
            steps, useful, chain = len(self._steps_s), self._swarm.useful_share, self._counts()
            told = f"hour {hours}: {steps} steps, useful {useful:.4f}, chain {chain['chain']}"
            print(f"{told}, {self.taken} machines taken, {dict(self._waste)}", flush=True)

    def _result(self, ended: RunFinished | None) -> dict[str, object]:
        pressed = self._pressed
        took_s = [pressed * (b - a) for a, b in zip(self._steps_s, self._steps_s[1:], strict=False)]
        if not took_s:
            why = "the day was too short" if ended is None else ended.reason
            sys.exit(f"{len(self._steps_s)} steps were done: {why}; take more --servers or --hours")
        return {
            "hours": round(pressed * asyncio.get_running_loop().time() / HOUR_S, 2),
            "machines_mean": round(statistics.fmean(self._there), 1),
            "machines_taken": self.taken,
            "of_them_told": self.told,
            "runs_ended": int(ended is not None),
            "steps": len(self._steps_s),
            "step_median_s": round(statistics.median(took_s), 1),
            "longest_stall_s": round(max(took_s), 1),
            "useful": round(self._swarm.useful_share, 4),
            **self._counts(),
            "waste": dict(self._waste.most_common()),
        }

    def _counts(self) -> dict[str, object]:
        """What the trainer's chain says of every microbatch."""
        disk, run_config = self._swarm.trainers.seats[0].disk, self._config.run
        head = disk.restored(self._swarm.trainers.genesis).learner.chain.head
        records = disk.records(0, head.height)
        header = log_header(self._swarm.trainers.genesis.run, disk.memory)
        try:
            found = check(header + b"".join(map(log_entry, records)))
        except Wrong as wrong:
            return {"chain": str(wrong)}
        steps = found["steps"]
        return {"chain": "whole", "microbatches": steps * run_config.batch.microbatches}


def _short(reason: str) -> str:
    """Why a member was lost, without its name."""
    return "the link to it is lost" if reason.startswith("the link to") else reason


def main() -> int:
    """Play a day and print what became of it."""
    options = options_of(sys.argv[1:])
    logging.disable(logging.WARNING)  # each machine that is taken is one
    begun_s = time.process_time()
    found = run(Day(options).play(), options.seed)
    found["processor_s"] = round(time.process_time() - begun_s, 1)
    print("\n".join(f"{name}: {value}" for name, value in found.items()))
    write_json(options.json, {**vars(options), "json": "", **found})
    return int(found["useful"] < 0.95 or found["runs_ended"] or found["chain"] != "whole")


def options_of(words: Sequence[str]) -> argparse.Namespace:
    """The options of a day, from the words of a command line."""
    parser = command_line(__doc__)
    parser.add_argument("--trace", choices=shipped_traces(), default="aws_p3")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--servers", type=int, default=100)
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--noticed", type=float, default=0.5, help="share that is told beforehand")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=200)
    parser.add_argument("--forward-s", type=float, default=1.0)
    parser.add_argument("--pressed", type=float, default=5.0, help="how much shorter than the day")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
