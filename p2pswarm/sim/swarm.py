"""A whole run in one process: trainers, stage servers, links and deaths, from one seed.

Errors:  AssertionError when a microbatch was not counted exactly once; TimeoutError when the run
         takes longer than `patience_s`. A run that fails is a result, not an error.
"""

import asyncio
import contextlib
import functools
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.ids import PeerId
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.progress.events import Report
from p2pswarm.run.chain.chain_log import VoterRecords
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.record import MEMORY_BYTES
from p2pswarm.run.messages.trainers import WhoLeads
from p2pswarm.run.router import Router
from p2pswarm.server.leadership import Seeker
from p2pswarm.server.member_session import ServerContext
from p2pswarm.server.stage_server import StageServer
from p2pswarm.settings.parser import run_id, run_to_json
from p2pswarm.sim.compute import Processor, sim_engine
from p2pswarm.sim.devices import DriftingProcessor, SimDevice, SpeedDrift
from p2pswarm.sim.faults import FaultInjection
from p2pswarm.sim.network_conditions import Place
from p2pswarm.sim.rpc import SimRpc, SimWorld
from p2pswarm.sim.swarm_run import (
    ChainDisk,
    MachineRecord,
    SwarmConfig,
    SwarmResult,
    may_die,
    may_lose_disk,
    may_lose_memory,
    result_of,
)
from p2pswarm.sim.swarm_trainers import SwarmTrainers, TrainerMachine
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.trainer.reports.reports import RunBegun, RunFinished, StepDone

T = TypeVar("T")

JOIN_EVERY_S = 0.05  # between two servers that join
ANSWER_S = 2.0  # for a trainer to show that it lives, when a server looks the run up
REGION_RADIUS = 0.03  # of the unit square: machines of a region are close to each other


@dataclass(slots=True)
class SimMachine:
    """A server and what it runs on."""

    rpc: SimRpc
    processor: Processor
    disk: MemoryChain
    """Where its voter keeps its promises; a machine that comes back as the same peer has it."""
    born_s: float
    server: StageServer
    task: asyncio.Task[None]
    died_s: float | None = None
    gone: bool = False
    """True if its disk is lost, too."""

    @property
    def chain_disk(self) -> ChainDisk:
        """Its voter's chain."""
        return ChainDisk(self.rpc.host.peer.raw, self.disk)

    @property
    def record(self) -> MachineRecord:
        """The machine as it is now, whether it is a member or not."""
        server = self.server
        busy_s, stage = self.processor.busy_s, server.stage
        return MachineRecord(self.born_s, self.died_s, busy_s, stage, server.version, server.newest)


