"""Connecting to the first of several addresses that answers ("happy eyeballs").

An address that drops what is sent to it costs a quarter of a second and no more: then the next is
tried beside it (`attempt_stagger.py`). One that refuses costs nothing. The first connection wins,
the others are closed.

Units:   seconds.
Errors:  the last OSError if none answers.
Source:  RFC 8305 section 5.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from p2pswarm.net.os.attempt_stagger import AttemptStagger


class Closable(Protocol):
    """A connection that is not used after all."""

    def close(self) -> None:
        """Close it."""
        ...


T = TypeVar("T")
C = TypeVar("C", bound=Closable)


async def first_connected(
    addresses: Sequence[T],
    connect: Callable[[T], Awaitable[C]],
    stagger: AttemptStagger | None = None,
) -> C:
    """The first connection that `connect` makes to any of `addresses`, tried in their order.

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
                stagger.begun(loop.time())
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
                stagger.failed()
                failure = error
        raise failure
    finally:
        for attempt in attempts:
            attempt.cancel()
        for done in await asyncio.gather(*attempts, return_exceptions=True):
            if done is not won and not isinstance(done, BaseException):
                done.close()
