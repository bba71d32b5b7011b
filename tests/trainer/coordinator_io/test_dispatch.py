"""The trainer's own pushes: one is over before the next of its microbatch begins."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest
from trainer.harness import CONFIG, RUN

from p2pswarm.base.errors import LinkLost, Unusable
from p2pswarm.base.ids import PeerId
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.membership import Join, Ready
from p2pswarm.run.messages.microbatch import Push
from p2pswarm.run.push_io import GRANT_S
from p2pswarm.sim.compute import numbered_corpus
from p2pswarm.sim.loop import run
from p2pswarm.sim.rpc import SimWorld
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator_io.chain_start import founding_start
from p2pswarm.trainer.coordinator_io.dispatch import Dispatcher
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext, raised
from p2pswarm.trainer.reports import actions as act

TRAINER = Identity.generate(b"trainer")
LONG_S = 300.0  # longer than any push looks for a server


class Scene:
    """A dispatcher, and one server of stage 0 that keeps what it is pushed, or loses its link."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        world = SimWorld(1)
        self.seen: list[str] = []
        self.loses = False
        self.changed = asyncio.Event()
        self.server = world.rpc(PeerId((2).to_bytes(32)))
        self.server.serve_stream(Push, self.pushed)
        rpc = world.rpc(TRAINER.peer_id)
        tensors, rng, corpus = TensorTransfer(Budget()), random.Random(1), numbered_corpus(CONFIG)
        place = founding_start(TRAINER, RUN, CONFIG)
        context = TrainerContext(rpc, tensors, CONFIG, RUN, corpus, lambda _: None, rng, place)
        self.context = context
        self.coordinator = Coordinator(CONFIG, RUN)
        self.dispatcher = Dispatcher(
            context, self.coordinator, tasks, lambda: None, asyncio.get_running_loop().time
        )

    def serve(self) -> None:
        join = Join(RUN, str(self.server.contact.address), None, None, b"", ())
        self.coordinator.on_join(self.server.contact.peer.raw, join, 0.0)
        self.coordinator.on_ready(Incarnation(self.server.contact.peer.raw, 1), Ready(0, b"w"), 0.0)
        self.dispatcher.follow_view()

    async def pushed(self, _stream, push: Push) -> None:
        self.see(f"push of {push.attempt}")
        if self.loses:
            raise LinkLost("a broken road")
        try:
            await asyncio.Event().wait()
        finally:
            self.see(f"end of {push.attempt}")

    def see(self, what: str) -> None:
        self.seen.append(what)
        self.changed.set()

    async def until(self, count: int) -> None:
        while len(self.seen) < count:
            self.changed.clear()
            await self.changed.wait()

    def launch(self, attempt: int) -> None:
        self.dispatcher.begin(act.Launch(0, 0, attempt, Work.FORWARD, (0,)))


def play(story: Callable[[Scene], Coroutine]) -> list[str]:
    async def main() -> list[str]:
        async with asyncio.TaskGroup() as tasks:
            scene = Scene(tasks)
            async with asyncio.timeout(LONG_S):
                await story(scene)
            seen = list(scene.seen)
            scene.dispatcher.stop(commits=True)
        return seen

    return run(main(), seed=1)


def test_a_push_that_is_given_up_ends_though_nobody_is_there_to_fence():
    async def story(scene: Scene) -> None:
        scene.serve()
        scene.launch(0)
        await scene.until(1)

        scene.dispatcher.cancel(act.CancelLaunch(0, 0))
        await scene.until(2)

    assert play(story) == ["push of 0", "end of 0"]


def test_a_launch_that_looks_for_a_server_does_not_push_once_it_is_given_up():
    async def story(scene: Scene) -> None:
        scene.launch(0)
        await asyncio.sleep(1.0)
        scene.dispatcher.cancel(act.CancelLaunch(0, 0))
        scene.launch(1)
        scene.serve()
        await scene.until(1)
        await asyncio.sleep(GRANT_S - 1.0)

    assert play(story) == ["push of 1"]


def test_a_push_that_is_never_granted_is_given_up():
    async def story(scene: Scene) -> None:
        scene.serve()
        scene.launch(0)
        await scene.until(1)
        await asyncio.sleep(GRANT_S + 1.0)

    assert play(story) == ["push of 0", "end of 0"]


def test_the_next_attempt_waits_for_the_end_of_the_one_before():
    async def story(scene: Scene) -> None:
        scene.serve()
        scene.launch(0)
        await scene.until(1)

        scene.launch(1)
        await scene.until(3)

    assert play(story) == ["push of 0", "end of 0", "push of 1"]


def test_giving_up_an_attempt_leaves_the_next_one_alone():
    async def story(scene: Scene) -> None:
        scene.serve()
        scene.launch(1)
        await scene.until(1)
        scene.dispatcher.cancel(act.CancelLaunch(0, 0))
        scene.dispatcher.cancel(act.CancelLaunch(7, 3))
        await asyncio.sleep(GRANT_S - 1.0)

    assert play(story) == ["push of 1"]


def test_a_server_to_which_a_push_was_lost_is_tried_again_after_a_pause():
    async def story(scene: Scene) -> None:
        scene.serve()
        scene.loses = True
        scene.launch(0)
        await scene.until(1)
        scene.loses = False

        scene.launch(1)

        await scene.until(2)

    assert play(story) == ["push of 0", "push of 1"]


def test_a_push_to_a_server_that_is_out_of_the_run_ends_though_its_link_lasts():
    """It has granted nothing, so nobody else knows that the attempt was on its way there."""

    async def story(scene: Scene) -> None:
        scene.serve()
        scene.launch(0)
        await scene.until(1)

        gone = Incarnation(scene.server.contact.peer.raw, 1)
        scene.coordinator.on_stream_end(gone, "it is silent", 1.0)
        scene.dispatcher.follow_view()
        await scene.until(2)

    assert play(story) == ["push of 0", "end of 0"]


class GoneText:
    """Text whose files are gone."""

    blocks = True

    def microbatch(self, number: int):
        raise Unusable(f"text {number} is gone")


def test_text_that_cannot_be_read_is_told_and_the_push_waits_to_be_given_up():
    told: list[str] = []

    async def story(scene: Scene) -> None:
        lost = replace(
            scene.context, corpus=GoneText(), text_lost=lambda reason: told.append(str(reason))
        )
        scene.dispatcher._context = lost
        scene.serve()
        scene.launch(0)
        await asyncio.sleep(1.0)

    assert play(story) == []
    assert told == ["text 0 is gone"]


def test_text_that_cannot_be_read_ends_a_trainer_that_nobody_saves():
    with pytest.raises(Unusable, match="gone"):
        raised(Unusable("gone"))
