"""The pure link: how fast, in which order, and what is lost."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wanlab.link import Link, LinkQueue

TOLERANCE_S = 1e-9  # float sums over an hour of packets stay below this
PACKET_BYTES = 1250  # 1 ms at 10 Mbit/s
SLOW = Link(rate_bits_per_s=10e6, delay_s=0.05, queue_bytes=10 * PACKET_BYTES)

links = st.builds(
    Link,
    rate_bits_per_s=st.floats(1e5, 1e10) | st.none(),
    delay_s=st.floats(0, 1),
    queue_bytes=st.integers(0, 1 << 22) | st.none(),
    loss=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    jitter_s=st.sampled_from([0.0, 0.02]),
)
arrivals = st.lists(
    st.tuples(st.floats(0, 0.01), st.integers(1, 64), st.integers(60, 1514)), max_size=60
)
"""Seconds since the one before, packets in the train, bytes of each."""


def queue(link: Link, seed: int = 0) -> LinkQueue:
    return LinkQueue(link, random.Random(seed))


def test_packet_on_an_idle_link_takes_its_own_length_and_the_delay():
    assert queue(SLOW).push(PACKET_BYTES, 7.0) == pytest.approx(7.0 + 0.001 + 0.05)


def test_packets_that_come_at_once_leave_one_after_the_other():
    slow = queue(SLOW)

    arrive_s = [slow.push(PACKET_BYTES, 0.0) for _ in range(3)]

    assert arrive_s == pytest.approx([0.051, 0.052, 0.053])


def test_full_queue_drops_the_tail_and_takes_again_what_fits_later():
    slow = queue(SLOW)

    taken = [slow.push(PACKET_BYTES, 0.0) is not None for _ in range(12)]

    assert taken == [True] * 10 + [False] * 2
    assert slow.push(PACKET_BYTES, 0.0015) == pytest.approx(0.011 + 0.05)
    assert slow.counts.dropped == 2


def test_train_that_fits_in_part_loses_its_tail_only():
    slow = queue(SLOW)

    runs = slow.push_train(15, PACKET_BYTES, PACKET_BYTES, 0.0)

    assert [(run.first, run.stop) for run in runs] == [(0, 10)]
    assert slow.counts.dropped == 5


def test_idle_link_takes_a_packet_larger_than_its_queue():
    tiny = queue(Link(rate_bits_per_s=1e6, queue_bytes=0))

    assert tiny.push(1500, 0.0) is not None
    assert tiny.push(1500, 0.0) is None


def test_lost_packet_has_used_the_wire():
    cut = queue(Link(rate_bits_per_s=10e6, delay_s=0, loss=1.0))

    assert cut.push(PACKET_BYTES, 0.0) is None
    cut.change(Link(rate_bits_per_s=10e6, delay_s=0), 0.0)

    assert cut.push(PACKET_BYTES, 0.0) == pytest.approx(0.002)


def test_default_queue_holds_what_a_round_trip_carries():
    assert Link(rate_bits_per_s=200e6, delay_s=0.05).queue_limit_bytes == 2_500_000


def test_what_waits_leaves_at_the_new_rate_and_is_not_overtaken():
    slow = queue(SLOW)
    arrive_s = [slow.push(PACKET_BYTES, 0.0) for _ in range(4)]

    slow.change(Link(rate_bits_per_s=20e6, delay_s=0.001), 0.001)

    assert slow.waiting_bytes(0.001) == pytest.approx(3 * PACKET_BYTES)
    assert slow.push(PACKET_BYTES, 0.001) == arrive_s[-1]


def test_loss_is_the_share_that_was_set():
    """A binomial count of 20,000 at 1 % lies within 200 +- 70 but once in a million."""
    lossy = queue(Link(rate_bits_per_s=None, loss=0.01))

    for _ in range(20_000):
        lossy.push(PACKET_BYTES, 0.0)

    assert 130 < lossy.counts.lost < 270


@pytest.mark.parametrize(("count", "arrive"), [(2, [(0, 2)]), (3, [(0, 2)]), (4, [(0, 2), (3, 4)])])
def test_train_loses_the_very_segment_that_chance_chose(count: int, arrive: list[tuple[int, int]]):
    class Third(random.Random):
        def random(self) -> float:
            return 0.8  # of packets that are lost by half, two pass: 0.5 ** 2 > 1 - 0.8 > 0.5 ** 3

    lossy = LinkQueue(Link(rate_bits_per_s=None, loss=0.5), Third())

    runs = lossy.push_train(count, 1514, 1514, 0.0)

    assert [(run.first, run.stop) for run in runs] == arrive


def test_link_tells_itself_in_one_line():
    assert str(Link(loss=0.01)) == "200 Mbit/s, queue 2500 kB, 50 ms one way, loss 0.01"
    assert str(Link(rate_bits_per_s=None, jitter_s=0.002)) == (
        "no rate limit, 50 ms one way + 0..2 ms, loss 0"
    )


def test_same_seed_loses_the_same_packets():
    link = Link(rate_bits_per_s=None, loss=0.1)

    runs = [[queue(link, 5).push_train(64, 1514, 60, float(i)) for i in range(9)] for _ in "ab"]

    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    "bad",
    [
        {"rate_bits_per_s": 0},
        {"loss": 1.1},
        {"delay_s": -1},
        {"jitter_s": math.inf},
        {"queue_bytes": -1},
    ],
)
def test_settings_that_no_link_can_have_are_refused(bad: dict[str, float]):
    with pytest.raises(ValueError, match="not"):
        Link(**bad)


@given(links, arrivals)
def test_any_traffic_keeps_order_and_rate(link: Link, traffic: list[tuple[float, int, int]]):
    """Whatever comes: first in, first out; never early; never above the rate; queue bounded."""
    line = queue(link)
    now_s, last_s, begin_s, delivered_bytes, pushed = 0.0, 0.0, None, 0, 0
    for pause_s, count, packet_bytes in traffic:
        now_s += pause_s
        pushed += count
        for run in line.push_train(count, packet_bytes, packet_bytes, now_s):
            begin_s = now_s if begin_s is None else begin_s
            delivered_bytes += (run.stop - run.first) * packet_bytes
            assert run.arrive_s >= last_s
            assert run.arrive_s >= now_s + link.delay_s - TOLERANCE_S
            last_s = run.arrive_s
            if link.rate_bits_per_s is not None:
                least_s = delivered_bytes * 8 / link.rate_bits_per_s
                assert last_s >= begin_s + least_s + link.delay_s - TOLERANCE_S
        full_bytes = max(link.queue_limit_bytes, 1514)
        assert line.waiting_bytes(now_s) <= full_bytes + 1
    assert line.counts.packets + line.counts.dropped == pushed


@given(links, arrivals)
def test_train_fares_as_its_packets_would_one_by_one(
    link: Link, traffic: list[tuple[float, int, int]]
):
    together, alone = queue(link), queue(link)
    now_s = 0.0
    for pause_s, count, packet_bytes in traffic:
        now_s += pause_s
        runs = together.push_train(count, packet_bytes, 60, now_s)
        sizes = [packet_bytes] * (count - 1) + [60]
        singles = [alone.push(size, now_s) for size in sizes]

        got = [i for run in runs for i in range(run.first, run.stop)]
        assert got == [i for i, arrive_s in enumerate(singles) if arrive_s is not None]
        for run in runs:
            assert run.arrive_s == pytest.approx(singles[run.stop - 1], abs=TOLERANCE_S)
    assert together.counts == alone.counts
