"""Servers around a scripted trainer, in virtual time."""

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import torch
from server.scripted_trainer import CONFIG, RUN_ID, B, Member, ScriptedTrainer, microbatch

from p2pswarm.base.ids import PeerId
from p2pswarm.models.compute.autograd_graphs import GraphLimits
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.run.router import Router
from p2pswarm.server.member_session import ServerContext
from p2pswarm.server.stage_server import StageServer
from p2pswarm.settings.config import RunConfig
from p2pswarm.sim.loop import run
from p2pswarm.sim.rpc import SimWorld
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer

ONE_STAGE = dataclasses.replace(CONFIG, stages=1)
PIECE_VALUES = 200  # 4.8 kB of state in a piece: a stage has about 25


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32))


def virtual(main, seed=1, limit_s=300.0):
    """Run a test in virtual time; what takes too long in it hangs."""

    async def limited():
        async with asyncio.timeout(limit_s):
            return await main()

    return run(limited(), seed)


def plain_after(steps, config=CONFIG, codecs=lambda _step: ()):
    plain = ReferenceTrainer(config, codecs=codecs)
    for step in range(steps):
        for number in range(B * step, B * step + B):
            plain.add(microbatch(number, config), number)
        plain.apply(1.0, 1e-2)
    return plain


def weights_of(r: "Swarm"):
    """The parameters of the whole model, each stage's from its first server."""
    flats = [r.engines[who][-1].weights._flat for who in r.servers]
    by_stage = {flat.numbers.start: flat for flat in reversed(flats)}
    return [p for _, flat in sorted(by_stage.items()) for p in flat.parameters]


def assert_equal(ours, theirs, within=1e-12):
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).abs().max() <= within * b.abs().max()


async def compute_here(work):
    return work()


@dataclass
class Swarm:
    """A world with a trainer; servers join on demand."""

    world: SimWorld
    trainer: ScriptedTrainer
    config: RunConfig
    tasks: asyncio.TaskGroup
    servers: dict[bytes, StageServer] = field(default_factory=dict)
    running: dict[bytes, asyncio.Task] = field(default_factory=dict)
    engines: dict[bytes, list] = field(default_factory=dict)
    said: list[tuple[bytes, str]] = field(default_factory=list)
    """What users were told, by the servers' ids."""

    def serve(
        self,
        number: int,
        *,
        compute=compute_here,
        background=None,
        keep_bytes: int | GraphLimits = 1 << 30,
        partials=None,
        bases=None,
        stage: int | None = None,
        draws: bool = True,
    ) -> StageServer:
        who = peer(number)

        def make_engine(stage: int):
            cpu = torch.device("cpu")
            engine = torch_engine(self.config, stage, cpu, keep_bytes, PIECE_VALUES, draws=draws)
            self.engines.setdefault(who.raw, []).append(engine)
            return engine

        context = ServerContext(
            rpc=self.world.rpc(who),
            tensors=TensorTransfer(Budget()),
            run=self.config,
            run_id=RUN_ID,
            trainer=self.trainer.rpc.contact,
            compute=compute,
            make_engine=make_engine,
            make_router=lambda: Router(random.Random(number)),
            rejoin_s=20.0,
            say=lambda line: self.said.append((who.raw, line)),
            background=background,
            partials=partials,
            bases=bases,
            stage=stage,
        )
        server = self.servers[who.raw] = StageServer(context)
        self.running[who.raw] = self.tasks.create_task(server.run())
        return server

    async def ready_servers(self, *numbers: int, **options) -> list[StageServer]:
        """Start servers, and wait until the trainer has heard that they are ready."""
        servers = [self.serve(number, **options) for number in numbers]
        members = self.trainer.members
        wanted = [peer(number).raw for number in numbers]
        await self.trainer.until(
            lambda: all(raw in members and members[raw].ready for raw in wanted)
        )
        return servers

    async def cut_off(self, member: Member) -> None:
        """The network between a server and all others breaks, until its session has ended."""
        self.world.world.partition([member.contact.peer])
        await member.over.wait()
        self.world.world.heal()

    def kill(self, number: int) -> None:
        """The process dies, as by SIGKILL."""
        raw = peer(number).raw
        self.running.pop(raw).cancel()
        self.world.kill(peer(number), silent=False)
        self.servers.pop(raw)

    def digests(self, stage: int) -> set[bytes]:
        return {
            s._replica.digest
            for s in self.servers.values()
            if s._replica and s._replica.stage == stage and s.version is not None
        }


@asynccontextmanager
async def swarm(config: RunConfig = CONFIG, seed: int = 1) -> AsyncIterator[Swarm]:
    world = SimWorld(seed)
    trainer = ScriptedTrainer(world.rpc(peer(1)), config)
    async with asyncio.TaskGroup() as tasks:
        the_swarm = Swarm(world, trainer, config, tasks)
        yield the_swarm
        for task in the_swarm.running.values():
            task.cancel()
