"""A link over one path after another: cut anywhere, no byte of a stream is lost or comes twice."""

from collections import defaultdict

import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from net.link.harness import LinkPair, machine

from p2pswarm.base.errors import BadHandshake, LinkLost
from p2pswarm.net.link.control_records import ACK_BYTES, HELD_BYTES_MAX
from p2pswarm.net.link.events import (
    LinkEnded,
    PathBroken,
    PathWanted,
    StreamData,
    StreamOpened,
)
from p2pswarm.net.link.link import LinkMachine
from p2pswarm.net.link.path_state import PATHS_MAX, WITHIN_S
from p2pswarm.net.link.reply_budget import LINK_BYTES_FREE
from p2pswarm.net.link.stream_scheduler import STREAM_NUMBERS
from p2pswarm.net.wire import frames

CUT = LinkLost("cut")


class CutPair:
    """Two sides, and the bytes that are under way each way on the present path."""

    def __init__(self):
        self.sides = machine(dialled=True), machine(dialled=False)
        self.wires = [bytearray(), bytearray()]  # to the side of that index
        self.sent = defaultdict(list)
        self.heard = defaultdict(list)
        self.now_s = 0.0
        for side in self.sides:
            side.start(0.0)
        self.streams = [[], []]

    def flush(self, at: int):
        """Let a side write all that it has; while there is no path it has nothing."""
        while record := self.sides[at].data_to_send(self.now_s):
            assert self.sides[at].has_path
            self.wires[1 - at] += record

    def carry(self, to: int, nbytes: int):
        """Bring some bytes to a side, cut anywhere."""
        data, self.wires[to][:nbytes] = bytes(self.wires[to][:nbytes]), b""
        if data:
            self.sides[to].on_data(data, self.now_s)
        self.note(to)

    def note(self, at: int):
        side = self.sides[at]
        for event in side.events():
            assert not isinstance(event, LinkEnded), event
            if isinstance(event, StreamOpened | StreamData):
                number = event.stream % STREAM_NUMBERS
                self.heard[at, number].append(event.data)
                side.mux.consume(event.stream, len(event.data))
        if PathBroken() in side.drain():
            self.cut()

    def alter(self, to: int, at: int):
        """Somebody on the way changes one bit."""
        self.now_s += WITHIN_S / PATHS_MAX
        if wire := self.wires[to]:
            wire[at // 8 % len(wire)] ^= 1 << at % 8

    def write(self, at: int, size: int, new: bool):
        """Send a message on a stream of this side."""
        mux = self.sides[at].mux
        data = bytes([len(self.sent) % 256]) * size
        if new or not self.streams[at]:
            stream = mux.open(data, ended=False, priority=size % 3)
            self.streams[at].append(stream)
        else:
            stream = self.streams[at][size % len(self.streams[at])]
            if not mux.writable(stream):
                return
            mux.send(stream, data, ended=False)
        self.sent[1 - at, stream].append(data)

    def cut(self):
        """Both sides lose the path, and with it what is under way."""
        for side in self.sides:
            if side.has_path:
                side.on_path_loss(CUT, self.now_s)
        self.wires = [bytearray(), bytearray()]

    def go_on(self, late: int):
        """Another path, which this side dials; `late`: bytes that still come by the old one."""
        one, other = self.sides
        answered = other.records.expected
        self.carry(1, late)
        confirmed = one.records.expected
        one.on_path(confirmed, answered, dialled=True)
        self.carry(1, late)
        other.on_path(answered, confirmed, dialled=False)
        self.wires = [bytearray(), bytearray()]

    def settle(self):
        """Everything arrives."""
        self.cut()  # an altered length would keep a side waiting
        while True:
            if not all(side.has_path for side in self.sides):
                self.go_on(0)
            for at in (0, 1):
                self.flush(at)
            if not any(self.wires):
                return
            for at in (0, 1):
                self.carry(at, len(self.wires[at]))


STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 1), st.integers(1, 60_000), st.booleans()),
    st.tuples(st.just("flush"), st.integers(0, 1)),
    st.tuples(st.just("carry"), st.integers(0, 1), st.integers(1, 200_000)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("alter"), st.integers(0, 1), st.integers(0, 1_000_000)),
    st.tuples(st.just("go_on"), st.integers(0, 70_000)),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_every_message_arrives_once_and_in_order_whatever_is_cut_or_altered_and_when(steps):
    pair = CutPair()

    for name, *arguments in steps:
        pair.now_s += 0.001
        getattr(pair, name)(*arguments)
        for side in pair.sides:
            assert side.records.unacked.held_bytes <= HELD_BYTES_MAX
    pair.settle()

    assert pair.heard == pair.sent
    assert all(side.error is None for side in pair.sides)


def test_what_the_peer_has_is_forgotten_with_the_next_pong():
    pair = LinkPair()
    pair.dialler.mux.open(b"x" * 5000, ended=True, priority=0)
    pair.settle()
    assert pair.dialler.records.unacked.held_bytes > 5000

    pair.dialler.on_deadline(5.0)
    pair.settle(5.0)

    assert pair.dialler.records.unacked.held_bytes < 200, "the ping itself is what is left"


def fill(link: LinkMachine, messages: int) -> int:
    """Send messages on new streams; returns how many bytes of records left."""
    for _ in range(messages):
        link.mux.open(b"x" * 60_000, ended=True, priority=0)
    return sum(len(record) for record in iter(lambda: link.data_to_send(0.0), b""))


