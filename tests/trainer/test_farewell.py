"""The end of a run: whoever has stopped answering, the trainer is gone within seconds."""

import asyncio
import random
from dataclasses import replace

import pytest

from p2pswarm.base.errors import LinkLost
from p2pswarm.base.ids import PeerId
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.progress.events import Report
from p2pswarm.run.messages.membership import Assigned, Join, Leaving, Ready, View
from p2pswarm.run.messages.microbatch import Counted, Push, Undelivered
from p2pswarm.run.messages.run import Finished
from p2pswarm.run.messages.step import Commit, Fence, Fenced, Reduce, Reduced
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
from p2pswarm.trainer.reports.reports import RunBegun, RunFinished

TRAINER = Identity.generate(b"trainer")
CONFIG = RunConfig(
    on_stage_lost="end",
    stages=2,
    steps=3,
    min_replicas=1,
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=12),
    batch=BatchConfig(microbatches=2, rows=1, evaluate_every=0),
)
LEAVE_S = 5.0  # what a person waits for who has pressed Ctrl-C


class Mute:
    """A member that counts what nobody has sent it, and answers no call but those in `answers`."""

    def __init__(self, swarm: "Swarm", number: int, answers: dict | None = None) -> None:
        self.rpc = swarm.world.rpc(PeerId(number.to_bytes(32)))
        self.swarm = swarm
        self.calls: list[type] = []
        self.farewell: str | None = None
        self.leave = asyncio.Event()
        self.answers = answers or {}
        for request in (Fence, Reduce, Commit):
            self.rpc.serve_unary(request, self.silent)
        self.rpc.serve_stream(Push, self.silent)
        self.called = asyncio.Event()
        self.ready = asyncio.Event()
        self.task = swarm.tasks.create_task(self.take_part())

    async def silent(self, _, message):
        self.calls.append(type(message))
        self.called.set()
        if type(message) in self.answers:
            return self.answers[type(message)]
        return await asyncio.Event().wait()

    async def take_part(self) -> None:
        join = Join(self.swarm.run_id, str(self.rpc.contact.address), None, None, b"", ())
        async with self.rpc.open_stream(self.swarm.contact, join, None) as stream:
            self.stream = stream
            leaving = self.swarm.tasks.create_task(self.say_goodbye())
            try:
                while (message := await stream.receive()) is not None:
                    await self.hear(message)
                    if self.farewell is not None:
                        return
            except LinkLost:
                return  # killed
            finally:
                leaving.cancel()

    async def hear(self, message) -> None:
        match message:
            case Assigned():
                await self.stream.send(Ready(0, b"w"))
            case View():
                self.ready.set()
            case Finished():
                self.farewell = message.reason

    async def say_goodbye(self) -> None:
        await self.leave.wait()
        await self.stream.send(Leaving())

    async def count_all(self) -> None:
        await self.ready.wait()
        for microbatch in range(CONFIG.batch.microbatches):
            await self.stream.send(Counted(0, microbatch, 0, counted=True, loss=1.0))


class Swarm:
    """A trainer among members that do not answer."""

    def __init__(self, tasks: asyncio.TaskGroup, *, lasts: bool = False) -> None:
        self.tasks, self.world = tasks, SimWorld(1)
        self.begun = asyncio.Event()
        self.run_id = run_id(run_to_json(CONFIG))
        rpc = self.world.rpc(TRAINER.peer_id)
        self.contact = rpc.contact
        context = TrainerContext(
            rpc=rpc,
            tensors=TensorTransfer(Budget()),
            run=CONFIG,
            run_id=self.run_id,
            corpus=numbered_corpus(CONFIG),
            report=self.reported,
            rng=random.Random(1),
            chain=replace(founding_start(TRAINER, self.run_id, CONFIG), lasts=lasts),
        )
        self.trainer = Trainer(context)

    def reported(self, report: Report) -> None:
        if isinstance(report, RunBegun):
            self.begun.set()


def now_s() -> float:
    return asyncio.get_running_loop().time()


REDUCED = Reduced(b"g", 1.0, state=b"w")


