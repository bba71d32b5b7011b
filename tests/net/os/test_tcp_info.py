"""What the kernel says of a connection."""

import socket
import sys

import pytest

from p2pswarm.net.os.tcp_info import acknowledged_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
def test_the_kernel_counts_what_the_other_end_has():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sock,
    ):
        far, _ = server.accept()
        with far:
            before = acknowledged_bytes(sock)
            sock.sendall(bytes(1000))
            far.recv(1000, socket.MSG_WAITALL)
            far.sendall(b"x")
            sock.recv(1)

            assert acknowledged_bytes(sock) - before == 1000


def test_of_what_is_no_connection_it_says_nothing():
    left, right = socket.socketpair()
    with left, right:
        assert acknowledged_bytes(left) is None
    assert acknowledged_bytes(left) is None
