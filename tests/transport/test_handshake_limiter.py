"""The gate: strangers take bounded places, and stallers make way."""

from p2pswarm.transport.handshake_limiter import HandshakeLimiter


def test_a_newcomer_displaces_the_oldest_when_all_is_full():
    gate = HandshakeLimiter(most=2, most_per_host=2)
    first, _ = gate.enter("192.0.2.1")
    gate.enter("192.0.2.2")

    _, displaced = gate.enter("192.0.2.3")

    assert displaced == first


def test_a_crowd_from_one_host_displaces_its_own():
    gate = HandshakeLimiter(most=10, most_per_host=2)
    gate.enter("192.0.2.9")
    crowd = [gate.enter("192.0.2.1")[0] for _ in range(2)]

    _, displaced = gate.enter("192.0.2.1")

    assert displaced == crowd[0]


def test_who_has_left_displaces_nobody():
    gate = HandshakeLimiter(most=1, most_per_host=1)
    ticket, _ = gate.enter("192.0.2.1")

    gate.leave(ticket)

    assert gate.enter("192.0.2.1")[1] is None


def test_hosts_of_one_ipv6_subscriber_count_as_one():
    gate = HandshakeLimiter(most=10, most_per_host=1)
    first, _ = gate.enter("2001:db8:0:1::1")

    _, displaced = gate.enter("2001:db8:0:1:ffff::2%eth0")
    _, other = gate.enter("2001:db8:0:2::1")

    assert displaced == first
    assert other is None


def test_a_simulated_host_counts_by_its_name():
    gate = HandshakeLimiter(most=10, most_per_host=1)
    first, _ = gate.enter("host-1")

    assert gate.enter("host-2")[1] is None
    assert gate.enter("host-1")[1] == first


def test_leaving_twice_is_harmless():
    gate = HandshakeLimiter(most=1, most_per_host=1)
    ticket, _ = gate.enter("192.0.2.1")

    gate.leave(ticket)
    gate.leave(ticket)
