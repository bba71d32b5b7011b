"""Streams to a server behind a cut, in virtual time."""

import asyncio

import pytest

from p2pswarm.base.errors import DialFailed, LinkLost
from p2pswarm.base.ids import PeerId
from p2pswarm.run.messages.membership import Leaving
from p2pswarm.run.peer_health import ASK_AFTER_S, AVERAGING_SILENT_S, SILENT_S
from p2pswarm.run.peer_health_io import WatchedRpc
from p2pswarm.sim.loop import run
from p2pswarm.sim.rpc import SimWorld

ANN, BOB = PeerId(b"a" * 32), PeerId(b"b" * 32)


class Pair:
    """Two servers; `ann` has streams to `bob`, who never answers them."""

    def __init__(self, tasks: asyncio.TaskGroup, silent_s: float, wait_s: float) -> None:
        self.net = SimWorld(1)
        near, self.bob = self.net.rpc(ANN), self.net.rpc(BOB)
        self.bob.serve_stream(Leaving, self._serve)
        self.ann = WatchedRpc(near, silent_s, wait_s)
        self.ann.begin(tasks)
        WatchedRpc(self.bob)
        self.paths = [(near.host, self.bob.host), (self.bob.host, near.host)]

    async def _serve(self, stream, opening):
        await asyncio.Event().wait()

    async def wait_for_bob(self):
        """Open a stream and wait; returns the error that ends it, and after how long."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            async with self.ann.open_stream(self.bob.contact, Leaving(), 600.0) as stream:
                await stream.receive()
        except (LinkLost, DialFailed) as error:
            return type(error), loop.time() - begun_s


def in_a_pair(story, silent_s=SILENT_S, wait_s=0.0):
    async def main():
        async with asyncio.TaskGroup() as tasks:
            pair = Pair(tasks, silent_s, wait_s)
            await story(pair)
            pair.ann.close()

    run(main(), 1)


@pytest.mark.parametrize("way", [slice(0, 1), slice(1, 2), slice(0, 2)])
def test_a_stream_to_a_server_behind_a_cut_ends_long_before_the_link(way):
    async def story(pair):
        waiting = asyncio.ensure_future(pair.wait_for_bob())
        await asyncio.sleep(30.0)
        assert not waiting.done(), "one that computes for long answers, and is waited for"

        pair.net.world.cut(pair.paths[way])
        cut_s = asyncio.get_running_loop().time()
        error, _ = await waiting

        assert error is LinkLost
        took_s = asyncio.get_running_loop().time() - cut_s
        assert SILENT_S <= took_s <= ASK_AFTER_S + SILENT_S + 0.5

    in_a_pair(story)


def test_a_new_stream_on_a_broken_road_is_refused_before_it_begins_until_there_is_an_answer():
    async def story(pair):
        waiting = asyncio.ensure_future(pair.wait_for_bob())
        await asyncio.sleep(0.5)
        pair.net.world.cut(pair.paths)
        await waiting

        refused = await pair.wait_for_bob()
        pair.net.world.mend(pair.paths)
        await asyncio.sleep(2.0)
        again = asyncio.ensure_future(pair.wait_for_bob())
        await asyncio.sleep(20.0)

        assert refused == (DialFailed, 0.0)
        assert not again.done()
        again.cancel()

    in_a_pair(story)


def test_a_deadline_of_the_streams_user_is_not_taken_for_a_broken_road():
    async def story(pair):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await pair.wait_for_bob()

    in_a_pair(story)


def test_a_road_that_was_broken_in_one_session_is_refused_in_the_next_until_there_is_an_answer():
    async def story(pair):
        async def first_session():
            async with asyncio.TaskGroup() as session:
                pair.ann.begin(session)
                waiting = asyncio.ensure_future(pair.wait_for_bob())
                await asyncio.sleep(1.0)
                pair.net.world.cut(pair.paths)
                await waiting
                raise LinkLost("the session is over")

        with pytest.raises(ExceptionGroup):
            await first_session()
        pair.ann.close()

        async with asyncio.TaskGroup() as session:
            pair.ann.begin(session)
            assert await pair.wait_for_bob() == (DialFailed, 0.0)

            pair.net.world.mend(pair.paths)
            await asyncio.sleep(ASK_AFTER_S)
            again = asyncio.ensure_future(pair.wait_for_bob())
            await asyncio.sleep(60.0)
            assert not again.done()
            again.cancel()

    in_a_pair(story)


def test_after_a_dial_without_an_answer_the_next_stream_need_not_wait_for_another():
    async def story(pair):
        pair.net.world.cut(pair.paths)
        first = await pair.wait_for_bob()

        assert first[0] is DialFailed
        assert await pair.wait_for_bob() == (DialFailed, 0.0)

    in_a_pair(story, AVERAGING_SILENT_S)


def test_a_road_is_whole_soon_after_the_cut_is_mended_though_the_link_ended_meanwhile():
    async def story(pair):
        pair.net.world.cut(pair.paths)
        await pair.wait_for_bob()
        await asyncio.sleep(30.0)
        assert await pair.wait_for_bob() == (DialFailed, 0.0)

        pair.net.world.mend(pair.paths)
        await asyncio.sleep(SILENT_S + ASK_AFTER_S + 0.5)
        again = asyncio.ensure_future(pair.wait_for_bob())
        await asyncio.sleep(20.0)

        assert not again.done()
        again.cancel()

    in_a_pair(story)


def test_a_stream_that_may_wait_is_refused_only_after_that_and_goes_on_with_the_answer():
    async def story(pair):
        pair.net.world.cut(pair.paths)
        await pair.wait_for_bob()
        assert await pair.wait_for_bob() == (DialFailed, 10.0)

        pair.net.world.mend(pair.paths)
        again = asyncio.ensure_future(pair.wait_for_bob())
        await asyncio.sleep(30.0)

        assert not again.done()
        again.cancel()

    in_a_pair(story, wait_s=10.0)
