"""The mux under random use by two honest sides: all arrives, in order, within credit."""

import random
from collections import defaultdict

from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from net.link.harness import MuxPair

from p2pswarm.net.link.events import StreamData, StreamOpened, StreamReset
from p2pswarm.net.link.stream_scheduler import STREAM_NUMBERS
from p2pswarm.net.wire import frames

LARGE = bytes(frames.MESSAGE_BYTES_MAX)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(50, 400))
def test_any_interleaving_delivers_everything_in_order_within_credit(seed: int, steps: int):
    """Two sides open, send, take, reset and move records at random; then all is drained.

    A receiver that was sent more than it gave credit for raises BadFrame, so passing
    proves the sender's restraint; that all arrives proves that no credit was lost.
    """
    World(random.Random(seed)).run(steps)


class World:
    """A pair under random use, and what it should have delivered."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.pair = MuxPair()
        self.sides = (self.pair.dialler, self.pair.acceptor)
        self.handles = ({}, {})
        """What each side calls the streams that the other opened, by their numbers."""
        self.sent = (defaultdict(list), defaultdict(list))
        self.received = (defaultdict(list), defaultdict(list))
        self.untaken = ([], [])
        self.can_send = (set(), set())
        self.spoilt = set()

    def run(self, steps: int):
        acts = (self.open, self.send, self.send, self.take, self.reset, self.move, self.move)
        for _ in range(steps):
            self.rng.choice(acts)(self.rng.randrange(2))
        self.drain()
        for here in (0, 1):
            for stream, messages in self.sent[here].items():
                arrived = self.received[1 - here][stream]
                if stream in self.spoilt:
                    assert arrived == messages[: len(arrived)]
                else:
                    assert arrived == messages

    def handle(self, here: int, stream: int) -> int:
        return self.handles[here].get(stream, stream)

    def message(self) -> bytes:
        return self.rng.randbytes(self.rng.choice([1, 1, 64, 5_000, 30_000, len(LARGE)]))

    def open(self, here: int):
        data, ended = self.message(), self.rng.random() < 0.5
        stream = self.sides[here].open(data, ended=ended, priority=self.rng.randrange(3))
        self.sent[here][stream].append(data)
        if not ended:
            self.can_send[here].add(stream)

    def send(self, here: int):
        if self.can_send[here]:
            stream = self.rng.choice(sorted(self.can_send[here]))
            if self.sides[here].writable(self.handle(here, stream)):
                self.emit(here, stream, ended=self.rng.random() < 0.3)

    def emit(self, here: int, stream: int, *, ended: bool):
        data = self.message()
        self.sides[here].send(self.handle(here, stream), data, ended=ended)
        self.sent[here][stream].append(data)
        if ended:
            self.can_send[here].discard(stream)

    def take(self, here: int):
        if self.untaken[here]:
            stream, size = self.untaken[here].pop(self.rng.randrange(len(self.untaken[here])))
            self.sides[here].consume(self.handle(here, stream), size)

    def reset(self, here: int):
        if self.can_send[here] and self.rng.random() < 0.2:
            stream = self.rng.choice(sorted(self.can_send[here]))
            self.sides[here].reset(self.handle(here, stream), 20)
            self.spoil(stream)

    def spoil(self, stream: int):
        self.spoilt.add(stream)
        for here in (0, 1):
            self.can_send[here].discard(stream)
            self.untaken[here][:] = [item for item in self.untaken[here] if item[0] != stream]

    def move(self, here: int):
        record = self.sides[here].data_to_send()
        if record:
            self.sides[1 - here].on_record(record)
        self.look(1 - here)
        self.look(here)

    def look(self, here: int):
        for event in self.sides[here].events():
            number = event.stream % STREAM_NUMBERS
            if isinstance(event, StreamOpened):
                self.handles[here][number] = event.stream
            if isinstance(event, StreamOpened | StreamData):
                self.received[here][number % STREAM_NUMBERS].append(event.data)
                if number not in self.spoilt:
                    self.untaken[here].append((number, len(event.data)))
                if isinstance(event, StreamOpened) and number not in self.spoilt:
                    self.can_send[here].add(number)
            elif isinstance(event, StreamReset):
                self.spoil(number)

    def drain(self):
        """End everything and take everything, however long it takes."""
        for _ in range(10_000):
            for here in (0, 1):
                for stream in sorted(self.can_send[here]):
                    if self.sides[here].writable(self.handle(here, stream)):
                        self.emit(here, stream, ended=True)
                while self.untaken[here]:
                    self.take(here)
                self.move(here)
            if not any(side.live for side in self.sides):
                return
        raise AssertionError("something waits for ever")
