"""The moments when this machine's addresses and routes change.

On Linux the kernel tells of changes over netlink. Elsewhere nobody does, so this machine's address
towards the Internet is looked at again and again.

Source:  rtnetlink(7).
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Iterator, Sequence

from p2pswarm.net.os.local_network import IPV4, IPV6, own_host

SETTLE_S = 0.5  # a cable that is plugged in changes link, address and routes one after another
LOOK_EVERY_S = 10.0
"""A packet is not sent for it, and others find a moved node by its links, sooner."""
MESSAGE_BYTES = 65_536
_LINK, _IPV4_ADDRESS, _IPV4_ROUTE, _IPV6_ADDRESS, _IPV6_ROUTE = 0x1, 0x10, 0x40, 0x100, 0x400
_GROUPS = _LINK | _IPV4_ADDRESS | _IPV4_ROUTE | _IPV6_ADDRESS | _IPV6_ROUTE


@contextlib.contextmanager
def watched(on_change: Callable[[], None]) -> Iterator[bool]:
    """Call `on_change` soon after each change within the block; yields whether the kernel tells."""
    sock = _netlink()
    if sock is None:
        with looks(on_change, _addresses):
            yield False
        return
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def settled() -> None:
        nonlocal timer
        timer = None
        on_change()

    def changed() -> None:
        nonlocal timer
        with contextlib.suppress(OSError):  # too many changes at once: there was at least one
            sock.recv(MESSAGE_BYTES)
        if timer is None:
            timer = loop.call_later(SETTLE_S, settled)

    loop.add_reader(sock, changed)
    try:
        yield True
    finally:
        loop.remove_reader(sock)
        if timer is not None:
            timer.cancel()
        sock.close()


@contextlib.contextmanager
def looks(
    on_change: Callable[[], None],
    addresses: Callable[[], Sequence[str | None]],
    every_s: float = LOOK_EVERY_S,
) -> Iterator[None]:
    """Compare this machine's addresses from time to time within the block."""
    loop = asyncio.get_running_loop()
    seen = addresses()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal seen, timer
        timer = loop.call_later(every_s, look)
        now = addresses()
        if now != seen:
            seen = now
            on_change()

    timer = loop.call_later(every_s, look)
    try:
        yield
    finally:
        timer.cancel()


def _addresses() -> list[str | None]:
    return [own_host(family) for family in (IPV4, IPV6)]


if sys.platform == "linux":

    def _netlink() -> socket.socket | None:
        """A socket on which the kernel tells; None where it refuses."""
        try:
            sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        except OSError:
            return None
        try:
            sock.setblocking(False)
            sock.bind((0, _GROUPS))
        except OSError:
            sock.close()
            return None
        return sock
else:

    def _netlink() -> socket.socket | None:
        """Nobody tells."""
        return None
