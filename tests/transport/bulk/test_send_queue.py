"""The send_queue: urgent first, then first come; every byte once; done when all is sent."""

from contextlib import nullcontext

from p2pswarm.transport.bulk.receive_buffers import CHUNK_BYTES_MIN
from p2pswarm.transport.bulk.send_queue import SendQueue

CHUNK = 4 * CHUNK_BYTES_MIN


def send_queue() -> SendQueue:
    return SendQueue(nullcontext(), CHUNK)


def data(size: int) -> memoryview:
    return memoryview(bytes(size))


def drain(box: SendQueue) -> list[tuple[int, int, int]]:
    """(transfer, start, length) of every chunk, each taken and sent."""
    seen = []
    while (chunk := box.take(CHUNK)) is not None:
        seen.append((chunk.transfer_out.transfer, chunk.start, len(chunk.data)))
        done = box.sent(chunk)
        if done:
            done()
    return seen


def test_a_transfer_leaves_in_chunks_and_is_done_after_the_last():
    box, done = send_queue(), []
    box.add(5, data(2 * CHUNK + 1), 1, 1, lambda: done.append(5))

    first = box.take(CHUNK)
    assert box.sent(first) is None
    rest = drain(box)

    assert (first.start, len(first.data)) == (0, CHUNK)
    assert rest == [(5, CHUNK, CHUNK), (5, 2 * CHUNK, 1)]
    assert done == [5]


def test_a_more_urgent_transfer_overtakes_between_chunks():
    box = send_queue()
    box.add(1, data(2 * CHUNK), 2, 1, lambda: None)
    box.take(CHUNK)
    box.add(2, data(CHUNK), 1, 1, lambda: None)

    assert [transfer for transfer, _, _ in drain(box)] == [2, 1]


def test_equals_leave_in_the_order_they_came():
    box = send_queue()
    for transfer in (3, 1, 2):
        box.add(transfer, data(1), 1, 1, lambda: None)

    assert [transfer for transfer, _, _ in drain(box)] == [3, 1, 2]


def test_a_small_transfer_is_shared_evenly_by_the_lanes_but_not_cut_to_dust():
    box = send_queue()
    box.add(1, data(CHUNK), 1, 2, lambda: None)
    box.add(2, data(CHUNK), 1, 16, lambda: None)

    lengths = [length for _, _, length in drain(box)]

    assert lengths == [CHUNK // 2] * 2 + [CHUNK_BYTES_MIN] * 4


def test_a_cancelled_transfer_sends_no_more_and_is_never_done():
    box, done = send_queue(), []
    transfer_out = box.add(1, data(2 * CHUNK), 1, 1, lambda: done.append(1))
    chunk = box.take(CHUNK)

    box.cancel(transfer_out)

    assert box.sent(chunk) is None
    assert drain(box) == []
    assert done == []


def test_a_slow_lane_takes_smaller_chunks():
    box = send_queue()
    box.add(1, data(CHUNK), 1, 1, lambda: None)

    assert len(box.take(CHUNK // 2).data) == CHUNK // 2
