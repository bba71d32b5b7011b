"""The mux: credit is never overdrawn and never leaks, order holds, nobody starves."""

import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.errors import BadFrame, Busy
from p2pswarm.transport import frames, mux
from p2pswarm.transport.events import (
    RESET_REFUSED,
    AskedForBulk,
    CreditGained,
    GoneAway,
    Ponged,
    StreamData,
    StreamOpened,
    StreamReset,
)
from p2pswarm.transport.mux import MESSAGE_COST_BYTES, STREAMS_MAX, Mux

LARGE = bytes(frames.MESSAGE_BYTES_MAX)
PER_WINDOW = mux.STREAM_WINDOW_BYTES // (len(LARGE) + MESSAGE_COST_BYTES)
PER_SESSION = mux.SESSION_WINDOW_BYTES // (len(LARGE) + MESSAGE_COST_BYTES)


class Pair:
    """Two muxes and the wires between them; bytes move when told."""

    def __init__(self):
        self.dialler, self.acceptor = Mux(dialled=True), Mux(dialled=False)

    def carry(self, source: Mux, target: Mux) -> int:
        """Move every record from `source`; returns how many."""
        count = 0
        while record := source.data_to_send():
            target.receive(record)
            count += 1
        return count

    def settle(self):
        """Move records both ways until there are none."""
        while self.carry(self.dialler, self.acceptor) + self.carry(self.acceptor, self.dialler):
            pass


def test_a_stream_carries_messages_both_ways_until_each_side_has_ended():
    pair = Pair()
    stream = pair.dialler.open(b"question", ended=True, priority=1)
    pair.settle()
    assert pair.acceptor.events() == [StreamOpened(stream, b"question", True)]

    pair.acceptor.send(stream, b"part", ended=False)
    pair.acceptor.send(stream, b"end", ended=True)
    pair.settle()

    assert pair.dialler.events() == [
        StreamData(stream, b"part", False),
        StreamData(stream, b"end", True),
    ]
    assert pair.dialler.live == pair.acceptor.live == 0


def test_each_side_numbers_its_streams_apart():
    pair = Pair()

    ours = [pair.dialler.open(b"", ended=False, priority=0) for _ in range(3)]
    theirs = [pair.acceptor.open(b"", ended=False, priority=0) for _ in range(3)]

    assert ours == [1, 3, 5]
    assert theirs == [2, 4, 6]


def test_numbers_start_again_when_they_are_used_up_and_skip_what_is_live():
    dialler = Mux(dialled=True)
    first = dialler.open(b"", ended=False, priority=0)
    dialler._next = mux.STREAM_NUMBERS - 1

    numbers = [dialler.open(b"", ended=False, priority=0) for _ in range(2)]

    assert first == 1
    assert numbers == [mux.STREAM_NUMBERS - 1, 3]


def test_the_acceptors_numbers_start_again_at_two():
    acceptor = Mux(dialled=False)
    acceptor._next = mux.STREAM_NUMBERS - 2

    numbers = [acceptor.open(b"", ended=False, priority=0) for _ in range(2)]

    assert numbers == [mux.STREAM_NUMBERS - 2, 2]


def test_a_sender_stops_at_the_streams_window_and_goes_on_when_messages_are_taken():
    pair = Pair()
    stream = pair.dialler.open(LARGE, ended=False, priority=0)
    pair.settle()
    for _ in range(PER_WINDOW):
        pair.dialler.send(stream, LARGE, ended=False)
    pair.settle()
    assert len(pair.acceptor.events()) == PER_WINDOW
    assert not pair.dialler.writable(stream)

    for _ in range(PER_WINDOW):
        pair.acceptor.consumed(stream, len(LARGE))
    pair.settle()

    assert pair.acceptor.events() == [StreamData(stream, LARGE, False)]
    assert pair.dialler.events() == [CreditGained(stream)]
    assert pair.dialler.writable(stream)


def test_an_urgent_message_leaves_before_what_waited_longer():
    pair = Pair()
    slow = pair.dialler.open(LARGE, ended=False, priority=2)
    pair.dialler.send(slow, LARGE, ended=False)
    fast = pair.dialler.open(b"now", ended=True, priority=0)

    pair.acceptor.receive(pair.dialler.data_to_send())

    assert [event.stream for event in pair.acceptor.events()] == [fast, slow]


def test_equals_take_turns():
    pair = Pair()
    streams = [pair.dialler.open(LARGE, ended=False, priority=1) for _ in range(3)]
    for stream in streams:
        pair.dialler.send(stream, LARGE, ended=True)

    pair.settle()

    assert [event.stream for event in pair.acceptor.events()] == streams * 2