@pytest.mark.parametrize(
    ("unanswered", "answers"),
    [(Reduce, {Fence: Fenced(())}), (Commit, {Reduce: REDUCED, Fence: Fenced(())})],
    ids=["reduce", "commit"],
)
def test_failed_run_ends_though_a_member_never_answers(unanswered: type, answers: dict) -> None:
    async def story() -> tuple[float, RunFinished, Mute]:
        async with asyncio.TaskGroup() as tasks:
            swarm = Swarm(tasks)
            async with swarm.trainer as trainer:
                ann, bob = Mute(swarm, 2, answers), Mute(swarm, 3, answers)
                for member in (ann, bob):
                    await member.count_all()
                while unanswered not in ann.calls:
                    ann.called.clear()
                    await ann.called.wait()
                bob.leave.set()
                ended = await trainer.run()
                began_s = now_s()
            return now_s() - began_s, ended, ann

    took_s, ended, ann = run(story(), seed=1)

    assert ended.failed
    assert took_s <= LEAVE_S
    assert ann.farewell == ended.reason


def test_trainer_that_leaves_waits_for_no_fence() -> None:
    async def story() -> tuple[float, Mute]:
        async with asyncio.TaskGroup() as tasks:
            swarm = Swarm(tasks)
            async with swarm.trainer:
                ann, bob = Mute(swarm, 2), Mute(swarm, 3)
                await swarm.begun.wait()
                await bob.stream.send(Undelivered(0, 0, 0, "no road"))
                while Fence not in ann.calls:
                    ann.called.clear()
                    await ann.called.wait()
                began_s = now_s()
            return now_s() - began_s, ann

    took_s, ann = run(story(), seed=1)

    assert took_s <= LEAVE_S
    assert ann.farewell == "the trainer leaves"


def test_member_that_died_in_silence_holds_nobody_up() -> None:
    async def story() -> float:
        async with asyncio.TaskGroup() as tasks:
            swarm = Swarm(tasks)
            async with swarm.trainer:
                ann = Mute(swarm, 2)
                await ann.ready.wait()
                swarm.world.kill(ann.rpc.contact.peer, silent=True)
                began_s = now_s()
            return now_s() - began_s

    assert run(story(), seed=1) <= LEAVE_S


def test_when_the_trainer_is_gone_its_members_have_heard_why() -> None:
    """A process that ends closes its sockets, and what lies in them unread is lost."""

    async def story() -> tuple[str | None, str | None]:
        async with asyncio.TaskGroup() as tasks:
            swarm = Swarm(tasks)
            async with swarm.trainer:
                ann, bob = Mute(swarm, 2), Mute(swarm, 3)
                await swarm.begun.wait()
            return ann.farewell, bob.farewell

    assert run(story(), seed=1) == ("the trainer leaves", "the trainer leaves")


def test_member_that_comes_after_the_end_is_told_so() -> None:
    async def story() -> tuple[RunFinished, str | None]:
        async with asyncio.TaskGroup() as tasks:
            swarm = Swarm(tasks)
            async with swarm.trainer as trainer:
                _ann, bob = Mute(swarm, 2), Mute(swarm, 3)
                await swarm.begun.wait()
                bob.leave.set()
                ended = await trainer.run()
                late = Mute(swarm, 4)
                await late.task
            return ended, late.farewell

    ended, farewell = run(story(), seed=1)

    assert farewell == ended.reason


def test_a_member_that_comes_back_to_a_trainer_that_has_left_its_run_is_sent_away() -> None:
    """With a file of records others can go on; a stream without an answer would keep this one."""

    async def story() -> bool:
        async with asyncio.TaskGroup() as tasks:
            swarm = Swarm(tasks, lasts=True)
            async with swarm.trainer:
                ann, bob = Mute(swarm, 2), Mute(swarm, 3)
                await swarm.begun.wait()
            await asyncio.wait([ann.task, bob.task])
            back = tasks.create_task(ann.take_part())
            done, _ = await asyncio.wait([back], timeout=LEAVE_S)
            swarm.world.kill(swarm.contact.peer)
        return back in done

    assert run(story(), seed=1)


def test_peer_that_joins_again_and_again_has_one_stream() -> None:
    async def story() -> int:
        async with asyncio.TaskGroup() as tasks:
            swarm = Swarm(tasks)
            async with swarm.trainer as trainer:
                ann = Mute(swarm, 2)
                lives = []
                for _ in range(50):
                    await ann.ready.wait()
                    lives.append(ann.task)
                    ann.task = tasks.create_task(ann.take_part())
                    await asyncio.sleep(0.5)
                done = sum(life.done() for life in lives)
                assert len(trainer.coordinator.members.records()) == 1
            return done

    assert run(story(), seed=1) == 50
