"""Happy eyeballs: the addresses of a name, and a connection to the first of them that answers.

Errors:  OSError, as `socket.getaddrinfo` raises it; the last one if no address answers.
Source:  RFC 8305 sections 4 and 5; RFC 6724 for the system's own order.
"""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from p2pswarm.base.ids import Address
from p2pswarm.net.os.attempt_stagger import AttemptStagger


class Closable(Protocol):
    """A connection that is not used after all."""

    def close(self) -> None:
        """Close it."""
        ...


class AttemptFailed(OSError):
    """An attempt led nowhere: an OSError, because `first_connected` goes on after those."""


T = TypeVar("T")
C = TypeVar("C", bound=Closable)


async def first_connected(
    addresses: Sequence[T],
    connect: Callable[[T], Awaitable[C]],
    stagger: AttemptStagger | None = None,
) -> C:
    """The first connection that `connect` makes to any of `addresses`, tried in their order.

    An address that drops what is sent to it costs a quarter of a second and no more: then the next
    is tried beside it (`attempt_stagger.py`). One that refuses costs nothing. The first connection
    wins, the others are closed.

    `stagger`: tells when the next one is tried; `connect` may tell it how far it has come.
    """
    if len(addresses) == 1:
        return await connect(addresses[0])
    stagger = stagger or AttemptStagger()
    loop = asyncio.get_running_loop()
    waiting = list(addresses)
    attempts: list[asyncio.Future[C]] = []
    won: C | None = None
    failure = OSError("the name has no address")
    try:
        while waiting or attempts:
            if waiting and (not attempts or stagger.due(loop.time())):
                attempts.append(asyncio.ensure_future(connect(waiting.pop(0))))
                stagger.on_attempt(loop.time())
            await asyncio.wait(
                attempts,
                timeout=max(0.0, stagger.next_s - loop.time()) if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for attempt in [each for each in attempts if each.done()]:
                error = attempt.exception()
                if error is None:
                    won = attempt.result()
                    return won
                if not isinstance(error, OSError):
                    raise error
                attempts.remove(attempt)
                stagger.on_failure()
                failure = error
        raise failure
    finally:
        for attempt in attempts:
            attempt.cancel()
        for done in await asyncio.gather(*attempts, return_exceptions=True):
            if done is not won and not isinstance(done, BaseException):
                done.close()


THREADS_MAX = 32  # look-ups at once: a thread each, of some 50 KiB
ADDRESSES_MAX = 8  # of one name that are tried

Resolved = tuple[int, tuple[str | int, ...]]
"""A family of addresses, and the socket address to bind or connect to."""


class Resolver:
    """Looks names up, up to THREADS_MAX at once.

    The system's resolver blocks, for as long as a name's owner likes. So it never runs in the pool
    that files and others share: a few threads are for names, and callers of one name share a
    look-up. A look-up that nobody waits for any more still holds its thread until the system gives
    up.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(THREADS_MAX)
        self._under_way: dict[Address, asyncio.Task[list[Resolved]]] = {}

    async def resolve(self, address: Address) -> list[Resolved]:
        """The socket addresses of a host, the best first; a numeric one needs no thread."""
        try:
            version = ipaddress.ip_address(address.host).version
        except ValueError:
            return await asyncio.shield(self._look_up(address))
        family = socket.AF_INET if version == 4 else socket.AF_INET6  # noqa: PLR2004
        return [(family, (address.host, address.port))]

    def _look_up(self, address: Address) -> asyncio.Task[list[Resolved]]:
        task = self._under_way.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._in_a_thread(address))
            self._under_way[address] = task
            task.add_done_callback(lambda done: self._over(address, done))
        return task

    def _over(self, address: Address, task: asyncio.Task[list[Resolved]]) -> None:
        del self._under_way[address]
        if not task.cancelled():
            task.exception()  # whoever still waits has it

    async def _in_a_thread(self, address: Address) -> list[Resolved]:
        async with self._places:
            loop = asyncio.get_running_loop()
            found: asyncio.Future[list[Any]] = loop.create_future()
            # Not an executor's thread: the process could not end before the system gives up.
            threading.Thread(
                target=_get_addresses, args=(address, loop, found), name="resolver", daemon=True
            ).start()
            entries = await found
        return in_turns(
            [(family, (str(name[0]), *map(int, name[1:]))) for family, _, _, _, name in entries]
        )[:ADDRESSES_MAX]


def in_turns(found: list[Resolved]) -> list[Resolved]:
    """The same addresses with the families in turns, so that a dead family costs one attempt."""
    families = dict.fromkeys(family for family, _ in found)
    rows = [[entry for entry in found if entry[0] == family] for family in families]
    longest = max(map(len, rows), default=0)
    return [row[at] for at in range(longest) for row in rows if at < len(row)]


def _get_addresses(
    address: Address, loop: asyncio.AbstractEventLoop, found: asyncio.Future[list[Any]]
) -> None:
    """Run in a thread: look up, and tell the loop, if it is still there."""
    result: list[Any] | OSError
    try:
        result = list(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
    except OSError as error:
        result = error

    def tell() -> None:
        if found.done():
            return
        if isinstance(result, OSError):
            found.set_exception(result)
        else:
            found.set_result(result)

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:  # the loop is closed: nobody is left to tell
        return
