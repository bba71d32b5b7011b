"""Nobody makes us dial a stranger twice, or many strangers at once, by claiming their addresses."""

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address
from p2pswarm.discovery.dht.unverified_contacts import (
    CLAIM_CHECK_BURST,
    CLAIM_CHECK_EVERY_S,
    CLAIM_CHECKS_MAX,
    CLAIM_REFUTED_S,
    CLAIMS_PER_WIDE_NET,
    AddressChecks,
)

VICTIM = Address("8.8.8.8", 4000)


def a_host(number: int) -> Address:
    """Each in a /16 of its own."""
    return Address(f"{11 + number // 256}.{number % 256}.0.1", 4000)


def refuted(checks: AddressChecks, claimed: Address, now_s: float = 0.0) -> bool:
    """Whether an address was dialled, in vain."""
    begun = checks.begin(claimed, now_s)
    if begun:
        checks.on_outcome(claimed, now_s, confirmed=False)
    return begun


def test_a_host_where_the_peer_was_not_is_left_alone_for_an_hour_at_every_port():
    checks = AddressChecks()

    assert refuted(checks, VICTIM)
    assert not refuted(checks, VICTIM, 1.0)
    assert not refuted(checks, Address("8.8.8.8", 22), CLAIM_REFUTED_S - 1)
    assert refuted(checks, VICTIM, CLAIM_REFUTED_S)


def test_however_a_host_is_written_it_is_one():
    for texts in [
        ("2600:1::1", "2600:1:0:0:0:0:0:1", "2600:1::2"),
        ("Peer.example.org", "peer.example.org", "peer.example.org."),
    ]:
        checks = AddressChecks()
        assert [refuted(checks, Address(each, 1)) for each in texts] == [True, False, False]


def test_a_host_where_a_peer_was_found_may_have_another():
    checks = AddressChecks()
    assert checks.begin(VICTIM, 0.0)
    checks.on_outcome(VICTIM, 0.1, confirmed=True)

    assert checks.begin(Address("8.8.8.8", 4001), 0.2)


def test_a_host_that_is_being_dialled_is_not_dialled_again():
    checks = AddressChecks()
    assert checks.begin(VICTIM, 0.0)

    assert not checks.begin(Address("8.8.8.8", 4001), 0.0)


def test_few_checks_are_under_way():
    checks = AddressChecks()

    assert [checks.begin(a_host(i), 0.0) for i in range(CLAIM_CHECKS_MAX + 1)].count(
        True
    ) == CLAIM_CHECKS_MAX
    checks.on_outcome(a_host(0), 1.0, confirmed=False)
    assert checks.begin(a_host(99), 1.0)


def test_claims_beyond_a_burst_are_checked_one_a_second():
    checks = AddressChecks()
    assert sum(refuted(checks, a_host(i)) for i in range(300)) == CLAIM_CHECK_BURST

    later_s = 10 * CLAIM_CHECK_EVERY_S
    assert sum(refuted(checks, a_host(i), later_s) for i in range(300, 600)) == 10


def test_one_wide_network_is_not_scanned():
    checks = AddressChecks()
    neighbours = [Address(f"8.8.{i}.1", 1) for i in range(40)]

    assert sum(refuted(checks, each) for each in neighbours) == CLAIMS_PER_WIDE_NET
    assert refuted(checks, a_host(1))
    assert refuted(checks, Address("8.8.99.1", 1), CLAIM_REFUTED_S)


def test_a_private_network_may_have_many_hosts():
    checks = AddressChecks()

    assert sum(refuted(checks, Address(f"10.0.{i}.1", 1)) for i in range(40)) == 40


claims = st.lists(
    st.tuples(
        st.one_of(
            st.integers(0, 60).map(a_host),
            st.integers(0, 40).map(lambda i: Address(f"8.8.{i}.1", 1 + i % 3)),
            st.integers(0, 5).map(lambda i: Address(f"10.0.0.{i}", 1)),
        ),
        st.sampled_from([0.0, 0.0, 0.1, 1.0, 60.0, 1000.0]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=300,
)


@given(claims)
def test_whatever_is_claimed_the_bounds_hold(claimed):
    checks, now_s = AddressChecks(), 0.0
    under_way: list[Address] = []
    refuted_s: dict[str, float] = defaultdict(lambda: -CLAIM_REFUTED_S)
    begun: list[tuple[float, str]] = []
    for address, pause_s, confirmed, ends in claimed:
        now_s += pause_s
        if checks.begin(address, now_s):
            assert now_s - refuted_s[address.host] >= CLAIM_REFUTED_S
            assert address.host not in [each.host for each in under_way]
            under_way.append(address)
            begun.append((now_s, address.host))
        if ends and under_way:
            over = under_way.pop(0)
            checks.on_outcome(over, now_s, confirmed=confirmed)
            if not confirmed:
                refuted_s[over.host] = now_s
        recent = [host for at_s, host in begun if at_s > now_s - CLAIM_REFUTED_S]
        wide = Counter(host.rsplit(".", 2)[0] for host in recent if not host.startswith("10."))
        assert len(under_way) <= CLAIM_CHECKS_MAX
        assert max(wide.values(), default=0) <= CLAIMS_PER_WIDE_NET
        assert len(recent) <= CLAIM_CHECK_BURST + CLAIM_REFUTED_S / CLAIM_CHECK_EVERY_S
        assert (
            len(checks._refuted_s)
            <= CLAIM_CHECK_BURST + CLAIM_REFUTED_S / CLAIM_CHECK_EVERY_S + CLAIM_CHECKS_MAX
        )
        for window_s in (0.0, 10.0):
            assert (
                sum(at_s >= now_s - window_s for at_s, _ in begun)
                <= CLAIM_CHECK_BURST + window_s / CLAIM_CHECK_EVERY_S
            )
