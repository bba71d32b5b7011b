"""The operating system's limits on sockets and open files.

Where the system does not tell, the answer is None or nothing; a limit that cannot be raised stays.

Source:  tcp(7), socket(7); setrlimit(2), RLIMIT_NOFILE.
"""

import contextlib
import os
import socket
import sys
from pathlib import Path

SYSCTLS = Path("/proc/sys/net/ipv4")
TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", None)  # exists on Linux only
WATCHED_MAX = 512 if sys.platform == "win32" else None
"""The sockets that an event loop can watch at once, if that has a limit: CPython's FD_SETSIZE."""


def usable_processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def allows_congestion_control(name: str) -> bool:
    """Return whether a socket may use a congestion control; the kernel loads it if need be."""
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


if sys.platform == "win32":

    def raise_file_limit(wanted: int) -> int:
        """Windows has no limit on open files that a process could meet; see WATCHED_MAX."""
        return wanted
else:
    import resource

    def raise_file_limit(wanted: int) -> int:
        """Let this process have `wanted` files open, if allowed; returns how many it may have.

        Many systems start a process with 1,024, for programs that use `select`, and let it ask for
        more.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        goal = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft != resource.RLIM_INFINITY and soft < goal:
            with contextlib.suppress(OSError, ValueError):  # macOS has one more limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
                soft = goal
        return wanted if soft == resource.RLIM_INFINITY else soft
