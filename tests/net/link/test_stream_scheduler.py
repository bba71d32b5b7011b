"""The lines: whoever reads nothing keeps no call from leaving, and no call starves the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from net.link.harness import MuxPair

from p2pswarm.net.link import mux
from p2pswarm.net.link.events import StreamData, StreamOpened
from p2pswarm.net.link.stream_scheduler import (
    MESSAGE_COST_BYTES,
    STREAM_NUMBERS,
    STREAM_WINDOW_BYTES,
)
from p2pswarm.net.wire import frames
from p2pswarm.net.wire.frames import MESSAGE_BYTES_MAX

EXCHANGES = mux.SESSION_WINDOW_BYTES // STREAM_WINDOW_BYTES
UNREAD = bytes(STREAM_WINDOW_BYTES // 8 - MESSAGE_COST_BYTES)  # eight fill a stream's window


def fill(pair: MuxPair, exchanges: int = EXCHANGES) -> None:
    """Exchanges whose receivers take nothing: all that they may send has been sent."""
    for number in range(exchanges):
        stream = pair.dialler.open(UNREAD, ended=False, priority=number % 3)
        pair.settle()
        while pair.dialler.writable(stream):
            pair.dialler.send(stream, UNREAD, ended=False)
            pair.settle()
    pair.acceptor.events()


@pytest.mark.parametrize("size", [0, 100, MESSAGE_BYTES_MAX])
@pytest.mark.parametrize("priority", [0, 2])
def test_exchanges_that_nobody_reads_do_not_keep_calls_from_leaving(size: int, priority: int):
    pair = MuxPair()
    fill(pair, 4 * EXCHANGES)

    for _ in range(300):
        call = pair.dialler.open(bytes(size), ended=True, priority=priority)
        pair.settle()
        assert pair.acceptor.events() == [StreamOpened(call, bytes(size), True)]
        pair.acceptor.consume(call, size)
        pair.acceptor.send(call, b"done", ended=True)
        pair.settle()
        assert pair.dialler.events()[-1] == StreamData(call, b"done", True)


def test_an_answer_leaves_beside_exchanges_that_nobody_reads():
    pair = MuxPair()
    fill(pair)

    for _ in range(300):
        call = pair.acceptor.open(b"ask", ended=True, priority=0)
        pair.settle()
        pair.dialler.consume(call, 3)
        pair.dialler.send(call, bytes(MESSAGE_BYTES_MAX), ended=True)
        pair.settle()
        answer = pair.acceptor.events()[-1]
        assert isinstance(answer, StreamData)
        assert answer.ended


def test_a_message_that_waits_for_the_rest_goes_when_an_exchange_is_read():
    pair = MuxPair()
    fill(pair, EXCHANGES - 1)
    late = pair.dialler.open(UNREAD, ended=False, priority=0)
    call = pair.dialler.open(b"call", ended=True, priority=0)
    pair.settle()
    assert [event.stream for event in pair.acceptor.events()] == [call]

    for _ in range(8):
        pair.acceptor.consume(1, len(UNREAD))
    pair.settle()

    assert late in [event.stream % STREAM_NUMBERS for event in pair.acceptor.events()]


def test_a_half_that_ends_an_exchange_is_no_call():
    """It may stay unread as long as the rest: 1,024 of them would use the reserve up."""
    pair = MuxPair()
    exchange = pair.dialler.open(b"", ended=False, priority=0)
    fill(pair)
    pair.dialler.send(exchange, b"end", ended=True)
    pair.settle()

    assert pair.acceptor.events() == []


SIZES = st.sampled_from([1, 100, 5000, MESSAGE_BYTES_MAX])
MESSAGES = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, frames.PRIORITIES - 1)))


@given(MESSAGES, st.data())
def test_whatever_is_sent_unread_a_call_still_leaves(messages, data):
    """Calls are taken as rpc takes them: when they arrive."""
    pair = MuxPair()
    fill(pair, data.draw(st.integers(EXCHANGES - 2, EXCHANGES + 2)))
    for whole, size, priority in messages:
        pair.dialler.open(bytes(size), ended=whole, priority=priority)
    call = pair.dialler.open(b"call", ended=True, priority=frames.PRIORITIES - 1)

    arrived: list[int] = []
    while record := pair.dialler.data_to_send():
        pair.acceptor.on_record(record)
        for event in pair.acceptor.events():
            assert isinstance(event, StreamOpened)
            arrived.append(event.stream)
            if event.ended:
                pair.acceptor.consume(event.stream, len(event.data))
        pair.carry(pair.acceptor, pair.dialler)

    assert call in arrived
