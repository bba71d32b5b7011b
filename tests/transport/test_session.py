"""Introductions: what a peer says of itself in the handshake, and what it may not say."""

from dataclasses import dataclass

import pytest

from p2pswarm.errors import BadHandshake
from p2pswarm.transport.session import Introduction, read_introduction
from p2pswarm.wire.message import Message, encode, message


@message(61471)
@dataclass(frozen=True, slots=True)
class Other(Message):
    number: int


OURS = Introduction(b"i" * 16, 4001, "203.0.113.7")


def test_an_introduction_is_read_as_it_was_written():
    assert read_introduction(encode(OURS)) == OURS


@pytest.mark.parametrize(
    "payload",
    [b"", b"garbage", encode(OURS)[:-1], b"\x94\x0a\xc4\x01x\x00\xa0", encode(Other(7))],
)
def test_anything_else_is_a_bad_handshake(payload: bytes):
    with pytest.raises(BadHandshake, match="introduc"):
        read_introduction(payload)


@pytest.mark.parametrize("host", ["a b", "::1::", "\x1b[2J", "x" * 200, "a..b"])
def test_an_observed_host_that_is_none_is_refused(host: str):
    """We would announce it, and no introduction of ours could be made any more."""
    with pytest.raises(BadHandshake, match="introduction"):
        read_introduction(encode(Introduction(b"i" * 16, 4000, host)))


@pytest.mark.parametrize(
    ("host", "read"),
    [("", ""), ("2001:db8::1", "2001:db8::1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("me", "me")],
)
def test_an_observed_host_is_read_in_its_one_form(host: str, read: str):
    raw = encode(Introduction(b"i" * 16, 4000, host))

    assert read_introduction(raw).observed_host == read
