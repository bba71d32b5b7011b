"""Acceptor: does the handshake of every connection that arrives, and finds out what it is for.

Errors:  what goes wrong with a connection is logged, and ends it alone.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from p2pswarm.base.errors import BadHandshake, PathError, SwarmError
from p2pswarm.base.tasks import OwnedTasks
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Handshake
from p2pswarm.net.endpoint import preface
from p2pswarm.net.endpoint.handshaker import Compute, Handshaker
from p2pswarm.net.endpoint.link_request import BulkJoin, Resume
from p2pswarm.net.endpoint.preface import (
    CircuitRequest,
    CircuitStatus,
    ObservationSeals,
    circuit_answer,
    observation_answer,
)
from p2pswarm.net.endpoint.raw_handshake import AcceptedHandshake, Preface
from p2pswarm.net.guard.connection_limits import HandshakeSlots
from p2pswarm.net.guard.flood_thinning import FloodThinning, thinned_text
from p2pswarm.net.guard.handshake_workers import HandshakeGate
from p2pswarm.net.os.addresses import PROXIES
from p2pswarm.net.os.base import Connection, Listener

_log = logging.getLogger(__name__)


class Upgrade(Protocol):
    """`WebUpgrade` of `net/os/web_socket.py`: what is done with a connection before its handshake.

    It is imported late.
    """

    def upgraded(
        self,
        connection: Connection,
        on_word: Callable[[], None],
        compute: Compute,
    ) -> AbstractAsyncContextManager[Connection]:
        """The connection that an accepted one becomes; LinkLost or BadHandshake."""
        ...


@dataclass(frozen=True, slots=True)
class _Port:
    """Where a connection arrived."""

    flood: FloodThinning | None = None
    upgrade: Upgrade | None = None


ELSEWHERE = _Port()
"""By a relay, or through a hole that both sides punched."""


class Acceptor:
    """The connections that have arrived and are not in use yet.

    A peer that stalls, sends garbage or belongs to another network costs one of a limited number
    of handshakes and a line in the log. Decisions: `guard/connection_limits.py`,
    `guard/fair_queue.py`, `guard/flood_thinning.py`.
    """

    on_knock: Callable[[bytes], None]
    """Called with the token of each dial-back that arrives, whoever sent it."""
    admit_circuit: Callable[[Connection, CircuitRequest], None] | None
    """Takes over each connection that asks a relay for something, if this node is one."""
    on_punch: Callable[[Connection, bytes], None] | None
    """Takes over each connection that both sides dialled, with its token, if this node punches."""

    def __init__(
        self,
        config: TransportConfig,
        handshaker: Handshaker,
        tasks: OwnedTasks,
        seals: ObservationSeals,
        make_link: Callable[[Connection, Handshake], Awaitable[object]],
        join: Callable[[Connection, BulkJoin], Awaitable[None]],
        resume: Callable[[Connection, Resume], Awaitable[None]],
    ) -> None:
        """`make_link`, `join`, `resume`: use a connection, or raise BadHandshake."""
        self._config = config
        self._handshaker = handshaker
        self._tasks = tasks
        self._seals = seals
        self._make_link = make_link
        self._join = join
        self._resume = resume
        self.on_knock = _ignore
        self.admit_circuit = None
        self.on_punch = None
        self._limiter = HandshakeSlots(config.silent_max, config.answered_max, config.upgrading_max)
        self._gate = HandshakeGate()
        self._loop = asyncio.get_running_loop()
        self._looks: dict[Listener, asyncio.TimerHandle] = {}
        """The times to look at who floods each listener."""
        self._handshakes: dict[int, asyncio.Task[None]] = {}
        self._passed_on: set[int] = set()

    def serve(self, listener: Listener, upgrade: Upgrade | None = None) -> None:
        """Accept what arrives at `listener`, until the tasks are closed.

        `upgrade`: makes of each connection the one that is used.
        """
        self._tasks.spawn(self._accept(listener, upgrade))

    def close(self) -> None:
        """Let no computation of a handshake wait any longer."""
        self._gate.close()
        for look in self._looks.values():
            look.cancel()

    def accept(self, connection: Connection, port: _Port = ELSEWHERE) -> None:
        """Accept a connection that has arrived, at a port or otherwise."""
        ticket, displaced = self._limiter.enter(connection.remote.host)
        self._displace(displaced)
        end = partial(self._end_handshake, connection, ticket)
        self._handshakes[ticket] = self._tasks.spawn(self._handshake(connection, ticket, port), end)

    async def _accept(self, listener: Listener, upgrade: Upgrade | None) -> None:
        flood = FloodThinning()
        port = _Port(flood, upgrade)
        while True:
            connection = await listener.accept()
            host, now_s = connection.remote.host, self._loop.time()
            if upgrade is not None and host in PROXIES:  # it brings everybody's connections
                self.accept(connection, _Port(None, upgrade))
                continue
            is_welcome = flood.on_arrival(host, listener.in_a_row, now_s)
            self._plan_thinning(listener, flood)
            if is_welcome:
                self.accept(connection, port)
            else:
                connection.close()

    def _displace(self, ticket: int | None) -> None:
        if ticket is not None:
            self._handshakes[ticket].cancel()

    def _plan_thinning(self, listener: Listener, flood: FloodThinning) -> None:
        at_s = flood.next_deadline_s()
        if listener not in self._looks and at_s is not None:
            self._looks[listener] = self._loop.call_at(at_s, self._thin, listener, flood)

    def _thin(self, listener: Listener, flood: FloodThinning) -> None:
        del self._looks[listener]
        calm = not flood.levels
        if flood.on_deadline(listener.in_a_row, self._loop.time()):
            level = logging.WARNING if calm else logging.INFO  # of one flood a user hears once
            _log.log(level, "%s", thinned_text(flood.levels))
            listener.thin(flood.levels)
        self._plan_thinning(listener, flood)

    async def _handshake(self, connection: Connection, ticket: int, port: _Port) -> None:
        try:
            async with contextlib.AsyncExitStack() as blocks:
                used = connection
                if port.upgrade is not None:
                    used = await self._upgraded(connection, ticket, port.upgrade, blocks)
                async with asyncio.timeout(self._config.handshake_s):
                    accepted = await self._handshaker.accepted(
                        used,
                        lambda: self._displace(self._limiter.on_answer(ticket)),
                        partial(self._compute, ticket, used.remote.host),
                    )
                    if port.flood is not None:
                        port.flood.on_proof(connection.remote.host)
                    await self._use(used, accepted, ticket)
        except TimeoutError:
            _log.info("%s refused: it stalled in the handshake", connection.remote)
        except PathError:
            _log.debug("%s hung up in the handshake", connection.remote)
        except SwarmError as error:
            _log.info("%s refused: %s", connection.remote, error)

    async def _upgraded(
        self,
        connection: Connection,
        ticket: int,
        upgrade: Upgrade,
        blocks: contextlib.AsyncExitStack,
    ) -> Connection:
        """The connection that another one becomes; it is closed after `blocks`, unless it is used.

        It has the handshake's time once more for that, because TLS and HTTP take round trips, too.
        """
        host = connection.remote.host
        async with asyncio.timeout(self._config.handshake_s):
            upgrading = upgrade.upgraded(
                connection,
                lambda: self._displace(self._limiter.on_upgrade(ticket, host)),
                partial(self._compute, ticket, host),
            )
            used = await blocks.enter_async_context(upgrading)
        blocks.callback(self._close_unless_passed_on, used, ticket)
        if used.remote.host != host:  # the one that a proxy names
            self._displace(self._limiter.on_upgrade(ticket, used.remote.host))
        return used

    async def _use(self, connection: Connection, accepted: AcceptedHandshake, ticket: int) -> None:
        match accepted.use:
            case Preface(preface.KNOCK_MAGIC, token):
                self.on_knock(token)
            case Preface(preface.PUNCH_MAGIC, token):
                self._hand_over(connection, token, ticket)
            case Preface():
                await self._observe(connection)
            case CircuitRequest() as asked:
                await self._pass_on(connection, asked, ticket)
            case BulkJoin() as asked:
                await self._join(connection, asked)
            case Resume() as asked:
                await self._resume(connection, asked)
            case Handshake() as handshake:
                await self._make_link(connection, handshake)

    def _hand_over(self, connection: Connection, token: bytes, ticket: int) -> None:
        if self.on_punch is None:
            raise BadHandshake("it greets, and nobody here has dialled it")
        self._passed_on.add(ticket)
        self.on_punch(connection, token)

    async def _observe(self, connection: Connection) -> None:
        seen = connection.remote
        await connection.send(observation_answer(seen, self._seals.seal(seen, self._loop.time())))

    async def _compute(self, ticket: int, host: str, work: Callable[[], None]) -> None:
        await self._gate.run(ticket, host, work, answered=self._limiter.has_answer(ticket))

    async def _pass_on(self, connection: Connection, asked: CircuitRequest, ticket: int) -> None:
        if self.admit_circuit is None:
            await connection.send(circuit_answer(CircuitStatus.NO_RELAY))
        else:
            self._passed_on.add(ticket)
            self.admit_circuit(connection, asked)

    def _close_unless_passed_on(self, connection: Connection, ticket: int) -> None:
        if ticket not in self._passed_on:
            connection.close()

    def _end_handshake(self, connection: Connection, ticket: int) -> None:
        self._close_unless_passed_on(connection, ticket)
        self._passed_on.discard(ticket)
        self._limiter.leave(ticket)
        del self._handshakes[ticket]


def _ignore(_token: bytes) -> None:
    """Drop a knock that nobody has asked for."""
