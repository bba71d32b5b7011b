"""Cutting a train as a network card would."""

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wanlab.packet import GSO_ECN, GSO_NONE, VNET, VNET_BYTES, cut, fold, train_of

TCP4, TCP6 = 1, 4
NEEDS_CHECKSUM = 1
FIN, PSH, ACK, CWR = 0x01, 0x08, 0x10, 0x80


def words(data: bytes) -> int:
    return fold(sum(struct.unpack(f"!{len(data) // 2}H", data)))


def ip_header(version: int, rest_bytes: int, identification: int) -> bytes:
    """With a right checksum, for TCP."""
    if version == 6:
        addresses = bytes(range(16)) + bytes(range(100, 116))
        return struct.pack("!IHBB", 6 << 28, rest_bytes, 6, 64) + addresses
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + rest_bytes, identification, 0x4000, 64, 6, 0)
    head += bytes([10, 77, 0, 1, 10, 77, 0, 2])
    return head[:10] + (words(head) ^ 0xFFFF).to_bytes(2) + head[12:]


def pseudo_sum(ip: bytes, tcp_bytes: int) -> int:
    return fold(words(ip[8:] if ip[0] >> 4 == 6 else ip[12:20]) + 6 + tcp_bytes)


def frame(version: int, payload: bytes, segment_bytes: int, *, sequence=1000, options=b"\1" * 12):
    """A train as the kernel hands it over: one header, the whole payload."""
    tcp_bytes = 20 + len(options) + len(payload)
    ip = ip_header(version, tcp_bytes, 0xFFFE)
    flags = FIN | PSH | ACK | CWR
    tcp = struct.pack("!HHIIBBH", 5, 6, sequence, 9, (20 + len(options)) // 4 << 4, flags, 64)
    tcp += struct.pack("!HH", pseudo_sum(ip, tcp_bytes), 0) + options
    kind = TCP6 if version == 6 else TCP4
    vnet = VNET.pack(NEEDS_CHECKSUM, kind, 9999, segment_bytes, len(ip), 16)
    return vnet + ip + tcp + payload


def test_packet_without_offload_is_no_train():
    assert train_of(VNET.pack(0, GSO_NONE, 0, 0, 0, 0) + bytes(40)) is None


def test_train_counts_the_packets_that_the_wire_would_see():
    train = train_of(frame(4, bytes(3000), 1448))

    assert (train.count, train.segment_bytes, train.last_bytes) == (3, 1448, 104)
    assert train.header_bytes == 52


def test_full_last_segment_is_as_long_as_the_others():
    train = train_of(frame(6, bytes(2896), 1448))

    assert (train.count, train.last_bytes) == (2, 1448)


def test_flags_go_to_the_segment_that_they_belong_to():
    whole = frame(4, bytes(3000), 1448)
    train = train_of(whole)

    flags = [cut(whole, train, i, i + 1)[VNET_BYTES + 20 + 13] for i in range(3)]

    assert flags == [ACK | CWR, ACK, ACK | PSH | FIN]


def test_single_segment_is_a_plain_packet_and_more_stay_a_train():
    whole = frame(4, bytes(3000), 1448)
    train = train_of(whole)

    assert train_of(cut(whole, train, 2, 3)) is None
    assert train_of(cut(whole, train, 0, 2)).count == 2


def test_only_the_piece_with_the_first_segment_says_that_it_has_cwr():
    whole = bytearray(frame(4, bytes(5000), 1000))
    whole[1] |= GSO_ECN
    train = train_of(bytes(whole))

    types = [cut(bytes(whole), train, first, first + 2)[1] for first in (0, 2)]

    assert types == [TCP4 | GSO_ECN, TCP4]


@pytest.mark.parametrize("version", [4, 6])
@given(data=st.data())
def test_pieces_of_a_train_are_right_packets_and_carry_all_of_it(version: int, data):
    payload = data.draw(st.binary(min_size=2, max_size=5000))
    segment_bytes = data.draw(st.integers(1, len(payload) - 1))
    sequence = data.draw(st.sampled_from([0, 1000, 2**32 - 7]))
    whole = frame(version, payload, segment_bytes, sequence=sequence)
    train = train_of(whole)
    cuts = data.draw(st.sets(st.integers(1, train.count - 1), max_size=4))
    edges = [0, *sorted(cuts), train.count]

    for first, stop in itertools.pairwise(edges):
        piece = cut(whole, train, first, stop)
        ip_bytes = 40 if version == 6 else 20
        ip, tcp = piece[VNET_BYTES : VNET_BYTES + ip_bytes], piece[VNET_BYTES + ip_bytes :]
        expected = payload[first * segment_bytes : stop * segment_bytes]
        assert tcp[32:] == expected
        assert ip == ip_header(version, len(tcp), (0xFFFE + first) % 2**16)
        assert int.from_bytes(tcp[4:8]) == (sequence + first * segment_bytes) % 2**32
        assert int.from_bytes(tcp[16:18]) % 0xFFFF == pseudo_sum(ip, len(tcp)) % 0xFFFF
        assert VNET.unpack_from(piece)[2] == ip_bytes + 32
