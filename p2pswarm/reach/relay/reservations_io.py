"""RelayKeeper: keeps a node's reservations, and takes the circuits that come through them.

Source:  docs/relays.md.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Self

from p2pswarm.base.errors import BadMessage, Busy, SwarmError
from p2pswarm.base.ids import Address, Contact
from p2pswarm.base.loop_clock import now_s, wait_until
from p2pswarm.base.signal import Signal
from p2pswarm.base.tasks import Closing, OwnedTasks
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.rpc.base import Rpc, Stream
from p2pswarm.reach.relay.circuit_net import CircuitNet
from p2pswarm.reach.relay.reservations import (
    Incoming,
    LeaveRelay,
    RenewAt,
    Reservations,
    Reserve,
    ReserveAt,
    Reserved,
)

TAKING_MAX = 64  # dials back to relays under way, a socket each
TAKE_S = 5.0  # after so long the relay has given up, too

_log = logging.getLogger(__name__)


class RelayKeeper(Closing):
    """The reservations of a node. Use it as a context manager, inside of its rpc's block.

    `reservations.py` decides at which relays; here are the streams and the timer.

    A relay that fails is replaced by another, and logged.
    """

    def __init__(self, endpoint: Endpoint, rpc: Rpc, net: CircuitNet) -> None:
        self._endpoint = endpoint
        self._rpc = rpc
        self._net = net
        self._reservations = Reservations()
        self._changed = Signal()
        self._holding: dict[Contact, asyncio.Task[None]] = {}
        self._streams: dict[Contact, Stream] = {}
        self._taking = 0
        self._announced: tuple[Address, ...] = ()
        self._tasks = OwnedTasks()
        self.trouble = "nobody answers"
        """Reason of the last relay that failed."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when `addresses` has changed."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Return where we are reachable through relays, best first."""
        us = self._endpoint.peer_id
        return tuple(relay.address.through(us) for relay in self._reservations.held)

    @property
    def relays(self) -> tuple[Contact, ...]:
        """The relays that hold a reservation of ours, with their ids."""
        return tuple(
            Contact(self._streams[relay].peer, relay.address)
            for relay in self._reservations.held
            if relay in self._streams
        )

    def offer(self, relays: Iterable[Contact]) -> None:
        """Name relays to choose from."""
        self._reservations.offer(relays)
        self._changed.fire()

    def want(self, count: int) -> None:
        """Keep so many reservations from now on; 0 gives all back."""
        self._reservations.want(count, now_s())
        self._changed.fire()

    def withdraw(self, relay: Contact) -> None:
        """Use a relay no more."""
        self._reservations.withdraw(relay)
        self._changed.fire()

    async def __aenter__(self) -> Self:
        self._tasks.spawn(self._keep())
        return self

    async def close(self) -> None:
        """End its tasks."""
        await self._tasks.close()

    async def _keep(self) -> None:
        while True:
            self._act()
            await wait_until(self._changed, self._reservations.next_deadline_s())

    async def reachable(self) -> None:
        """Return when some relay holds a reservation of ours."""
        while not self._reservations.held:
            await self._changed.wait()

    def _act(self) -> None:
        for action in self._reservations.drain(now_s()):
            if isinstance(action, ReserveAt):
                self._holding[action.relay] = self._tasks.spawn(self._hold(action.relay))
            elif isinstance(action, RenewAt):
                self._tasks.spawn(self._renew(action.relay))
            elif isinstance(action, LeaveRelay) and action.relay in self._holding:
                self._holding.pop(action.relay).cancel()
        if self.addresses != self._announced:
            self._announced = self.addresses
            self.on_change()

    async def _hold(self, relay: Contact) -> None:
        """Hold one reservation until its stream ends."""
        retry_after_s = 0.0
        try:
            async with self._rpc.open_stream(relay, Reserve(), None) as stream:
                self._note_stream(relay, stream)
                while (message := await stream.receive()) is not None:
                    self._on_message(relay, message)
        except SwarmError as error:
            retry_after_s = error.retry_after_s if isinstance(error, Busy) else 0.0
            self.trouble = str(error)
            _log.info("relay %s: %s", relay.address, error)
        finally:
            self._streams.pop(relay, None)
            if self._holding.get(relay) is asyncio.current_task():
                del self._holding[relay]
                self._reservations.on_end(relay, now_s(), retry_after_s)
            self._changed.fire()

    def _note_stream(self, relay: Contact, stream: Stream) -> None:
        """Note who the relay is; what we had there at another of its addresses is replaced."""
        for other, known in list(self._streams.items()):
            if known.peer == stream.peer:
                self._reservations.withdraw(other)
        self._streams[relay] = stream

    def _on_message(self, relay: Contact, message: object) -> None:
        if isinstance(message, Reserved):
            self._reservations.on_confirmation(relay, message.lasts_ms / 1000, now_s())
            self._changed.fire()
        elif not isinstance(message, Incoming):
            raise BadMessage(f"{type(message).__name__} on a reservation's stream")
        elif self._taking < TAKING_MAX:
            self._taking += 1
            self._tasks.spawn(self._take(relay.address, message.ticket), self._on_take_end)

    async def _renew(self, relay: Contact) -> None:
        stream = self._streams.get(relay)
        if stream is None:
            return
        try:
            await stream.send(Reserve())
        except SwarmError as error:  # the task that reads the stream is told the same
            _log.debug("relay %s: %s", relay.address, error)

    async def _take(self, relay: Address, ticket: bytes) -> None:
        try:
            async with asyncio.timeout(TAKE_S):
                connection = await self._net.take(relay, ticket, self._endpoint.peer_id)
        except (SwarmError, TimeoutError) as error:
            _log.debug("a circuit at %s: %s", relay, error)
        else:
            self._endpoint.accept(connection)

    def _on_take_end(self) -> None:
        self._taking -= 1
