"""Words to the program that started a node, by systemd's protocol: it starts, is ready, stops.

Source:  sd_notify(3): a datagram to the Unix socket that `NOTIFY_SOCKET` names.
"""

import contextlib
import os
import socket
import sys

from p2pswarm.progress.printable import printable

NOTIFY_SOCKET = "NOTIFY_SOCKET"  # its name in the environment
STATUS_CHARS = 200  # systemctl shows one line
STARTING_S = 180.0  # a node that reads a long text says so each minute


class NotifySocket:
    """Tells systemd, or whatever else has given a socket; without one it says nothing."""

    def __init__(self, place: str | None) -> None:
        """`place`: the value of `NOTIFY_SOCKET`; one that begins with @ is no file."""
        self._place = place or ""
        if self._place.startswith("@"):
            self._place = "\0" + self._place[1:]

    def ready(self, status: str) -> None:
        """The node is in its swarm."""
        self._tell(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, text: str) -> None:
        """Say what it does now, in one line."""
        self._tell(f"STATUS={_one_line(text)}")

    def starting(self, text: str) -> None:
        """It still starts, and says so again before `STARTING_S` is over."""
        self._tell(f"EXTEND_TIMEOUT_USEC={round(STARTING_S * 1e6)}\nSTATUS={_one_line(text)}")

    def stopping(self) -> None:
        """It has begun to leave: what comes now may take its time."""
        self._tell("STOPPING=1")

    def _tell(self, text: str) -> None:
        if sys.platform != "win32" and self._place:  # Windows has no Unix sockets, and no systemd
            with (
                contextlib.suppress(OSError, ValueError),  # a node goes on that nobody listens to
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to,
            ):
                to.setblocking(False)
                to.sendto(text.encode(), self._place)


def _one_line(text: str) -> str:
    """A line may quote a peer, and a second line would be another word of ours."""
    return printable(text)[:STATUS_CHARS]


def notify_socket() -> NotifySocket:
    """The one of this process's environment."""
    return NotifySocket(os.environ.get(NOTIFY_SOCKET))
