"""Tests of `net/rpc/dispatch.py`."""

import pytest

from p2pswarm.base.errors import BadMessage, LinkLost, NotServing, Refused, SwarmError
from p2pswarm.base.ids import PeerId
from p2pswarm.net.link.events import CreditGained, StreamData, StreamReset
from p2pswarm.net.rpc.dispatch import HandlerTable, Inbox, Listeners, Opening, read_opening
from p2pswarm.net.rpc.framing import RESET_GIVEN_UP, Failure, Kind, pack_opening
from p2pswarm.net.wire.message import Message, encode

REQUEST = Failure("as good as any")
UNKNOWN = b"\x91\xcd\xfd\xe7"  # a message of code 64999


def test_an_opening_says_what_is_asked_and_until_when():
    frame = pack_opening(Kind.UNARY, 1.5, encode(REQUEST))

    assert read_opening(frame, ended=True) == Opening(Kind.UNARY, 1.5, REQUEST)


@pytest.mark.parametrize(("kind", "ended"), [(Kind.UNARY, False), (Kind.STREAM, True)])
def test_a_call_is_one_frame_and_a_stream_is_not(kind: Kind, ended: bool):
    with pytest.raises(BadMessage, match=kind.name):
        read_opening(pack_opening(kind, None, encode(REQUEST)), ended=ended)


def test_a_message_that_this_release_does_not_know_is_not_served():
    with pytest.raises(NotServing, match="64999"):
        read_opening(pack_opening(Kind.UNARY, None, UNKNOWN), ended=True)


def test_handlers_are_found_by_the_type_of_message_and_the_kind_of_stream():
    table = HandlerTable()

    def answer(peer: PeerId, request: Message) -> Message:
        del peer
        return request

    async def converse(stream: object, opening: Message) -> None:
        del stream, opening

    with pytest.raises(NotServing, match="calls of Failure here"):
        table.unary(Failure)
    with pytest.raises(NotServing, match="streams of Failure here"):
        table.stream(REQUEST)
    table.serve_unary(Failure, answer)
    table.serve_stream(Failure, converse)

    assert table.unary(Failure) is answer
    assert table.stream(REQUEST) is converse


class Notes:
    """A listener that writes down what it is told."""

    def __init__(self, *, once: bool = False):
        self.once = once
        self.told: list[object] = []

    def on_frame(self, frame: bytes, *, ended: bool):
        self.told.append((frame, ended))

    def on_credit(self):
        self.told.append("credit")

    def fail(self, error: SwarmError):
        self.told.append(type(error))


def test_each_event_goes_to_the_listener_of_its_stream():
    listeners: Listeners[str] = Listeners()
    one, other = Notes(), Notes()
    listeners.of("link")[1], listeners.of("link")[3] = one, other

    assert listeners.on_event("link", StreamData(1, b"a", False))
    assert listeners.on_event("link", CreditGained(3))

    assert one.told == [(b"a", False)]
    assert other.told == ["credit"]


def test_nobody_hears_of_a_stream_without_a_listener():
    listeners: Listeners[str] = Listeners()
    listeners.of("link")[1] = Notes()

    assert not listeners.on_event("link", StreamData(3, b"a", False))
    assert not listeners.on_event("another link", StreamData(1, b"a", False))


def test_a_caller_is_forgotten_with_its_reply_and_a_stream_is_not():
    listeners: Listeners[str] = Listeners()
    listeners.of("link")[1], listeners.of("link")[3] = Notes(once=True), Notes()

    for stream in (1, 3):
        assert listeners.on_event("link", StreamData(stream, b"a", False))
        assert listeners.on_event("link", StreamData(stream, b"end", True))

    assert list(listeners.of("link")) == [3]


def test_a_reset_fails_the_listener_and_forgets_it():
    listeners: Listeners[str] = Listeners()
    listener = listeners.of("link")[1] = Notes()

    assert listeners.on_event("link", StreamReset(1, RESET_GIVEN_UP))
    assert not listeners.on_event("link", StreamReset(1, RESET_GIVEN_UP))

    assert listener.told == [Refused]


def test_the_end_of_a_link_fails_all_of_its_listeners_and_no_others():
    listeners: Listeners[str] = Listeners()
    here, there = Notes(), Notes()
    listeners.of("link")[1], listeners.of("another link")[1] = here, there

    listeners.on_link_end("link", LinkLost("gone"))
    listeners.on_link_end("link", LinkLost("again"))

    assert here.told == [LinkLost]
    assert there.told == []


def test_inbox_gives_what_came_in_order_and_then_the_end() -> None:
    inbox = Inbox()
    inbox.put(1)
    inbox.put(2)
    inbox.finish(None)

    assert [inbox.take(), inbox.take(), inbox.take(), inbox.take()] == [1, 2, None, None]


def test_inbox_gives_what_came_before_the_error() -> None:
    inbox = Inbox()
    inbox.put(1)
    inbox.finish(LinkLost("cut"))

    assert inbox.take() == 1
    with pytest.raises(LinkLost):
        inbox.take()


def test_first_end_of_an_inbox_stands() -> None:
    inbox = Inbox()
    inbox.finish(None)
    inbox.finish(LinkLost("too late"))

    assert inbox.take() is None


def test_inbox_is_ready_when_there_is_something_to_say() -> None:
    inbox = Inbox()
    assert not inbox.ready
    inbox.put(1)
    assert inbox.ready

    assert inbox.clear() == [1]
    assert not inbox.ready
    inbox.finish(None)
    assert inbox.ready
