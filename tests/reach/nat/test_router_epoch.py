"""A router's clock tells whether it was started again, and slow packets do not."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.reach.nat.router_epoch import RouterEpoch, epoch_in


def pcp(epoch_s: int, operation: int = 0x80, result: int = 0) -> bytes:
    return struct.pack("!BBBBII12x", 2, operation, 0, result, 0, epoch_s)


def pmp(epoch_s: int) -> bytes:
    return struct.pack("!BBHI4B", 0, 128, 0, epoch_s, 203, 0, 114, 7)


@pytest.mark.parametrize("packet", [pcp(77), pcp(77, 0x81), pcp(77, 0x80, 4), pmp(77)])
def test_every_answer_tells_the_time(packet):
    assert epoch_in(packet) == 77


@pytest.mark.parametrize(
    "packet",
    [b"", b"\2", pcp(1)[:23], pcp(1, 0x01), pmp(1)[:11], b"M-SEARCH", pcp(1) + bytes(1100)],
)
def test_what_is_no_answer_tells_no_time(packet):
    assert epoch_in(packet) is None


@given(st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 0.9)), max_size=20))
def test_a_clock_that_goes_on_was_not_started_again(steps):
    epoch, now_s = RouterEpoch(), 0.0
    for pause_s, late_s in steps:
        now_s += pause_s
        assert not epoch.lost(pcp(1000 + int(now_s)), now_s + late_s)


@given(st.integers(10, 10**6), st.integers(0, 10**6), st.booleans())
def test_a_clock_that_begins_anew_is_noticed(up_s, pause_s, announced):
    epoch = RouterEpoch()
    epoch.lost(pmp(up_s), 0.0)

    began_s = 0 if announced else pause_s // 2

    assert epoch.lost(pmp(began_s), float(pause_s))


def test_a_clock_that_is_a_sixteenth_slower_or_faster_is_right():
    epoch = RouterEpoch()
    epoch.lost(pcp(0), 0.0)

    assert not epoch.lost(pcp(15_000), 16_000.0)
    assert not epoch.lost(pcp(31_000), 31_000.0)
    assert epoch.lost(pcp(99_000), 33_000.0)
