"""The bytes of calls: every error by its class, every malformed frame refused."""

import contextlib
import math
from dataclasses import dataclass
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base import errors
from p2pswarm.base.errors import BadMessage, Busy, Late, LinkLost, Refused, SwarmError
from p2pswarm.net.rpc.framing import (
    RESET_GIVEN_UP,
    RESET_LATE,
    RESET_LEAVING,
    RETRY_AFTER_MAX_S,
    STATUS,
    Failure,
    Kind,
    error_for_caller,
    error_of,
    failure_of,
    is_good,
    pack_error,
    pack_good,
    pack_opening,
    pack_outcome,
    reset_error,
    status_of,
    unpack_error,
    unpack_good,
    unpack_opening,
)
from p2pswarm.net.rpc.parts import FRAME_BYTES_MAX
from p2pswarm.net.wire.message import Message, Size, encode, message


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
