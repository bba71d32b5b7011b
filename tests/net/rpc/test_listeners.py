"""Who is told what happens on a stream, and who is forgotten when."""

from p2pswarm.base.errors import LinkLost, Refused, SwarmError
from p2pswarm.net.link.events import CreditGained, StreamData, StreamReset
from p2pswarm.net.rpc.framing import RESET_GIVEN_UP
from p2pswarm.net.rpc.listeners import Listeners


class Notes:
    """A listener that writes down what it is told."""

    def __init__(self, *, once: bool = False):
        self.once = once
        self.told: list[object] = []

    def data(self, frame: bytes, *, ended: bool):
        self.told.append((frame, ended))

    def credit(self):
        self.told.append("credit")

    def fail(self, error: SwarmError):
        self.told.append(type(error))


def test_each_event_goes_to_the_listener_of_its_stream():
    listeners: Listeners[str] = Listeners()
    one, other = Notes(), Notes()
    listeners.of("link")[1], listeners.of("link")[3] = one, other

    assert listeners.tell("link", StreamData(1, b"a", False))
    assert listeners.tell("link", CreditGained(3))

    assert one.told == [(b"a", False)]
    assert other.told == ["credit"]


def test_nobody_hears_of_a_stream_without_a_listener():
    listeners: Listeners[str] = Listeners()
    listeners.of("link")[1] = Notes()

    assert not listeners.tell("link", StreamData(3, b"a", False))
    assert not listeners.tell("another link", StreamData(1, b"a", False))


def test_a_caller_is_forgotten_with_its_reply_and_a_stream_is_not():
    listeners: Listeners[str] = Listeners()
    listeners.of("link")[1], listeners.of("link")[3] = Notes(once=True), Notes()

    for stream in (1, 3):
        assert listeners.tell("link", StreamData(stream, b"a", False))
        assert listeners.tell("link", StreamData(stream, b"end", True))

    assert list(listeners.of("link")) == [3]


def test_a_reset_fails_the_listener_and_forgets_it():
    listeners: Listeners[str] = Listeners()
    listener = listeners.of("link")[1] = Notes()

    assert listeners.tell("link", StreamReset(1, RESET_GIVEN_UP))
    assert not listeners.tell("link", StreamReset(1, RESET_GIVEN_UP))

    assert listener.told == [Refused]


def test_the_end_of_a_link_fails_all_of_its_listeners_and_no_others():
    listeners: Listeners[str] = Listeners()
    here, there = Notes(), Notes()
    listeners.of("link")[1], listeners.of("another link")[1] = here, there

    listeners.end("link", LinkLost("gone"))
    listeners.end("link", LinkLost("again"))

    assert here.told == [LinkLost]
    assert there.told == []
