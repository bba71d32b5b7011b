"""CardClaims: no third party is dialled twice on a stranger's word, whatever is claimed."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.cards.card_claims import (
    FOUND_MAX,
    PAUSE_S,
    PER_PAUSE,
    PER_WIDE_NET,
    REFUTED_S,
    UNDER_WAY_S,
    CardClaims,
)

LIAR, OTHER, HONEST = (PeerId(bytes([number]) * 32) for number in range(3))
VICTIM = "8.8.8.8"


def at(host: str, port: int = 4000, peer: PeerId = LIAR) -> Contact:
    return Contact(peer, Address(host, port))


def spread(number: int) -> str:
    """A host in a /16 of its own."""
    return f"{20 + number // 250}.{number % 250}.1.1"


def tried(claims: CardClaims, named: Contact, now_s: float) -> bool:
    """Dial as `CardCandidates` does; returns whether it was allowed."""
    if not claims.may_dial(named, now_s):
        return False
    claims.begin(named, now_s)
    return True


def test_a_victim_is_dialled_once_in_an_hour_under_whatever_id_and_port():
    claims = CardClaims()

    assert tried(claims, at(VICTIM), 0.0)
    claims.confirm(at("9.9.9.9", peer=HONEST), 1.0)  # our own network works

    assert not tried(claims, at(VICTIM), PAUSE_S + 1)
    assert not tried(claims, at(VICTIM, 22, OTHER), REFUTED_S - 1)
    assert tried(claims, at(VICTIM), REFUTED_S)


def test_if_nobody_answers_our_own_network_fails():
    claims = CardClaims()

    assert tried(claims, at(VICTIM), 0.0)
    assert not tried(claims, at(VICTIM), PAUSE_S - 1)
    claims.confirm(at("9.9.9.9", peer=HONEST), UNDER_WAY_S + 1)  # too late to tell

    assert tried(claims, at(VICTIM), PAUSE_S)


def test_a_peer_that_was_found_may_be_dialled_for_ever():
    claims = CardClaims()
    assert tried(claims, at(VICTIM), 0.0)
    claims.confirm(at(VICTIM), 0.1)

    assert claims.confirmed(at(VICTIM))
    assert all(tried(claims, at(VICTIM), now) for now in range(100))
    assert not claims.confirmed(at(VICTIM, 4001))


def test_a_home_of_ipv6_is_one_host():
    claims = CardClaims()

    assert tried(claims, at("2600:1:2:3::1"), 0.0)
    assert not tried(claims, at("2600:1:2:4::1"), 0.0)
    assert tried(claims, at("2600:1:3:4::1"), 0.0)


def test_a_lab_has_no_bounds():
    claims = CardClaims()

    assert all(tried(claims, at("192.168.1.7"), float(now)) for now in range(1000))
    assert len(claims) == 0


def test_a_network_is_not_scanned():
    claims = CardClaims()
    hosts = [f"8.8.{number // 256}.{number % 256}" for number in range(300)]

    dialled = sum(tried(claims, at(host), 60.0 * number) for number, host in enumerate(hosts[:60]))
    dialled += sum(tried(claims, at(host), 3599.0) for host in hosts[60:])

    assert dialled == PER_WIDE_NET


def test_so_many_are_tried_in_a_minute_and_no_more():
    claims = CardClaims()

    dialled = [tried(claims, at(spread(number)), number / 100) for number in range(2 * PER_PAUSE)]

    assert sum(dialled) == PER_PAUSE
    assert tried(claims, at("99.1.1.1"), PAUSE_S)


def test_what_is_found_takes_no_place():
    claims = CardClaims()
    for number in range(3 * PER_PAUSE):
        named = at(spread(number), peer=HONEST)
        assert tried(claims, named, number / 100)
        claims.confirm(named, number / 100)

    assert len(claims) == 3 * PER_PAUSE


def test_memory_has_a_bound():
    claims = CardClaims()
    for number in range(FOUND_MAX + 10):
        claims.confirm(at("9.9.9.9", 1 + number), float(number))

    assert len(claims) == FOUND_MAX
    assert not claims.confirmed(at("9.9.9.9", 1))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["dial", "find"]),
            st.integers(0, 5),
            st.integers(0, 2),
            st.floats(0, 400),
        ),
        max_size=80,
    )
)
def test_a_host_where_nobody_was_ever_found_is_dialled_once_in_a_time(happened):
    """Somebody answers all the time, so that each failure counts."""
    claims = CardClaims()
    now_s = 0.0
    last_s: dict[str, float] = {}
    for what, number, peer, later_s in happened:
        now_s += later_s
        host = spread(number)
        named = at(host, 4000 + peer, (LIAR, OTHER, HONEST)[peer])
        if what == "dial":
            if not claims.confirmed(named) and tried(claims, named, now_s):
                assert now_s - last_s.get(host, -REFUTED_S) >= REFUTED_S
                last_s[host] = now_s
            claims.confirm(at("9.9.9.9", peer=HONEST), now_s)
        elif host in last_s:
            claims.confirm(named, now_s)
            del last_s[host]
