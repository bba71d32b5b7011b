"""A whole run in one process: trainer, stage servers, links and deaths, from one seed.

The services are the real ones: routing, fencing, averaging and state transfer run as they would
anywhere. The network is `sim/rpc.py`, the processors are `sim/compute.py`. Machines differ in
speed, phase in regions, and die.

Units:   virtual seconds, bytes.
Errors:  RunEnded is a result here; AssertionError when a microbatch was not counted exactly once.
"""

import asyncio
import hashlib
import random
from dataclasses import dataclass, field

from p2pswarm.config import BatchConfig, CodecConfig, ModelConfig, RunConfig
from p2pswarm.crypto.identity import Identity
from p2pswarm.errors import SwarmError
from p2pswarm.ids import PeerId
from p2pswarm.server.session import ServerContext
from p2pswarm.server.stage_server import StageServer
from p2pswarm.settings import run_id, run_to_json
from p2pswarm.sim.compute import Cost, Processor, numbered_corpus, sim_engine
from p2pswarm.sim.rpc import SimRpc, SimWorld
from p2pswarm.sim.world import WorldConfig
from p2pswarm.swarm.router import Router
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.trainer import actions as act
from p2pswarm.trainer.context import TrainerContext
from p2pswarm.trainer.trainer import Trainer

JOIN_EVERY_S = 0.05  # between two servers that come
SPREAD = 0.03  # of a region, as a share of the plane: 3 % of a continent away


def small_run(**changes: object) -> RunConfig:
    """A run whose activations are a few KiB, for tests."""
    defaults: dict[str, object] = {
        "stages": 3,
        "steps": 5,
        "min_replicas": 2,
        "model": ModelConfig(d_model=64, layers=4, heads=4, sequence_length=32),
        "batch": BatchConfig(microbatches=16, rows=2, evaluate_every=0),
        "codecs": CodecConfig(),
    }
    return RunConfig(**(defaults | changes))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmConfig:
    """A run and the machines that it has."""

    seed: int = 1
    run: RunConfig = field(default_factory=small_run)
    servers: int = 6
    speeds: tuple[float, ...] = (1.0,)
    """Of the servers, in turn."""
    regions: tuple[tuple[float, float], ...] = ((0.5, 0.5),)
    """Points of the unit square round which servers phase, in turn; the trainer at the first."""
    latecomers_s: tuple[float, ...] = ()
    """When further servers join, each so long after the one before."""
    cost: Cost = field(default_factory=Cost)
    world: WorldConfig = field(default_factory=lambda: WorldConfig(bandwidth_bytes_per_s=25e6))
    """25 MB/s: a home's good link."""
    death_every_s: float = 0.0
    """Mean time between two deaths anywhere; 0: nobody dies. Another server comes for each.

    Nobody dies who holds the last weights of his stage: that ends a run, and rightly.
    """
    rebirth_s: float = 5.0
    """From a death to the newcomer."""
    patience_s: float = 36_000.0
    """A run that takes longer is given up."""


@dataclass(frozen=True, slots=True)
class SwarmResult:
    """What became of a run."""

    ended: act.RunFinished
    steps: int
    seconds: float
    """From the first step's begin to the end."""
    microbatches_per_s: float
    replayed: int
    lost: int
    """Incarnations."""
    busy_share: float
    """Of the time that the servers were there, they computed."""
    trainer_bytes: int
    """That left the trainer."""
    moved_bytes: int
    """That left anybody."""
    digest: str


@dataclass(slots=True)
class _Machine:
    """A server and what it runs on."""

    rpc: SimRpc
    processor: Processor
    born_s: float
    server: StageServer
    task: asyncio.Task[None]
    died_s: float | None = None


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
        """Train to the end."""
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
        """A machine's process ends."""
        machine.task.cancel()
        machine.died_s = asyncio.get_running_loop().time()
        self.world.kill(machine.rpc.host.peer, silent=silent)

    @property
    def living(self) -> list[_Machine]:
        """Machines that have not died."""
        return [machine for machine in self.machines if machine.died_s is None]

    def _survivors(self, machine: _Machine) -> int:
        """How many others hold the weights that a machine holds."""
        stage = machine.server.stage
        same = [m.server for m in self.living if m.server.stage == stage and m is not machine]
        return sum(server.version is not None for server in same)

    async def _come(self, tasks: asyncio.TaskGroup) -> None:
        """Servers join, and die, and others come."""
        for _ in range(self.config.servers):
            self._join(tasks)
            await asyncio.sleep(JOIN_EVERY_S)
        for pause_s in self.config.latecomers_s:
            await asyncio.sleep(pause_s)
            self._join(tasks)
        while self.config.death_every_s:
            await asyncio.sleep(self._rng.expovariate(1 / self.config.death_every_s))
            victims = [machine for machine in self.living if self._survivors(machine)]
            if not victims:
                continue
            self.kill(self._rng.choice(victims), silent=self._rng.random() < 1 / 2)
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
        return x + self._rng.uniform(-SPREAD, SPREAD), y + self._rng.uniform(-SPREAD, SPREAD)

    def _result(self, ended: act.RunFinished) -> SwarmResult:
        now_s = asyncio.get_running_loop().time()
        steps = [r for r in self.reports if isinstance(r, act.StepDone)]
        seconds = now_s - self._begun_s
        there_s = sum(
            (now_s if m.died_s is None else m.died_s) - max(m.born_s, self._begun_s)
            for m in self.machines
            if m.died_s is None or m.died_s > self._begun_s
        )
        story = "\n".join(map(repr, self.reports)) + self.world.digest
        return SwarmResult(
            ended=ended,
            steps=len(steps),
            seconds=seconds,
            microbatches_per_s=sum(r.microbatches for r in steps) / seconds,
            replayed=sum(len(r.microbatches) for r in self.reports if isinstance(r, act.Replayed)),
            lost=sum(isinstance(r, act.MemberLost) for r in self.reports),
            busy_share=sum(m.processor.busy_s for m in self.machines) / there_s,
            trainer_bytes=self._trainer_rpc.host.sent_bytes,
            moved_bytes=sum(host.sent_bytes for host in self.world.world.hosts.values()),
            digest=hashlib.sha256(story.encode()).hexdigest(),
        )


async def _serve(server: StageServer) -> None:
    """Serve until the run ends; a server that gives up is the run's matter, not ours."""
    try:
        await server.run()
    except SwarmError:
        return
