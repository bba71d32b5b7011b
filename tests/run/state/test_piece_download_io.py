"""Donors and newcomers of pieces, through the simulated network."""

import asyncio
import contextlib
import hashlib
import random

import pytest

from p2pswarm.base.errors import BadMessage, NotServing
from p2pswarm.base.ids import PeerId
from p2pswarm.base.signal import Signal
from p2pswarm.net.rpc.base import Priority
from p2pswarm.run.messages.state import AskHashes, AskPiece, FetchPieces, StateOffer
from p2pswarm.run.state.donor import COPIES_MAX, QUIET_S, VERSION_WAIT_S, Donor
from p2pswarm.run.state.host_state import HostState, StateSize
from p2pswarm.run.state.piece_download_io import Download
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.rpc import SimWorld
from p2pswarm.tensors.state_tree import piece_spans, root_of

SIZE = StateSize(piece_spans(1000, 100), (4, 4, 4))  # 12 kB in ten pieces
PIECES, PART = 10, 400
SLOW = WorldConfig(bandwidth_bytes_per_s=5_000.0)
OPENING = FetchPieces(b"r" * 16, 0)


def peer(number):
    return PeerId(number.to_bytes(32))


def part(version, tensor, piece):
    return random.Random(f"{version} {tensor} {piece}").randbytes(PART)


def piece_of(version, piece):
    return b"".join(part(version, tensor, piece) for tensor in range(3))


def hashes_of(version):
    return tuple(hashlib.sha256(piece_of(version, piece)).digest() for piece in range(PIECES))


def content(version):
    return b"".join(part(version, t, k) for t in range(3) for k in range(PIECES))


class Source:
    """A donor whose version a test moves, and which may lie."""

    def __init__(self, world, number, version=3):
        self.rpc = world.rpc(peer(number))
        self.version = version
        self.moved = Signal()
        self.given = []
        self.damaged = set()
        self.pieces = PIECES
        self.donor = Donor(self)
        self.rpc.serve_stream(FetchPieces, self.serve)

    async def serve(self, stream, opening):
        del opening
        await self.donor.serve(stream)

    async def reached(self, version):
        while self.version < version:
            await self.moved.wait()

    async def piece(self, piece):
        self.given.append(piece)
        data = bytearray(piece_of(self.version, piece))
        data[0] ^= piece in self.damaged
        return self.version, memoryview(data)

    async def hashes(self, version):
        return hashes_of(version) if version <= self.version else None


class Newcomer:
    """Downloads a version that stands still."""

    def __init__(self, world, *sources, version=3, number=9):
        self.sources = list(sources)
        self.moved = Signal()
        self.state = HostState(SIZE, version, root_of(hashes_of(version)), self.moved)
        self.download = Download(world.rpc(peer(number)), OPENING, self.state)

    async def run(self):
        await self.download.run(self.donors, lambda: self.state.rules.complete)
        return self.state.snapshot()

    def donors(self):
        return [source.rpc.contact for source in self.sources]


def in_world(story, config=None):
    async def main():
        async with asyncio.timeout(3000):
            return await story(SimWorld(1, config) if config else SimWorld(1))

    return run(main(), seed=1)


def test_three_donors_give_a_part_each():
    async def story(world):
        sources = [Source(world, number) for number in (1, 2, 3)]
        return await Newcomer(world, *sources).run(), sources

    snapshot, sources = in_world(story, SLOW)
    assert bytes(snapshot.data) == content(3)
    assert snapshot.version == 3
    given = [piece for source in sources for piece in source.given]
    assert sorted(given) == list(range(PIECES))  # each once
    assert all(len(source.given) >= 2 for source in sources)


def test_what_a_dead_donor_gave_is_not_fetched_again():
    async def story(world):
        first, second = Source(world, 1), Source(world, 2)
        newcomer = Newcomer(world, first, second)
        going = asyncio.ensure_future(newcomer.run())
        await asyncio.sleep(1.0)
        here = len(newcomer.state.rules._held)
        assert 0 < here < PIECES
        world.kill(peer(1), silent=False)
        newcomer.sources.remove(first)
        return await going, len(first.given) + len(second.given)

    snapshot, given = in_world(story, SLOW)
    assert bytes(snapshot.data) == content(3)
    assert given <= PIECES + 2  # two were on their way from the dead one


