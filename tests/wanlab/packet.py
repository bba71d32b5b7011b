"""A packet as a TUN device hands it over: a vnet header, then the IP packet.

With segmentation offload the kernel leaves up to 64 KiB of one TCP stream in
one piece, a *train*, and notes in the vnet header how it is to be cut. Passing
trains through whole is what makes an emulator in Python cheap. Only where a
segment in the middle was lost, or the tail found a full queue, a train is cut,
as a network card would: sequence numbers, lengths and checksums are mended.

Shapes:  a frame is VNET_BYTES of vnet header and one IP packet.
Source:  struct virtio_net_hdr in linux/virtio_net.h; tcp_gso_segment() in
         net/ipv4/tcp_offload.c for what changes from segment to segment.
"""

import struct
from dataclasses import dataclass

VNET = struct.Struct("=BBHHHH")  # flags, gso type, header bytes, segment bytes, csum start, offset
VNET_BYTES = VNET.size
GSO_NONE = 0
GSO_ECN = 0x80  # a flag on the type: the first segment says CWR

_SEGMENT_BYTES = struct.Struct("=H")  # the fourth field of VNET, alone
_CSUM_START = struct.Struct("=H")
_TCP_FIN_PSH = 0x09
_TCP_CWR = 0x80
_FOUR = 4


@dataclass(frozen=True, slots=True)
class Train:
    """How a frame would be cut: `count` segments, each with its own copy of the headers."""

    header_bytes: int
    """IP and TCP."""
    segment_bytes: int
    """TCP payload of each segment but the last."""
    last_bytes: int
    """TCP payload of the last."""
    count: int


def train_of(frame: bytes) -> Train | None:
    """How `frame` is to be cut; None if it is a packet that a wire carries as it is."""
    if frame[1] == GSO_NONE:
        return None
    (segment_bytes,) = _SEGMENT_BYTES.unpack_from(frame, 4)
    (tcp_at,) = _CSUM_START.unpack_from(frame, 6)
    header_bytes = tcp_at + (frame[VNET_BYTES + tcp_at + 12] >> 4) * 4
    payload_bytes = len(frame) - VNET_BYTES - header_bytes
    whole = max(0, payload_bytes - 1) // segment_bytes
    return Train(header_bytes, segment_bytes, payload_bytes - whole * segment_bytes, whole + 1)


def cut(frame: bytes, train: Train, first: int, stop: int) -> bytes:
    """The segments `first` .. `stop` - 1 of `frame` as a frame of their own."""
    flags, gso_type, _, segment_bytes, tcp_at, csum_offset = VNET.unpack_from(frame)
    begin = first * train.segment_bytes
    end = min(stop * train.segment_bytes, len(frame) - VNET_BYTES - train.header_bytes)
    is_last = stop == train.count

    if first:
        gso_type &= ~GSO_ECN
    if stop - first == 1:
        gso_type, segment_bytes = GSO_NONE, 0
    vnet = VNET.pack(flags, gso_type, train.header_bytes, segment_bytes, tcp_at, csum_offset)

    header = bytearray(frame[VNET_BYTES : VNET_BYTES + train.header_bytes])
    _mend_ip(header, first, train.header_bytes + end - begin)
    _add_u32(header, tcp_at + 4, begin)
    tcp_flags = header[tcp_at + 13]
    tcp_flags &= 0xFF if is_last else ~_TCP_FIN_PSH
    tcp_flags &= ~_TCP_CWR if first else 0xFF
    header[tcp_at + 13] = tcp_flags
    # What the kernel leaves in the field is the sum over the pseudo header, TCP length included.
    old_bytes = len(frame) - VNET_BYTES - tcp_at
    new_bytes = train.header_bytes - tcp_at + end - begin
    check = int.from_bytes(header[tcp_at + csum_offset : tcp_at + csum_offset + 2])
    check = fold(check + (old_bytes ^ 0xFFFF) + new_bytes)
    header[tcp_at + csum_offset : tcp_at + csum_offset + 2] = check.to_bytes(2)

    payload_at = VNET_BYTES + train.header_bytes
    return b"".join((vnet, header, memoryview(frame)[payload_at + begin : payload_at + end]))


def fold(total: int) -> int:
    """A sum of 16-bit words in ones' complement."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _mend_ip(header: bytearray, first: int, packet_bytes: int) -> None:
    """Set the length; in IPv4 also the identification and the checksum."""
    if header[0] >> 4 != _FOUR:
        header[4:6] = (packet_bytes - 40).to_bytes(2)
        return
    header[2:4] = packet_bytes.to_bytes(2)
    identification = int.from_bytes(header[4:6]) + first & 0xFFFF
    header[4:6] = identification.to_bytes(2)
    header[10:12] = b"\0\0"
    ip_bytes = (header[0] & 15) * 4
    total = sum(struct.unpack_from(f"!{ip_bytes // 2}H", header))
    header[10:12] = (fold(total) ^ 0xFFFF).to_bytes(2)


def _add_u32(header: bytearray, at: int, more: int) -> None:
    value = int.from_bytes(header[at : at + 4]) + more & 0xFFFFFFFF
    header[at : at + 4] = value.to_bytes(4)
