"""Links over real sockets whose path is cut: nothing is lost, nothing comes twice, callers wait."""

import asyncio
import random
from collections import defaultdict
from contextlib import asynccontextmanager

import pytest
from net.link.harness import LOOPBACK, PATIENCE_S, EchoEnd, End, call, listening

from p2pswarm.base.errors import DialFailed, LinkLost
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.link.events import CreditGained, LinkEnded, StreamData, StreamOpened
from p2pswarm.net.link.path import DialledCandidate, PathKind
from p2pswarm.net.os.sockets import SocketNet

MIB = 1024 * 1024


class Relay:
    """A relay of bytes that can be cut, stopped and started at the same port."""

    def __init__(self, to: Address):
        self.to = to
        self.at = LOOPBACK
        self.carried = 0
        self.cut_after = None
        self.swallows = False
        self._server = None
        self._writers = []
        self._tasks = []

    async def start(self):
        self._server = await asyncio.start_server(self._serve, self.at.host, self.at.port)
        self.at = Address(*self._server.sockets[0].getsockname())

    def cut(self):
        """End all connections, as a router does that forgets them."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def stop(self):
        """End, and refuse new connections."""
        self._server.close()
        self.cut()

    async def _serve(self, reader, writer):
        try:
            there, back = await asyncio.open_connection(self.to.host, self.to.port)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, back]
        for source, target in ((reader, back), (there, writer)):
            self._tasks.append(asyncio.create_task(self._carry(source, target)))

    async def _carry(self, reader, writer):
        try:
            while data := await reader.read(65536):
                if self.swallows:
                    continue
                writer.write(data)
                await writer.drain()
                self.carried += len(data)
                if self.cut_after is not None and self.carried >= self.cut_after:
                    self.cut_after = None
                    self.cut()
        except (ConnectionError, OSError):
            pass
        writer.transport.abort()

    async def close(self):
        self.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class SeveralWays:
    """Ways to dial, in their order: implements `CandidateSource`."""

    def __init__(self, *addresses: Address):
        self.ways_known = [DialledCandidate(SocketNet(), at) for at in addresses]

    def candidates(self, to):
        del to
        return tuple(self.ways_known)


class Listener(EchoEnd):
    """Keeps every message of streams that stay open, in order."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.heard = defaultdict(list)

    def note(self, link, event):
        super().note(link, event)
        if isinstance(event, StreamOpened | StreamData) and not (
            isinstance(event, StreamOpened) and event.ended
        ):
            self.heard[event.stream].append(event.data)
            link.consume(event.stream, len(event.data))

    async def until(self, done):
        """Wait for events until `done` says so."""
        async with asyncio.timeout(PATIENCE_S):
            while not done():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def relayed(*, other: bool = False, listens: bool = False, connections: int = 1):
    """A link through a relay, seen from both sides. `other`: there is a second relay."""
    bulk = {"bulk_connections": connections, "bulk_connections_far": connections}
    async with End(**bulk) as dialler, Listener() as acceptor:
        await listening(acceptor)
        if listens:
            await listening(dialler)
        relays = [Relay(acceptor.contact.address) for _ in range(1 + other)]
        for relay in relays:
            await relay.start()
        dialler._resumer.paths = SeveralWays(*(relay.at for relay in relays))
        try:
            link = await dialler.link(Contact(acceptor.peer_id, relays[0].at))
            link.open(b"hello", ended=True)
            await dialler.event(StreamData)
            yield dialler, acceptor, link, relays
        finally:
            for relay in relays:
                await relay.close()


async def path_of(link, old):
    """Wait until the link has another path than `old`."""
    async with asyncio.timeout(PATIENCE_S):
        while link.path is None or link.path is old:
            link.path_change.clear()
            await link.path_change.wait()
    return link.path


async def test_a_link_goes_on_when_its_connection_is_cut():
    async with relayed() as (dialler, acceptor, link, (relay,)):
        old = link.path
        relay.cut()

        await path_of(link, old)

        assert await call(dialler, acceptor, b"again") == b"again"
        assert dialler.links() == (link,)
        assert len(acceptor.links()) == 1
        assert not [event for event in dialler.seen if isinstance(event, LinkEnded)]


