"""Dialler: makes links to peers that we dial, one dial to a peer at a time.

All who ask for the same contact wait for one dial. A dial also ends when the peer dials us first.

Units:   seconds.
Errors:  DialFailed, BadHandshake; Busy if too many dials are under way.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from p2pswarm.crypto.handshake import Handshake
from p2pswarm.errors import DialFailed, SwarmError
from p2pswarm.ids import Address, Contact
from p2pswarm.net.base import Connection, Net
from p2pswarm.transport.admission import check_dials, dial_error
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.handshaker import Handshaker
from p2pswarm.transport.link_io import Link
from p2pswarm.transport.owned_tasks import OwnedTasks

_log = logging.getLogger(__name__)

MakeLink = Callable[[Connection, Handshake, Address], Awaitable[Link]]
"""Makes a link of a connection to the address that was dialled; returns the one to use."""


class Dialler:
    """The dials under way."""

    def __init__(
        self,
        net: Net,
        config: TransportConfig,
        handshaker: Handshaker,
        tasks: OwnedTasks,
        make_link: MakeLink,
    ) -> None:
        self._net = net
        self._config = config
        self._handshaker = handshaker
        self._tasks = tasks
        self._make_link = make_link
        self._dials: dict[Contact, asyncio.Future[Link]] = {}

    async def link(self, to: Contact) -> Link:
        """A new link to the contact, or one that comes up meanwhile."""
        dialling = self._dials.get(to)
        if dialling is None or _past(dialling):
            check_dials(len(self._dials), self._config)
            dialling = asyncio.get_running_loop().create_future()
            dialling.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._dials[to] = dialling
            self._tasks.spawn(self._dial(to, dialling), partial(self._end, to, dialling))
        return await asyncio.shield(dialling)

    def came_up(self, link: Link) -> None:
        """Give a link to the dials that wait for its peer."""
        for to, dialling in list(self._dials.items()):
            if to.peer == link.peer and not dialling.done():
                dialling.set_result(link)

    async def _dial(self, to: Contact, dialling: asyncio.Future[Link]) -> None:
        connection = None
        try:
            async with asyncio.timeout(self._config.dial_s):
                connection = await self._net.dial(to.address)
            async with asyncio.timeout(self._config.handshake_s):
                handshake = await self._handshaker.dialled(connection, to.peer)
                link = await self._make_link(connection, handshake, to.address)
            if not dialling.done():
                dialling.set_result(link)
        except (SwarmError, TimeoutError) as error:
            known = dial_error(error, to.address, self._config, connected=connection is not None)
            known.__cause__ = error if known is not error else None
            if not dialling.done():
                dialling.set_exception(known)
        except Exception as error:  # noqa: BLE001  callers would else see a cancellation
            _log.error("the dial of %s failed", to.address, exc_info=error)
            if not dialling.done():
                dialling.set_exception(DialFailed(f"{to.address}: internal error: {error!r}"))
        finally:
            if connection is not None:
                connection.close()

    def _end(self, to: Contact, dialling: asyncio.Future[Link]) -> None:
        if self._dials.get(to) is dialling:
            del self._dials[to]
        dialling.cancel()  # this has an effect only while the endpoint closes


def _past(dialling: asyncio.Future[Link]) -> bool:
    """Whether a dial was answered with the peer's own link, which has ended since.

    Such a dial may hang for seconds more, where the peer cannot be dialled.
    """
    given = dialling.done() and not dialling.cancelled() and dialling.exception() is None
    return given and dialling.result().over
