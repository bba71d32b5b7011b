"""Tests of `net/rpc/framing.py`."""

import contextlib
import math
from dataclasses import dataclass
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base import errors
from p2pswarm.base.errors import BadMessage, Busy, Late, LinkLost, Refused, SwarmError
from p2pswarm.net.link.stream_scheduler import MESSAGE_COST_BYTES, STREAM_WINDOW_BYTES
from p2pswarm.net.rpc.framing import (
    FRAME_BYTES_MAX,
    GOOD,
    LONG,
    MORE,
    OPENING_BYTES,
    RESET_GIVEN_UP,
    RESET_LATE,
    RESET_LEAVING,
    RETRY_AFTER_MAX_S,
    STATUS,
    Assembly,
    Failure,
    Kind,
    LongMessage,
    cut,
    error_for_caller,
    error_of,
    failure_of,
    fits,
    is_good,
    pack_call,
    pack_error,
    pack_good,
    pack_opening,
    pack_outcome,
    reset_error,
    status_of,
    unpack_deadline,
    unpack_error,
    unpack_good,
    unpack_opening,
)
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


@message(61101)
@dataclass(frozen=True, slots=True)
class Note(Message):
    text: str


@message(61102)
@dataclass(frozen=True, slots=True)
class Bulky(Message):
    data: Annotated[bytes, Size(60 * 1024)]


def every_error() -> list[type[SwarmError]]:
    found = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, SwarmError)]
    assert len(found) > 15
    return found


# openings


@pytest.mark.parametrize("kind", list(Kind))
def test_opening_survives_the_wire(kind: Kind) -> None:
    frame = pack_opening(kind, 1.5, encode(Note("hello")))

    assert unpack_opening(frame) == (kind, 1.5, Note("hello"))


def test_no_deadline_stays_none() -> None:
    frame = pack_opening(Kind.STREAM, None, encode(Note("")))

    assert unpack_opening(frame)[1] is None


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 1e-9])
def test_deadline_that_is_all_but_over_does_not_turn_into_none(timeout_s: float) -> None:
    frame = pack_opening(Kind.UNARY, timeout_s, encode(Note("")))

    assert unpack_opening(frame)[1] == 0.001


def test_deadline_beyond_the_wire_is_the_longest_there_is() -> None:
    frame = pack_opening(Kind.UNARY, 1e12, encode(Note("")))

    timeout_s = unpack_opening(frame)[1]
    assert timeout_s is not None
    assert timeout_s > 40 * 86_400


@pytest.mark.parametrize("frame", [b"", b"\1", b"\1\0\0\0", b"\1\0\0\0\0", b"\1\0\0\0\0junk"])
def test_opening_cut_short_is_refused(frame: bytes) -> None:
    with pytest.raises(BadMessage):
        unpack_opening(frame)


@pytest.mark.parametrize("kind", [0, 3, 255])
def test_stream_of_no_known_kind_is_refused(kind: int) -> None:
    frame = pack_opening(Kind.UNARY, 1.0, encode(Note("")))

    with pytest.raises(BadMessage, match=str(kind)):
        unpack_opening(bytes((kind,)) + frame[1:])


def test_message_over_a_frame_is_our_mistake() -> None:
    bulky = Bulky(bytes(FRAME_BYTES_MAX))

    with pytest.raises(ValueError, match=str(FRAME_BYTES_MAX)):
        pack_opening(Kind.UNARY, None, encode(bulky))
    with pytest.raises(ValueError, match=str(FRAME_BYTES_MAX)):
        pack_good(bulky)


# replies


def test_good_reply_survives_the_wire() -> None:
    (frame,) = pack_good(Note("well"))

    assert is_good(frame)
    assert unpack_good(frame) == Note("well")


