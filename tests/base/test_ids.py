"""Who and where: peer ids, distances, addresses."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, PeerId

raw_ids = st.binary(min_size=32, max_size=32)


@given(raw_ids)
def test_an_id_reads_what_it_printed(raw: bytes):
    peer = PeerId(raw)

    assert PeerId.parse(str(peer)) == peer
    assert str(peer).startswith(peer.short)


@given(raw_ids, raw_ids, raw_ids)
def test_distance_is_a_metric(a: bytes, b: bytes, c: bytes):
    assert PeerId(a).distance(a) == 0
    assert PeerId(a).distance(b) == PeerId(b).distance(a)
    assert PeerId(a).distance(c) <= PeerId(a).distance(b) + PeerId(b).distance(c)


def test_an_id_is_the_keys_own_and_nobody_elses():
    assert PeerId.of_key(b"k" * 32) == PeerId.of_key(b"k" * 32)
    assert PeerId.of_key(b"k" * 32) != PeerId.of_key(b"l" * 32)


@pytest.mark.parametrize("text", ["", "abc", "!" * 52, "a" * 60])
def test_text_that_is_no_id_is_refused_with_the_text(text: str):
    with pytest.raises(ValueError, match="peer id"):
        PeerId.parse(text)


def test_an_id_has_32_bytes():
    with pytest.raises(ValueError, match="not 31"):
        PeerId(bytes(31))


@pytest.mark.parametrize(
    "text", ["203.0.113.7:4000", "example.org:1", "a_b-c.:1", "[::1]:65535", "[fe80::1%eth0]:1"]
)
def test_an_address_reads_what_it_printed(text: str):
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("example.org", "HOST:PORT"),
        ("example.org:", "HOST:PORT"),
        ("example.org:x", "HOST:PORT"),
        ("example.org:65536", "0..65535"),
        (":4000", "has no host"),
        ("two words:4000", "not a host"),
        ("a..b:4000", "not a host"),
        ("x" * 64 + ".org:4000", "not a host"),
        ("x." * 200 + "org:4000", "not a host"),
        ("::1:4000", "brackets"),
        ("[[z]]:4", "brackets are for an IPv6 address"),
        ("[z]:4", "brackets are for an IPv6 address"),
        ("[]:4", "brackets are for an IPv6 address"),
        ("[::1%]:4", "brackets are for an IPv6 address"),
        ("example.org:" + "9" * 5000, "0..65535"),
        ("http://example.org", "leave out 'http://' and write HOST:PORT"),
        ("203.0.113.7:4000/", "'' is not a peer id"),
        ("203.0.113.7:4000/metrics", "'metrics' is not a peer id"),
        ("wss://example.org/" + str(PeerId(bytes(32))), "HOST:PORT"),
        ("tcp://example.org:4000/x", "leave out 'tcp://', write 'example.org:4000'"),
    ],
)
def test_what_is_no_address_is_refused_with_the_remedy(text: str, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        Address.parse(text)


@example("\U00010bb0" * 40)  # ten characters each when quoted
@example("[[z]]:4")
@given(st.text() | st.text("[]:%.0123456789abcdef/ "))
def test_any_text_is_an_address_that_reads_what_it_prints_or_a_short_complaint(text: str):
    try:
        address = Address.parse(text)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
        assert len(str(error)) < 200  # noqa: PT017
        return

    assert Address.parse(str(address)) == address
    address.host.encode("idna")  # what a resolver does to it first


@given(st.text(), st.integers(-10, 70_000))
def test_an_address_that_can_be_made_can_be_read(host: str, port: int):
    try:
        address = Address(host, port)
    except ValueError:
        return

    assert Address.parse(str(address)) == address


@given(st.binary(min_size=32, max_size=32), st.sampled_from(["", "ws", "wss"]))
def test_an_address_through_a_relay_reads_what_it_printed(raw: bytes, web: str):
    relay = Address("2001:db8::1", 443, web=web)

    through = relay.through(PeerId(raw))

    assert Address.parse(str(through)) == through
    assert str(through) == f"{relay}/{PeerId(raw)}"
    assert through.place == relay == relay.place


def test_what_is_no_way_to_a_place_is_refused():
    with pytest.raises(ValueError, match="32 bytes, not 31"):
        Address("example.org", 1, circuit=bytes(31))
    with pytest.raises(ValueError, match="'http' is none of ws, wss"):
        Address("example.org", 1, web="http")


@given(st.ip_addresses(), st.integers(0, 65_535))
def test_every_ip_address_is_a_host(ip, port: int):
    address = Address(str(ip), port)

    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "host", ["::ffff:203.0.113.7", "::FFFF:203.0.113.7", "::ffff:cb00:7107", "::ffff:203.0.113.7%1"]
)
def test_an_ipv4_address_written_as_ipv6_is_the_ipv4_address(host: str):
    """Else all of IPv4 would look like one network to a node that listens on [::]."""
    address = Address(host, 4000)

    assert address == Address("203.0.113.7", 4000)
    assert str(address) == "203.0.113.7:4000"
