"""A day of a fleet whose machines come and go, played with the rules that ship."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from p2pswarm.progress.events import Report
from p2pswarm.settings.config import RunConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.day_record import DayRecord, FleetSample, StepSample, best_rate
from p2pswarm.sim.devices import SimDevice
from p2pswarm.sim.network_conditions import Place, WorldConfig
from p2pswarm.sim.swarm import SimMachine, SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig
from p2pswarm.sim.traces import MachineStay
from p2pswarm.trainer.reports.reports import MemberLost, Replayed, StepDone

LEAVE_SHARE = 0.9  # of the notice, for a server to leave in; the rest is for its process to end
STEPS_MAX = 10**6  # more than a day has time for
PATIENCE = 2.0  # times the day: a run that takes longer is a bug


@dataclass(frozen=True, slots=True, kw_only=True)
class DayConfig:
    """The fleet, and what it trains."""

    run: RunConfig
    fleet: tuple[SimDevice, ...]
    stays: tuple[MachineStay, ...]
    """When each machine of the fleet is there."""
    seconds: float
    cost: Cost
    world: WorldConfig
    trainer_place: Place | None = None
    notice_s: float = 0.0
    """The notice before its end that a machine gets, if it gets any."""
    noticed: float = 0.0
    """The share of machines that are told."""
    checkpoint_steps: int | None = None
    """Steps from one checkpoint to the next; None: a run that has lost weights is over."""
    restore_s: float = 60.0
    """From the end of a run until the next one has read its checkpoint."""
    pressed: float = 1.0
    seed: int = 1

    @property
    def played_world(self) -> WorldConfig:
        """The network as it is played: the latencies are the day's."""
        world, network = self.world, self.world.network
        if network is not None:
            rates = tuple(tuple(rate * self.pressed for rate in row) for row in network.gbps)
            network = replace(network, gbps=rates)
        rate = world.bandwidth_bytes_per_s * self.pressed
        return replace(world, network=network, bandwidth_bytes_per_s=rate)

    def optimum(self, machines: Sequence[int]) -> float:
        """Microbatches a second of these machines at best, if moving cost nothing."""
        shares = self.cost.shares or (1.0,) * self.run.stages
        speeds = [self.fleet[machine].speed for machine in machines]
        return best_rate(speeds, shares) / self.cost.both_s


class SimDay:
    """One day; `play` it once.

    The trainer's machine stays. The others are there when their stays say so; a share of those
    that are taken hears of it beforehand and leaves, the rest end without a word, half of them as
    by a power cut. When a stage has lost its last weights the run ends, and the next one begins
    from the newest checkpoint with the machines that are there: what was done since then is done
    again.
    """

    def __init__(self, config: DayConfig) -> None:
        self._config = config
        self._record = DayRecord(config.run.stages, config.run.batch.microbatches)
        self._rng = Random(f"day {config.seed}")
        self._machines: dict[int, SimMachine | None] = {}
        """Those that are there, by their number in the fleet; None while no run has begun on it."""
        self._swarm: SimSwarm | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._runs = 0

    async def play(self) -> DayRecord:
        """Train for the day."""
        changes = asyncio.create_task(self._come_and_go())
        training = asyncio.create_task(self._train())
        await asyncio.wait((changes, training), return_when=asyncio.FIRST_COMPLETED)
        for task in (training, changes, *self._leaving):
            task.cancel()
        outcomes = await asyncio.gather(changes, training, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        self._record.ended_s = self._now_s()
        return self._record

    async def _train(self) -> None:
        """One run after another, until one has lost weights that no checkpoint has."""
        config = self._config
        while True:
            self._runs += 1
            swarm = SimSwarm(
                SwarmConfig(
                    seed=config.seed * 1000 + self._runs,
                    run=replace(config.run, steps=STEPS_MAX, on_stage_lost="end", min_replicas=1),
                    servers=0,
                    cost=replace(config.cost, forward_s=config.cost.forward_s / config.pressed),
                    world=config.played_world,
                    trainer_place=config.trainer_place,
                    patience_s=PATIENCE * config.seconds,
                )
            )
            swarm.heard = self._heard
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(swarm.play())
                await swarm.open.wait()
                self._swarm = swarm
                for machine in self._machines:
                    self._machines[machine] = swarm.join(device=config.fleet[machine])
            self._swarm = None
            self._machines = dict.fromkeys(self._machines)
            every = config.checkpoint_steps
            self._record.on_run_loss(self._now_s(), every)
            if every is None:
                await asyncio.get_running_loop().create_future()  # nobody trains any more
            await asyncio.sleep(config.restore_s / config.pressed)

    async def _come_and_go(self) -> None:
        config = self._config
        moments = sorted({stay.begin_s for stay in config.stays} | {s.end_s for s in config.stays})
        for at_s in (*(at_s for at_s in moments if at_s < config.seconds), config.seconds):
            await asyncio.sleep(max(0.0, at_s - self._now_s()) / config.pressed)
            for stay in config.stays:
                if stay.end_s == at_s:
                    self._take(stay.machine)
            for stay in config.stays:
                if stay.begin_s == at_s < config.seconds:
                    device = config.fleet[stay.machine]
                    joined = self._swarm.join(device=device) if self._swarm else None
                    self._machines[stay.machine] = joined
            there = sorted(self._machines)
            sample = FleetSample(self._now_s(), len(there), config.optimum(there))
            self._record.fleets.append(sample)

    def _take(self, machine: int) -> None:
        """A cloud takes a machine away."""
        config, gone = self._config, self._machines.pop(machine)
        told = config.notice_s > 0 and self._rng.random() < config.noticed
        silent = self._rng.random() < 1 / 2
        self._record.taken += 1
        self._record.told += told
        if gone is None or self._swarm is None or gone.died_s is not None:
            return
        if told:
            notice_s = config.notice_s / config.pressed
            leaving = self._swarm.dismiss(gone, notice_s, LEAVE_SHARE * notice_s)
            task = asyncio.create_task(leaving)
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        else:
            self._swarm.kill(gone, silent=silent)

    def _heard(self, report: Report) -> None:
        record, now_s = self._record, self._now_s()
        match report:
            case StepDone(microbatches=microbatches):
                record.step(StepSample(now_s, microbatches, self._members()))
            case Replayed(microbatches=again):
                record.waste["attempts done again"] += len(again)
            case MemberLost(voided=voided):
                record.waste["counts that were void"] += voided
                record.lost += 1

    def _members(self) -> tuple[int, ...]:
        """Return the number of servers of each stage that hold weights."""
        assert self._swarm is not None, "it has just reported a step"
        alive = [one for one in self._swarm.machines if one.died_s is None]
        counts = Counter(one.server.stage for one in alive if one.server.version is not None)
        return tuple(counts[stage] for stage in range(self._config.run.stages))

    def _now_s(self) -> float:
        """Seconds of the day."""
        return asyncio.get_running_loop().time() * self._config.pressed
