"""What is sent to a group of hosts reaches every program that listens."""

import asyncio
import socket

from p2pswarm.net.os.local_network import IPV4, group_socket, is_here, own_host

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
