"""Messages longer than a frame: cut one way, put together again, refused if they break a rule."""

from dataclasses import dataclass
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.net.link.send_lines import MESSAGE_COST_BYTES
from p2pswarm.net.link.stream_state import STREAM_WINDOW_BYTES
from p2pswarm.net.rpc.framing import (
    LONG,
    OPENING_BYTES,
    fits,
    pack_call,
    pack_good,
    unpack_deadline,
)
from p2pswarm.net.rpc.parts import FRAME_BYTES_MAX, GOOD, MORE, Assembly, LongMessage, cut
from p2pswarm.net.wire.frames import MESSAGE_BYTES_MAX
from p2pswarm.net.wire.message import (
    LONG_BYTES_MAX,
    Message,
    Size,
    UnknownCode,
    decode,
    encode,
    message,
)

KIND_BYTES_MAX = 100 * 1024
OVERHEAD_BYTES = 9  # of a `Scroll`: the array, its code, the head of its bytes


@message(61501, bytes_max=KIND_BYTES_MAX)
@dataclass(frozen=True, slots=True)
class Scroll(Message):
    data: Annotated[bytes, Size(KIND_BYTES_MAX)]


@message(61502)
@dataclass(frozen=True, slots=True)
class Leaf(Message):
    data: bytes


def assembled(frames: tuple[bytes, ...]) -> LongMessage:
    assembly = Assembly()
    if frames[0][:1] == LONG:
        assembly.begin(frames[0], OPENING_BYTES)
        frames = frames[1:]
    *parts, last = frames
    assert [assembly.add(frame) for frame in parts] == [None] * len(parts)
    whole = assembly.add(last)
    assert whole is not None
    assert assembly.kind is None
    assert assembly.frames_bytes == ()
    return whole


@given(st.integers(FRAME_BYTES_MAX, KIND_BYTES_MAX - OVERHEAD_BYTES), st.sampled_from([1, 5]))
def test_a_long_message_is_what_was_cut(nbytes: int, head_bytes: int) -> None:
    scroll = Scroll(bytes(range(256)) * (nbytes // 256) + bytes(nbytes % 256))

    frames = pack_good(scroll) if head_bytes == 1 else pack_call(2.0, encode(scroll))
    whole = assembled(frames)

    assert decode(whole.body) == scroll
    lengths = [len(frame) for frame in frames]
    assert lengths[:-1] == [FRAME_BYTES_MAX] * (len(frames) - 1)
    assert 1 < lengths[-1] <= FRAME_BYTES_MAX
    assert sum(whole.frames_bytes) == sum(lengths[-len(whole.frames_bytes) :])


@pytest.mark.parametrize("over", [0, 1])
def test_a_message_that_fits_one_frame_is_not_cut(over: int) -> None:
    room = FRAME_BYTES_MAX - 1 - len(encode(Scroll(bytes(60_000)))) + 60_000 + over

    frames = pack_good(Scroll(bytes(room)))

    assert len(frames) == 1 + over
    assert frames[-1][:1] == GOOD
    assert frames[0][:1] == (MORE if over else GOOD)


def test_a_long_request_tells_its_deadline_first() -> None:
    body = encode(Scroll(bytes(70_000)))

    assert unpack_deadline(pack_call(1.5, body)[0]) == 1.5
    assert unpack_deadline(pack_call(None, body)[0]) is None
    with pytest.raises(BadMessage, match="4 bytes"):
        unpack_deadline(LONG + bytes(3))


def test_a_kind_that_may_not_be_long_is_our_mistake() -> None:
    body = encode(Leaf(bytes(60 * 1024)))

    for pack in (lambda: fits(body, 1), lambda: pack_call(None, body)):
        with pytest.raises(ValueError, match=str(FRAME_BYTES_MAX)):
            pack()


def begun() -> Assembly:
    assembly = Assembly()
    assembly.add(pack_good(Scroll(bytes(70_000)))[0])
    return assembly


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (GOOD, "empty"),
        (MORE + bytes(100), "101 bytes, and others"),
        (b"\x01" + bytes(100), "no part"),
        (b"", "no part"),
        (GOOD + bytes(60_000), "Scroll of over 102400"),
    ],
    ids=["empty", "short", "error", "nothing", "too-long"],
)
def test_what_may_not_come_between_parts_is_refused(frame: bytes, told: str) -> None:
    with pytest.raises(BadMessage, match=told):
        begun().add(frame)


def full(start: bytes) -> bytes:
    return (MORE + start).ljust(FRAME_BYTES_MAX, b"\0")


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (full(encode(Leaf(bytes(100)))), "Leaf in parts"),
        (full(b"\x92\xcd\xea\x5f"), "unknown code 59999"),
        (full(b"\xff"), "starts with a code"),
        (MORE, "starts with a code"),
        (GOOD + bytes(9), "no part"),
        ((MORE + encode(Scroll(bytes(70_000))))[:60_000], "60000 bytes, and others"),
    ],
    ids=["kind", "unknown", "junk", "nothing", "no-first", "short"],
)
def test_what_does_not_begin_a_long_message_is_refused(frame: bytes, told: str) -> None:
    with pytest.raises(BadMessage, match=told):
        Assembly().add(frame)


def test_a_kind_that_nobody_knows_here_is_told_apart() -> None:
    with pytest.raises(UnknownCode):
        Assembly().begin(full(b"\x92\xcd\xea\x5f"))


def test_no_more_parts_come_than_the_kind_has_room_for() -> None:
    assembly = begun()

    with pytest.raises(BadMessage, match="Scroll of over"):
        assembly.add(full(b""))


def test_a_long_message_takes_at_most_half_of_a_streams_window() -> None:
    """The other half may be owed: credit is given back in halves, and a part that waits for credit
    which nobody gives would wait for ever."""
    frames = cut(bytes(OPENING_BYTES), bytes(LONG_BYTES_MAX))

    cost = sum(len(frame) + MESSAGE_COST_BYTES for frame in frames)

    assert cost <= STREAM_WINDOW_BYTES // 2
    assert len(frames) == 3
    assert FRAME_BYTES_MAX == MESSAGE_BYTES_MAX
