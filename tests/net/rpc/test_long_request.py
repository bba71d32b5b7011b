"""Long requests of a peer without manners: what it holds is bounded, and nobody else notices."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import pytest
from net.rpc.harness import UNKNOWN, Ask, Rogue, meet

from p2pswarm.base.errors import BadMessage, Busy, NotServing
from p2pswarm.base.ids import PeerId
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.link.events import LinkEnded, StreamData, StreamOpened, StreamReset
from p2pswarm.net.rpc.framing import (
    LONG,
    RESET_LATE,
    pack_call,
    pack_good,
    unpack_error,
)
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.net.rpc.long_request import AT_ONCE, PARTS_S
from p2pswarm.net.rpc.parts import FRAME_BYTES_MAX, MORE
from p2pswarm.net.wire.message import Message, Size, encode, message


@message(61411, bytes_max=120_000)
@dataclass(frozen=True, slots=True)
class Tome(Message):
    data: Annotated[bytes, Size(110_000)]


@message(61412, bytes_max=120_000)
@dataclass(frozen=True, slots=True)
class Unread(Message):
    data: Annotated[bytes, Size(110_000)]


TOME = encode(Tome(bytes(100_000)))
FIRST, LAST = pack_call(None, TOME)
BEGUN = LONG + bytes(4)
BOTH = b"".join((FIRST, LAST))


def serve(rpc: LinkRpc) -> None:
    rpc.serve_unary(Tome, lambda _peer, tome: Ask(len(tome.data)))


def errors_of(rogue: Rogue) -> list[type]:
    data = [event.data for event in rogue.heard if isinstance(event, StreamData)]
    return [type(unpack_error(frame)) for frame in data]


def resets_of(rogue: Rogue) -> list[int]:
    return [event.code for event in rogue.heard if isinstance(event, StreamReset)]


def test_a_request_that_stalls_is_reset_and_its_place_is_free_again() -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        serve(rpc)
        link = await rogue.endpoint.link(rpc.contact)
        for _ in range(AT_ONCE.per_peer):
            link.open(FIRST, ended=False)
        link.open(pack_call(2.0, TOME)[0], ended=False)
        await asyncio.sleep(1.0)
        assert errors_of(rogue) == [Busy]  # one more than a peer may have

        await asyncio.sleep(PARTS_S)
        assert resets_of(rogue) == [RESET_LATE] * AT_ONCE.per_peer
        for timeout_s in (1.0, 2.0):
            link.open(pack_call(timeout_s, TOME)[0], ended=False)
        await asyncio.sleep(1.5)

        assert resets_of(rogue) == [RESET_LATE] * (AT_ONCE.per_peer + 1)  # the first is late
        assert rogue.endpoint.links() == (link,)

    meet(body)


def test_a_request_that_is_given_up_or_ends_gives_its_place_back() -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        serve(rpc)
        link = await rogue.endpoint.link(rpc.contact)
        for _ in range(3 * AT_ONCE.per_peer):
            given_up = link.open(FIRST, ended=False)
            link.reset(given_up, 16)
            done = link.open(FIRST, ended=False)
            link.send(done, LAST, ended=True)
            await asyncio.sleep(0.5)

        replies = [event.data for event in rogue.heard if isinstance(event, StreamData)]
        assert replies == [*pack_good(Ask(100_000))] * 3 * AT_ONCE.per_peer
        assert rpc._long.count == 0

    meet(body)


def test_a_link_that_ends_gives_the_places_of_its_requests_back() -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        serve(rpc)
        link = await rogue.endpoint.link(rpc.contact)
        link.open(FIRST, ended=False)
        link.open(FIRST, ended=False)
        await asyncio.sleep(1.0)
        assert rpc._long.count == 2
        link.close()
        await asyncio.sleep(2 * PARTS_S)

        assert rpc._long.count == 0

    meet(body)


def test_a_kind_that_nobody_serves_holds_nothing() -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        link = await rogue.endpoint.link(rpc.contact)
        for first, last in (
            pack_call(None, encode(Unread(bytes(100_000)))),
            ((BEGUN + UNKNOWN).ljust(FRAME_BYTES_MAX, b"\0"), LAST),
        ):
            stream = link.open(first, ended=False)
            link.send(stream, last, ended=True)
        await asyncio.sleep(1.0)

        assert errors_of(rogue) == [NotServing, NotServing]
        assert rpc._long.count == 0
        assert rogue.endpoint.links() == (link,)

    meet(body)


Told = Callable[[Link], None]


def then(frame: bytes, *, ended: bool) -> Told:
    def told(link: Link) -> None:
        link.send(link.open(FIRST, ended=False), frame, ended=ended)

    return told


@pytest.mark.parametrize(
    "told",
    [
        lambda link: link.open(FIRST, ended=True),
        lambda link: link.open(FIRST[:1000], ended=False),
        lambda link: link.open(BEGUN[:3], ended=False),
        lambda link: link.open((BEGUN + encode(Ask(1))).ljust(FRAME_BYTES_MAX), ended=False),
        then(LAST, ended=False),
        then(MORE + bytes(FRAME_BYTES_MAX - 1), ended=False),
        then(MORE + LAST[1:], ended=False),
        then(b"\1" + LAST[1:], ended=True),
        then(b"", ended=True),
        then(LAST + b"\0", ended=True),
    ],
    ids=[
        "one-part",
        "short",
        "no-deadline",
        "kind",
        "goes-on",
        "too-long",
        "small-part",
        "error",
        "ends",
        "malformed",
    ],
)
def test_parts_against_the_rules_end_the_link(told: Told) -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        serve(rpc)
        link = await rogue.endpoint.link(rpc.contact)
        told(link)

        await rogue.hear(LinkEnded)
        assert rpc._long.count == 0

    meet(body)


@pytest.mark.parametrize(
    ("frames", "ended"),
    [
        (pack_good(Tome(bytes(100_000))), False),
        (pack_good(Tome(bytes(100_000)))[:1], True),
        (((MORE + encode(Ask(1))).ljust(FRAME_BYTES_MAX),), False),
    ],
    ids=["not-ended", "half", "kind"],
)
def test_a_long_reply_against_the_rules_fails_the_call(frames, *, ended: bool) -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        def reply(link: Link, event: StreamOpened) -> None:
            for frame in frames:
                link.send(event.stream, frame, ended=ended and frame is frames[-1])

        rogue.reply = reply
        with pytest.raises(BadMessage):
            await rpc.call(rogue.endpoint.contact, Ask(1), 5.0)
        await rogue.hear(LinkEnded)

    meet(body)


def test_a_stream_that_ends_within_a_message_ends_the_link() -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        def reply(link: Link, event: StreamOpened) -> None:
            link.send(event.stream, pack_good(Tome(bytes(100_000)))[0], ended=True)

        rogue.reply = reply
        with pytest.raises(BadMessage):
            async with rpc.open_stream(rogue.endpoint.contact, Ask(1), 5.0) as stream:
                await stream.receive()
        await rogue.hear(LinkEnded)

    meet(body)


def test_a_long_message_that_is_malformed_is_its_readers_error() -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        def reply(link: Link, event: StreamOpened) -> None:
            first, last = pack_good(Tome(bytes(100_000)))
            link.send(event.stream, first, ended=False)
            link.send(event.stream, last[:-1], ended=True)

        rogue.reply = reply
        async with rpc.open_stream(rogue.endpoint.contact, Ask(1), 5.0) as stream:
            with pytest.raises(BadMessage):
                await stream.receive()
        await rogue.hear(LinkEnded)

    meet(body)


def test_calls_go_on_beside_requests_that_stall() -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        serve(rpc)
        link = await rogue.endpoint.link(rpc.contact)
        for _ in range(100):
            link.open(FIRST, ended=False)
        link.open(pack_call(5.0, encode(Ask(7)))[0], ended=True)
        await asyncio.sleep(2.0)

        replies = [event.data for event in rogue.heard if isinstance(event, StreamData)]
        assert pack_good(Ask(7))[0] in replies

    meet(body)


def test_a_network_has_no_more_long_requests_than_are_free() -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        serve(rpc)
        network = "a greedy network"
        for number in range(AT_ONCE.total // 2):
            rpc._long.enter(PeerId(number.to_bytes(32)), network)
        rpc._long.enter(PeerId(bytes(31) + b"x"), network)
        with pytest.raises(Busy):
            rpc._long.enter(PeerId(bytes(31) + b"y"), network)
        link = await rogue.endpoint.link(rpc.contact)
        link.send(link.open(FIRST, ended=False), LAST, ended=True)

        heard = await rogue.hear(StreamData)
        assert isinstance(heard, StreamData)
        assert (heard.data,) == pack_good(Ask(100_000))

    meet(body)
