"""More servers than a stage can have: who comes too late is told why, and what to do."""

import random
from contextlib import AsyncExitStack

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import PeerId
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.messages.field_limits import GROUP_MAX
from p2pswarm.run.messages.membership import Assigned, Join
from p2pswarm.run.router import Router
from p2pswarm.server.member_session import ServerContext
from p2pswarm.server.stage_server import StageServer
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.parser import run_id, run_to_json
from p2pswarm.sim.compute import numbered_corpus
from p2pswarm.sim.loop import run
from p2pswarm.sim.rpc import SimWorld
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.trainer.coordinator_io.chain_start import founding_start
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext
from p2pswarm.trainer.leadership.participant import Trainer

TRAINER = Identity.generate(b"trainer")
CONFIG = RunConfig(
    stages=2,
    steps=3,
    min_replicas=1,
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=12),
    batch=BatchConfig(microbatches=2, rows=1, evaluate_every=0),
)
RUN = run_id(run_to_json(CONFIG))


class FullSwarm:
    """A trainer whose first stage has as many servers as it can have."""

    def __init__(self) -> None:
        self.world = SimWorld(1)
        rpc = self.world.rpc(TRAINER.peer_id)
        self.contact = rpc.contact
        self.trainer = Trainer(
            TrainerContext(
                rpc=rpc,
                tensors=TensorTransfer(Budget()),
                run=CONFIG,
                run_id=RUN,
                corpus=numbered_corpus(CONFIG),
                report=lambda report: None,
                rng=random.Random(1),
                chain=founding_start(TRAINER, RUN, CONFIG),
            )
        )

    async def join(self, stack: AsyncExitStack, number: int, stage: int | None) -> Assigned:
        rpc = self.world.rpc(PeerId((100 + number).to_bytes(32)))
        join = Join(RUN, str(rpc.contact.address), stage, None, b"", ())
        stream = await stack.enter_async_context(rpc.open_stream(self.contact, join, None))
        return await stream.receive()

    async def fill(self, stack: AsyncExitStack) -> None:
        for number in range(GROUP_MAX):
            await self.join(stack, number, 0)

    def server(self, stage: int | None) -> StageServer:
        async def compute(work):
            return work()

        context = ServerContext(
            rpc=self.world.rpc(PeerId((2).to_bytes(32))),
            tensors=TensorTransfer(Budget()),
            run=CONFIG,
            run_id=RUN,
            trainer=self.contact,
            compute=compute,
            make_engine=lambda stage: None,
            make_router=lambda: Router(random.Random(1)),
            stage=stage,
        )
        return StageServer(context)


def test_a_server_that_was_told_to_serve_a_full_stage_ends_with_the_remedy():
    async def story() -> int:
        swarm = FullSwarm()
        async with swarm.trainer as trainer, AsyncExitStack() as stack:
            await swarm.fill(stack)
            with pytest.raises(Unusable, match="leave out `stage`"):
                await swarm.server(stage=0).run()
            return len(trainer.coordinator.members.records())

    assert run(story(), seed=1) == GROUP_MAX


def test_a_server_that_serves_any_stage_is_given_one_with_a_place():
    async def story() -> int:
        swarm = FullSwarm()
        async with swarm.trainer, AsyncExitStack() as stack:
            await swarm.fill(stack)
            return (await swarm.join(stack, GROUP_MAX, None)).stage

    assert run(story(), seed=1) == 1
