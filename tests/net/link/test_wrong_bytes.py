"""Somebody on the way alters bytes, on real sockets: the link goes on, or says why it ends."""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest
from net.endpoint.test_paths import Relay, SeveralWays, relayed
from net.link.harness import PATIENCE_S, call

from p2pswarm.base.errors import BadRecord, LinkLost
from p2pswarm.net.link.events import CreditGained
from p2pswarm.net.link.path_state import PATHS_MAX

MIB = 1024 * 1024


class Meddler(Relay):
    """A relay that flips a bit, each way, after so many bytes of a connection."""

    def __init__(self, to, flip_there=None, flip_back=None):
        super().__init__(to)
        self.flip = {True: flip_there, False: flip_back}
        self.flips = 0
        self.flips_max = 1 << 30

    async def _serve(self, reader, writer):
        there, back = await asyncio.open_connection(self.to.host, self.to.port)
        self._writers += [writer, back]
        for source, target, out in ((reader, back, True), (there, writer, False)):
            self._tasks.append(asyncio.create_task(self._meddle(source, target, out=out)))

    async def _meddle(self, reader, writer, *, out):
        done, flip = 0, self.flip[out]
        try:
            while data := await reader.read(65536):
                here = flip is not None and done <= flip < done + len(data)
                if here and self.flips < self.flips_max:
                    self.flips += 1
                    changed = bytearray(data)
                    changed[flip - done] ^= 1 << self.flips % 8
                    data = bytes(changed)
                done += len(data)
                writer.write(data)
                await writer.drain()
        except (ConnectionError, OSError):
            pass
        writer.transport.abort()


@asynccontextmanager
async def meddled(*, other: bool = False, **flips):
    """A link through a relay that alters bytes. `other`: a sound relay is known, too."""
    async with relayed() as (dialler, acceptor, link, (first,)):
        relays = [Meddler(first.to, **flips), *([Relay(first.to)] if other else [])]
        for relay in relays:
            await relay.start()
        ways = SeveralWays(*(relay.at for relay in relays))
        dialler._resumer.paths = ways
        await dialler.move(link, ways.ways_known[0])
        try:
            yield dialler, acceptor, link, relays
        finally:
            for relay in relays:
                await relay.close()


async def test_a_stream_loses_and_doubles_nothing_while_its_bytes_are_altered():
    """Each connection brings 40 KB or more, and then a wrong bit."""
    rng = random.Random(1)
    async with meddled(flip_there=40_000) as (dialler, acceptor, link, (bad,)):
        bad.flips_max = PATHS_MAX - 1
        sent = [rng.randbytes(rng.randrange(1, 9000)) for _ in range(100)]
        stream = link.open(b"begin", ended=False)
        for message in sent:
            if not link.writable(stream):
                await dialler.event(CreditGained)
            link.send(stream, message, ended=False)
        await acceptor.until(lambda: len(acceptor.heard[stream]) > len(sent))

        assert acceptor.heard[stream] == [b"begin", *sent]
        assert bad.flips >= 2
        assert acceptor.links()[0].stats.paths_altered == bad.flips
        assert dialler.links() == (link,)


async def test_every_answer_comes_while_answers_are_altered():
    async with meddled(flip_back=40_000) as (dialler, acceptor, link, (bad,)):
        bad.flips_max = PATHS_MAX - 1
        for n in range(60):
            assert await call(dialler, acceptor, bytes([n]) * 5000) == bytes([n]) * 5000

        assert link.stats.paths_altered == bad.flips >= 2
        assert dialler.links() == (link,)


@pytest.mark.parametrize("flips", [{"flip_there": 700_000}, {"flip_there": 100}])
async def test_a_tensor_is_whole_although_its_bulk_connection_brings_wrong_bytes(flips):
    data = random.Random(2).randbytes(4 * MIB)
    async with meddled(other=True, **flips) as (dialler, acceptor, link, (bad, _)):
        back = acceptor.links()[0]
        room = bytearray(len(data))
        arrival = back.expect(memoryview(room))
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(link.send_bulk(arrival.transfer, memoryview(data), 1))
            group.create_task(arrival.wait())

        assert room == data
        assert bad.flips >= 1
        assert back.stats.bulk_received_bytes == len(data), "no chunk was taken twice"
        assert dialler.links() == (link,)


@pytest.mark.parametrize("flips", [{"flip_there": 3000}, {"flip_back": 3000}])
async def test_a_link_leaves_a_way_that_alters_bytes_for_one_that_does_not(flips):
    """Whoever notices it: the acceptor tells the dialler, who chooses the ways."""
    async with meddled(other=True, **flips) as (dialler, acceptor, link, (bad, good)):
        for n in range(100):
            assert await call(dialler, acceptor, bytes([n]) * 500) == bytes([n]) * 500

        assert link.path.remote == good.at
        assert 1 <= bad.flips <= 3
        marks, now_s = link.paths.marks, asyncio.get_running_loop().time()
        in_order = marks.in_order(dialler._resumer.paths.candidates(None), now_s)
        assert [way.to for way in in_order] == [good.at, bad.at]


async def test_a_link_whose_only_way_alters_everything_ends_and_says_why():
    async with meddled(flip_back=100) as (dialler, acceptor, link, (bad,)):
        link.open(bytes(1000), ended=True)

        error = await dialler.loss()
        assert isinstance(error, BadRecord)
        assert f"{PATHS_MAX} paths altered bytes within 60 s" in str(error)
        assert "use another network or relay" in str(error)
        assert bad.flips == PATHS_MAX
        assert isinstance(await acceptor.loss(), LinkLost)
