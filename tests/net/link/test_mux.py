"""The mux: credit is never overdrawn and never leaks, order holds, nobody starves."""

import pytest
from net.link.harness import MuxPair

from p2pswarm.base.errors import BadFrame, Busy
from p2pswarm.net.link import mux
from p2pswarm.net.link.events import (
    RESET_REFUSED,
    AskedForBulk,
    CreditGained,
    GoneAway,
    Ponged,
    StreamData,
    StreamOpened,
    StreamReset,
)
from p2pswarm.net.link.mux import STREAMS_MAX, Mux
from p2pswarm.net.link.reply_budget import LINK_BYTES_MAX, STREAM_BYTES, SUM_BYTES_MAX
from p2pswarm.net.link.stream_scheduler import (
    MESSAGE_COST_BYTES,
    STREAM_NUMBERS,
    STREAM_WINDOW_BYTES,
)
from p2pswarm.net.wire import frames

LARGE = bytes(frames.MESSAGE_BYTES_MAX)
PER_WINDOW = STREAM_WINDOW_BYTES // (len(LARGE) + MESSAGE_COST_BYTES)
PER_SESSION = mux.SESSION_WINDOW_BYTES // (len(LARGE) + MESSAGE_COST_BYTES)


def test_a_stream_carries_messages_both_ways_until_each_side_has_ended():
    pair = MuxPair()
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
    pair = MuxPair()

    ours = [pair.dialler.open(b"", ended=False, priority=0) for _ in range(3)]
    theirs = [pair.acceptor.open(b"", ended=False, priority=0) for _ in range(3)]

    assert ours == [1, 3, 5]
    assert theirs == [2, 4, 6]


def test_numbers_start_again_when_they_are_used_up_and_skip_what_is_live():
    dialler = Mux(dialled=True)
    first = dialler.open(b"", ended=False, priority=0)
    dialler._next = STREAM_NUMBERS - 1

    numbers = [dialler.open(b"", ended=False, priority=0) for _ in range(2)]

    assert first == 1
    assert numbers == [STREAM_NUMBERS - 1, 3]


def test_the_acceptors_numbers_start_again_at_two():
    acceptor = Mux(dialled=False)
    acceptor._next = STREAM_NUMBERS - 2

    numbers = [acceptor.open(b"", ended=False, priority=0) for _ in range(2)]

    assert numbers == [STREAM_NUMBERS - 2, 2]


def test_a_sender_stops_at_the_streams_window_and_goes_on_when_messages_are_taken():
    pair = MuxPair()
    stream = pair.dialler.open(LARGE, ended=False, priority=0)
    pair.settle()
    for _ in range(PER_WINDOW):
        pair.dialler.send(stream, LARGE, ended=False)
    pair.settle()
    assert len(pair.acceptor.events()) == PER_WINDOW
    assert not pair.dialler.writable(stream)

    for _ in range(PER_WINDOW):
        pair.acceptor.consume(stream, len(LARGE))
    pair.settle()

    assert pair.acceptor.events() == [StreamData(stream, LARGE, False)]
    assert pair.dialler.events() == [CreditGained(stream)]
    assert pair.dialler.writable(stream)


def test_an_urgent_message_leaves_before_what_waited_longer():
    pair = MuxPair()
    slow = pair.dialler.open(LARGE, ended=False, priority=2)
    pair.dialler.send(slow, LARGE, ended=False)
    fast = pair.dialler.open(b"now", ended=True, priority=0)

    pair.acceptor.on_record(pair.dialler.data_to_send())

    seen = [event.stream % STREAM_NUMBERS for event in pair.acceptor.events()]
    assert seen == [fast, slow]


def test_equals_take_turns():
    pair = MuxPair()
    streams = [pair.dialler.open(LARGE, ended=False, priority=1) for _ in range(3)]
    for stream in streams:
        pair.dialler.send(stream, LARGE, ended=True)

    pair.settle()

    assert [event.stream for event in pair.acceptor.events()] == streams * 2


