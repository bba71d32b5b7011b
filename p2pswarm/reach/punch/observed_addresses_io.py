"""OutsideView: how a node looks from outside, as its relays see it, and what it says of that.

Errors:  DialFailed, LinkLost or BadHandshake of a relay that does not answer.
Source:  docs/punching.md, "SealVerifier".
"""

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Self

from p2pswarm.base.errors import DialFailed, LinkLost, SwarmError, Unusable
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.base.loop_clock import now_s, wait_until
from p2pswarm.base.tasks import Closing, OwnedTasks
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.preface import (
    OBSERVATION_ANSWER_BYTES,
    ObservationSeals,
    observation_request,
    read_observation,
)
from p2pswarm.net.link.path import Path
from p2pswarm.net.os.base import Net
from p2pswarm.net.os.local_network import IPV4, IPV6, own_host
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.reach.punch.candidates import DialTrust, named
from p2pswarm.reach.punch.messages import HELD_MS_MAX, Offer, PunchCandidate, Vouch, Vouched
from p2pswarm.reach.punch.observed_addresses import AGAIN_S, ObservedAddresses

SEE_S = 3.0  # the kernel repeats its SYN after 1 s


VOUCH_S = 2.0

_log = logging.getLogger(__name__)


class SealVerifier:
    """Asks a relay whether it has seen a peer where the peer says; both sides of `Vouch`."""

    def __init__(self, rpc: Rpc, seals: ObservationSeals) -> None:
        """`seals`: our own."""
        self._rpc = rpc
        self._seals = seals
        rpc.serve_unary(Vouch, self._on_vouch)

    async def vouched(
        self, relay: Address | None, candidates: Sequence[PunchCandidate]
    ) -> set[PunchCandidate]:
        """Those candidates that a relay has seen, as it says; none if there is no relay."""
        sealed = tuple(each for each in candidates if each.seal)
        if relay is None or not sealed:
            return set()
        try:
            answer = await self._rpc.call(Contact(None, relay), Vouch(sealed), VOUCH_S)
        except SwarmError as error:
            _log.info("relay %s vouches for nobody: %s", relay, error)
            return set()
        if not isinstance(answer, Vouched) or len(answer.seen) != len(sealed):
            return set()
        return {each for each, seen in zip(sealed, answer.seen, strict=True) if seen}

    def _on_vouch(self, peer: PeerId, asked: Vouch) -> Vouched:
        del peer
        return Vouched(tuple(map(self._is_ours, asked.candidates)))

    def _is_ours(self, candidate: PunchCandidate) -> bool:
        try:
            seen = Address(candidate.host, candidate.port)
        except ValueError:
            return False
        return self._seals.vouches(seen, candidate.seal, now_s())


def own_hosts() -> list[str]:
    """This machine's addresses towards the Internet."""
    return [host for host in map(own_host, (IPV4, IPV6)) if host is not None]


class OutsideView(Closing):
    """The ports of a node as its relays have seen them. Use it as a context manager.

    One question is under way for each relay and port: two ports have one connection.
    """

    def __init__(
        self, endpoint: Endpoint, net: Net, hosts: Callable[[], Iterable[str]] = own_hosts
    ) -> None:
        """`hosts`: tells this machine's own addresses."""
        self.book = ObservedAddresses()
        self.reachable: Callable[[], bool] = lambda: False
        """Returns whether others can dial us as we are."""
        self.port = 0
        """From which we punch; 0: nothing listens there yet."""
        self._endpoint = endpoint
        self._net = net
        self._hosts = hosts
        self._tasks = OwnedTasks()
        self._asking: dict[tuple[Address, int], asyncio.Future[None]] = {}
        self._relays: Callable[[], Sequence[Contact]] = tuple
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        if self._endpoint.listening:  # a port of our own: no punched hole shows in dial-backs
            host = self._endpoint.listening[0].host
            try:
                self.port = (await self._endpoint.listen(Address(host, 0))).port
            except Unusable as error:
                _log.warning("no holes are punched: %s", error)
        self._tasks.spawn(self._keep_seen())
        return self

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
        if relay is not None and port and self.book.fresh(relay, port, now_s()) is None:
            await self._look(relay, port, logging.INFO)

    def offer(
        self, port: int, relay: Address | None, *, near: bool = False, held_s: float = 0.0
    ) -> Offer:
        """Return what we tell a peer of ourselves, with the seals of `relay`.

        `near`: one router stands before both of us. `held_s`: how long the peer waited for this.
        """
        own = self._own(port)
        seen = self.book.seen(port, now_s(), relay)
        hosts = {each.address.host for each in seen}
        return Offer(
            candidates=named(seen, own, near=near),
            hard=self.book.hard(self.port, now_s()),
            open=self.reachable() or any(each.host in hosts for each in own),
            held_ms=min(int(1000 * held_s), HELD_MS_MAX),
        )

    def trust(self, path: Path | None, port: int, *, chosen: bool) -> DialTrust:
        """Return what we judge a peer's candidates by; `path`: of the link to the peer."""
        outside = frozenset(each.address for each in self.book.seen(port, now_s()))
        own = frozenset(self._own(port))
        direct = path is not None and not (path.remote.circuit or path.remote.web)
        return DialTrust(
            outside=outside,
            own=own,
            families=frozenset(_version(each.host) for each in outside | own),
            peer_host=path.remote.host if path is not None and direct else "",
            chosen=chosen,
        )

    def _own(self, port: int) -> list[Address]:
        return [Address(host, port) for host in self._hosts()]

    async def _keep_seen(self) -> None:
        """Keep known where our relays see us, for as long as there are any."""
        while True:
            self._news.clear()
            for relay in self._relays() if self.port else ():
                self._tasks.spawn(self._look(relay.address, self.port, logging.DEBUG))
            await wait_until(self._news, now_s() + AGAIN_S)

    async def _look(self, relay: Address, port: int, log_level: int) -> None:
        """Have a relay look at a port of ours now."""
        try:
            await asyncio.shield(self._question(relay, port))
        except SwarmError as error:
            _log.log(log_level, "relay %s does not say where it sees us: %s", relay, error)

    def _question(self, relay: Address, port: int) -> asyncio.Future[None]:
        """The question to a relay that is under way, or a new one."""
        if relay.web or relay.circuit:
            raise DialFailed(f"{relay} sees no port of ours: it is not called by TCP alone")
        if self._tasks.closing:
            raise LinkLost("this node is closing")
        asking = self._asking.get((relay, port))
        if asking is None:
            asking = asyncio.get_running_loop().create_future()
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._asking[relay, port] = asking
            self._tasks.spawn(self._ask(relay, port, asking), asking.cancel)  # nobody waits longer
        return asking

    async def _ask(self, relay: Address, port: int, asking: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(SEE_S):
                connection = await self._net.dial(relay, port)
                try:
                    await connection.send(observation_request())
                    sighting = read_observation(await connection.receive(OBSERVATION_ANSWER_BYTES))
                    self.book.on_observation(relay, port, sighting, now_s())
                    asking.set_result(None)
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


def _version(host: str) -> int:
    return ipaddress.ip_address(host.partition("%")[0]).version
