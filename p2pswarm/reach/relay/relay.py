"""Relay: holds reservations of peers, and joins those that ask for them.

Errors:  Busy for a peer that gets no reservation; a circuit that fails is answered with its status.
Source:  docs/relays.md.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage, Busy, NotServing, SwarmError
from p2pswarm.base.ids import PeerId
from p2pswarm.base.signal import Signal
from p2pswarm.base.tasks import Closing, OwnedTasks
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.preface import CircuitRequest, CircuitStatus, circuit_answer
from p2pswarm.net.os.base import Connection
from p2pswarm.net.os.splice import PacedFlow, Splice, Splicer
from p2pswarm.net.rpc.base import Rpc, Stream
from p2pswarm.reach.relay.fair_rate import FairRate
from p2pswarm.reach.relay.relay_table import (
    BUSY_S,
    Circuit,
    RelayLimits,
    RelayReservation,
    RelayTable,
    ReservationEnded,
)
from p2pswarm.reach.relay.reservations import Incoming, Reserve, Reserved

MIB = 1024 * 1024
PAIR_BYTES_PER_S = 20e6  # a fast home line; the longest file of one pair leaves room for two others
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRates:
    """The rates at which a relay passes bytes on."""

    total_bytes_per_s: float = 64 * MIB
    pair_bytes_per_s: float = PAIR_BYTES_PER_S


class Pacing:
    """The timer of `FairRate`: it lets the directions of circuits go on when the rate allows."""

    def __init__(self, rates: RelayRates) -> None:
        self._loop = asyncio.get_running_loop()
        self.rate: FairRate[PacedFlow]
        self.rate = FairRate(rates.total_bytes_per_s, rates.pair_bytes_per_s)
        self._timer: asyncio.TimerHandle | None = None

    def of(self, pair: Hashable, group: Hashable) -> "PairPace":
        """The pace of one circuit of a pair, which shares with its group; `close` it."""
        self.rate.on_open(pair, group)
        return PairPace(self, pair, group)

    def close(self) -> None:
        """Let nobody go on any more."""
        if self._timer is not None:
            self._timer.cancel()

    def carried(self, flow: PacedFlow, pair: Hashable, nbytes: int) -> bool:
        """Return whether `flow` may go on at once."""
        now_s = self._loop.time()
        self.rate.on_bytes(flow, pair, nbytes, now_s)
        return self._go_on(now_s, flow)

    def _go_on(self, now_s: float, asking: PacedFlow | None) -> bool:
        """Resume who may go on, but for the one that asks; returns whether that one may."""
        granted = False
        for flow in self.rate.grants(now_s):
            if flow is asking:
                granted = True
            else:
                flow.resume()
        if self._timer is not None:
            self._timer.cancel()
        at_s = self.rate.next_deadline_s()
        self._timer = None if at_s is None else self._loop.call_at(at_s, self._on_deadline)
        return granted

    def _on_deadline(self) -> None:
        self._timer = None
        self._go_on(self._loop.time(), None)


@dataclass(frozen=True, slots=True)
class PairPace:
    """The pace of one circuit: implements `Pace` of `net/os/splice.py`."""

    pacing: Pacing
    pair: Hashable
    group: Hashable

    def on_bytes(self, flow: PacedFlow, nbytes: int) -> bool:
        """Return whether `flow` may go on at once; else it is resumed later."""
        return self.pacing.carried(flow, self.pair, nbytes)

    def close(self) -> None:
        """The circuit is over."""
        self.pacing.rate.on_close(self.pair, self.group)


@dataclass(frozen=True, slots=True)
class _HeldStream:
    """The stream of a reservation, and the timeout that ends it."""

    stream: Stream
    scope: asyncio.Timeout


class Relay(Closing):
    """The relay of a node. Use it as a context manager, inside of its endpoint's and rpc's.

    `RelayTable` decides who gets what; here are the streams, connections and timers. A relay dials
    nobody: both ends come to it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        rpc: Rpc,
        entropy: Callable[[int], bytes],
        limits: RelayLimits | None = None,
        rates: RelayRates | None = None,
    ) -> None:
        """`entropy`: returns that many random bytes. `rates`: None for no limit."""
        self._endpoint = endpoint
        self._limits = limits or RelayLimits()
        self._rates = rates
        self._loop = asyncio.get_running_loop()
        self.table = RelayTable(self._limits, entropy)
        self._pacing = None if rates is None else Pacing(rates)
        self._splicer = Splicer()
        self._tasks = OwnedTasks()
        self._timer: asyncio.TimerHandle | None = None
        self._streams: dict[int, _HeldStream] = {}
        self._asking: dict[int, asyncio.Future[Connection | None]] = {}
        self._splices: dict[Splice, None] = {}
        self.changed = Signal()
        """Fired when reservations or circuits have begun or ended."""
        rpc.serve_stream(Reserve, self._hold)
        endpoint.acceptor.admit_circuit = self._admit

    async def close(self) -> None:
        """End every circuit; the reservations end with their streams."""
        self._endpoint.acceptor.admit_circuit = None
        if self._timer is not None:
            self._timer.cancel()
        if self._pacing is not None:
            self._pacing.close()
        await self._tasks.close()
        for splice in list(self._splices):
            splice.close()

    # reservations

    async def _hold(self, stream: Stream, _opening: Reserve) -> None:
        """Hold a reservation for as long as its stream is open and it is renewed."""
        try:
            held = self.table.reserve(stream.peer, self._host_of(stream.peer), self._loop.time())
        finally:
            self._tell()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._streams[held.number] = _HeldStream(stream, scope)
                await self._renew(stream, held)
        except TimeoutError:
            if not scope.expired():
                raise
            raise Busy("the reservation has ended", BUSY_S) from None
        finally:
            del self._streams[held.number]
            self.table.release(held.number)
            self._tell()

    async def _renew(self, stream: Stream, held: RelayReservation) -> None:
        """Confirm the reservation, now and whenever the peer asks for it."""
        while self.table.renew(held.number, self._loop.time()):
            self._tell()
            await stream.send(self._reserved())
            request = await stream.receive()
            if request is None:
                return
            if not isinstance(request, Reserve):
                raise BadMessage(f"{type(request).__name__} on a reservation's stream")

    def _reserved(self) -> Reserved:
        rate = 0 if self._rates is None else int(self._rates.pair_bytes_per_s)
        lasts_ms = int(self._limits.lasts_s * 1000)
        return Reserved(lasts_ms, self._limits.peer_circuits_max, rate)

    def _host_of(self, peer: PeerId) -> str:
        """The host from which a peer's link comes; NotServing if that is another relay."""
        for link in self._endpoint.links():
            if link.peer == peer and not link.remote.circuit:
                return link.remote.host
        raise NotServing("reserve over a link of your own, not over another relay's circuit")

    # circuits

    def _admit(self, connection: Connection, request: CircuitRequest) -> None:
        """Take over a connection that asks for a peer, or has a ticket."""
        serve = self._ask if request.peer else self._take
        self._tasks.spawn(serve(connection, request))

    async def _ask(self, connection: Connection, request: CircuitRequest) -> None:
        """Join who asks with the peer that it asks for, if that comes in time."""
        asked = self.table.ask(PeerId(request.peer), connection.remote.host, self._loop.time())
        self._tell()
        other, splice = None, None
        try:
            if isinstance(asked, CircuitStatus):
                await connection.send(circuit_answer(asked))
                return
            other = await self._taken(asked)
            if other is None:
                await connection.send(circuit_answer(CircuitStatus.NOT_TAKEN))
                return
            await other.send(circuit_answer(CircuitStatus.JOINED))
            await connection.send(circuit_answer(CircuitStatus.JOINED))
            splice = self._join(asked, connection, other)
        except SwarmError as error:
            _log.debug("no circuit for %s: %s", connection.remote, error)
        finally:
            if splice is None:
                connection.close()
                if other is not None:
                    other.close()
                if isinstance(asked, Circuit):
                    self.table.close(asked)
                    self._tell()

    async def _taken(self, asked: Circuit) -> Connection | None:
        """The connection with which the peer takes a circuit; None if it does not come."""
        taken: asyncio.Future[Connection | None] = self._loop.create_future()
        self._asking[asked.number] = taken
        given = False
        try:
            async with asyncio.timeout_at(asked.waits_until_s):
                await self._streams[asked.reservation.number].stream.send(Incoming(asked.ticket))
            connection = await taken
            given = True
        except (SwarmError, TimeoutError):  # the peer is gone, or does not read its stream
            return None
        else:
            return connection
        finally:
            del self._asking[asked.number]
            if not given and taken.done() and not taken.cancelled() and (late := taken.result()):
                late.close()

    async def _take(self, connection: Connection, request: CircuitRequest) -> None:
        """Give a connection with a ticket to who waits for it."""
        got = self.table.take(request.ticket, self._loop.time())
        self._tell()
        taken = self._asking.get(got.number) if isinstance(got, Circuit) else None
        if taken is not None and not taken.done():
            taken.set_result(connection)
            return
        try:
            status = CircuitStatus.NO_TICKET if isinstance(got, Circuit) else got
            await connection.send(circuit_answer(status))
        except SwarmError as error:
            _log.debug("%s hung up: %s", connection.remote, error)
        finally:
            connection.close()

    def _join(self, circuit: Circuit, one: Connection, other: Connection) -> Splice:
        pace = self._pacing.of(circuit.pair, circuit.networks) if self._pacing is not None else None

        def ended() -> None:
            self._splices.pop(splice)
            if pace is not None:
                pace.close()
            self.table.close(circuit)
            self._tell()

        splice = self._splicer.join(one, other, pace, ended)
        self._splices[splice] = None
        return splice

    # the table's events and timer

    def _tell(self) -> None:
        """Pass on what has ended, and set the timer."""
        self.changed.fire()
        for event in self.table.drain():
            if isinstance(event, ReservationEnded):
                if event.number in self._streams:
                    self._streams[event.number].scope.reschedule(self._loop.time())
            elif event.number in self._asking and not self._asking[event.number].done():
                self._asking[event.number].set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        at_s = self.table.next_deadline_s()
        self._timer = None if at_s is None else self._loop.call_at(at_s, self._on_deadline)

    def _on_deadline(self) -> None:
        self.table.on_deadline(self._loop.time())
        self._tell()
