"""Packets of the Port Control Protocol: a mapping is asked for, and what the router says to it.

Errors:  BadMessage for an answer that cannot be read; ValueError for our own misuse.
Source:  RFC 6887: 7.1 and 7.2 headers, 7.4 result codes, 11.1 MAP, 14.1 ANNOUNCE; section 5 for
         addresses.
"""

import ipaddress
import struct
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address

PORT = 5351  # RFC 6887 section 19.1: of the router, shared with NAT-PMP
VERSION = 2
NONCE_BYTES = 12
SUCCESS = 0
UNSUPPORTED_VERSION = 1
PACKET_BYTES_MAX = 1100  # section 7
_OLD_ANSWER_BYTES = 4
_ANSWER = 0x80
_ANNOUNCE, _MAP = 0, 1
OLD_ANSWER = bytes((0, _ANSWER | _MAP))
"""So a router that knows only NAT-PMP begins its answer to PCP's MAP (appendix A)."""
_TCP = 6
_REQUEST_HEADER = struct.Struct("!BBHI16s")
_ANSWER_HEADER = struct.Struct("!BBBBI16x")
_EPOCH = slice(8, 12)
_BODY = struct.Struct("!12sB3xHH16s")


@dataclass(frozen=True, slots=True)
class PcpAnswer:
    """A router's answer to a request for a mapping."""

    result: int
    """0: granted; else one of the codes of section 7.4."""
    lifetime_s: int
    """Of the mapping, or of the refusal."""
    nonce: bytes
    port: int
    """Of this machine."""
    external: Address | None
    """None if the mapping was not granted."""


def map_request(nonce: bytes, own_host: str, port: int, wanted: Address, lifetime_s: int) -> bytes:
    """Ask to forward a TCP port of `own_host`; lifetime 0 removes the mapping again.

    `wanted`: the outside address that is suggested; its host may be 0.0.0.0.
    """
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
    header = _REQUEST_HEADER.pack(VERSION, _MAP, 0, lifetime_s, _packed(own_host))
    return header + _BODY.pack(nonce, _TCP, port, wanted.port, _packed(wanted.host))


def announce_request(own_host: str) -> bytes:
    """Ask for the router's time, and for nothing else (section 14.1.1)."""
    return _REQUEST_HEADER.pack(VERSION, _ANNOUNCE, 0, 0, _packed(own_host))


def epoch_in(data: bytes) -> int | None:
    """The router's time in any answer of its, whatever that is to; None in anything else."""
    if not _ANSWER_HEADER.size <= len(data) <= PACKET_BYTES_MAX:
        return None
    return int.from_bytes(data[_EPOCH]) if data[0] == VERSION and data[1] & _ANSWER else None


def read_answer(data: bytes) -> PcpAnswer:
    """Read an answer to `map_request`; a router without PCP answers in its own version."""
    if len(data) > PACKET_BYTES_MAX:
        raise BadMessage(f"PCP: {len(data)} bytes, over {PACKET_BYTES_MAX}")
    if data[:2] == OLD_ANSWER and len(data) >= _OLD_ANSWER_BYTES:
        return PcpAnswer(UNSUPPORTED_VERSION, 0, bytes(NONCE_BYTES), 0, None)
    if len(data) < _ANSWER_HEADER.size:
        raise BadMessage(f"PCP: {len(data)} bytes are no answer")
    version, operation, _, result, lifetime_s = _ANSWER_HEADER.unpack_from(data)
    if (version, operation) != (VERSION, _ANSWER | _MAP):
        raise BadMessage(f"PCP: version {version}, operation {operation}")
    if len(data) < _ANSWER_HEADER.size + _BODY.size:
        if result == SUCCESS:
            raise BadMessage(f"PCP: {len(data)} bytes are no mapping")
        return PcpAnswer(result, lifetime_s, bytes(NONCE_BYTES), 0, None)
    nonce, protocol, port, external_port, raw = _BODY.unpack_from(data, _ANSWER_HEADER.size)
    if protocol != _TCP:
        raise BadMessage(f"PCP: a mapping of protocol {protocol}")
    granted = result == SUCCESS and lifetime_s > 0
    external = Address(_host(raw), external_port) if granted else None
    return PcpAnswer(result, lifetime_s, nonce, port, external)


def _packed(host: str) -> bytes:
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv4Address):
        return b"\0" * 10 + b"\xff\xff" + address.packed
    return address.packed


def _host(raw: bytes) -> str:
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)
