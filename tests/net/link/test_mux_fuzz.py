"""The mux against a peer that says anything: it is found out, and our own user never is."""

import random

import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.base.errors import BadFrame, Busy
from p2pswarm.net.link.events import CreditGained, StreamData, StreamOpened, StreamReset
from p2pswarm.net.link.mux import Mux
from p2pswarm.net.wire import frames


class User:
    """A user that keeps the rules: it takes what it was told of, once, and late if it likes."""

    def __init__(self, mux: Mux, rng: random.Random):
        self.mux = mux
        self.rng = rng
        self.untaken: list[tuple[int, int]] = []
        self.known: set[int] = set()
        self.sendable: set[int] = set()

    def look(self):
        for event in self.mux.events():
            match event:
                case StreamOpened(stream, data, _):
                    assert stream not in self.known, "one name for two streams"
                    self.known.add(stream)
                    self.sendable.add(stream)
                    self.untaken.append((stream, len(data)))
                case StreamData(stream, data, _):
                    assert stream in self.known, "data of a stream that nobody opened"
                    self.untaken.append((stream, len(data)))
                case StreamReset(stream, _):
                    assert stream in self.known, "the end of a stream that nobody opened"
                    self.sendable.discard(stream)
                case CreditGained(stream):
                    assert stream in self.known

    def act(self):
        stream = self.rng.choice(sorted(self.sendable)) if self.sendable else None
        match self.rng.randrange(5):
            case 0 if self.untaken:
                self.mux.consume(*self.untaken.pop(self.rng.randrange(len(self.untaken))))
            case 1 if stream is not None and self.mux.writable(stream):
                ended = self.rng.random() < 0.5
                self.mux.send(stream, b"x" * self.rng.randint(1, 50_000), ended=ended)
                if ended:
                    self.sendable.discard(stream)
            case 2 if stream is not None:
                self.mux.reset(stream, 16)
                self.sendable.discard(stream)
            case 3:
                try:
                    stream = self.mux.open(b"q", ended=False, priority=self.rng.randrange(3))
                except Busy:
                    return
                self.known.add(stream)
                self.sendable.add(stream)
            case 4:
                self.mux.data_to_send()


FRAMES = st.builds(
    lambda kind, number, size, flags, credit: frames.encode(
        kind,
        number,
        frames.NUMBER.pack(credit) if kind in (frames.CREDIT, frames.RESET) else bytes(size),
        flags if kind in (frames.OPEN, frames.DATA) else 0,
    ),
    kind=st.sampled_from([frames.OPEN, frames.DATA, frames.DATA, frames.CREDIT, frames.RESET]),
    number=st.sampled_from([1, 1, 2, 2, 3, 4, 5, 7]),
    size=st.sampled_from([0, 1, 5000]),
    flags=st.integers(0, 1),
    credit=st.sampled_from([0, 1, 20, 100_000]),
)


@settings(max_examples=examples(400), deadline=None)
@given(sent=st.lists(FRAMES, max_size=40), seed=st.integers(0, 2**32), dialled=st.booleans())
def test_whatever_a_peer_sends_our_own_user_makes_no_mistake(sent, seed: int, dialled: bool):
    rng = random.Random(seed)
    user = User(Mux(dialled=dialled), rng)
    for frame in sent:
        try:
            user.mux.on_record(frame)
        except BadFrame:
            return
        user.look()
        for _ in range(rng.randrange(4)):
            user.act()
            user.look()


@pytest.mark.parametrize(
    "frame",
    [
        frames.encode(frames.DATA, 1, b"unasked"),
        frames.encode(frames.DATA, 1, b"unasked", frames.END),
        frames.encode(frames.RESET, 1, frames.NUMBER.pack(16)),
        frames.encode(frames.CREDIT, 1, frames.NUMBER.pack(100)),
    ],
)
def test_what_comes_for_a_stream_that_we_have_not_announced_is_ignored(frame: bytes):
    """The peer cannot know of it: it means one that is over, as for any number not in use."""
    mux = Mux(dialled=True)
    stream = mux.open(b"question", ended=True, priority=0)

    mux.on_record(frame)

    assert mux.events() == []
    assert mux.data_to_send() == frames.encode(frames.OPEN, stream, b"question", frames.END)


def test_the_bytes_of_a_stream_are_given_back_once_although_its_number_is_used_again():
    """A handler that reads on after a reset takes the old stream's messages, not the new one's."""
    mux = Mux(dialled=False)
    mux.on_record(frames.encode(frames.OPEN, 1, bytes(5000)))
    mux.on_record(frames.encode(frames.RESET, 1, frames.NUMBER.pack(16)))
    mux.on_record(frames.encode(frames.OPEN, 1, b"new"))
    old, _, new = mux.events()

    mux.consume(old.stream, 5000)
    mux.send(old.stream, b"for the old one", ended=False)
    assert mux.data_to_send() == b""

    mux.consume(new.stream, 3)
    mux.send(new.stream, b"for the new one", ended=True)
    assert mux.data_to_send() == frames.encode(frames.DATA, 1, b"for the new one", frames.END)


def test_a_stream_whose_number_is_used_again_is_a_stream_like_any_other():
    mux = Mux(dialled=False)
    for _ in range(3):
        mux.on_record(frames.encode(frames.OPEN, 5, b"a") + frames.encode(frames.DATA, 5, b"b"))
        opened, data = mux.events()
        assert data.stream == opened.stream
        mux.on_record(frames.encode(frames.DATA, 5, b"end", frames.END))
        mux.send(opened.stream, b"", ended=True)
        assert mux.data_to_send() == frames.encode(frames.DATA, 5, b"", frames.END)
        mux.events()
    assert mux.live == 0

    mux.on_record(frames.encode(frames.OPEN, 5, b"a"))
    with pytest.raises(BadFrame, match="stream 5 was opened twice"):
        mux.on_record(frames.encode(frames.OPEN, 5, b"again"))
