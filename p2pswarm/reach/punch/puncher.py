"""Puncher: agrees with peers, over links that lead through relays, to dial each other at once.

Errors:  DialFailed from `connect`, with the reason; PathError, if no hole can be punched now.
Source:  docs/punching.md.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from types import TracebackType
from typing import Self

from p2pswarm.base.errors import (
    BadHandshake,
    BadMessage,
    Busy,
    DialFailed,
    Late,
    LinkLost,
    NotServing,
    PathError,
    Refused,
    SwarmError,
)
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.base.loop_clock import now_s, wait_until
from p2pswarm.base.tasks import Closing, OwnedTasks
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.endpoint.preface import PUNCH_PREFACE_BYTES, PUNCH_TOKEN_BYTES, punch_preface
from p2pswarm.net.guard.connection_limits import HandshakeSlots
from p2pswarm.net.link.path import Path, PathCandidate, PathKind
from p2pswarm.net.os.base import Connection, Listener, Net
from p2pswarm.net.rpc.base import Rpc, Stream
from p2pswarm.reach.punch.candidates import Judgement, dialled, neighbours
from p2pswarm.reach.punch.dial_schedule import DIAL_S, HARD_LATER_S, DialSchedule, PunchDial, wait_s
from p2pswarm.reach.punch.limits import WINDOW_S, PunchBackOff, PunchLimits
from p2pswarm.reach.punch.messages import Offer, Punch
from p2pswarm.reach.punch.observed_addresses_io import OutsideView, SealVerifier

ARRIVALS_MAX = 16  # connections at a port of an attempt that have not greeted; a crowd gives way


class FirstConnection:
    """The first connection of an attempt; the others are closed. Use it as a context manager."""

    def __init__(self) -> None:
        self._first: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._given = False

    def take(self, connection: Connection) -> None:
        """Take one that has come up."""
        if self._first.done():
            connection.close()
        else:
            self._first.set_result(connection)

    async def wait(self, until_s: float) -> Connection:
        """The first one, whose owner the caller is then; raises DialFailed at `until_s`."""
        try:
            async with asyncio.timeout_at(until_s):
                await asyncio.wait([self._first])
        except TimeoutError as error:
            raise DialFailed("no dial of either side came through") from error
        self._given = True
        return self._first.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        came = self._first.done() and not self._first.cancelled()
        if came and (error is not None or not self._given):
            self._first.result().close()
        self._first.cancel()


class PunchAttempt(Closing):
    """The connections of one side of an attempt, while they come up. Use it as a context manager.

    `DialSchedule` decides when what is dialled. Each connection on which the peer has
    greeted back is given to `take`; the others are closed.
    """

    def __init__(
        self,
        net: Net,
        schedule: DialSchedule,
        ours: bytes,
        theirs: bytes,
        take: Callable[[Connection], None],
    ) -> None:
        """`ours`, `theirs`: the tokens of both sides' greetings."""
        self._net = net
        self._schedule = schedule
        self._ours = punch_preface(ours)
        self._theirs = punch_preface(theirs)
        self._take = take
        self.tasks = OwnedTasks()
        """Work that goes on while the attempt does, and ends with it."""
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._slots = HandshakeSlots(ARRIVALS_MAX, 0)
        self._arrivals: dict[int, asyncio.Task[None]] = {}
        """Those that have not greeted, by their tickets."""

    async def __aenter__(self) -> Self:
        self.tasks.spawn(self._pump())
        return self

    async def close(self) -> None:
        """End its tasks."""
        await self.tasks.close()

    def plan(self, dials: Iterable[PunchDial], at_s: float) -> None:
        """Have these dialled from `at_s` on."""
        self._schedule.add(dials, at_s)
        self._news.set()

    def end(self, at_s: float) -> None:
        """Dial until then."""
        self._schedule.end(at_s)
        self._news.set()

    async def over(self) -> None:
        """Return when the attempt's time is over."""
        await self._over.wait()

    def accept_at(self, listener: Listener) -> None:
        """Take what arrives at a port that was opened for this attempt."""
        self.tasks.spawn(self._accept(listener))

    def on_greeting(self, connection: Connection) -> None:
        """Take a connection that arrived and on which the peer has greeted already."""
        if self.tasks.closing:
            connection.close()
        else:
            self.tasks.spawn(self._answer(connection, greeted=True))

    async def _pump(self) -> None:
        while now_s() < self._schedule.over_s:
            for dial in self._schedule.due(now_s()):
                self.tasks.spawn(self._dial(dial))
            self._news.clear()
            await wait_until(self._news, self._schedule.next_deadline_s())
        self._over.set()

    async def _dial(self, dial: PunchDial) -> None:
        try:
            connection = await self._net.dial(dial.to, dial.from_port)
            await self._greet(connection, first=self._ours)
        except SwarmError:
            self._schedule.on_failure(dial, now_s())
            self._news.set()

    async def _accept(self, listener: Listener) -> None:
        while True:
            connection = await listener.accept()
            ticket, displaced = self._slots.enter(connection.remote.host)
            if displaced is not None:
                self._arrivals[displaced].cancel()
            work = self._answer(connection, greeted=False)
            end = partial(self._leave, ticket, connection)
            self._arrivals[ticket] = self.tasks.spawn(work, end)

    def _leave(self, ticket: int, connection: Connection) -> None:
        self._slots.leave(ticket)
        if self._arrivals.pop(ticket).cancelled():
            connection.close()  # if the task never ran, nobody else does

    async def _answer(self, connection: Connection, *, greeted: bool) -> None:
        try:
            await self._greet(connection, first=b"", greeted=greeted)
        except SwarmError:
            return  # the peer dials again

    async def _greet(self, connection: Connection, *, first: bytes, greeted: bool = False) -> None:
        """Greet both ways: who connected at once, who accepted when the peer has."""
        try:
            if first:
                await connection.send(first)
            if not greeted and await connection.receive(PUNCH_PREFACE_BYTES) != self._theirs:
                raise BadHandshake("somebody else answers, who does not greet us")  # noqa: TRY301
            if not first:
                await connection.send(self._ours)
        except BaseException:
            connection.close()
            raise
        self._schedule.stop()
        self._take(connection)