def test_a_download_that_is_cut_off_goes_on_where_it_was():
    async def story(world):
        source = Source(world, 1)
        newcomer = Newcomer(world, source)
        going = asyncio.ensure_future(newcomer.run())
        await asyncio.sleep(2.0)
        going.cancel()
        await asyncio.wait([going])
        assert newcomer.state.rules.rejoined(3)
        here = set(newcomer.state.rules._held)
        assert 0 < len(here) < PIECES
        source.given.clear()
        await asyncio.sleep(10.0)
        return await newcomer.run(), here & set(source.given)

    snapshot, again = in_world(story, SLOW)
    assert bytes(snapshot.data) == content(3)
    assert again == set()


def test_a_liar_is_found_by_the_piece_named_and_asked_no_more(caplog):
    async def story(world):
        liar, honest = Source(world, 1), Source(world, 2)
        liar.damaged = set(range(PIECES))
        return await Newcomer(world, liar, honest).run(), liar

    snapshot, liar = in_world(story)
    assert bytes(snapshot.data) == content(3)
    assert len(liar.given) <= 4
    assert f"{peer(1).raw.hex()[:12]} gave damaged weights: piece" in caplog.text


def test_a_donor_of_another_version_is_passed_over_until_it_has_this_one():
    async def story(world):
        source = Source(world, 1, version=2)
        newcomer = Newcomer(world, source)
        going = asyncio.ensure_future(newcomer.run())
        await asyncio.sleep(5.0)
        source.version = 3
        source.moved.fire()
        return await going

    assert in_world(story).version == 3


def test_a_donor_that_comes_later_is_used():
    async def story(world):
        newcomer = Newcomer(world)
        going = asyncio.ensure_future(newcomer.run())
        await asyncio.sleep(5.0)
        newcomer.sources.append(Source(world, 1))
        newcomer.moved.fire()
        return await going

    assert bytes(in_world(story).data) == content(3)


def test_an_error_of_who_names_the_donors_ends_the_download_as_it_is():
    async def story(world):
        newcomer = Newcomer(world)

        def nobody():
            raise NotServing("nobody has it")

        with pytest.raises(NotServing, match="nobody has it"):
            await newcomer.download.run(nobody, lambda: False)

    in_world(story)


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (AskPiece(PIECES, 0, 1), BadMessage),
        (AskPiece(0, 99, 1), NotServing),
        (StateOffer(1, known=True), BadMessage),
        (None, NotServing),
    ],
)
def test_a_donor_refuses_what_it_cannot_give(question, error):
    async def story(world):
        source, rpc = Source(world, 1), world.rpc(peer(9))
        async with rpc.open_stream(source.rpc.contact, OPENING, None) as stream:
            if question is not None:
                await stream.send(question)
            with pytest.raises(error):
                await stream.receive()
            return asyncio.get_running_loop().time()

    assert in_world(story) < max(QUIET_S, VERSION_WAIT_S) + 1.0


def test_a_donor_says_when_it_does_not_know_the_hashes():
    async def story(world):
        source, rpc = Source(world, 1), world.rpc(peer(9))
        async with rpc.open_stream(source.rpc.contact, OPENING, None) as stream:
            await stream.send(AskHashes(4, 1))
            return await stream.receive()

    assert in_world(story) == StateOffer(4, known=False)


@pytest.mark.parametrize("answer", ["nothing", "a question", "a piece that it does not know"])
def test_a_donor_that_answers_rubbish_costs_only_time(answer):
    async def story(world):
        rpc = world.rpc(peer(1))

        async def rubbish(stream, opening):
            del opening
            asked = await stream.receive()
            if answer == "a question":
                await stream.send(asked)
            elif answer != "nothing":
                await stream.send(StateOffer(3, known=False))

        rpc.serve_stream(FetchPieces, rubbish)
        newcomer = Newcomer(world, Source(world, 2))
        donors = [rpc.contact, newcomer.sources[0].rpc.contact]
        await newcomer.download.run(lambda: donors, lambda: newcomer.state.rules.complete)
        return newcomer.state.snapshot()

    assert bytes(in_world(story).data) == content(3)


