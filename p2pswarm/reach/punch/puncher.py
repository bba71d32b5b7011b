"""Puncher: agrees with peers, over links that lead through relays, to dial each other at once.

It pumps `dial_schedule.py` on both sides, and asks `judgement.py` whom to dial, `limits.py` for
whom, and `back_off.py` when.

Units:   seconds.
Errors:  DialFailed from `connect`, with the reason.
Source:  docs/punching.md.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Self

from p2pswarm.base.errors import (
    BadMessage,
    Busy,
    DialFailed,
    Late,
    LinkLost,
    NotServing,
    Refused,
    SwarmError,
)
from p2pswarm.base.ids import Address, PeerId
from p2pswarm.base.tasks import Closing
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.endpoint.preface import PUNCH_TOKEN_BYTES
from p2pswarm.net.link.path import Path, PathKind
from p2pswarm.net.os.base import Connection, Listener, Net
from p2pswarm.net.rpc.base import Rpc, Stream
from p2pswarm.reach.punch.attempt import FirstConnection, PunchAttempt
from p2pswarm.reach.punch.back_off import PunchBackOff
from p2pswarm.reach.punch.candidates import dialled, neighbours
from p2pswarm.reach.punch.dial_schedule import DIAL_S, HARD_LATER_S, DialSchedule, PunchDial, wait_s
from p2pswarm.reach.punch.judgement import Judgement
from p2pswarm.reach.punch.limits import WINDOW_S, PunchLimits
from p2pswarm.reach.punch.messages import Offer, Punch
from p2pswarm.reach.punch.outside import OutsideView
from p2pswarm.reach.punch.vouching import Vouching

AGREE_S = 2.0  # for three messages through a relay
LIMIT_S = AGREE_S + DIAL_S  # less than a climb waits for a way, 5 s
SEED_BYTES = 16
EVERYWHERE_V4 = "0.0.0.0"  # noqa: S104  to bind

_log = logging.getLogger(__name__)


class Puncher(Closing):
    """The attempts of a node. Use it as a context manager, inside of its rpc's block."""

    def __init__(
        self,
        endpoint: Endpoint,
        rpc: Rpc,
        net: Net,
        entropy: Callable[[int], bytes],
        view: OutsideView | None = None,
        dial_s: float = DIAL_S,
    ) -> None:
        """`net`: where `dial` may name our listening port; `view`: how we look from outside.

        `dial_s`: how long an attempt dials.
        """
        self._dial_s = dial_s
        self.view = view or OutsideView(endpoint, net)
        self._endpoint = endpoint
        self._rpc = rpc
        self._net = net
        self._entropy = entropy
        self._vouching = Vouching(rpc, endpoint.seals)
        self._limits = PunchLimits()
        self._back_off: PunchBackOff[tuple[PeerId, bool]] = PunchBackOff()
        self._attempts: dict[bytes, PunchAttempt] = {}
        """Those under way, by the token that the peer greets with."""
        rpc.serve_stream(Punch, self._on_punch)

    async def __aenter__(self) -> Self:
        self._endpoint.expect_punches(self._on_greeting)
        await self.view.__aenter__()
        return self

    async def close(self) -> None:
        """Expect no greetings any more."""
        self._endpoint.expect_punches(None)
        await self.view.close()

    def relayed_path(self, peer: PeerId) -> Path | None:
        """The path of the link to a peer, if it leads through a relay by a way that we took."""
        link = self._link_to(peer)
        path = None if link is None else link.path
        relayed = path is not None and path.kind is PathKind.RELAYED and path.remote.circuit
        return path if relayed else None

    def punched(self, peer: PeerId) -> bool:
        """Whether the link to a peer has left its relay."""
        link = self._link_to(peer)
        return link is not None and link.path is not None and not link.path.remote.circuit

    def _link_to(self, peer: PeerId) -> Link | None:
        links = (each for each in self._endpoint.links() if each.peer == peer)
        return next((each for each in links if each.path is not None), None)

    # as the initiator

    async def connect(self, peer: PeerId, relay: Address) -> Connection:
        """A connection with a peer to which a link is up, that both sides have dialled.

        `relay`: the one to ask where it sees us. Raises DialFailed, at once if it is too early to
        try again.
        """
        link = self._link_to(peer)
        if link is None or link.path is None:
            raise DialFailed(f"no link to {peer.short} is up, over which to agree")
        now_s, relayed = _now_s(), bool(link.path.remote.circuit)
        key = peer, relayed
        if pause_s := self._back_off.pause_s(key, now_s):
            raise DialFailed(f"{peer.short} is not punched again for {pause_s:.1f} s")
        listening = relayed and self.view.book.use(peer, now_s)
        if relayed:
            self._back_off.begin(key, now_s)
        try:
            async with asyncio.timeout(LIMIT_S):
                connection = await self._initiate(link, relay, self.view.port if listening else 0)
        except (SwarmError, TimeoutError) as error:
            self._back_off.failed(key, _now_s(), hopeless=_is_hopeless(error))
            why = str(error) or "nobody came in time"
            _log.info("%s was not punched: %s", peer.short, why)
            raise DialFailed(f"{peer.short} was not punched: {why}") from error
        if relayed:
            self._back_off.succeeded(key, _now_s())
        else:
            self._back_off.forget(key)
        took_ms = 1000 * (_now_s() - now_s)
        _log.info("%s was punched in %.0f ms, at %s", peer.short, took_ms, connection.remote)
        return connection

    async def _initiate(self, link: Link, relay: Address, own_port: int) -> Connection:
        """One attempt, from `own_port`; 0: from one that is opened for it alone."""
        token, first = self._entropy(2 * PUNCH_TOKEN_BYTES), FirstConnection()
        ours, theirs = token[:PUNCH_TOKEN_BYTES], token[PUNCH_TOKEN_BYTES:]
        async with (
            first,
            self._listening(own_port) as (port, listener),
            self._attempting(ours, theirs, first.take) as attempt,
        ):
            if listener is not None:
                attempt.accept_at(listener)
            looking = attempt.beside(self.view.see(relay, port))
            punch = Punch(token, self.view.offer(port, relay))
            async with self._rpc.open_stream(link.contact, punch, LIMIT_S) as stream:
                begun_s = _now_s()
                theirs_offer = _offer_in(await stream.receive())
                round_trip_s = _now_s() - begun_s
                await looking
                until_s = await self._go(
                    attempt, stream, link.path, (port, relay), (theirs_offer, round_trip_s)
                )
                return await first.wait(until_s)

    async def _go(
        self,
        attempt: PunchAttempt,
        stream: Stream,
        path: Path | None,
        us: tuple[int, Address],
        heard: tuple[Offer, float],
    ) -> float:
        """Give the word to go, and plan our own dials; returns when the attempt is over.

        `us`: our port and the relay that sees it. `heard`: the peer's offer, and how long it took.
        """
        (port, relay), (offer, round_trip_s) = us, heard
        trust = self.view.trust(path, port, chosen=True)
        to = self._within_limits(dialled(offer.candidates, trust), stream.peer)
        if path is not None and trust.peer_host and path.remote not in to:
            to.append(path.remote)  # it dials from where it listens, as it did before
        mine = self.view.offer(port, relay, near=neighbours(offer.candidates, trust))
        if not (to or mine.candidates):
            raise DialFailed("neither side knows where the other one could dial it")
        if offer.open:
            self._plan(attempt, to, 0, _now_s())
        await stream.send(mine)
        go_s = _now_s() + wait_s(round_trip_s, offer.held_ms) + HARD_LATER_S * mine.hard
        self._plan(attempt, to, port, go_s)
        attempt.end(go_s + self._dial_s)
        return go_s + self._dial_s

    @asynccontextmanager
    async def _listening(self, port: int) -> AsyncIterator[tuple[int, Listener | None]]:
        """A port from which to dial, at which connections arrive, too: `port`, or a new one."""
        if port:
            yield port, None  # the endpoint listens there
            return
        at = self._endpoint.listening[0].host if self._endpoint.listening else EVERYWHERE_V4
        listener = await self._net.listen(Address(at, 0))
        try:
            yield listener.address.port, listener
        finally:
            listener.close()
            self.view.book.forget(listener.address.port)

    @asynccontextmanager
    async def _attempting(
        self, ours: bytes, theirs: bytes, take: Callable[[Connection], None]
    ) -> AsyncIterator[PunchAttempt]:
        schedule = DialSchedule(Random(self._entropy(SEED_BYTES)))
        async with PunchAttempt(self._net, schedule, ours, theirs, take) as attempt:
            self._attempts[theirs] = attempt
            try:
                yield attempt
            finally:
                del self._attempts[theirs]

    def _plan(
        self, attempt: PunchAttempt, to: Iterable[Address], from_port: int, at_s: float
    ) -> None:
        attempt.plan([PunchDial(each, from_port) for each in to], at_s)

    # as the responder

    async def _on_punch(self, stream: Stream, punch: Punch) -> None:
        link, now_s = self._link_to(stream.peer), _now_s()
        if link is None or not self.view.port or punch.token[:PUNCH_TOKEN_BYTES] in self._attempts:
            raise Busy("no link is up, or nothing listens here", WINDOW_S)
        if not self._limits.begin(stream.peer, now_s, known=self.punched(stream.peer)):
            raise Busy("enough attempts for a while", WINDOW_S)
        self.view.book.use(stream.peer, now_s)
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._respond(link, stream, punch)
        except TimeoutError as error:
            raise Late("the attempt is over") from error
        finally:
            self._limits.ended()

    async def _respond(self, link: Link, stream: Stream, punch: Punch) -> None:
        begun_s, port, view = _now_s(), self.view.port, self.view
        theirs, ours = punch.token[:PUNCH_TOKEN_BYTES], punch.token[PUNCH_TOKEN_BYTES:]
        path = link.path
        relay = path.remote.place if path is not None and path.remote.circuit else None
        async with self._attempting(ours, theirs, self._endpoint.accept) as attempt:
            await view.see(relay, port)
            trust = view.trust(path, port, chosen=False)
            near = neighbours(punch.offer.candidates, trust)
            offer = view.offer(port, relay, near=near, held_s=_now_s() - begun_s)
            if offer.hard and punch.offer.hard:
                raise Refused("both sides have another outside port for each destination")
            await stream.send(offer)
            judgement = Judgement(trust)
            to: dict[Address, None] = {}
            asking = (judgement, relay, stream.peer, attempt)
            judging = attempt.beside(self._judge(asking, punch.offer, to))
            go = _offer_in(await stream.receive())
            await judging
            await self._judge(asking, go, to)
            go_s = _now_s() + HARD_LATER_S * offer.hard
            self._plan(attempt, to, port, go_s)
            attempt.end(go_s + self._dial_s)
            await attempt.over()

    async def _judge(
        self,
        asking: tuple[Judgement, Address | None, PeerId, PunchAttempt],
        offer: Offer,
        to: dict[Address, None],
    ) -> None:
        """Put into `to` what may be dialled, and dial at once a peer that is open."""
        judgement, relay, peer, attempt = asking
        new = judgement.unjudged(offer)
        vouched = await self._vouching.vouched(relay, new)
        addresses = judgement.judge(new, vouched)
        new_ones = [each for each in addresses if each not in to]
        to.update(dict.fromkeys(self._within_limits(new_ones, peer)))
        if offer.open:
            self._plan(attempt, to, 0, _now_s())

    def _within_limits(self, to: Sequence[Address], peer: PeerId) -> list[Address]:
        """Those addresses that do not exceed what a network may get; of the peer's own host all."""
        link = self._link_to(peer)
        path = None if link is None else link.path
        known = "" if path is None or path.remote.circuit else path.remote.host
        others = [each.host for each in to if each.host != known]
        allowed = self._limits.dialling(others, _now_s())
        return [each for each in to if each.host == known or each.host in allowed]

    def _on_greeting(self, connection: Connection, token: bytes) -> None:
        attempt = self._attempts.get(token)
        if attempt is None:
            connection.close()
        else:
            attempt.greeted(connection)


def _offer_in(message: object) -> Offer:
    """The message of a peer, which is to be an offer."""
    if message is None:
        raise LinkLost("the peer has given up")
    if not isinstance(message, Offer):
        raise BadMessage(f"{type(message).__name__} where an offer is due")
    return message


def _is_hopeless(error: Exception) -> bool:
    """Whether the next attempt will fail like this one."""
    return isinstance(error, NotServing | Refused) and not isinstance(error, Busy)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
