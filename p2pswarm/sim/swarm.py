"""A whole run in one process: trainer, stage servers, links and deaths, from one seed.

Trainer and servers are the real ones: routing, fencing, averaging and state transfer run unchanged.
The network is `sim/rpc.py`, and the processors are `sim/compute.py`. Machines differ in speed, are
placed in regions, and die. Each process, the trainer's too, runs in a context of its own, so that
it can be stopped.

Units:   virtual seconds, bytes.
Errors:  AssertionError when a microbatch was not counted exactly once; TimeoutError when the run
         takes longer than `patience_s`. A run that fails is a result, not an error.
"""

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from p2pswarm.crypto.identity import Identity
from p2pswarm.errors import SwarmError
from p2pswarm.ids import PeerId
from p2pswarm.server.session import ServerContext
from p2pswarm.server.stage_server import StageServer
from p2pswarm.settings import run_id, run_to_json
from p2pswarm.sim.compute import Processor, numbered_corpus, sim_engine
from p2pswarm.sim.fault_injection import FaultInjection
from p2pswarm.sim.rpc import SimRpc, SimWorld
from p2pswarm.sim.swarm_run import (
    MachineRecord,
    RunRecord,
    SwarmConfig,
    SwarmResult,
    may_die,
    may_lose_memory,
)
from p2pswarm.swarm.router import Router
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.trainer import actions as act
from p2pswarm.trainer.context import TrainerContext
from p2pswarm.trainer.trainer import Trainer

T = TypeVar("T")

JOIN_EVERY_S = 0.05  # between two servers that join
REGION_RADIUS = 0.03  # of the unit square: machines of a region are close to each other


@dataclass(slots=True)
class _Machine:
    """A server and what it runs on."""

    rpc: SimRpc
    processor: Processor
    born_s: float
    server: StageServer
    task: asyncio.Task[None]
    died_s: float | None = None

    @property
    def record(self) -> MachineRecord:
        """The machine as it is now."""
        server = self.server
        busy_s = self.processor.busy_s
        return MachineRecord(self.born_s, self.died_s, busy_s, server.stage, server.version)


