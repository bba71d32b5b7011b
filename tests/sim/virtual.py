"""Tests that are played in virtual time, each with things of its own that are closed at its end."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from p2pswarm.sim.loop import run

Body = Callable[..., Awaitable[None]]


def virtual_time(make: Callable[[AsyncExitStack], Any]) -> Callable[[Body], Callable[..., None]]:
    """A decorator of tests; each is given what `make` makes."""

    def decorate(body: Body) -> Callable[..., None]:
        async def main() -> None:
            async with AsyncExitStack() as stack:
                await body(make(stack))

        return lambda: run(main(), 1)

    return decorate
