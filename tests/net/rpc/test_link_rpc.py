"""Tests of `net/rpc/link_rpc.py`."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import pytest
from net.rpc.harness import UNKNOWN, Ask, Rogue, meet

from p2pswarm.base.errors import BadMessage, Busy, LinkLost, NotServing, PathError, Refused
from p2pswarm.base.ids import PeerId
from p2pswarm.net.endpoint.endpoint import Link
from p2pswarm.net.link.events import RESET_REFUSED, LinkEnded, StreamData, StreamOpened, StreamReset
from p2pswarm.net.link.mux import SESSION_WINDOW_BYTES
from p2pswarm.net.link.reply_budget import LINK_BYTES_MAX, SUM_BYTES_MAX
from p2pswarm.net.rpc.framing import (
    FRAME_BYTES_MAX,
    LONG,
    MORE,
    RESET_LATE,
    Kind,
    pack_call,
    pack_good,
    pack_opening,
    unpack_error,
)
from p2pswarm.net.rpc.link_rpc import AT_ONCE, PARTS_S, LinkRpc
from p2pswarm.net.wire import frames
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


REPLY_BYTES = 40 * 1024


CALL = pack_opening(Kind.UNARY, 5.0, encode(Ask(1)))
EXCHANGE = pack_opening(Kind.STREAM, 5.0, encode(Ask(1)))


@pytest.mark.parametrize(
    ("frame", "ended"),
    [
        (b"", True),
        (b"junk", True),
        (CALL[:-1], True),
        (CALL + b"\0", True),
        (b"\7" + CALL[1:], True),
        (CALL, False),
        (EXCHANGE, True),
        (CALL[:5] + b"\xc1" * 60_000, True),
    ],
    ids=["nothing", "junk", "short", "long", "kind", "call-goes-on", "exchange-ended", "large"],
)
def test_opening_against_the_rules_ends_the_link(
    frame: bytes, *, ended: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        link = await rogue.endpoint.link(rpc.contact)
        link.open(frame, ended=ended)

        assert isinstance(await rogue.hear(LinkEnded), LinkEnded)
        assert not any(isinstance(event, StreamData) for event in rogue.heard)

    meet(body)
    assert "broke the protocol" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("kind", list(Kind))
def test_message_type_that_nobody_here_knows_is_not_served_and_does_no_harm(kind: Kind) -> None:
    """A stage's question to a bootstrap node, which never loaded the training messages."""

    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        link = await rogue.endpoint.link(rpc.contact)
        link.open(pack_opening(kind, 5.0, UNKNOWN), ended=kind is Kind.UNARY)

        event = await rogue.hear(StreamData)
        assert isinstance(event, StreamData)
        assert isinstance(unpack_error(event.data), NotServing)
        assert rogue.endpoint.links() == (link,)

    meet(body)


def test_more_after_a_request_ends_the_link() -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        link = await rogue.endpoint.link(rpc.contact)
        stream = link.open(EXCHANGE, ended=False)
        link.send(stream, b"\xffnot a frame", ended=False)

        await rogue.hear(LinkEnded)

    meet(body)


@pytest.mark.parametrize(
    ("frame", "ended"),
    [(b"", True), (b"\0junk", True), (b"\1", True), (pack_good(Ask(1))[0], False)],
    ids=["nothing", "junk", "no-failure", "not-ended"],
)
def test_reply_against_the_rules_fails_the_call_and_ends_the_link(
    frame: bytes, *, ended: bool
) -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        rogue.reply = lambda link, event: link.send(event.stream, frame, ended=ended)

        with pytest.raises(BadMessage):
            await rpc.call(rogue.endpoint.contact, Ask(1), 5.0)
        await rogue.hear(LinkEnded)

    meet(body)


def test_reset_of_a_call_is_a_refusal() -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        rogue.reply = lambda link, event: link.reset(event.stream, 99)

        with pytest.raises(Refused):
            await rpc.call(rogue.endpoint.contact, Ask(1), 5.0)

    meet(body)


def test_link_that_the_peer_closes_ends_the_call() -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        rogue.reply = lambda link, _event: link.close()

        with pytest.raises(PathError):
            await rpc.call(rogue.endpoint.contact, Ask(1), 5.0)

    meet(body)


def test_garbage_inside_an_exchange_is_the_readers_error_and_ends_the_link() -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        rogue.reply = lambda link, event: link.send(event.stream, b"\0junk", ended=False)

        async with rpc.open_stream(rogue.endpoint.contact, Ask(1), 5.0) as stream:
            with pytest.raises(BadMessage):
                await stream.receive()
            with pytest.raises(LinkLost):
                await stream.send(Ask(2))

    meet(body)