AGREE_S = 2.0  # for three messages through a relay
LIMIT_S = AGREE_S + DIAL_S  # less than a climb waits for a way, 5 s
SEED_BYTES = 16
EVERYWHERE_V4 = "0.0.0.0"  # noqa: S104  to bind

_log = logging.getLogger(__name__)


class Puncher(Closing):
    """The attempts of a node. Use it as a context manager, inside of its rpc's block.

    It implements `CandidateSource`: a way to each peer whose link leads through a relay. It pumps
    `DialSchedule` on both sides. `candidates.py` says whom to dial, `limits.py` for whom and when.
    """

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
        self._verifier = SealVerifier(rpc, endpoint.seals)
        self._limits = PunchLimits()
        self._back_off = PunchBackOff()
        self._attempts: dict[bytes, PunchAttempt] = {}
        """Those under way, by the token that the peer greets with."""
        rpc.serve_stream(Punch, self._on_punch)

    async def __aenter__(self) -> Self:
        self._endpoint.acceptor.on_punch = self._on_greeting
        await self.view.__aenter__()
        return self

    async def close(self) -> None:
        """Expect no greetings any more."""
        self._endpoint.acceptor.on_punch = None
        await self.view.close()

    def candidates(self, to: Contact) -> Sequence[PathCandidate]:
        """A punched way while the link goes through a relay: only then can both sides agree."""
        link = None if to.peer is None else self._link_to(to.peer)
        path = None if link is None else link.path
        if to.peer is None or path is None or path.candidate is None:
            return ()
        if path.kind is not PathKind.RELAYED or not path.remote.circuit:
            return ()
        return (PunchedWay(self, to.peer, path.remote.place, path.candidate),)

    def punched(self, peer: PeerId) -> bool:
        """Return whether the link to a peer has left its relay."""
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
        begin_s, relayed = now_s(), bool(link.path.remote.circuit)
        key = peer, relayed
        if pause_s := self._back_off.pause_s(key, begin_s):
            raise DialFailed(f"{peer.short} is not punched again for {pause_s:.1f} s")
        listening = relayed and self.view.book.use(peer, begin_s)
        if relayed:
            self._back_off.begin(key, begin_s)
        try:
            async with asyncio.timeout(LIMIT_S):
                connection = await self._initiate(link, relay, self.view.port if listening else 0)
        except (SwarmError, TimeoutError) as error:
            self._back_off.on_failure(key, now_s(), hopeless=_is_hopeless(error))
            why = str(error) or "nobody came in time"
            _log.info("%s was not punched: %s", peer.short, why)
            raise DialFailed(f"{peer.short} was not punched: {why}") from error
        if relayed:
            self._back_off.on_success(key, now_s())
        else:
            self._back_off.forget(key)
        took_ms = 1000 * (now_s() - begin_s)
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
            looking = attempt.tasks.spawn(self.view.see(relay, port))
            punch = Punch(token, self.view.offer(port, relay))
            async with self._rpc.open_stream(link.contact, punch, LIMIT_S) as stream:
                begun_s = now_s()
                theirs_offer = _offer_in(await stream.receive())
                round_trip_s = now_s() - begun_s
                await looking
                until_s = await self._go(
                    attempt, stream, link.path, port, relay, theirs_offer, round_trip_s
                )
                return await first.wait(until_s)

    async def _go(
        self,
        attempt: PunchAttempt,
        stream: Stream,
        path: Path | None,
        port: int,
        relay: Address,
        offer: Offer,
        round_trip_s: float,
    ) -> float:
        """Give the word to go, and plan our own dials; returns when the attempt is over.

        `port`: ours, which `relay` sees. `offer`: the peer's, which came after `round_trip_s`.
        """
        trust = self.view.trust(path, port, chosen=True)
        to = self._within_limits(dialled(offer.candidates, trust), stream.peer)
        if path is not None and trust.peer_host and path.remote not in to:
            to.append(path.remote)  # it dials from where it listens, as it did before
        mine = self.view.offer(port, relay, near=neighbours(offer.candidates, trust))
        if not (to or mine.candidates):
            raise DialFailed("neither side knows where the other one could dial it")
        if offer.open:
            self._plan(attempt, to, 0, now_s())
        await stream.send(mine)
        go_s = now_s() + wait_s(round_trip_s, offer.held_ms) + HARD_LATER_S * mine.hard
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
        link, begin_s = self._link_to(stream.peer), now_s()
        if link is None or not self.view.port or punch.token[:PUNCH_TOKEN_BYTES] in self._attempts:
            raise Busy("no link is up, or nothing listens here", WINDOW_S)
        if not self._limits.begin(stream.peer, begin_s, known=self.punched(stream.peer)):
            raise Busy("enough attempts for a while", WINDOW_S)
        self.view.book.use(stream.peer, begin_s)
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._respond(link, stream, punch)
        except TimeoutError as error:
            raise Late("the attempt is over") from error
        finally:
            self._limits.on_end()

    async def _respond(self, link: Link, stream: Stream, punch: Punch) -> None:
        begun_s, port, view = now_s(), self.view.port, self.view
        theirs, ours = punch.token[:PUNCH_TOKEN_BYTES], punch.token[PUNCH_TOKEN_BYTES:]
        path = link.path
        relay = path.remote.place if path is not None and path.remote.circuit else None
        async with self._attempting(ours, theirs, self._endpoint.accept) as attempt:
            await view.see(relay, port)
            trust = view.trust(path, port, chosen=False)
            near = neighbours(punch.offer.candidates, trust)
            offer = view.offer(port, relay, near=near, held_s=now_s() - begun_s)
            if offer.hard and punch.offer.hard:
                raise Refused("both sides have another outside port for each destination")
            await stream.send(offer)
            judgement = Judgement(trust)
            to: dict[Address, None] = {}
            judge = partial(self._judge, judgement, relay, stream.peer, attempt, to)
            judging = attempt.tasks.spawn(judge(punch.offer))
            go = _offer_in(await stream.receive())
            await judging
            await judge(go)
            go_s = now_s() + HARD_LATER_S * offer.hard
            self._plan(attempt, to, port, go_s)
            attempt.end(go_s + self._dial_s)
            await attempt.over()

    async def _judge(
        self,
        judgement: Judgement,
        relay: Address | None,
        peer: PeerId,
        attempt: PunchAttempt,
        to: dict[Address, None],
        offer: Offer,
    ) -> None:
        """Put into `to` what may be dialled, and dial at once a peer that is open."""
        new = judgement.unjudged(offer)
        vouched = await self._verifier.vouched(relay, new)
        addresses = judgement.judge(new, vouched)
        new_ones = [each for each in addresses if each not in to]
        to.update(dict.fromkeys(self._within_limits(new_ones, peer)))
        if offer.open:
            self._plan(attempt, to, 0, now_s())

    def _within_limits(self, to: Sequence[Address], peer: PeerId) -> list[Address]:
        """Those addresses that do not exceed what a network may get; of the peer's own host all."""
        link = self._link_to(peer)
        path = None if link is None else link.path
        known = "" if path is None or path.remote.circuit else path.remote.host
        others = [each.host for each in to if each.host != known]
        allowed = self._limits.dialable(others, now_s())
        return [each for each in to if each.host == known or each.host in allowed]

    def _on_greeting(self, connection: Connection, token: bytes) -> None:
        attempt = self._attempts.get(token)
        if attempt is None:
            connection.close()
        else:
            attempt.on_greeting(connection)