def test_a_donor_copies_no_more_pieces_at_a_time_than_its_limit():
    async def story(world):
        source, most, now = Source(world, 1), 0, 0
        source.donor = Donor(source, copies_max=2)
        whole = source.piece

        class Counted:
            def __init__(self, stream):
                self.stream, self.peer = stream, stream.peer
                self.receive, self.send = stream.receive, stream.send

            async def send_bulk(self, transfer, data, priority):
                nonlocal now
                assert priority is Priority.STATE
                try:
                    await self.stream.send_bulk(transfer, data, priority)
                finally:
                    now -= data.nbytes == 3 * PART

        async def piece(number):
            nonlocal most, now
            now += 1
            most = max(most, now)
            return await whole(number)

        async def serve(stream, opening):
            del opening
            await source.donor.serve(Counted(stream))

        source.piece = piece
        source.rpc.serve_stream(FetchPieces, serve)
        newcomers = [Newcomer(world, source, number=number) for number in range(10, 16)]
        await asyncio.gather(*(newcomer.run() for newcomer in newcomers))
        return most

    assert in_world(story, SLOW) == 2


def test_a_donor_sends_the_next_piece_while_one_is_on_its_way():
    """Else the link is idle for a round trip after each: a quarter of the time at 200 Mbit/s."""
    assert sent_at_once(newcomers=1) == 2


def test_a_newcomer_has_one_copy_while_half_of_all_places_are_taken():
    assert sent_at_once(newcomers=2, copies_max=4) == 3  # the first two, and one of the second


def sent_at_once(newcomers, copies_max=COPIES_MAX):
    """How many pieces a donor sends to so many newcomers that take nothing."""

    async def story(world):
        source, sending = Source(world, 1), []
        source.donor = Donor(source, copies_max=copies_max)

        class Stalling:
            def __init__(self, stream):
                self.stream, self.peer = stream, stream.peer
                self.receive, self.send = stream.receive, stream.send

            async def send_bulk(self, transfer, data, priority):
                del data, priority
                sending.append(transfer)
                await asyncio.Event().wait()

        async def serve(stream, opening):
            del opening
            await source.donor.serve(Stalling(stream))

        source.rpc.serve_stream(FetchPieces, serve)
        async with contextlib.AsyncExitStack() as streams:
            for number in range(newcomers):
                opened = world.rpc(peer(9 + number)).open_stream(source.rpc.contact, OPENING, None)
                stream = await streams.enter_async_context(opened)
                for piece in range(4):
                    await stream.send(AskPiece(piece, 3, piece + 1))
                await asyncio.sleep(1)
            return len(sending)

    return in_world(story)


@pytest.mark.parametrize("at_least", [3, 2**40], ids=["takes nothing", "waits for the far future"])
def test_a_newcomer_with_many_streams_does_not_keep_others_waiting(at_least):
    """It asks on more streams than a donor makes copies, and takes none of what it asked for."""

    async def story(world):
        source, rpc = Source(world, 1), world.rpc(peer(9))

        class Stalling:
            def __init__(self, stream):
                self.stream, self.peer = stream, stream.peer
                self.receive, self.send = stream.receive, stream.send

            async def send_bulk(self, transfer, data, priority):
                if self.peer == peer(9):
                    await asyncio.Event().wait()
                await self.stream.send_bulk(transfer, data, priority)

        async def serve(stream, opening):
            del opening
            await source.donor.serve(Stalling(stream))

        source.rpc.serve_stream(FetchPieces, serve)
        async with contextlib.AsyncExitStack() as streams:
            for _ in range(COPIES_MAX + 1):
                opened = rpc.open_stream(source.rpc.contact, OPENING, None)
                stream = await streams.enter_async_context(opened)
                await stream.send(AskPiece(0, at_least, 1))
            await asyncio.sleep(1)
            snapshot = await Newcomer(world, source, number=10).run()
            return snapshot, asyncio.get_running_loop().time()

    snapshot, ended_s = in_world(story)
    assert bytes(snapshot.data) == content(3)
    assert ended_s < 10.0
