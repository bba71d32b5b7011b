"""The moments when this machine's addresses and routes change.

On Linux the kernel tells of changes over netlink. Elsewhere nobody does.

Source:  rtnetlink(7).
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

SETTLE_S = 0.5  # a cable that is plugged in changes link, address and routes one after another
MESSAGE_BYTES = 65_536
_LINK, _IPV4_ADDRESS, _IPV4_ROUTE, _IPV6_ADDRESS, _IPV6_ROUTE = 0x1, 0x10, 0x40, 0x100, 0x400
_GROUPS = _LINK | _IPV4_ADDRESS | _IPV4_ROUTE | _IPV6_ADDRESS | _IPV6_ROUTE


@contextlib.contextmanager
def watched(on_change: Callable[[], None]) -> Iterator[bool]:
    """Call `on_change` soon after each change within the block; yields whether the kernel tells."""
    sock = _netlink()
    if sock is None:
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

    try:
        loop.add_reader(sock, changed)
    except NotImplementedError:  # a loop of Windows
        sock.close()
        yield False
        return
    try:
        yield True
    finally:
        loop.remove_reader(sock)
        if timer is not None:
            timer.cancel()
        sock.close()


def _netlink() -> socket.socket | None:
    if not hasattr(socket, "AF_NETLINK"):
        return None
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