def test_urgent_traffic_cannot_take_session_credit_from_a_larger_message_before_it():
    """Credit goes to the head of the line, so a crowd of small ones does not starve it."""
    pair = Pair()
    for _ in range(PER_SESSION):
        pair.dialler.open(LARGE, ended=True, priority=0)
    waiting = pair.dialler.open(LARGE, ended=True, priority=0)
    small = pair.dialler.open(b"small", ended=True, priority=1)
    pair.settle()

    opened = [event.stream for event in pair.acceptor.events()]
    assert waiting not in opened
    assert small not in opened

    for stream in opened:
        pair.acceptor.consumed(stream, len(LARGE))
    pair.settle()

    assert [event.stream for event in pair.acceptor.events()] == [waiting, small]


def test_a_finished_stream_gives_its_credit_back_though_nothing_was_consumed():
    """Four sessions' worth passes, and nobody calls `consumed`."""
    pair = Pair()
    for _ in range(4 * PER_SESSION):
        stream = pair.dialler.open(LARGE, ended=True, priority=0)
        pair.settle()
        assert pair.acceptor.events() == [StreamOpened(stream, LARGE, True)]
        pair.acceptor.send(stream, b"ok", ended=True)
        pair.settle()

    assert pair.dialler.live == 0


def test_data_for_a_stream_that_was_reset_costs_no_credit():
    pair = Pair()
    for _ in range(2 * PER_SESSION):
        stream = pair.dialler.open(b"", ended=False, priority=0)
        pair.settle()
        pair.dialler.send(stream, LARGE, ended=False)
        pair.acceptor.reset(stream, 40)
        pair.settle()

    assert pair.dialler.events()[-1] == StreamReset(stream, 40)
    assert pair.dialler.live == pair.acceptor.live == 0


def test_a_stream_reset_before_it_was_announced_never_was():
    pair = Pair()
    stream = pair.dialler.open(LARGE, ended=False, priority=0)

    pair.dialler.reset(stream, 16)

    assert pair.dialler.data_to_send() == b""
    assert pair.dialler.live == 0


def test_what_concerns_a_stream_that_is_gone_is_ignored():
    pair = Pair()
    stream = pair.dialler.open(b"", ended=False, priority=0)
    pair.settle()
    pair.acceptor.reset(stream, 16)
    pair.dialler.reset(stream, 17)
    pair.settle()
    pair.acceptor.events()

    pair.dialler.send(stream, b"late", ended=True)
    pair.dialler.consumed(stream, 4)
    pair.dialler.reset(stream, 16)
    pair.acceptor.receive(frames.encode(frames.CREDIT, stream, frames.NUMBER.pack(5)))

    assert pair.dialler.writable(stream)
    assert pair.dialler.data_to_send() == b""
    assert pair.acceptor.events() == []


def test_more_streams_than_allowed_are_refused_to_the_caller_and_to_the_peer():
    pair = Pair()
    for _ in range(STREAMS_MAX):
        pair.dialler.open(b"", ended=False, priority=0)
    with pytest.raises(Busy, match=str(STREAMS_MAX)):
        pair.dialler.open(b"", ended=False, priority=0)
    pair.settle()

    pair.acceptor.receive(frames.encode(frames.OPEN, 2 * STREAMS_MAX + 1))

    assert frames.decode(pair.acceptor.data_to_send()) == [
        (frames.RESET, 0, 0, 2 * STREAMS_MAX + 1, frames.NUMBER.pack(RESET_REFUSED))
    ]


def test_pings_come_back_and_the_links_own_frames_become_events():
    pair = Pair()
    pair.dialler.ping(b"12345678")
    pair.dialler.go_away()
    pair.dialler.ask_for_bulk()

    pair.settle()

    assert pair.dialler.link_events() == [Ponged(b"12345678")]
    assert pair.acceptor.link_happened
    assert pair.acceptor.link_events() == [GoneAway(), AskedForBulk()]
    assert not pair.acceptor.link_happened


def test_a_peer_that_provokes_answers_and_reads_none_is_cut_off():
    acceptor = Mux(dialled=False)
    record = frames.encode(frames.PING, 0, b"12345678") * 3000
    for _ in range(17):
        acceptor.receive(record)

    with pytest.raises(BadFrame, match="does not read"):
        acceptor.receive(record)


def test_answers_that_fill_more_than_a_record_leave_in_several():
    pair = Pair()
    for _ in range(10_000):
        pair.dialler.ping(b"12345678")

    assert pair.carry(pair.dialler, pair.acceptor) == 4
    assert pair.carry(pair.acceptor, pair.dialler) == 4
    assert len(pair.dialler.link_events()) == 10_000