def test_urgent_traffic_cannot_take_session_credit_from_a_larger_message_before_it():
    """Credit goes to the head of the line, so a crowd of small ones does not starve it."""
    pair = MuxPair()
    for _ in range(PER_SESSION):
        pair.dialler.open(LARGE, ended=True, priority=0)
    waiting = pair.dialler.open(LARGE, ended=True, priority=0)
    small = pair.dialler.open(b"small", ended=True, priority=1)
    pair.settle()

    opened = [event.stream for event in pair.acceptor.events()]
    assert waiting not in opened
    assert small not in opened

    for stream in opened:
        pair.acceptor.consume(stream, len(LARGE))
    pair.settle()

    assert [event.stream for event in pair.acceptor.events()] == [waiting, small]


def test_a_finished_stream_gives_its_credit_back_though_nothing_was_consumed():
    """Four sessions' worth passes, and nobody calls `consumed`."""
    pair = MuxPair()
    for _ in range(4 * PER_SESSION):
        stream = pair.dialler.open(LARGE, ended=True, priority=0)
        pair.settle()
        assert pair.acceptor.events() == [StreamOpened(stream, LARGE, True)]
        pair.acceptor.send(stream, b"ok", ended=True)
        pair.settle()

    assert pair.dialler.live == 0


def test_data_for_a_stream_that_was_reset_costs_no_credit():
    pair = MuxPair()
    for _ in range(2 * PER_SESSION):
        stream = pair.dialler.open(b"", ended=False, priority=0)
        pair.settle()
        pair.dialler.send(stream, LARGE, ended=False)
        pair.acceptor.reset(stream, 40)
        pair.settle()

    assert pair.dialler.events()[-1] == StreamReset(stream, 40)
    assert pair.dialler.live == pair.acceptor.live == 0


def test_a_stream_reset_before_it_was_announced_never_was():
    pair = MuxPair()
    stream = pair.dialler.open(LARGE, ended=False, priority=0)

    pair.dialler.reset(stream, 16)

    assert pair.dialler.data_to_send() == b""
    assert pair.dialler.live == 0


def test_what_concerns_a_stream_that_is_gone_is_ignored():
    pair = MuxPair()
    stream = pair.dialler.open(b"", ended=False, priority=0)
    pair.settle()
    pair.acceptor.reset(stream, 16)
    pair.dialler.reset(stream, 17)
    pair.settle()
    pair.acceptor.events()

    pair.dialler.send(stream, b"late", ended=True)
    pair.dialler.consume(stream, 4)
    pair.dialler.reset(stream, 16)
    pair.acceptor.on_record(frames.encode(frames.CREDIT, stream, frames.NUMBER.pack(5)))

    assert pair.dialler.writable(stream)
    assert pair.dialler.data_to_send() == b""
    assert pair.acceptor.events() == []


def test_more_streams_than_allowed_are_refused_to_the_caller_and_to_the_peer():
    pair = MuxPair()
    for _ in range(STREAMS_MAX):
        pair.dialler.open(b"", ended=False, priority=0)
    with pytest.raises(Busy, match=str(STREAMS_MAX)):
        pair.dialler.open(b"", ended=False, priority=0)
    pair.settle()

    pair.acceptor.on_record(frames.encode(frames.OPEN, 2 * STREAMS_MAX + 1))

    assert frames.decode(pair.acceptor.data_to_send()) == [
        (frames.RESET, 0, 0, 2 * STREAMS_MAX + 1, frames.NUMBER.pack(RESET_REFUSED))
    ]


def test_pings_come_back_and_the_links_own_frames_become_events():
    pair = MuxPair()
    pair.dialler.ping(b"12345678")
    pair.dialler.say(frames.GOAWAY)
    pair.dialler.say(frames.ASK_BULK)

    pair.settle()

    assert pair.dialler.link_events() == [Ponged(b"12345678")]
    assert pair.acceptor.notices
    assert pair.acceptor.link_events() == [GoneAway(), AskedForBulk()]
    assert not pair.acceptor.notices


def test_a_peer_that_provokes_answers_and_reads_none_is_cut_off():
    acceptor = Mux(dialled=False)
    record = frames.encode(frames.PING, 0, b"12345678") * 3000
    for _ in range(17):
        acceptor.on_record(record)

    with pytest.raises(BadFrame, match="does not read"):
        acceptor.on_record(record)


