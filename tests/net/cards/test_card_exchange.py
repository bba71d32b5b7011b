"""CardExchange: every peer gets our newest card, seldom; a flood of theirs is not looked at."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.cards.card_exchange import (
    HEAR_ALL_BURST,
    HEAR_BURST,
    HEAR_EVERY_S,
    TELL_EVERY_S,
    CardExchange,
)

OLD, NEW, NEWER = b"old", b"new", b"newer"


def test_who_has_our_card_is_told_nothing():
    exchange = CardExchange()
    exchange.up("a", NEW)

    assert exchange.to_tell(NEW, 0.0) == []
    assert exchange.next_deadline_s(NEW) is None


def test_who_has_an_older_card_is_told_at_once_and_then_seldom():
    exchange = CardExchange()
    exchange.up("a", OLD)
    exchange.up("b", NEW)

    assert exchange.to_tell(NEW, 5.0) == ["a"]
    assert exchange.to_tell(NEWER, 5.0) == ["b"]
    assert exchange.next_deadline_s(NEWER) == 5.0 + TELL_EVERY_S
    assert exchange.to_tell(NEWER, 5.0 + TELL_EVERY_S) == ["a"]
    assert exchange.next_deadline_s(NEWER) is None


def test_a_link_that_ended_is_forgotten():
    exchange = CardExchange()
    exchange.up("a", OLD)
    exchange.ended("a")
    exchange.ended("a")

    assert exchange.to_tell(NEW, 0.0) == []
    assert not exchange.may_hear("a", 0.0)
    assert len(exchange) == 0


def test_one_peers_flood_is_not_looked_at():
    exchange = CardExchange()
    exchange.up("flood", NEW)
    exchange.up("honest", NEW)

    looked = sum(exchange.may_hear("flood", number / 1000) for number in range(10_000))

    assert looked <= HEAR_BURST + 10 / HEAR_EVERY_S
    assert exchange.may_hear("honest", 10.0)


def test_all_peers_together_cost_a_bounded_share_of_the_processor():
    exchange = CardExchange()
    links = [str(number) for number in range(1024)]
    for link in links:
        exchange.up(link, NEW)

    looked = sum(exchange.may_hear(link, float(at)) for at in range(60) for link in links)

    assert looked <= HEAR_ALL_BURST + 60 * 100


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("up"), st.integers(0, 4)),
            st.tuples(st.just("ended"), st.integers(0, 4)),
            st.tuples(st.just("change"), st.integers(0, 4)),
            st.tuples(st.just("wait"), st.floats(0, 3)),
        ),
        max_size=60,
    )
)
def test_in_the_end_every_peer_has_the_newest_card(happened):
    exchange, now_s, ours = CardExchange(), 0.0, b"0"
    have: dict[int, bytes] = {}
    told_s: dict[int, float] = {}

    def tell():
        for link in exchange.to_tell(ours, now_s):
            assert now_s >= told_s.get(link, float("-inf")) + TELL_EVERY_S
            have[link], told_s[link] = ours, now_s

    for what, value in happened:
        if what == "up":
            exchange.up(value, ours)
            have[value] = ours
            told_s.pop(value, None)
        elif what == "ended":
            exchange.ended(value)
            have.pop(value, None)
        elif what == "change":
            ours = b"%d" % value
            tell()
        else:
            until_s = now_s + value
            while (at_s := exchange.next_deadline_s(ours)) is not None and at_s <= until_s:
                now_s = max(now_s, at_s)
                tell()
            now_s = until_s
    while (at_s := exchange.next_deadline_s(ours)) is not None:
        now_s = max(now_s, at_s)
        tell()

    assert set(have.values()) <= {ours}