OPENED = frames.encode(frames.OPEN, 1, b"x")


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (frames.encode(frames.OPEN, 2, b"x"), "number of ours"),
        (OPENED + OPENED, "twice"),
        (
            frames.encode(frames.OPEN, 1, b"x", flags=frames.END)
            + frames.encode(frames.DATA, 1, b"x"),
            "after its end",
        ),
        (OPENED + frames.encode(frames.DATA, 1), "empty message"),
        (
            OPENED + frames.encode(frames.DATA, 1, LARGE) * (PER_WINDOW + 1),
            "stream 1 is over its credit",
        ),
        (
            b"".join(frames.encode(frames.OPEN, 2 * i + 1, LARGE) for i in range(PER_SESSION + 1)),
            "session is over its credit",
        ),
        (OPENED + frames.encode(frames.CREDIT, 1, b"\xff" * 4), "credit of"),
        (frames.encode(frames.CREDIT, 0, b"\xff" * 4), "credit of"),
    ],
)
def test_a_peer_that_breaks_the_rules_is_found_out(record: bytes, why: str):
    with pytest.raises(BadFrame, match=why):
        Mux(dialled=False).receive(record)


def test_misuse_is_our_callers_error():
    dialler = Mux(dialled=True)
    with pytest.raises(ValueError, match="priority"):
        dialler.open(b"", ended=False, priority=8)
    with pytest.raises(ValueError, match="61441 bytes"):
        dialler.open(LARGE + b"x", ended=False, priority=0)

    stream = dialler.open(b"", ended=True, priority=0)
    with pytest.raises(ValueError, match="ended by us"):
        dialler.send(stream, b"x", ended=False)
    dialler.data_to_send()
    with pytest.raises(ValueError, match="ended by us"):
        dialler.send(stream, b"x", ended=False)
    with pytest.raises(ValueError, match="had not come"):
        dialler.consumed(stream, 1)

    other = dialler.open(LARGE, ended=False, priority=0)
    for _ in range(3):
        dialler.send(other, LARGE, ended=False)
    with pytest.raises(ValueError, match="ask writable"):
        dialler.send(other, LARGE, ended=False)


def test_an_empty_message_that_ends_nothing_is_not_sent():
    pair = Pair()
    stream = pair.dialler.open(b"x", ended=False, priority=0)
    pair.dialler.send(stream, b"", ended=False)
    pair.settle()

    assert len(pair.acceptor.events()) == 1


@settings(max_examples=60, deadline=None)
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
        self.pair = Pair()
        self.sides = (self.pair.dialler, self.pair.acceptor)
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
            if self.sides[here].writable(stream):
                self.emit(here, stream, ended=self.rng.random() < 0.3)

    def emit(self, here: int, stream: int, *, ended: bool):
        data = self.message()
        self.sides[here].send(stream, data, ended=ended)
        self.sent[here][stream].append(data)
        if ended:
            self.can_send[here].discard(stream)

    def take(self, here: int):
        if self.untaken[here]:
            stream, size = self.untaken[here].pop(self.rng.randrange(len(self.untaken[here])))
            self.sides[here].consumed(stream, size)

    def reset(self, here: int):
        if self.can_send[here] and self.rng.random() < 0.2:
            stream = self.rng.choice(sorted(self.can_send[here]))
            self.sides[here].reset(stream, 20)
            self.spoil(stream)

    def spoil(self, stream: int):
        self.spoilt.add(stream)
        for here in (0, 1):
            self.can_send[here].discard(stream)
            self.untaken[here][:] = [item for item in self.untaken[here] if item[0] != stream]

    def move(self, here: int):
        record = self.sides[here].data_to_send()
        if record:
            self.sides[1 - here].receive(record)
        self.look(1 - here)
        self.look(here)

    def look(self, here: int):
        for event in self.sides[here].events():
            if isinstance(event, StreamOpened | StreamData):
                self.received[here][event.stream].append(event.data)
                if event.stream not in self.spoilt:
                    self.untaken[here].append((event.stream, len(event.data)))
                if isinstance(event, StreamOpened) and event.stream not in self.spoilt:
                    self.can_send[here].add(event.stream)
            elif isinstance(event, StreamReset):
                self.spoil(event.stream)

    def drain(self):
        """End everything and take everything, however long it takes."""
        for _ in range(10_000):
            for here in (0, 1):
                for stream in sorted(self.can_send[here]):
                    if self.sides[here].writable(stream):
                        self.emit(here, stream, ended=True)
                while self.untaken[here]:
                    self.take(here)
                self.move(here)
            if not any(side.live for side in self.sides):
                return
        raise AssertionError("something waits for ever")