@pytest.mark.parametrize("size", [100, 2900, 40_000, len(LARGE)])
def test_slow_streams_do_not_keep_back_the_credit_that_calls_have_used_up(size: int):
    """The receiver owes less than half a window, and the sender has too little left to go on."""
    pair = MuxPair()
    held = STREAM_WINDOW_BYTES // 2 - 14 * 1024
    for _ in range(18):
        stream = pair.dialler.open(b"", ended=False, priority=0)
        for part in (LARGE, bytes(held - len(LARGE))):
            pair.dialler.send(stream, part, ended=False)
    pair.settle()
    pair.acceptor.events()

    for number in range(3000):
        call = pair.dialler.open(bytes(size), ended=True, priority=0)
        pair.settle()
        assert [event.stream for event in pair.acceptor.events()] == [call], number
        pair.acceptor.consume(call, size)
        pair.acceptor.send(call, b"done", ended=True)
        pair.settle()
        pair.dialler.consume(call, 4)
        pair.dialler.events()


def test_streams_and_unread_replies_are_counted_until_they_are_gone():
    pair = MuxPair()
    one, two, three = (pair.dialler.open(b"ask", ended=True, priority=0) for _ in range(3))
    pair.settle()
    assert pair.acceptor.held_bytes == 3 * STREAM_BYTES
    for stream in (one, two):
        pair.acceptor.send(stream, LARGE, ended=True)
    assert pair.acceptor.held_bytes == 3 * STREAM_BYTES + 2 * len(LARGE)

    pair.acceptor.reset(two, 0)
    pair.dialler.reset(three, 0)
    pair.settle()

    assert pair.acceptor.held_bytes == 0
    assert pair.dialler.held_bytes == 0, "our own requests are not replies"


def test_a_stream_of_a_peer_that_reads_nothing_is_writable_only_while_it_is_empty():
    pair = MuxPair()
    stream = pair.dialler.open(b"ask", ended=False, priority=0)
    pair.settle()
    pair.acceptor.send(stream, b"small", ended=False)
    assert pair.acceptor.writable(stream)

    pair.acceptor.held_bytes += LINK_BYTES_MAX

    assert not pair.acceptor.writable(stream)
    pair.settle()
    assert pair.acceptor.events()[-1] == CreditGained(stream)
    assert pair.acceptor.writable(stream)


def test_a_peer_that_leaves_unread_far_more_than_all_may_is_cut_off():
    acceptor = Mux(dialled=False)
    acceptor.held_bytes = 2 * SUM_BYTES_MAX + 1

    with pytest.raises(BadFrame, match="does not read"):
        acceptor.on_record(frames.encode(frames.PONG, 0, b"12345678"))


def test_answers_that_fill_more_than_a_record_leave_in_several():
    pair = MuxPair()
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
            "stream 1 exceeds its credit",
        ),
        (
            b"".join(frames.encode(frames.OPEN, 2 * i + 1, LARGE) for i in range(PER_SESSION + 1)),
            "session exceeds its credit",
        ),
        (OPENED + frames.encode(frames.CREDIT, 1, b"\xff" * 4), "credit of"),
        (frames.encode(frames.CREDIT, 0, b"\xff" * 4), "credit of"),
    ],
)
def test_a_peer_that_breaks_the_rules_is_found_out(record: bytes, why: str):
    with pytest.raises(BadFrame, match=why):
        Mux(dialled=False).on_record(record)


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
    with pytest.raises(ValueError, match="were not received"):
        dialler.consume(stream, 1)

    other = dialler.open(LARGE, ended=False, priority=0)
    for _ in range(3):
        dialler.send(other, LARGE, ended=False)
    with pytest.raises(ValueError, match="call writable"):
        dialler.send(other, LARGE, ended=False)


def test_an_empty_message_that_ends_nothing_is_not_sent():
    pair = MuxPair()
    stream = pair.dialler.open(b"x", ended=False, priority=0)
    pair.dialler.send(stream, b"", ended=False)
    pair.settle()

    assert len(pair.acceptor.events()) == 1
