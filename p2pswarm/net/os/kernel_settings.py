"""What the operating system lets sockets have, as far as it decides how fast tensors travel.

Units:   bytes.
Errors:  none: None, or nothing, where the system does not tell.
Source:  tcp(7), socket(7).
"""

import contextlib
import socket
from pathlib import Path

SYSCTLS = Path("/proc/sys/net/ipv4")
TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", None)  # exists on Linux only


def allows_congestion_control(name: str) -> bool:
    """Whether a socket of this process may use a congestion control; loads it where that is due."""
    if TCP_CONGESTION is None:
        return False
    with contextlib.suppress(OSError), socket.socket() as trial:
        trial.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, name.encode())
        return True
    return False


def usual_congestion_control() -> str:
    """The congestion control of sockets that ask for none; empty if the system does not tell."""
    with contextlib.suppress(OSError):
        return (SYSCTLS / "tcp_congestion_control").read_text().strip()
    return ""


def socket_memory_max_bytes(name: str) -> int | None:
    """The most memory to which the kernel lets a socket grow; `name`: tcp_wmem or tcp_rmem."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((SYSCTLS / name).read_text().split()[2])
    return None
