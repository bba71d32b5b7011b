"""Sightings: asks relays where they see our ports.

What is known is in `sighting_book.py`.

Units:   seconds.
Errors:  DialFailed, LinkLost or BadHandshake of a relay that does not answer.
"""

import asyncio
from contextlib import suppress
from functools import partial

from p2pswarm.base.errors import DialFailed, LinkLost
from p2pswarm.base.ids import Address
from p2pswarm.base.tasks import OwnedTasks
from p2pswarm.net.endpoint.preface import (
    OBSERVATION_ANSWER_BYTES,
    Sighting,
    observation_request,
    read_observation,
)
from p2pswarm.net.os.base import Net
from p2pswarm.reach.punch.sighting_book import SightingBook

SEE_S = 3.0  # the kernel repeats its SYN after 1 s


class Sightings:
    """The questions under way, one for each relay and port: two ports have one connection."""

    def __init__(self, net: Net, book: SightingBook, tasks: OwnedTasks) -> None:
        self._net = net
        self._book = book
        self._tasks = tasks
        self._asking: dict[tuple[Address, int], asyncio.Future[Sighting]] = {}

    async def see(self, relay: Address, port: int) -> Sighting:
        """Where a relay sees one of our ports, known or asked now."""
        loop = asyncio.get_running_loop()
        known = self._book.fresh(relay, port, loop.time())
        if known is not None:
            return known
        return await self.look(relay, port)

    async def look(self, relay: Address, port: int) -> Sighting:
        """Where a relay sees one of our ports now."""
        if relay.web or relay.circuit:
            raise DialFailed(f"{relay} sees no port of ours: it is not called by TCP alone")
        if self._tasks.closing:
            raise LinkLost("this node is closing")
        asking = self._asking.get((relay, port))
        if asking is None:
            asking = asyncio.get_running_loop().create_future()
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._asking[relay, port] = asking
            self._tasks.spawn(self._ask(relay, port, asking), partial(_give_up, asking))
        return await asyncio.shield(asking)

    async def _ask(self, relay: Address, port: int, asking: asyncio.Future[Sighting]) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SEE_S):
                connection = await self._net.dial(relay, port)
                try:
                    await connection.send(observation_request())
                    answer = await connection.receive(OBSERVATION_ANSWER_BYTES)
                    sighting = read_observation(answer)
                    self._book.note(relay, port, sighting, loop.time())
                    asking.set_result(sighting)
                    with suppress(LinkLost):  # who closes first may not use the ports for a minute
                        await connection.receive(1)
                finally:
                    connection.close()
        except TimeoutError:
            if not asking.done():
                asking.set_exception(DialFailed(f"{relay} does not say where it sees us"))
        except Exception as error:  # noqa: BLE001  whoever waits is told, whatever it is
            if not asking.done():
                asking.set_exception(error)
        finally:
            self._asking.pop((relay, port), None)


def _give_up(asking: asyncio.Future[Sighting]) -> None:
    """Let nobody wait whose question was cancelled; those that were answered stay so."""
    asking.cancel()
