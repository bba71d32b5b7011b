"""Observation: a peer tells where a connection comes from, before anything else is known of it.

A node that calls from its listening port learns so which outside port its router gives that port.
The answer is shorter than the request, so that nobody is flooded with answers.

Units:   bytes.
Errors:  BadHandshake for an answer that cannot be read.
Source:  docs/reachability.md section 4; RFC 8489 (STUN) for the idea.
"""

import ipaddress
import struct

from p2pswarm.errors import BadHandshake
from p2pswarm.ids import Address

MAGIC = b"PSO1"
REQUEST_BYTES = 32  # magic and zeros
_ANSWER = struct.Struct("!4s16sH")
ANSWER_BYTES = _ANSWER.size


def request() -> bytes:
    """What the side that dials sends, and nothing more."""
    return MAGIC.ljust(REQUEST_BYTES, b"\0")


def answer(remote: Address) -> bytes:
    """What the other side answers: where it sees the connection come from."""
    address = ipaddress.ip_address(remote.host.partition("%")[0])
    mapped = b"\0" * 10 + b"\xff\xff" + address.packed
    return _ANSWER.pack(MAGIC, address.packed if address.version == 6 else mapped, remote.port)  # noqa: PLR2004


def read_answer(data: bytes) -> Address:
    """The address in an answer."""
    if len(data) != ANSWER_BYTES:
        raise BadHandshake(f"an observation of {len(data)} bytes")
    magic, raw, port = _ANSWER.unpack(data)
    if magic != MAGIC or not port:
        raise BadHandshake("no observation")
    return Address(str(ipaddress.IPv6Address(raw)), port)  # which makes IPv4 of a mapped one