@pytest.mark.parametrize("kind", every_error())
def test_each_error_arrives_as_its_class_with_its_words(kind: type[SwarmError]) -> None:
    frame = pack_error(kind("the reason"))

    assert not is_good(frame)
    arrived = unpack_error(frame)
    assert type(arrived) is kind
    assert str(arrived) == "the reason"


def test_status_numbers_are_told_apart() -> None:
    numbers = [number for number, _ in STATUS]

    assert len(set(numbers)) == len(numbers)
    assert all(0 < number < 256 for number in numbers)


def test_class_that_has_no_number_travels_as_its_parent() -> None:
    class Drowsy(Refused):
        pass

    assert type(unpack_error(pack_error(Drowsy("later")))) is Refused


def test_status_of_a_newer_peer_is_a_refusal() -> None:
    error = error_of(199, Failure("news"))

    assert type(error) is Refused
    assert str(error) == "news"


def test_busy_says_when_to_come_again() -> None:
    arrived = unpack_error(pack_error(Busy("full", retry_after_s=0.25)))

    assert isinstance(arrived, Busy)
    assert arrived.retry_after_s == 0.25


@pytest.mark.parametrize(
    ("asked_s", "told_s"),
    [(-1.0, 0.0), (math.inf, 0.0), (math.nan, 0.0), (1e9, RETRY_AFTER_MAX_S)],
)
def test_busy_for_an_impossible_time_is_made_possible(asked_s: float, told_s: float) -> None:
    assert failure_of(Busy("full", asked_s)).retry_after_s == told_s


def test_long_reason_is_cut() -> None:
    assert len(str(unpack_error(pack_error(Refused("x" * 100_000))))) == 200


@pytest.mark.parametrize("frame", [b"\0junk", b"\1", b"\2" + encode(Note("no failure"))])
def test_malformed_reply_is_refused(frame: bytes) -> None:
    with pytest.raises(BadMessage):
        unpack_good(frame) if is_good(frame) else unpack_error(frame)


def test_frame_without_a_status_is_refused() -> None:
    with pytest.raises(BadMessage):
        unpack_error(b"")
    with pytest.raises(BadMessage):
        unpack_good(b"")


@given(st.binary(max_size=200))
def test_no_bytes_of_a_peer_raise_anything_but_bad_message(frame: bytes) -> None:
    for read in (unpack_opening, unpack_good, unpack_error):
        with contextlib.suppress(BadMessage):
            read(frame)


def test_reset_tells_why() -> None:
    assert type(reset_error(1)) is Busy
    assert type(reset_error(RESET_LATE)) is Late
    assert type(reset_error(RESET_GIVEN_UP)) is Refused
    assert type(reset_error(RESET_LEAVING)) is Refused


# outcomes of handlers


def test_reply_of_a_handler_is_a_good_frame() -> None:
    (frame,) = pack_outcome(Note("done"), Note("ask"))

    assert unpack_good(frame) == Note("done")


def test_error_of_a_handler_is_an_error_frame() -> None:
    (frame,) = pack_outcome(LinkLost("gone"), Note("ask"))

    assert type(unpack_error(frame)) is LinkLost


@pytest.mark.parametrize("outcome", [None, Bulky(bytes(FRAME_BYTES_MAX)), Bulky(bytes(70_000))])
def test_reply_that_cannot_travel_is_a_refusal_and_is_logged(
    outcome: Message | None, caplog: pytest.LogCaptureFixture
) -> None:
    (frame,) = pack_outcome(outcome, Note("ask"))
    arrived = unpack_error(frame)

    assert type(arrived) is Refused
    assert "Note" in caplog.text


def test_error_of_ours_is_told_as_it_is_and_a_bug_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    busy = Busy("full")

    assert error_for_caller(busy, Note("")) is busy
    assert not caplog.text
    assert str(error_for_caller(KeyError("secret"), Note(""))) == "internal error"
    assert "secret" in caplog.text


def test_every_error_has_a_status() -> None:
    assert status_of(SwarmError("at the root")) == 23