def test_handlers_end_with_their_rpc_and_their_callers_are_told() -> None:
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        link = await rogue.endpoint.link(rpc.contact)
        link.open(EXCHANGE, ended=False)
        await asyncio.sleep(1.0)
        await rpc.close()

        assert isinstance(await rogue.hear(StreamReset), StreamReset)

    meet(body)


def test_nobody_calls_himself() -> None:
    async def body(_rogue: Rogue, rpc: LinkRpc) -> None:
        with pytest.raises(PathError, match="ourselves"):
            await rpc.call(rpc.contact, Ask(5), 5.0)

    meet(body)


@message(61402)
@dataclass(frozen=True, slots=True)
class AskMuch(Message):
    number: int


@message(61403)
@dataclass(frozen=True, slots=True)
class Much(Message):
    data: Annotated[bytes, Size(REPLY_BYTES)]


def codes_of(rogue: Rogue) -> list[int]:
    return [event.code for event in rogue.heard if isinstance(event, StreamReset)]


def unread_max() -> int:
    """As many replies as the session's credit lets through, and as a link may hold."""
    return (SESSION_WINDOW_BYTES + LINK_BYTES_MAX) // REPLY_BYTES + 1


def test_who_reads_no_replies_is_refused_before_they_fill_our_memory():
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        rpc.serve_unary(AskMuch, lambda _peer, _ask: Much(bytes(REPLY_BYTES)))
        link = await rogue.endpoint.link(rpc.contact)
        for number in range(1000):
            link.open(pack_opening(Kind.UNARY, None, encode(AskMuch(number))), ended=True)
        await asyncio.sleep(1.0)

        assert len(codes_of(rogue)) >= 1000 - unread_max()
        assert set(codes_of(rogue)) == {RESET_REFUSED}

    meet(body)


def test_handlers_that_end_together_add_no_large_replies_to_what_is_unread():
    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        go = asyncio.Event()

        async def much(_peer: PeerId, _ask: AskMuch) -> Much:
            await go.wait()
            return Much(bytes(REPLY_BYTES))

        rpc.serve_unary(AskMuch, much)
        link = await rogue.endpoint.link(rpc.contact)
        for number in range(256):
            link.open(pack_opening(Kind.UNARY, None, encode(AskMuch(number))), ended=True)
        await asyncio.sleep(1.0)
        go.set()
        await asyncio.sleep(1.0)

        assert len(codes_of(rogue)) >= 256 - unread_max()
        assert set(codes_of(rogue)) == {RESET_LATE}

    meet(body)


def test_a_long_reply_is_not_added_to_what_other_links_have_filled():
    """One reply on each of a thousand links would be 60 MiB, though no link holds much."""

    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        rpc.serve_unary(AskMuch, lambda _peer, ask: Much(bytes(ask.number)))
        link = await rogue.endpoint.link(rpc.contact)
        of_all = rpc._endpoint._shared.memory  # there is no other way to have a thousand links here

        async def refused(reply_bytes: int) -> int:
            before = len(codes_of(rogue))
            link.open(pack_opening(Kind.UNARY, None, encode(AskMuch(reply_bytes))), ended=True)
            await asyncio.sleep(1.0)
            return len(codes_of(rogue)) - before

        of_all.held_bytes = SUM_BYTES_MAX
        assert await refused(REPLY_BYTES) == 1
        assert await refused(1000) == 0
        of_all.held_bytes = 0
        assert await refused(REPLY_BYTES) == 0
        assert set(codes_of(rogue)) == {RESET_LATE}

    meet(body)


CALL = pack_opening(Kind.UNARY, None, encode(Ask(1)))
STREAM = pack_opening(Kind.STREAM, None, encode(Ask(1)))
NUMBERS = range(1001, 1201, 2)


def opening(number: int, kind: Kind) -> bytes:
    if kind is Kind.UNARY:
        return frames.encode(frames.OPEN, number, CALL, frames.END)
    return frames.encode(frames.OPEN, number, STREAM)


@pytest.mark.parametrize("first", list(Kind))
@pytest.mark.parametrize("second", list(Kind))
def test_a_number_that_is_used_again_behind_its_reset_is_another_stream(first, second, caplog):
    caplog.set_level(logging.WARNING)

    async def body(rogue: Rogue, rpc: LinkRpc) -> None:
        link = await rogue.endpoint.link(rpc.contact)
        for number in NUMBERS:
            reset = frames.encode(frames.RESET, number, frames.NUMBER.pack(16))
            link._mux.control += [opening(number, first), reset, opening(number, second)]
        link.open(CALL, ended=True)

        assert isinstance(await rogue.hear(StreamData), StreamData)
        assert rogue.endpoint.links(), "the link lives"

    meet(body)
    assert not caplog.records