@pytest.mark.parametrize("seed", range(3))
async def test_a_stream_loses_and_doubles_nothing_over_many_cuts(seed: int):
    """Cut after random numbers of bytes, ten times, while both sides send."""
    rng = random.Random(seed)
    async with relayed() as (dialler, acceptor, link, (relay,)):
        sent = [rng.randbytes(rng.randrange(1, 60_000)) for _ in range(200)]
        stream = link.open(b"begin", ended=False)
        cuts = 0
        for message in sent:
            if not link.writable(stream):
                await dialler.event(CreditGained)
            link.send(stream, message, ended=False)
            if relay.cut_after is None and cuts < 10:
                cuts += 1
                relay.cut_after = relay.carried + rng.randrange(300_000)
        relay.cut_after = None
        await acceptor.until(lambda: len(acceptor.heard[stream]) > len(sent))

        assert cuts > 3
        assert acceptor.heard[stream] == [b"begin", *sent]


@pytest.mark.parametrize("connections", [1, 3])
async def test_a_tensor_goes_on_when_every_connection_is_cut_under_it(connections: int):
    data = random.Random(connections).randbytes(24 * MIB)
    async with relayed(connections=connections) as (_, acceptor, link, (relay,)):
        back = acceptor.links()[0]
        room = bytearray(len(data))
        arrival = back.expect(memoryview(room))
        relay.cut_after = relay.carried + 8 * MIB
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(link.send_bulk(arrival.transfer, memoryview(data), 1))
            group.create_task(arrival.wait())

        assert room == data
        assert relay.cut_after is None, "it was cut"
        assert back.stats.bulk_received_bytes == len(data), "no chunk was taken twice"


async def test_when_a_relay_dies_the_link_goes_on_over_the_next_way():
    async with relayed(other=True) as (dialler, acceptor, link, (first, second)):
        old = link.path
        begun_s = asyncio.get_running_loop().time()
        first.stop()

        path = await path_of(link, old)

        assert path.kind is PathKind.DIRECT
        assert path.remote == second.at
        assert asyncio.get_running_loop().time() - begun_s < PATIENCE_S
        assert await call(dialler, acceptor, b"again") == b"again"


class RelayWay(DialledCandidate):
    """An address that stands for a relay."""

    kind = PathKind.RELAYED


async def test_a_link_falls_back_to_a_relay_and_climbs_when_the_direct_way_is_back():
    async with relayed(other=True) as (dialler, acceptor, link, (direct, relay)):
        ways = SeveralWays(direct.at)
        ways.ways_known.append(RelayWay(SocketNet(), relay.at))
        dialler._resumer.paths = ways
        stream = link.open(b"begin", ended=False)
        direct.stop()
        fallen = await path_of(link, ())
        while fallen.kind is not PathKind.RELAYED:
            fallen = await path_of(link, fallen)
        link.send(stream, b"by the relay", ended=False)
        relay.cut()
        fallen = await path_of(link, fallen)

        await direct.start()
        climbed = await path_of(link, fallen)
        link.send(stream, b"direct again", ended=False)
        await acceptor.until(lambda: len(acceptor.heard[stream]) == 3)

        assert fallen.remote == relay.at
        assert climbed.remote == direct.at
        assert acceptor.heard[stream] == [b"begin", b"by the relay", b"direct again"]
        assert dialler.links() == (link,)


async def test_a_relay_that_swallows_bytes_without_a_word_is_left_and_nothing_is_lost():
    """It takes connections and bytes as before: only that nothing comes back shows it."""
    async with relayed(other=True) as (dialler, acceptor, link, (first, second)):
        ways = SeveralWays()
        ways.ways_known = [RelayWay(SocketNet(), relay.at) for relay in (first, second)]
        dialler._resumer.paths = ways
        stream = link.open(b"begin", ended=False)
        sent = [b"%d" % number for number in range(100)]
        data = random.Random(1).randbytes(4 * MIB)
        room = bytearray(len(data))
        await acceptor.until(lambda: acceptor.heard[stream])
        first.swallows = True
        old = link.path
        for message in sent:
            link.send(stream, message, ended=False)
        arrival = acceptor.links()[0].expect(memoryview(room))
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(link.send_bulk(arrival.transfer, memoryview(data), 1))
            group.create_task(arrival.wait())
        await acceptor.until(lambda: len(acceptor.heard[stream]) > len(sent))

        assert (await path_of(link, old)).remote == second.at
        assert acceptor.heard[stream] == [b"begin", *sent]
        assert room == data
        assert dialler.links() == (link,)


