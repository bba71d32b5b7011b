"""A program for the kernel that drops some of the new connections of certain networks.

It runs where a connection's first packet arrives at a listening socket, before the queue: what is
dropped there costs this process nothing, and takes nobody's place in the queue. The dialler's
kernel sends the packet again after 1, 3 and 7 s, as for any packet that was lost. Packets of
connections that are up always pass: the sockets of accepted connections inherit the program.

Units:   levels: one of 4 ** level new connections passes, by chance.
Source:  socket(7), SO_ATTACH_FILTER; Linux, Documentation/networking/filter.rst, "classic BPF";
         RFC 9293 3.1, RFC 791 3.1, RFC 8200 3 for the offsets.
"""

import ipaddress
import struct
from collections.abc import Mapping

GROUPS_MAX = 512  # of IPv6, 6 instructions each: of the 4,096 that a program may have
LEVEL_MAX = 5  # one of 1,024

_INSTRUCTION = struct.Struct("=HBBI")
INSTRUCTION_BYTES = _INSTRUCTION.size
_LOAD, _LOAD_BYTE, _AND = 0x20, 0x30, 0x54
_JUMP, _JUMP_IF, _JUMP_IF_ANY, _RETURN = 0x05, 0x15, 0x45, 0x06
_NETWORK_HEADER = 0xFFF00000  # loads from here on are from the IP header
_PROTOCOL = 0xFFFFF000  # the link layer's number of the protocol, in host order
_RANDOM = 0xFFFFF000 + 56
_IPV4, _IPV6 = 0x0800, 0x86DD
_SOURCE_V4, _SOURCE_V6 = 12, 8  # where the source address is in its header
_FLAGS, _SYN_ACK, _SYN = 13, 0x12, 0x02
_ALL, _NONE = 0xFFFFFFFF, 0

_Jump = tuple[int, int, int, int | str]
"""Code, how many to skip if true, if false, and a number or the label of a jump."""


def program(levels: Mapping[str, int]) -> bytes:
    """The instructions that thin these networks, `a.b.c.d/n` or `x::/n`; the narrowest counts."""
    networks = sorted(
        ((ipaddress.ip_network(name), level) for name, level in levels.items() if level),
        key=lambda each: -each[0].prefixlen,
    )
    code: list[_Jump] = [
        (_LOAD_BYTE, 0, 0, _FLAGS),
        (_AND, 0, 0, _SYN_ACK),
        (_JUMP_IF, 1, 0, _SYN),
        (_RETURN, 0, 0, _ALL),  # no first packet
        (_LOAD, 0, 0, _PROTOCOL),
        (_JUMP_IF, 0, 1, _IPV4),
        (_JUMP, 0, 0, "v4"),
        (_JUMP_IF, 0, 1, _IPV6),
        (_JUMP, 0, 0, "v6"),
        (_RETURN, 0, 0, _ALL),
    ]
    labels: dict[str, int] = {}
    for version, label, source in ((4, "v4", _SOURCE_V4), (6, "v6", _SOURCE_V6)):
        labels[label] = len(code)
        for network, level in networks:
            if network.version == version:
                code += _matches(network, source, f"level {level}")
        code.append((_RETURN, 0, 0, _ALL))
    for level in range(1, LEVEL_MAX + 1):
        labels[f"level {level}"] = len(code)
        code += [
            (_LOAD, 0, 0, _RANDOM),
            (_JUMP_IF_ANY, 0, 1, 4**level - 1),
            (_RETURN, 0, 0, _NONE),
            (_RETURN, 0, 0, _ALL),
        ]
    return b"".join(_encoded(each, at, labels) for at, each in enumerate(code))


def _matches(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network, source: int, label: str
) -> list[_Jump]:
    """Jump to a label if the source address is of a network."""
    raw, mask = network.network_address.packed, network.netmask.packed
    words = -(-network.prefixlen // 32)
    code: list[_Jump] = []
    for word in range(words):
        at = 4 * word
        bits, wanted = int.from_bytes(mask[at : at + 4]), int.from_bytes(raw[at : at + 4])
        to_end = 3 * (words - word) - 2  # behind the jump to the label
        code += [
            (_LOAD, 0, 0, _NETWORK_HEADER + source + at),
            (_AND, 0, 0, bits),
            (_JUMP_IF, 0, to_end, wanted),
        ]
    return [*code, (_JUMP, 0, 0, label)]


def _encoded(instruction: _Jump, at: int, labels: Mapping[str, int]) -> bytes:
    op, true, false, number = instruction
    if isinstance(number, str):
        number = labels[number] - at - 1
    return _INSTRUCTION.pack(op, true, false, number)
