"""The send_queue: urgent first, then first come; every byte once; done when all is sent."""

from contextlib import nullcontext

from p2pswarm.net.bulk.receive_buffers import CHUNK_BYTES_MIN
from p2pswarm.net.bulk.send_queue import SendQueue
from p2pswarm.net.bulk.upload_share import UploadShare

CHUNK = 4 * CHUNK_BYTES_MIN


def send_queue(upload=None, wake=lambda: None) -> SendQueue:
    return SendQueue(nullcontext(), CHUNK, upload or UploadShare(nullcontext()), wake)


def data(size: int) -> memoryview:
    return memoryview(bytes(size))


def drain(box: SendQueue) -> list[tuple[int, int, int]]:
    """(transfer, start, length) of every chunk, each taken and sent."""
    seen = []
    while (chunk := box.take(CHUNK, 0.0)) is not None:
        seen.append((chunk.transfer_out.transfer, chunk.start, len(chunk.data)))
        done = box.on_write(chunk)
        if done:
            done()
    return seen


def test_a_transfer_leaves_in_chunks_and_is_done_after_the_last():
    box, done = send_queue(), []
    box.add(5, data(2 * CHUNK + 1), 1, 1, lambda: done.append(5))

    first = box.take(CHUNK, 0.0)
    assert box.on_write(first) is None
    rest = drain(box)

    assert (first.start, len(first.data)) == (0, CHUNK)
    assert rest == [(5, CHUNK, CHUNK), (5, 2 * CHUNK, 1)]
    assert done == []
    box.on_done(5)
    box.on_done(5)
    assert done == [5]


def test_a_more_urgent_transfer_overtakes_between_chunks():
    box = send_queue()
    box.add(1, data(2 * CHUNK), 2, 1, lambda: None)
    box.take(CHUNK, 0.0)
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
    chunk = box.take(CHUNK, 0.0)

    box.cancel(transfer_out)

    assert box.on_write(chunk) is None
    assert drain(box) == []
    assert done == []


def test_a_slow_lane_takes_smaller_chunks():
    box = send_queue()
    box.add(1, data(CHUNK), 1, 1, lambda: None)

    assert len(box.take(CHUNK // 2, 0.0).data) == CHUNK // 2


def two_links():
    """Two queues of one node; `woken` are the links that may go on."""
    upload, woken = UploadShare(nullcontext()), []
    return send_queue(upload), send_queue(upload, lambda: woken.append("second")), woken


def test_what_is_not_urgent_waits_for_what_is_urgent_on_another_link():
    first, second, woken = two_links()
    first.add(1, data(CHUNK), 1, 1, lambda: None)
    second.add(2, data(CHUNK), 2, 1, lambda: None)

    assert second.take(CHUNK, 0.0) is None
    assert woken == []
    drain(first)

    assert woken == ["second"]
    assert drain(second) == [(2, 0, CHUNK)]


def test_an_urgent_transfer_that_is_given_up_holds_nobody_back():
    first, second, woken = two_links()
    transfer_out = first.add(1, data(CHUNK), 1, 1, lambda: None)
    second.add(2, data(CHUNK), 2, 1, lambda: None)
    assert second.take(CHUNK, 0.0) is None

    first.cancel(transfer_out)

    assert woken == ["second"]
    assert drain(second) == [(2, 0, CHUNK)]


def test_a_share_goes_out_beside_what_is_urgent():
    first, second, woken = two_links()
    first.add(1, data(40 * CHUNK), 1, 1, lambda: None)
    second.add(2, data(40 * CHUNK), 2, 1, lambda: None)

    beside = 0
    for _ in range(30):
        first.on_write(first.take(CHUNK, 0.0))
        while (chunk := second.take(CHUNK, 0.0)) is not None:
            second.on_write(chunk)
            beside += 1

    assert beside == 4  # a ninth of 30, in whole chunks
    assert woken != []


def test_an_urgent_transfer_of_its_own_link_goes_first_as_ever():
    first, second, _ = two_links()
    first.add(1, data(CHUNK), 1, 1, lambda: None)
    second.add(2, data(CHUNK), 2, 1, lambda: None)
    second.add(3, data(CHUNK), 0, 1, lambda: None)

    assert [transfer for transfer, _, _ in drain(second)][:1] == [3]


def test_what_a_broken_connection_took_and_did_not_bring_is_sent_again():
    box, done = send_queue(), []
    box.add(5, data(5 * CHUNK), 1, 1, lambda: done.append(5))
    for place in ((1, 0), (2, 0), (1, 1), (1, 2), (2, 1)):
        box.on_write(box.take(CHUNK, 0.0, place))
    assert box.take(CHUNK, 0.0, (2, 2)) is None

    assert box.on_channel_end(1, 1)

    assert sorted(drain(box)) == [(5, 2 * CHUNK, CHUNK), (5, 3 * CHUNK, CHUNK)]
    box.on_done(5)
    assert done == [5]
    assert not box.on_channel_end(2, 0)


def test_a_chunk_that_is_sent_again_is_cut_as_it_was():
    """A slow connection takes it whole: the receiver has no claim on parts of it."""
    box = send_queue()
    box.add(5, data(CHUNK), 1, 1, lambda: None)
    box.on_write(box.take(CHUNK, 0.0, (1, 0)))

    box.on_channel_end(1, 0)

    assert len(box.take(CHUNK // 2, 0.0, (2, 0)).data) == CHUNK


def test_memory_that_a_connection_still_reads_is_not_given_back():
    """A peer that says too early that it has everything would else see what comes next in it."""
    box, done = send_queue(), []
    box.add(5, data(CHUNK), 1, 1, lambda: done.append(5))
    chunk = box.take(CHUNK, 0.0, (1, 0))

    box.on_done(5)
    assert done == []
    box.on_write(chunk)()

    assert done == [5]


def test_a_connection_that_breaks_under_a_chunk_lets_go_of_it():
    box, done = send_queue(), []
    box.add(5, data(CHUNK), 1, 1, lambda: done.append(5))
    chunk = box.take(CHUNK, 0.0, (1, 0))
    box.on_done(5)

    box.on_chunk_loss(chunk)

    assert done == [5]


def test_nothing_is_sent_again_of_what_was_given_up_or_is_done():
    box = send_queue()
    given_up = box.add(5, data(CHUNK), 1, 1, lambda: None)
    box.add(6, data(CHUNK), 1, 1, lambda: None)
    for number in range(2):
        box.on_write(box.take(CHUNK, 0.0, (1, number)))
    box.cancel(given_up)
    box.on_done(6)

    assert not box.on_channel_end(1, 0)
    assert drain(box) == []