def _offer_in(message: object) -> Offer:
    """The message of a peer, which is to be an offer."""
    if message is None:
        raise LinkLost("the peer has given up")
    if not isinstance(message, Offer):
        raise BadMessage(f"{type(message).__name__} where an offer is due")
    return message


def _is_hopeless(error: Exception) -> bool:
    """Return whether the next attempt will fail like this one."""
    return isinstance(error, NotServing | Refused) and not isinstance(error, Busy)


@dataclass(frozen=True, slots=True)
class PunchedWay:
    """Both sides dial each other at once: implements `PathCandidate`."""

    puncher: Puncher
    peer: PeerId
    relay: Address
    """The relay through which the link went when this way was found."""
    relayed: PathCandidate
    """For a bulk connection that cannot be punched."""

    @property
    def kind(self) -> PathKind:
        """Punched, even if one side can be dialled as it is."""
        return PathKind.PUNCHED

    async def connect(self) -> Connection:
        """Punch; for a link that has left its relay, a bulk connection may go through it still."""
        try:
            return await self.puncher.connect(self.peer, self.relay)
        except PathError as error:
            if not self.puncher.punched(self.peer):
                raise
            _log.info("a bulk connection with %s goes by relay: %s", self.peer.short, error)
            return await self.relayed.connect()