def test_a_peer_that_acknowledges_nothing_is_sent_no_more_than_a_window():
    """Back-pressure, not loss: the messages stay queued, and credit would end them as well."""
    link = machine(dialled=True)
    link.start(0.0)

    fill(link, 100)

    assert link.records.unacked.held_bytes < 4.3 * 1024 * 1024
    assert link.error is None


def test_a_ping_goes_out_often_enough_that_a_fast_stream_is_never_held_up():
    pair = LinkPair()
    for _ in range(40):
        fill_bytes = 0
        pair.dialler.mux.open(b"x" * 60_000, ended=True, priority=0)
        while record := pair.dialler.data_to_send(0.0):
            fill_bytes += len(record)
            pair.acceptor.on_data(record, 0.0)
        for event in pair.acceptor.events():
            pair.acceptor.mux.consume(event.stream, len(event.data))
        pair.settle()

        assert pair.dialler.records.unacked.held_bytes < ACK_BYTES + 2 * 70_000


def test_two_sides_that_are_both_full_free_each_other():
    """Control frames still go out: each waits for the other's pong."""
    pair = LinkPair()
    for side in (pair.dialler, pair.acceptor):
        side.records.unacked._memory._all.held_bytes = 1 << 30  # all other links hold that much
    for _ in range(30):
        for side in (pair.dialler, pair.acceptor):
            side.mux.open(b"x" * 3000, ended=True, priority=0)

    pair.settle()

    assert len(pair.dialler.events()) == len(pair.acceptor.events()) == 30
    assert pair.dialler.records.unacked.held_bytes < LINK_BYTES_FREE + 70_000


def test_a_link_without_a_path_is_kept_so_long_and_then_lost():
    pair = LinkPair(path_wait_s=10.0)
    pair.dialler.on_path_loss(CUT, 3.0)

    assert pair.dialler.drain() == [PathWanted(CUT)]
    assert pair.dialler.data_to_send(3.0) == b""
    pair.dialler.check_up()
    while pair.dialler.error is None:
        at_s = pair.dialler.next_deadline_s()
        pair.dialler.on_deadline(at_s)

    assert at_s == 13.0
    assert "cut, and no other path was found" in str(pair.dialler.error)


def test_a_silent_path_is_doubted_before_the_link_is_given_up():
    pair = LinkPair(idle_ping_s=5.0, path_silent_s=10.0, dead_after_s=15.0)
    doubted_s = lost_s = None
    while lost_s is None:
        at_s = pair.dialler.next_deadline_s()
        pair.dialler.on_deadline(at_s)
        if any(isinstance(news, PathWanted) for news in pair.dialler.drain()):
            doubted_s = doubted_s or at_s
            assert pair.dialler.has_path
        lost_s = at_s if pair.dialler.error is not None else None

    assert (doubted_s, lost_s) == (15.0, 20.0)


def test_a_peer_that_asks_for_what_was_acknowledged_gets_no_path():
    pair = LinkPair()
    pair.dialler.on_deadline(5.0)
    pair.settle(5.0)
    first = pair.dialler.records.unacked.first

    for wanted in (first - 1, pair.dialler.records.unacked.next + 1):
        with pytest.raises(BadHandshake, match=f"wants record {wanted}"):
            pair.dialler.on_path(0, wanted, dialled=True)
    with pytest.raises(BadHandshake, match="was asked for"):
        pair.dialler.on_path(pair.dialler.records.expected + 1, first, dialled=True)

    assert pair.dialler.has_path


def test_a_link_that_is_closed_without_a_path_ends_at_once():
    pair = LinkPair()
    pair.dialler.on_path_loss(CUT, 1.0)

    pair.dialler.close(2.0)

    assert pair.dialler.next_deadline_s() is None
    assert pair.dialler.goodbye(2.0) == b""
    assert len(pair.dialler.events()) == 1


def test_a_peer_that_says_goodbye_is_believed_after_its_last_words():
    pair = LinkPair()
    pair.acceptor.mux.open(b"last words", ended=True, priority=0)
    pair.acceptor.close(1.0)
    words = pair.acceptor.data_to_send(1.0)

    pair.dialler.on_data(words + pair.acceptor.goodbye(1.0), 1.0)

    assert pair.dialler.events() == [StreamOpened(2, b"last words", True)]
    assert pair.dialler.peer_closed


def test_a_peer_that_answers_no_ping_for_hours_loses_the_link():
    pair = LinkPair(idle_ping_s=5.0)
    while pair.dialler.error is None:
        at_s = pair.dialler.next_deadline_s()
        pair.acceptor.mux.say(frames.BULK_DONE, frames.TRANSFER.pack(1))  # it speaks
        pair.dialler.on_deadline(at_s)
        while pair.dialler.data_to_send(at_s):
            pass
        pair.carry(pair.acceptor, pair.dialler, at_s)
        pair.dialler.drain()

    assert "pings were not answered" in str(pair.dialler.error)


def test_a_question_for_bulk_that_meant_the_path_before_harms_nothing():
    """The acceptor asks, the path breaks, and the acceptor makes the next one itself."""
    pair = LinkPair()
    pair.acceptor.want_bulk(1.0)
    for side in (pair.dialler, pair.acceptor):
        side.on_path_loss(CUT, 1.0)
    wanted = pair.dialler.records.expected, pair.acceptor.records.expected
    pair.dialler.on_path(wanted[0], wanted[1], dialled=False)
    pair.acceptor.on_path(wanted[1], wanted[0], dialled=True)

    pair.settle(2.0)

    assert pair.dialler.error is None
    assert pair.acceptor.want_bulk(2.0), "it asks again, itself now"
