"""A whole run in one process: trainer, stage servers, links and deaths, from one seed.

Trainer and servers are the real ones: routing, fencing, averaging and state transfer run unchanged.
The network is `sim/rpc.py`, and the processors are `sim/compute.py`. Machines differ in speed, are
placed in regions, and die.

Units:   virtual seconds, bytes.
Errors:  AssertionError when a microbatch was not counted exactly once; TimeoutError when the run
         takes longer than `patience_s`. A run that fails is a result, not an error.
"""

import asyncio
import random
from dataclasses import dataclass

from p2pswarm.crypto.identity import Identity
from p2pswarm.errors import SwarmError
from p2pswarm.ids import PeerId
from p2pswarm.server.session import ServerContext
from p2pswarm.server.stage_server import StageServer
from p2pswarm.settings import run_id, run_to_json
from p2pswarm.sim.compute import Processor, numbered_corpus, sim_engine
from p2pswarm.sim.rpc import SimRpc, SimWorld
from p2pswarm.sim.swarm_run import MachineRecord, RunRecord, SwarmConfig, SwarmResult, may_die
from p2pswarm.swarm.router import Router
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.trainer import actions as act
from p2pswarm.trainer.context import TrainerContext
from p2pswarm.trainer.trainer import Trainer

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

    def __init__(self, config: SwarmConfig) -> None:
        self.config = config
        self.world = SimWorld(config.seed, config.world)
        self.reports: list[act.Report] = []
        self.machines: list[_Machine] = []
        self._rng = random.Random(config.seed)
        self._identity = Identity.generate(config.seed.to_bytes(16))
        self._trainer_rpc = self.world.rpc(self._identity.peer_id, self._place(0))
        self._run_id = run_id(run_to_json(config.run))
        self._begun_s = 0.0

    async def play(self) -> SwarmResult:
        """Train to the end of the run."""
        config = self.config
        async with asyncio.timeout(config.patience_s), asyncio.TaskGroup() as tasks:
            coming = tasks.create_task(self._come(tasks))
            async with Trainer(self._trainer_context()) as trainer:
                ended = await trainer.run()
            coming.cancel()
            for machine in self.machines:
                machine.task.cancel()
        return self._result(ended)

    def kill(self, machine: _Machine, *, silent: bool) -> None:
        """End a machine's process; `silent` as a power cut does."""
        machine.task.cancel()
        machine.died_s = asyncio.get_running_loop().time()
        self.world.kill(machine.rpc.host.peer, silent=silent)

    async def _come(self, tasks: asyncio.TaskGroup) -> None:
        """Let servers join, die, and be replaced by others."""
        for _ in range(self.config.servers):
            self._join(tasks)
            await asyncio.sleep(JOIN_EVERY_S)
        for pause_s in self.config.latecomers_s:
            await asyncio.sleep(pause_s)
            self._join(tasks)
        while self.config.death_every_s:
            await asyncio.sleep(self._rng.expovariate(1 / self.config.death_every_s))
            victims = may_die([machine.record for machine in self.machines])
            if not victims:
                continue
            victim = self.machines[self._rng.choice(victims)]
            self.kill(victim, silent=self._rng.random() < 1 / 2)
            await asyncio.sleep(self.config.rebirth_s)
            self._join(tasks)

    def _join(self, tasks: asyncio.TaskGroup) -> None:
        config, number = self.config, len(self.machines)
        peer = PeerId(self._rng.randbytes(32))
        rpc = self.world.rpc(peer, self._place(number))
        processor = Processor(config.speeds[number % len(config.speeds)])
        rng = random.Random(self._rng.random())
        context = ServerContext(
            rpc=rpc,
            tensors=TensorTransfer(Budget()),
            run=config.run,
            run_id=self._run_id,
            trainer=self._trainer_rpc.contact,
            compute=processor,
            make_engine=lambda stage: sim_engine(config.run, stage, config.cost, processor),
            make_router=lambda: Router(rng),
        )
        now_s = asyncio.get_running_loop().time()
        server = StageServer(context)
        task = tasks.create_task(_serve(server))
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

    def _heard(self, report: act.Report) -> None:
        if isinstance(report, act.RunBegun):
            self._begun_s = asyncio.get_running_loop().time()
        self.reports.append(report)

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


async def _serve(server: StageServer) -> None:
    """Serve until the run ends; the run copes with a server that gives up."""
    try:
        await server.run()
    except SwarmError:
        return