class SimSwarm:
    """One run; `play` it once."""

    def __init__(
        self,
        config: SwarmConfig,
        counted: Callable[[PeerId, int, int], None] = lambda _peer, _stage, _number: None,
    ) -> None:
        """`counted` is told the peer, the stage and the number of each microbatch it counts."""
        self.config = config
        self.world = SimWorld(config.seed, config.world)
        self.reports: list[act.Report] = []
        self.machines: list[_Machine] = []
        """All servers that ever came, in the order in which they came."""
        self.faults = FaultInjection(config.faults, self, self.world)
        self.trainer: Trainer | None = None
        """None before `play`."""
        self.heard: Callable[[act.Report], None] = lambda _report: None
        """Called with each report of the trainer."""
        self._told_of = counted
        self._filled: dict[int, set[tuple[int, int]]] = {}
        """The stages and numbers of the microbatches that were counted, by step."""
        self._rng = random.Random(config.seed)
        self._identity = Identity.generate(config.seed.to_bytes(16))
        self._trainer_rpc = self.world.rpc(self._identity.peer_id, self._place(0))
        self._run_id = run_id(run_to_json(config.run))
        self._begun_s = 0.0
        self._seats: list[int] = []
        """Which machine has each server's seat."""
        self._tasks: asyncio.TaskGroup

    async def play(self) -> SwarmResult:
        """Train to the end of the run."""
        config = self.config
        async with asyncio.timeout(config.patience_s), asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            coming = tasks.create_task(self._come())
            ended = await _task_of(tasks, self._trainer_rpc, self._train())
            coming.cancel()
            for machine in self.machines:
                machine.task.cancel()
                machine.rpc.suspension.release()
        return self._result(ended)

    @property
    def seats(self) -> int:
        """The trainer, and the servers that came first."""
        return 1 + self.config.servers

    def process_at(self, seat: int) -> SimRpc:
        """The process of a seat, dead or alive."""
        return self._machine_at(seat).rpc if seat else self._trainer_rpc

    def may_end(self, seat: int) -> bool:
        """Whether the run can go on without the memory of a seat's machine."""
        records = [machine.record for machine in self.machines]
        return seat > 0 and may_lose_memory(records, self._seats[seat - 1])

    def end(self, seat: int, *, silent: bool) -> None:
        """End the server of a seat."""
        self.kill(self._machine_at(seat), silent=silent)

    def begin(self, seat: int, *, same: bool) -> None:
        """Let a server take a seat: the same peer as before, or a new one."""
        before = self._machine_at(seat).rpc.host.peer
        self._seats[seat - 1] = len(self.machines)
        self._join(before if same else None)

    def kill(self, machine: _Machine, *, silent: bool) -> None:
        """End a machine's process; `silent` as a power cut does."""
        machine.task.cancel()
        machine.died_s = asyncio.get_running_loop().time()
        self.world.kill(machine.rpc.host.peer, silent=silent)

    async def _train(self) -> act.RunFinished:
        async with Trainer(self._trainer_context()) as self.trainer:
            return await self.trainer.run()

    async def _come(self) -> None:
        """Let servers join, die, and be replaced by others."""
        for number in range(self.config.servers):
            self._seats.append(number)
            self._join()
            await asyncio.sleep(JOIN_EVERY_S)
        for pause_s in self.config.latecomers_s:
            await asyncio.sleep(pause_s)
            self._join()
        while self.config.death_every_s:
            await asyncio.sleep(self._rng.expovariate(1 / self.config.death_every_s))
            victims = may_die([machine.record for machine in self.machines])
            if not victims:
                continue
            victim = self.machines[self._rng.choice(victims)]
            self.kill(victim, silent=self._rng.random() < 1 / 2)
            await asyncio.sleep(self.config.rebirth_s)
            self._join()

    def _machine_at(self, seat: int) -> _Machine:
        return self.machines[self._seats[seat - 1]]

    def _join(self, peer: PeerId | None = None) -> None:
        """Start a server, as a new peer or as one that was here."""
        config, number = self.config, len(self.machines)
        peer, place = (
            (peer, None) if peer else (PeerId(self._rng.randbytes(32)), self._place(number))
        )
        rpc = self.world.rpc(peer, place)
        processor = Processor(config.speeds[number % len(config.speeds)])
        rng = random.Random(self._rng.random())
        count = functools.partial(self._counted, rpc.host.peer)
        share, chance = config.wrong.get(number, 0.0), random.Random(f"{config.seed} {number}")
        wrong = (lambda: chance.random() < share) if share else (lambda: False)
        context = ServerContext(
            rpc=rpc,
            tensors=TensorTransfer(Budget()),
            run=config.run,
            run_id=self._run_id,
            trainer=self._trainer_rpc.contact,
            compute=processor,
            make_engine=lambda stage: sim_engine(
                config.run, stage, config.cost, processor, count, wrong
            ),
            make_router=lambda: Router(rng),
        )
        now_s = asyncio.get_running_loop().time()
        server = StageServer(context)
        task = _task_of(self._tasks, rpc, _serve(server))
        self.machines.append(_Machine(rpc, processor, now_s, server, task))

    def _trainer_context(self) -> TrainerContext:
        config, rpc = self.config, self._trainer_rpc
        return TrainerContext(
            rpc=rpc,
            tensors=TensorTransfer(Budget()),
            run=config.run,
            run_id=self._run_id,
            corpus=numbered_corpus(config.run),
            report=self._heard,
            rng=random.Random(self._rng.random()),
        )

    def _counted(self, peer: PeerId, stage: int, number: int) -> None:
        """A server adds a microbatch to its sum; the last of a step begins its end."""
        run = self.config.run
        step = number // run.batch.microbatches
        filled = self._filled.setdefault(step, set())
        full = run.stages * run.batch.microbatches
        if (stage, number) not in filled and len(filled) == full - 1:
            self.faults.step_counted(step)
        filled.add((stage, number))
        self._told_of(peer, stage, number)

    def _heard(self, report: act.Report) -> None:
        if isinstance(report, act.RunBegun):
            self._begun_s = asyncio.get_running_loop().time()
            self.faults.start(asyncio.get_running_loop())
        self.reports.append(report)
        self.heard(report)

    def _place(self, number: int) -> tuple[float, float]:
        x, y = self.config.regions[number % len(self.config.regions)]
        x += self._rng.uniform(-REGION_RADIUS, REGION_RADIUS)
        return x, y + self._rng.uniform(-REGION_RADIUS, REGION_RADIUS)

    def _result(self, ended: act.RunFinished) -> SwarmResult:
        record = RunRecord(
            ended=ended,
            reports=self.reports,
            machines=[machine.record for machine in self.machines],
            begun_s=self._begun_s,
            ended_s=asyncio.get_running_loop().time(),
            trainer_bytes=self._trainer_rpc.host.sent_bytes,
            sent_bytes=[host.sent_bytes for host in self.world.world.hosts.values()],
            world_digest=self.world.digest,
        )
        return record.result()


def _task_of(
    tasks: asyncio.TaskGroup, rpc: SimRpc, work: Coroutine[Any, Any, T]
) -> asyncio.Task[T]:
    """A task that belongs to a process: it rests while the process is stopped."""
    return tasks.create_task(work, context=rpc.suspension.context.copy())


async def _serve(server: StageServer) -> None:
    """Serve until the run ends; the run copes with a server that gives up."""
    try:
        await server.run()
    except SwarmError:
        return
