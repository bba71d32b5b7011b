"""OutsideView: how a node looks from outside, as its relays see it, and what it says of that.

Units:   seconds.
Errors:  none: a relay that does not answer has seen nothing.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from p2pswarm.base.errors import SwarmError, Unusable
from p2pswarm.base.ids import Address, Contact
from p2pswarm.base.tasks import Closing, OwnedTasks
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.preface import Sighting
from p2pswarm.net.link.path import Path
from p2pswarm.net.os.base import Net
from p2pswarm.net.os.local_network import IPV4, IPV6, own_host
from p2pswarm.reach.punch.candidates import DialTrust, named
from p2pswarm.reach.punch.messages import HELD_MS_MAX, Offer
from p2pswarm.reach.punch.sighting_book import AGAIN_S, SightingBook
from p2pswarm.reach.punch.sightings import Sightings

_log = logging.getLogger(__name__)


def own_hosts() -> list[str]:
    """This machine's addresses towards the Internet."""
    return [host for host in map(own_host, (IPV4, IPV6)) if host is not None]


class OutsideView(Closing):
    """What relays have seen of our ports. Use it as a context manager."""

    def __init__(
        self, endpoint: Endpoint, net: Net, hosts: Callable[[], Iterable[str]] = own_hosts
    ) -> None:
        """`hosts`: tells this machine's own addresses."""
        self.book = SightingBook()
        self.reachable: Callable[[], bool] = lambda: False
        """Whether others can dial us as we are."""
        self.port = 0
        """From which we punch; 0: nothing listens there yet."""
        self._endpoint = endpoint
        self._hosts = hosts
        self._tasks = OwnedTasks()
        self._sightings = Sightings(net, self.book, self._tasks)
        self._relays: Callable[[], Sequence[Contact]] = tuple
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        if self._endpoint.listening:
            await self._open_port(self._endpoint.listening[0].host)
        self._tasks.spawn(self._keep_seen())
        return self

    async def _open_port(self, host: str) -> None:
        """Have a port of our own, so that no hole that is punched shows in dial-backs."""
        try:
            self.port = (await self._endpoint.listen(Address(host, 0))).port
        except Unusable as error:
            _log.warning("no holes are punched: %s", error)

    async def close(self) -> None:
        """End its tasks."""
        await self._tasks.close()

    def keep_seen_at(self, relays: Callable[[], Sequence[Contact]]) -> None:
        """From now on keep asking these relays where they see us."""
        self._relays = relays
        self._news.set()

    def look_again(self) -> None:
        """Ask the relays now: they are others than before."""
        self._news.set()

    async def see(self, relay: Address | None, port: int) -> None:
        """Have a relay look at a port of ours, unless it has a moment ago."""
        if relay is None or not port:
            return
        try:
            await self._sightings.see(relay, port)
        except SwarmError as error:
            _log.info("relay %s does not say where it sees us: %s", relay, error)

    def offer(
        self, port: int, relay: Address | None, *, near: bool = False, held_s: float = 0.0
    ) -> Offer:
        """What we tell a peer of ourselves, with the seals of `relay`.

        `near`: one router stands before both of us. `held_s`: how long the peer waited for this.
        """
        now_s, own = _now_s(), self._own(port)
        seen = self.book.seen(port, now_s, relay)
        hosts = {each.address.host for each in seen}
        return Offer(
            candidates=named(seen, own, near=near),
            hard=self.book.hard(self.port, now_s),
            open=self.reachable() or any(each.host in hosts for each in own),
            held_ms=min(int(1000 * held_s), HELD_MS_MAX),
        )

    def trust(self, path: Path | None, port: int, *, chosen: bool) -> DialTrust:
        """What we judge a peer's candidates by; `path`: of the link to the peer."""
        outside = frozenset(each.address for each in self._seen(port))
        own = frozenset(self._own(port))
        direct = path is not None and not (path.remote.circuit or path.remote.web)
        return DialTrust(
            outside=outside,
            own=own,
            families=frozenset(_version(each.host) for each in outside | own),
            peer_host=path.remote.host if path is not None and direct else "",
            chosen=chosen,
        )

    def _seen(self, port: int) -> list[Sighting]:
        return self.book.seen(port, _now_s())

    def _own(self, port: int) -> list[Address]:
        return [Address(host, port) for host in self._hosts()]

    async def _keep_seen(self) -> None:
        """Keep known where our relays see us, for as long as there are any."""
        while True:
            self._news.clear()
            for relay in self._relays() if self.port else ():
                self._tasks.spawn(self._look(relay.address))
            try:
                async with asyncio.timeout(AGAIN_S):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _look(self, relay: Address) -> None:
        try:
            await self._sightings.look(relay, self.port)
        except SwarmError as error:
            _log.debug("relay %s does not say where it sees us: %s", relay, error)


def _version(host: str) -> int:
    return ipaddress.ip_address(host.partition("%")[0]).version


def _now_s() -> float:
    return asyncio.get_running_loop().time()