async def test_a_link_moves_to_a_better_way_while_the_old_one_still_works():
    async with relayed() as (dialler, acceptor, link, (relay,)):
        stream = link.open(b"begin", ended=False)
        for number in range(50):
            link.send(stream, b"%d" % number, ended=False)

        await dialler.move(link, DialledCandidate(SocketNet(), acceptor.contact.address))
        link.send(stream, b"end", ended=False)
        await acceptor.until(lambda: acceptor.heard[stream][-1:] == [b"end"])

        assert link.path.remote == acceptor.contact.address
        assert acceptor.heard[stream] == [b"begin", *(b"%d" % n for n in range(50)), b"end"]
        assert relay.carried


async def test_a_move_to_nowhere_costs_nothing():
    async with relayed() as (dialler, acceptor, link, _):
        old = link.path
        nowhere = Relay(LOOPBACK)
        await nowhere.start()
        nowhere.stop()

        with pytest.raises(DialFailed):
            await dialler.move(link, DialledCandidate(SocketNet(), nowhere.at))

        assert link.path is old
        assert await call(dialler, acceptor) == b"hello"
        await nowhere.close()


async def test_the_side_that_was_dialled_dials_back_when_it_can():
    """The relay that the dialler knows is gone for good."""
    async with relayed(listens=True) as (dialler, acceptor, link, (relay,)):
        dialler._resumer.paths = SeveralWays()
        back = acceptor.links()[0]
        back.open(b"it is owed an answer", ended=False)
        old = back.path
        dialler._resumer.want = lambda _: None  # as if it had not noticed yet
        relay.stop()

        path = await path_of(back, old)

        assert path.remote == dialler.contact.address
        assert await call(dialler, acceptor, b"again") == b"again"
        assert link.path.candidate is None


async def test_a_peer_that_dialled_and_is_owed_nothing_is_not_dialled_back():
    """Else a crowd that comes and goes would make us dial wherever it says."""
    async with relayed(listens=True) as (dialler, acceptor, link, (relay,)):
        dialler._resumer.want = lambda _: None  # as if its process had ended
        tried = []
        acceptor._resumer._ask = lambda _link, way: tried.append(way)

        relay.stop()

        assert isinstance(await acceptor.loss(), LinkLost)
        assert tried == []
        assert link.path is None


async def test_a_peer_whose_process_ended_is_lost_at_once():
    """Its port refuses: who dialled knows of no other way."""
    async with relayed() as (dialler, _, link, (relay,)):
        begun_s = asyncio.get_running_loop().time()

        relay.stop()

        assert "nobody is at the other end" in str(await dialler.loss())
        assert asyncio.get_running_loop().time() - begun_s < 1.0
        assert link.over


async def test_a_peer_that_does_not_know_the_link_any_more_is_lost_at_once():
    """Something else answers at its address: another process of the same swarm."""
    async with relayed() as (dialler, _, link, (relay,)), EchoEnd() as stranger:
        await listening(stranger)
        dialler._resumer.paths = SeveralWays(stranger.contact.address)

        relay.cut()

        assert isinstance(await dialler.loss(), LinkLost)
        assert link.over


async def test_a_link_that_is_closed_is_closed_at_the_other_end_too():
    """It is told: the other side looks for no other path."""
    async with relayed(listens=True) as (dialler, acceptor, link, _):
        link.close()

        assert "closed by the peer" in str(await acceptor.loss())
        assert acceptor.links() == dialler.links() == ()


async def test_who_knows_another_address_of_a_peer_gives_its_link_a_way():
    """As when a peer has moved to another relay, and says so in its card."""
    async with relayed() as (dialler, acceptor, link, (relay,)):
        gone = asyncio.Event()
        dialler._resumer.want = lambda _: gone.set()  # its own ways lead nowhere
        relay.stop()
        await gone.wait()

        found = await dialler.link(Contact(acceptor.peer_id, acceptor.contact.address))

        assert found is link
        assert link.path.remote == acceptor.contact.address
        assert await call(dialler, acceptor, b"again") == b"again"


async def test_a_peer_that_was_started_again_gets_a_new_link_without_delay():
    async with relayed() as (dialler, acceptor, link, (relay,)):
        gone = asyncio.Event()
        dialler._resumer.want = lambda _: gone.set()
        relay.stop()
        await gone.wait()
        identity = acceptor._handshaker._static
        async with EchoEnd() as again:
            again._handshaker._static = identity  # another process with the same key
            await listening(again)

            found = await dialler.link(Contact(acceptor.peer_id, again.contact.address))

            assert found is not link
            assert link.over
            assert found.path is not None