class SimSwarm:
    """One run; `play` it once.

    Trainers and servers are the real ones: votes, routing, fencing, averaging and state transfer
    run unchanged. The network is `sim/rpc.py`, and the processors are `sim/compute.py`. Machines
    differ in speed, are placed in regions, and die. Each process, a trainer's too, runs in a
    context of its own, so that it can be stopped.
    """

    def __init__(
        self,
        config: SwarmConfig,
        counted: Callable[[PeerId, int, int], None] = lambda _peer, _stage, _number: None,
    ) -> None:
        """`counted` is told the peer, the stage and the number of each microbatch it counts."""
        self.config = config
        self.world = SimWorld(config.seed, config.world)
        self.reports: list[Report] = []
        self.machines: list[SimMachine] = []
        """All servers that ever came, in the order in which they came."""
        self.faults = FaultInjection(config.faults, self, self.world)
        self.trainers: SwarmTrainers
        """All trainers; there from `play` on."""
        self.heard: Callable[[Report], None] = lambda _report: None
        """Called with each report of a trainer that leads."""
        self.between: Callable[[int, Rpc], Rpc] = lambda _number, rpc: rpc
        """Puts something between a server and its calls, by the order in which servers come."""
        self.open = asyncio.Event()
        """Set once the trainers are there: servers may join."""
        self._told_of = counted
        self._filled: dict[int, set[tuple[int, int]]] = {}
        """The stages and numbers of the microbatches that were counted, by step."""
        self._rng = random.Random(config.seed)
        self._run_id = run_id(run_to_json(config.run))
        self._begun_s = 0.0
        self._disks = random.Random(f"disks {config.seed}")
        self._seats: list[int] = []
        """The machine in each server's seat."""
        self._tasks: asyncio.TaskGroup

    async def play(self) -> SwarmResult:
        """Train to the end of the run."""
        config = self.config
        async with asyncio.timeout(config.patience_s), asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self.trainers = SwarmTrainers(
                self._run_id,
                config.run,
                self.world,
                config.seed,
                self._trainer_place,
                self._trainer_says,
                tasks,
            )
            coming = tasks.create_task(self._come())
            ended = await self.trainers.first_done
            coming.cancel()
            self.trainers.release()
            for machine in self.machines:
                machine.task.cancel()
                machine.rpc.suspension.release()
        return self._result(ended)

    @property
    def seats(self) -> int:
        """The trainers, and then the servers that came first, as far as they have come."""
        return self.config.trainers + len(self._seats)

    @property
    def useful_share(self) -> float:
        """The share of all computing so far that is in the weights.

        Each microbatch of a step counts once forward and once backward in each stage. Whatever was
        begun besides is waste: what was done again or was cut short, evaluations, spot checks.
        """
        run, processors = self.config.run, [machine.processor for machine in self.machines]
        begun_s = sum(one.busy_s * one.speed for one in processors)
        steps = sum(isinstance(report, StepDone) for report in self.reports)
        passes = steps * run.batch.microbatches * run.stages
        return passes * self.config.cost.both_s / begun_s

    def process_at(self, seat: int) -> SimRpc:
        """The process of a seat, dead or alive."""
        trainers = self.config.trainers
        return self.trainers.seats[seat].rpc if seat < trainers else self._machine_at(seat).rpc

    def may_end(self, seat: int, *, same: bool) -> bool:
        """Return whether the run can go on when a seat's machine ends; `same`: it comes back."""
        if seat < self.config.trainers:
            return same or self._may_lose_disk(self.trainers.seats[seat].chain_disk)
        return self._may_lose(self._seats[seat - self.config.trainers], same=same)

    def _may_lose(self, number: int, *, same: bool) -> bool:
        """Return whether the run can go on when the server that came n-th ends."""
        leader = self.trainers.leader
        ready = leader.trainer.coordinator.members.ready() if leader else []
        peers = {member.incarnation.peer for member in ready}
        records = [
            replace(one.record, member=one.rpc.host.peer.raw in peers) for one in self.machines
        ]
        weights = may_lose_memory(records, number)
        return weights and (same or self._may_lose_disk(self.machines[number].chain_disk))

    def end(self, seat: int, *, silent: bool, same: bool) -> None:
        """End the process of a seat."""
        if seat < self.config.trainers:
            self.trainers.end(seat, silent=silent, same=same)
        else:
            self.kill(self._machine_at(seat), silent=silent, same=same)

    def begin(self, seat: int, *, same: bool) -> None:
        """Let a machine take a seat: the same peer as before, or a new one."""
        if seat < self.config.trainers:
            self.trainers.begin(seat, same=same)
            return
        before = self._machine_at(seat)
        self._seats[seat - self.config.trainers] = len(self.machines)
        self.join(before if same else None)

    def wipe(self, seat: int) -> None:
        """Lose the disk of a seat's machine, which has ended."""
        disk = MemoryChain(self._disks.randbytes(MEMORY_BYTES))
        if seat < self.config.trainers:
            self.trainers.seats[seat].disk = disk
        else:
            self._machine_at(seat).disk = disk

    def processor_at(self, seat: int) -> Processor | None:
        """Return what a seat's machine computes with; a trainer computes nothing."""
        return None if seat < self.config.trainers else self._machine_at(seat).processor

    def visit(self, *, trainer: bool, silent: bool) -> Callable[[], None]:
        """Let a machine without a seat come; returns what ends it, unless the run needs it then."""
        if trainer:
            self.trainers.come()
            seat = len(self.trainers.seats) - 1

            def leave() -> None:
                if self._may_lose_disk(self.trainers.seats[seat].chain_disk):
                    self.trainers.end(seat, silent=silent, same=False)
        else:
            visitor, number = self.join(), len(self.machines) - 1

            def leave() -> None:
                if visitor.died_s is None and self._may_lose(number, same=False):
                    self.kill(visitor, silent=silent)

        return leave

    def kill(self, machine: SimMachine, *, silent: bool, same: bool = False) -> None:
        """End a machine's process; `silent` as a power cut does."""
        machine.task.cancel()
        machine.died_s = asyncio.get_running_loop().time()
        machine.gone = not same
        machine.disk = machine.disk.copy()  # what the old process still writes, nobody reads
        self.world.kill(machine.rpc.host.peer, silent=silent)

    async def dismiss(self, machine: SimMachine, notice_s: float, grace_s: float) -> None:
        """Tell a machine, as SIGTERM does, that it will end: it leaves, or is ended in the end.

        `notice_s`: when its cloud ends it. `grace_s`: the most that its server takes to leave.
        """
        leaving = _task_of(self._tasks, machine.rpc, machine.server.leave(grace_s))
        await asyncio.wait((leaving, machine.task), timeout=notice_s)
        leaving.cancel()
        if machine.died_s is None:
            self.kill(machine, silent=False)

    def _may_lose_disk(self, victim: ChainDisk) -> bool:
        disks = [one.chain_disk for one in self.trainers.seats if not one.gone]
        disks += [one.chain_disk for one in self.machines if not one.gone]
        return may_lose_disk(disks, victim, self.trainers.genesis)

    async def _come(self) -> None:
        """Let servers join, die, and be replaced by others."""
        for _ in range(self.config.trainers):
            self.trainers.come()
        self.open.set()
        for number in range(self.config.servers):
            self._seats.append(number)
            self.join()
            await asyncio.sleep(JOIN_EVERY_S)
        for pause_s in self.config.latecomers_s:
            await asyncio.sleep(pause_s)
            self.join()
        while self.config.death_every_s:
            await asyncio.sleep(self._rng.expovariate(1 / self.config.death_every_s))
            victims = may_die([machine.record for machine in self.machines])
            if not victims:
                continue
            victim = self.machines[self._rng.choice(victims)]
            if not self._may_lose_disk(victim.chain_disk):
                continue
            self.kill(victim, silent=self._rng.random() < 1 / 2)
            await asyncio.sleep(self.config.rebirth_s)
            self.join()

    def _machine_at(self, seat: int) -> SimMachine:
        return self.machines[self._seats[seat - self.config.trainers]]

    def join(self, before: SimMachine | None = None, device: SimDevice | None = None) -> SimMachine:
        """Start a server, as a new peer or as one that was here; on `device`, or the next one."""
        config, number = self.config, len(self.machines)
        if device is None:
            device = self._device(number)
        place: Place | None = None
        if before is not None:
            peer, disk = before.rpc.host.peer, before.disk
        else:
            peer, drawn = PeerId(self._rng.randbytes(32)), self._place(number, self._rng)
            place = drawn if device.place is None else device.place
            disk = MemoryChain(self._disks.randbytes(MEMORY_BYTES))
        rpc = self.world.rpc(peer, place)
        first, *others = self.trainers.contacts or [self.trainers.seats[0].rpc.contact]
        processor = self._processor(device, number)
        rng = random.Random(self._rng.random())
        count = functools.partial(self._counted, rpc.host.peer)
        share, chance = config.wrong.get(number, 0.0), random.Random(f"{config.seed} {number}")
        wrong = (lambda: chance.random() < share) if share else (lambda: False)
        context = ServerContext(
            rpc=self.between(number, rpc),
            tensors=TensorTransfer(Budget()),
            run=config.run,
            run_id=self._run_id,
            trainer=first,
            standbys=tuple(others),
            voter=VoterRecords(disk, disk.restored(self.trainers.genesis)),
            compute=processor,
            make_engine=lambda stage: sim_engine(
                config.run, stage, config.cost, processor, count, wrong
            ),
            make_router=lambda: Router(rng),
            stage=device.stage,
            kept_bytes=config.kept_bytes,
            free_bytes=lambda: config.free_bytes,
        )
        now_s = asyncio.get_running_loop().time()
        server = StageServer(context)
        task = _task_of(self._tasks, rpc, self._serve(server, rpc))
        machine = SimMachine(rpc, processor, disk, now_s, server, task)
        self.machines.append(machine)
        return machine

    async def _serve(self, server: StageServer, rpc: SimRpc) -> None:
        """Serve until the run ends; the run copes with a server that gives up."""
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._look_up(server.seeker, rpc))
            try:
                await server.run()
            except SwarmError:
                return
            finally:
                looking.cancel()

    async def _look_up(self, seeker: Seeker, rpc: SimRpc) -> None:
        """Tell a server that looks for a trainer which ones answer, as the DHT would help it to."""
        while True:
            await asyncio.sleep(await seeker.seeking())
            there = []
            for trainer in self.trainers.contacts:
                with contextlib.suppress(SwarmError):  # it does not answer, so it is not there
                    await rpc.call(trainer, WhoLeads(self._run_id), ANSWER_S)
                    there.append(trainer)
            seeker.found(there)

    def _counted(self, peer: PeerId, stage: int, number: int) -> None:
        """A server adds a microbatch to its sum; the last of a step begins its end."""
        run = self.config.run
        step = number // run.batch.microbatches
        filled = self._filled.setdefault(step, set())
        full = run.stages * run.batch.microbatches
        if (stage, number) not in filled and len(filled) == full - 1:
            self.faults.on_step_work(step)
        filled.add((stage, number))
        self._told_of(peer, stage, number)

    def _trainer_says(self, machine: TrainerMachine, report: Report) -> None:
        if not machine.rpc.running:
            return  # a process that was ended has nobody to tell
        if isinstance(report, RunBegun) and not self._begun_s:
            self._begun_s = asyncio.get_running_loop().time()
            self.faults.start(asyncio.get_running_loop())
        self.reports.append(report)
        self.heard(report)

    def _place(self, number: int, rng: random.Random) -> tuple[float, float]:
        x, y = self.config.regions[number % len(self.config.regions)]
        x += rng.uniform(-REGION_RADIUS, REGION_RADIUS)
        return x, y + rng.uniform(-REGION_RADIUS, REGION_RADIUS)

    def _trainer_place(self, number: int, rng: random.Random) -> Place:
        drawn, chosen = self._place(number, rng), self.config.trainer_place
        return drawn if chosen is None else chosen

    def _device(self, number: int) -> SimDevice:
        config = self.config
        if config.devices:
            return config.devices[number % len(config.devices)]
        return SimDevice(speed=config.speeds[number % len(config.speeds)])

    def _processor(self, device: SimDevice, number: int) -> Processor:
        if not device.drift:
            return Processor(device.speed)
        chance = random.Random(f"drift {self.config.seed} {number}")
        drift = SpeedDrift(device.speed, device.drift, chance)
        return DriftingProcessor(drift, asyncio.get_running_loop().time)

    def _result(self, ended: RunFinished) -> SwarmResult:
        return result_of(
            ended=ended,
            reports=self.reports,
            machines=[machine.record for machine in self.machines],
            begun_s=self._begun_s,
            ended_s=asyncio.get_running_loop().time(),
            trainer_bytes=sum(one.rpc.host.sent_bytes for one in self.trainers.seats),
            moved_bytes=sum(host.sent_bytes for host in self.world.world.hosts.values()),
            world_digest=self.world.digest,
        )


def _task_of(
    tasks: asyncio.TaskGroup, rpc: SimRpc, work: Coroutine[Any, Any, T]
) -> asyncio.Task[T]:
    """A task that belongs to a process: it rests while the process is stopped."""
    return tasks.create_task(work, context=rpc.suspension.context.copy())
