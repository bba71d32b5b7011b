"""What the kernel knows of a TCP connection, where it says so.

Units:   bytes.
Errors:  none: what is not known is None.
Source:  Linux, include/uapi/linux/tcp.h, `struct tcp_info`; bytes_acked is RFC 4898's
         tcpEStatsAppHCThruOctetsAcked.
"""

import socket
import struct
import sys

_ACKED = struct.Struct("=Q")
_ACKED_AT = 120  # after 24 numbers of 32 bits, two of them packed, and the two pacing rates
_BYTES = _ACKED_AT + _ACKED.size


def acknowledged_bytes(sock: socket.socket) -> int | None:
    """How many bytes the other end has acknowledged; None off Linux, or before Linux 4.1."""
    if sys.platform != "linux":
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES)
    except OSError:  # no TCP connection, or over
        return None
    return None if len(info) < _BYTES else int(_ACKED.unpack_from(info, _ACKED_AT)[0])
