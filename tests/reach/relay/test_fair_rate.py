"""The fair rate: pairs share a relay by bytes, and neither exceeds its own rate."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.reach.relay.fair_rate import BURST_S, FairRate

PIECE = 256 * 1024
TOTAL, OWN = 10e6, 4e6
AMPLE = 1e12


def carry(rate: FairRate, flows: dict, for_s: float, groups: dict | None = None) -> dict:
    """Let every flow, (pair, piece of bytes), carry as fast as it may; bytes by flow."""
    carried, groups = dict.fromkeys(flows, 0), groups or {}
    now_s, end_s = 100.0, 100.0 + for_s
    for flow, (pair, nbytes) in flows.items():
        rate.on_open(pair, groups.get(pair, pair))
        rate.on_bytes(flow, pair, nbytes, now_s)
    while now_s < end_s:
        for flow in rate.grants(now_s):
            pair, nbytes = flows[flow]
            carried[flow] += nbytes
            rate.on_bytes(flow, pair, nbytes, now_s)
        at_s = rate.next_deadline_s()
        assert at_s is not None
        assert at_s > now_s, "a deadline that has passed would spin"
        now_s = at_s
    return carried


def test_a_flow_alone_has_its_pairs_rate():
    carried = carry(FairRate(TOTAL, OWN), {"a": ("pair", PIECE)}, for_s=10)

    assert carried["a"] == pytest.approx(OWN * 10, rel=0.02)


def test_pairs_share_the_relay_by_bytes_whatever_pieces_and_circuits_they_use():
    flows = {f"many {n}": ("crowd", PIECE) for n in range(16)}
    flows |= {"one": ("lonely", PIECE), "small": ("trickling", 1500)}

    carried = carry(FairRate(TOTAL, AMPLE), flows, for_s=10)

    crowd = sum(nbytes for flow, nbytes in carried.items() if flow.startswith("many"))
    for share in (crowd, carried["one"], carried["small"]):
        assert share == pytest.approx(TOTAL * 10 / 3, rel=0.02)


def test_many_pairs_of_one_network_have_no_more_than_one_of_another():
    flows = {f"crowd {n}": (f"id {n}", PIECE) for n in range(40)} | {"one": ("lonely", PIECE)}

    carried = carry(FairRate(TOTAL, AMPLE), flows, 10, {f"id {n}": "crowd" for n in range(40)})

    crowd = [nbytes for flow, nbytes in carried.items() if flow != "one"]
    assert carried["one"] == pytest.approx(TOTAL * 10 / 2, rel=0.02)
    assert sum(crowd) == pytest.approx(TOTAL * 10 / 2, rel=0.02)
    assert max(crowd) <= 2 * min(crowd)


def test_what_one_pair_may_not_use_the_others_have():
    flows = {"slow": ("slow", PIECE), "fast": ("fast", PIECE)}
    rate = FairRate(TOTAL, 6e6)

    carried = carry(rate, flows | {"third": ("slow", PIECE)}, for_s=10)

    assert carried["fast"] == pytest.approx(50e6, rel=0.05)
    assert carried["slow"] + carried["third"] == pytest.approx(50e6, rel=0.05)


def test_who_carries_little_goes_next_however_many_wait():
    rate = FairRate(TOTAL, AMPLE)
    for n in range(32):
        rate.on_open(n, n)
        rate.on_bytes(f"bulk {n}", n, PIECE, 0.0)
    rate.grants(0.0)
    rate.on_open("call", "call")

    rate.on_bytes("call", "call", 100, 0.0)
    at_s = rate.next_deadline_s()

    assert at_s is not None
    assert "call" in rate.grants(at_s)


def test_the_next_deadline_is_that_of_whoever_may_go_first():
    rate = FairRate(TOTAL, 1e6)
    for pair in ("used up", "fresh", "others", "more"):
        rate.on_open(pair, pair)
        if pair != "fresh":
            rate.on_bytes(pair, pair, PIECE, 0.0)
    assert "used up" in rate.grants(0.0)
    rate.on_bytes("a", "used up", PIECE, 0.0)
    rate.on_bytes("b", "fresh", 1, 0.0)
    at_s = rate.next_deadline_s()

    assert at_s is not None
    assert 0.0 < at_s <= 2 * PIECE / TOTAL
    assert "b" in rate.grants(at_s)


def test_a_pause_leaves_no_right_to_a_long_burst():
    rate = FairRate(TOTAL, AMPLE)
    rate.on_open("a", "a")
    at_once = 0
    for _ in range(100):
        rate.on_bytes("flow", "a", PIECE, 1000.0)
        at_once += PIECE * len(rate.grants(1000.0))

    assert at_once <= TOTAL * BURST_S + PIECE


def test_pairs_that_are_gone_are_forgotten():
    rate = FairRate(TOTAL, OWN)
    for n in range(100):
        rate.on_open(n, n)
        rate.on_bytes(n, n, PIECE, 0.0)
        rate.on_close(n, n)

    assert not rate._pairs
    assert not rate._groups


@pytest.mark.parametrize("rates", [(0, 1), (1, 0), (-1, 1)])
def test_a_rate_of_nothing_is_refused(rates):
    with pytest.raises(ValueError, match="more than 0"):
        FairRate(*rates)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, PIECE), st.floats(0, 0.2)),
        min_size=1,
        max_size=200,
    )
)
def test_every_flow_is_granted_once_and_no_rate_is_exceeded(steps):
    rate: FairRate[int] = FairRate(TOTAL, OWN)
    now_s, begun_s, waiting, granted = 50.0, 50.0, {}, []
    sent: dict = {}

    def grant() -> None:
        for flow in rate.grants(now_s):
            pair, nbytes = waiting.pop(flow)
            granted.append(flow)
            sent[pair] = sent.get(pair, 0) + nbytes
            for each, most in ((sent[pair], OWN), (sum(sent.values()), TOTAL)):
                assert each <= most * (now_s - begun_s + BURST_S) + PIECE + 1

    for flow, (pair, nbytes, pause_s) in enumerate(steps):
        rate.on_open(pair, pair)
        waiting[flow] = pair, nbytes
        rate.on_bytes(flow, pair, nbytes, now_s)
        grant()
        now_s += pause_s
    while (at_s := rate.next_deadline_s()) is not None:
        now_s = max(now_s, at_s)
        grant()

    assert sorted(granted) == list(range(len(steps)))
