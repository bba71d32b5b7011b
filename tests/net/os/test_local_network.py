"""What is sent to a group of hosts reaches every program that listens; gateways are read right."""

import asyncio
import ctypes
import socket

import pytest

from p2pswarm.net.os.local_network import (
    IPV4,
    ROW_BYTES,
    gateway_in_answer,
    gateway_in_row,
    group_socket,
    is_here,
    own_host,
    row_address,
)

HERE, GROUP = "127.0.0.1", "224.0.0.1"
PATIENCE_S = 20.0


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


async def test_two_programs_of_a_machine_hear_the_same():
    port, loop = free_port(), asyncio.get_running_loop()
    socks = [group_socket(GROUP, port, HERE) for _ in range(2)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(HERE))
        sender.sendto(b"started", (GROUP, port))

    async with asyncio.timeout(PATIENCE_S):
        for sock in socks:
            assert sock is not None
            assert await loop.sock_recv(sock, 100) == b"started"
            sock.close()


def test_where_there_can_be_none_there_is_none():
    assert group_socket(GROUP, 5350, "::1") is None
    assert group_socket("10.0.0.1", free_port(), HERE) is None  # no group


def test_a_port_that_somebody_has_alone_is_none_of_ours():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("", 0))

        assert group_socket(GROUP, other.getsockname()[1], HERE) is None


def test_this_machine_is_known_by_all_its_addresses():
    own = own_host(IPV4)

    assert is_here("127.0.0.1")
    assert is_here("127.1.2.3")
    assert is_here("::1")
    assert own is None or is_here(own)
    assert not is_here("192.0.2.1")


ROUTE_ANSWER = """   route to: default
destination: default
       mask: default
    gateway: 192.168.1.1
  interface: en0
      flags: <UP,GATEWAY,DONE,STATIC,PRCLONING,GLOBAL>
"""


@pytest.mark.parametrize(
    ("gateway", "found"),
    [
        ("192.168.1.1", "192.168.1.1"),
        ("fe80::1%en0", "fe80::1%en0"),
        ("2001:db8::1", "2001:db8::1"),
        ("link#4", None),
        ("; rm -rf /", None),
    ],
)
def test_a_mac_names_its_gateway(gateway, found):
    answer = ROUTE_ANSWER.replace("192.168.1.1", gateway)

    assert gateway_in_answer(answer) == found


def test_a_mac_without_a_route_names_none():
    assert gateway_in_answer("route: writing to routing socket: not in table\n") is None
    assert gateway_in_answer("") is None


class Prefix(ctypes.Structure):
    """IP_ADDRESS_PREFIX of netioapi.h; a SOCKADDR_INET has 28 bytes, aligned as 32-bit numbers."""

    _fields_ = (("prefix", ctypes.c_uint32 * 7), ("length", ctypes.c_uint8))


class Row(ctypes.Structure):
    """MIB_IPFORWARD_ROW2 of netioapi.h."""

    _fields_ = (
        ("luid", ctypes.c_uint64),
        ("index", ctypes.c_uint32),
        ("destination", Prefix),
        ("next_hop", ctypes.c_uint32 * 7),
        ("site_prefix_length", ctypes.c_uint8),
        ("times", ctypes.c_uint32 * 2),
        ("metric", ctypes.c_uint32),
        ("protocol", ctypes.c_uint32),
        ("flags", ctypes.c_uint8 * 4),
        ("age", ctypes.c_uint32),
        ("origin", ctypes.c_uint32),
    )


@pytest.mark.parametrize(
    ("hop", "scope", "found"),
    [
        ("192.168.1.1", 0, "192.168.1.1"),
        ("2001:db8::1", 0, "2001:db8::1"),
        ("fe80::1", 7, "fe80::1%7"),
        ("0.0.0.0", 0, None),
        ("::", 0, None),
    ],
)
def test_windows_tells_its_gateway_in_a_row(hop, scope, found):
    row = Row()
    address = bytearray(row_address(hop))
    address[24:28] = scope.to_bytes(4, "little")
    ctypes.memmove(row.next_hop, bytes(address), len(address))

    assert ctypes.sizeof(row) == ROW_BYTES
    assert gateway_in_row(bytes(row)) == found


def test_a_row_of_another_family_has_no_gateway():
    assert gateway_in_row(bytes(ROW_BYTES)) is None
