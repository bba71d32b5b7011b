"""Packets of NAT-PMP: the router's outside address, and a port that it forwards.

Errors:  BadMessage for an answer that cannot be read.
Source:  RFC 6886: 3.2 the address, 3.3 a mapping, 3.4 its end, 3.5 result codes.
"""

import ipaddress
import struct
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage

SUCCESS = 0
PACKET_BYTES_MAX = 1100  # as of PCP, which has the same port
_RESULT_END = 4  # version, operation, result: all that a refusal needs to have
_ANSWER = 0x80
_ADDRESS, _MAP_TCP = 0, 2
_HEADER_BYTES = 8
_EPOCH = slice(4, 8)
_REQUEST = struct.Struct("!BBHHHI")
_MAPPED = struct.Struct("!HHI")


@dataclass(frozen=True, slots=True)
class OutsideHost:
    """The router's outside address."""

    host: str


@dataclass(frozen=True, slots=True)
class Mapped:
    """A port that the router forwards."""

    port: int
    """Of this machine."""
    external_port: int
    lifetime_s: int


@dataclass(frozen=True, slots=True)
class PmpRefusal:
    """The router said no, with a code of section 3.5."""

    result: int


def address_request() -> bytes:
    """Ask for the outside address."""
    return bytes((0, _ADDRESS))


def map_request(port: int, external_port: int, lifetime_s: int) -> bytes:
    """Ask to forward a TCP port of ours; lifetime and outside port 0 remove the mapping."""
    return _REQUEST.pack(0, _MAP_TCP, 0, port, external_port, lifetime_s)


def epoch_in(data: bytes) -> int | None:
    """The router's time in an answer that grants something; None in anything else."""
    granted = data[:1] == b"\0" and data[2:_RESULT_END] == b"\0\0"
    if not granted or not _HEADER_BYTES + 4 <= len(data) <= PACKET_BYTES_MAX:
        return None
    return int.from_bytes(data[_EPOCH]) if data[1] & _ANSWER else None


def read_answer(data: bytes) -> OutsideHost | Mapped | PmpRefusal:
    """Read an answer to either request."""
    if not _RESULT_END <= len(data) <= PACKET_BYTES_MAX:
        raise BadMessage(f"NAT-PMP: {len(data)} bytes are no answer")
    version, operation, result = data[0], data[1], int.from_bytes(data[2:_RESULT_END])
    if version != 0 or not operation & _ANSWER:
        raise BadMessage(f"NAT-PMP: version {version}, operation {operation}")
    if result != SUCCESS:
        return PmpRefusal(result)
    if len(data) < _HEADER_BYTES + 4:
        raise BadMessage(f"NAT-PMP: {len(data)} bytes are no answer")
    if operation == _ANSWER | _ADDRESS:
        return OutsideHost(str(ipaddress.IPv4Address(data[8:12])))
    if operation != _ANSWER | _MAP_TCP or len(data) < _HEADER_BYTES + _MAPPED.size:
        raise BadMessage(f"NAT-PMP: operation {operation} of {len(data)} bytes")
    port, external_port, lifetime_s = _MAPPED.unpack_from(data, _HEADER_BYTES)
    return Mapped(port, external_port, lifetime_s)
