"""The kernel's program drops first packets of thinned networks alone; played by a tiny machine."""

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.os.arrival_filter import GROUPS_MAX, INSTRUCTION_BYTES, LEVEL_MAX, program

ALL = 0xFFFFFFFF
INSTRUCTIONS_MAX = 4096  # of the kernel, for one program
SYN, SYN_ACK, ACK = 0x02, 0x12, 0x10
V4 = st.builds(
    lambda number, bits: str(ipaddress.ip_network((number, bits), strict=False)),
    st.integers(0, 2**32 - 1),
    st.sampled_from((16, 24, 32)),
)
V6 = st.builds(
    lambda number, bits: str(ipaddress.ip_network((number << 64, bits), strict=False)),
    st.integers(0, 2**64 - 1),
    st.sampled_from((32, 48, 56)),
)
LEVELS = st.dictionaries(V4 | V6, st.integers(0, LEVEL_MAX), max_size=12)


def passes(code: bytes, source: str, flags: int = SYN, chance: int = 1) -> bool:
    """Whether the program lets a packet pass; `chance`: the kernel's random number."""
    address = ipaddress.ip_address(source)
    network = {4: bytes(12), 6: bytes(8)}[address.version] + address.packed
    known = {0xFFFFF000: {4: 0x0800, 6: 0x86DD}[address.version], 0xFFFFF000 + 56: chance}
    at = accumulator = 0
    while True:
        op, true, false, k = struct.unpack_from("=HBBI", code, at * INSTRUCTION_BYTES)
        at += 1
        match op:
            case 0x30:
                assert k == 13
                accumulator = flags
            case 0x20 if k >= 0xFFFFF000:
                accumulator = known[k]
            case 0x20:
                accumulator = int.from_bytes(network[k - 0xFFF00000 :][:4])
            case 0x54:
                accumulator &= k
            case 0x15:
                at += true if accumulator == k else false
            case 0x45:
                at += true if accumulator & k else false
            case 0x05:
                at += k
            case 0x06:
                assert k in (0, ALL)
                return k == ALL
            case _:
                pytest.fail(f"no such instruction: {op:#x}")


def level_of(levels: dict[str, int], source: str) -> int:
    address = ipaddress.ip_address(source)
    around = [ipaddress.ip_network(name) for name, level in levels.items() if level]
    of = [each for each in around if each.version == address.version and address in each]
    return levels[str(max(of, key=lambda each: each.prefixlen))] if of else 0


@given(LEVELS, st.data())
def test_a_first_packet_passes_as_often_as_the_narrowest_network_around_it_may(levels, data):
    code = program(levels)
    inside = [str(ipaddress.ip_network(name)[1 % ipaddress.ip_network(name).num_addresses])
              for name in levels]  # fmt: skip
    anywhere = st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map(str)
    source = data.draw(st.sampled_from(inside) | anywhere if inside else anywhere)
    level = level_of(levels, source)

    assert passes(code, source, chance=0)
    for bit in range(2 * LEVEL_MAX + 2):  # of the kernel's number: 2 * level have to be 0
        assert passes(code, source, chance=1 << bit) == (bit >= 2 * level)


@given(LEVELS, st.ip_addresses().map(str), st.sampled_from((ACK, SYN_ACK, 0x18, 0x04, 0x11)))
def test_packets_of_connections_always_pass(levels, source, flags):
    assert passes(program(levels), source, flags)


def test_a_program_of_the_most_networks_is_one_that_the_kernel_takes():
    most = {f"2001:db8:{n:x}:ab00::/56": 1 + n % LEVEL_MAX for n in range(GROUPS_MAX)}
    code = program(most)

    assert len(code) // INSTRUCTION_BYTES <= INSTRUCTIONS_MAX
    assert not passes(code, "2001:db8:1ff:ab12::7", chance=1)
    assert passes(code, "2001:db8:1ff:ac12::7", chance=1)
