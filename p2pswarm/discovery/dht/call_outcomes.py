"""What the outcome of a call says about the peer that was called.

Every call updates the routing table and the round-trip times. A busy peer stays in the
table. A peer that does not serve the DHT, or broke the protocol, leaves the table at once.
A peer that does not answer leaves it after `strikes` failures in a row.

Who has left it for that is remembered, and so is who comes: see `reunion.py`.

A peer enters the table only at an address where we have dialled it ourselves. At the host from
which its own link comes it is dialled back first: see `dial_backs.py`. For another address that it
claims there are narrower bounds: see `address_checks.py`.

Units:   seconds on the caller's monotonic clock.
Errors:  none.
"""

import random
from collections.abc import Callable
from enum import Enum, auto

from p2pswarm.base.errors import Late, NotServing, PathError, PeerError, SwarmError
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.discovery.dht.address_checks import AddressChecks
from p2pswarm.discovery.dht.dial_backs import DialBacks
from p2pswarm.discovery.dht.hearsay import Hearsay
from p2pswarm.discovery.dht.messages import Get, Identified
from p2pswarm.discovery.dht.reunion import Reunion
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.discovery.dht.timeouts import TimeoutEstimator
from p2pswarm.net.cards.card import CardFlags
from p2pswarm.net.endpoint.link_table import Reach
from p2pswarm.net.os.addresses import believable
from p2pswarm.net.rpc.base import CardSource
from p2pswarm.net.wire.message import Message


class CallOutcome(Enum):
    """How a call ended."""

    ANSWERED = auto()
    BUSY = auto()
    """The peer works but does not answer now."""
    LATE = auto()
    """No answer came by the deadline."""
    LOST = auto()
    """The peer could not be reached, or its link ended."""
    BREACH = auto()
    """The peer broke the protocol."""
    NOT_SERVING = auto()
    """The peer works but does not serve the DHT."""


def outcome_of(error: SwarmError) -> CallOutcome:
    """The outcome of a call that ended with an error."""
    match error:
        case PathError():
            return CallOutcome.LOST
        case Late():
            return CallOutcome.LATE
        case PeerError():
            return CallOutcome.BREACH
        case NotServing():
            return CallOutcome.NOT_SERVING
        case _:
            return CallOutcome.BUSY


class CallRecorder:
    """Notes the outcome of calls in the routing table and the round-trip times."""

    def __init__(
        self,
        table: Table,
        timeouts: TimeoutEstimator,
        reach: Callable[[Contact], Reach],
        cards: CardSource,
    ) -> None:
        """`reach`: what the links that are up show of a peer's address."""
        self._cards = cards
        self._table = table
        self.timeouts = timeouts
        self._reach = reach
        self.hearsay = Hearsay(cards, self._at_home)
        self.reunion = Reunion(random.Random(table.own.raw))
        self._dial_backs = DialBacks()
        self._addresses = AddressChecks()
        self._checks: list[Contact] = []
        self._claims: list[Contact] = []
        self._checking: dict[PeerId, None] = {}
        """The peers that are being looked for where they claim to be."""

    def deadline_s(self, contact: Contact, request: Message) -> float:
        """How long a call may take, in seconds; longer if the peer may carry it on."""
        deadline_s = self.timeouts.deadline_s(raw_id(contact))
        return deadline_s + self._table.config.carry_s if _carried(request) else deadline_s

    def ended(
        self, contact: Contact, request: Message, outcome: CallOutcome, begun_s: float, now_s: float
    ) -> None:
        """Record how a call that began at `begun_s` has ended."""
        raw = raw_id(contact)
        self._heard_of(contact, outcome, now_s)
        match outcome:
            case CallOutcome.ANSWERED:
                self.timeouts.answered(raw, None if _carried(request) else now_s - begun_s)
                self.met(contact, now_s)
            case CallOutcome.BUSY:
                self.met(contact, now_s)
            case CallOutcome.LATE | CallOutcome.LOST:
                self.timeouts.failed()
                self._failed(raw, now_s)
            case _:  # the peer broke the protocol, or does not serve
                self._table.drop(raw)

    def _heard_of(self, contact: Contact, outcome: CallOutcome, now_s: float) -> None:
        """Note whether the peer is where somebody has named it, if somebody has."""
        well = outcome not in (CallOutcome.LATE, CallOutcome.LOST, CallOutcome.BREACH)
        there = well or self._reach(contact) is Reach.DIALLED
        somebody = there or outcome is CallOutcome.BREACH
        self.hearsay.ended(contact, now_s, found=there, somebody=somebody)

    def _failed(self, raw: bytes, now_s: float) -> None:
        known = self._table.get(raw)
        self._table.failed(raw)
        if known is not None and self._table.get(raw) is None:
            self.reunion.lost(known.contact, now_s)

    def _at_home(self, contact: Contact) -> bool:
        """Whether a peer is in the table at this address."""
        known = self._table.get(raw_id(contact))
        return known is not None and known.contact.address == contact.address

    def asked_by(self, peer: PeerId, now_s: float) -> None:
        """Record that a peer has asked us something: its card says where it is, or nothing.

        Of several addresses the one where its link comes from is the first to be dialled. While one
        is being dialled, no other one is.
        """
        card = self._cards.of(peer)
        if card is None or card.flags & CardFlags.CLIENT or peer == self._table.own:
            return
        said = [Contact(peer, address) for address in card.addresses]
        known = self._table.get(peer.raw)
        if known is not None and known.contact in said:
            self._found(known.contact, now_s)
        elif peer not in self._checking:
            for contact in sorted(said, key=self._reach, reverse=True):
                if self.met(contact, now_s):
                    return

    def met(self, contact: Contact, now_s: float) -> bool:
        """Record that a server has reached us; where it can be dialled may be a mere claim.

        Returns whether it is known to be there, or is being looked for there.
        """
        if self._at_home(contact):
            self._found(contact, now_s)
            return True
        reach = self._reach(contact)
        if reach is Reach.DIALLED or self._dial_backs.found(contact, now_s):
            self._found(contact, now_s)
            return True
        if (
            contact.peer is None
            or contact.peer == self._table.own
            or contact.peer in self._checking
            or not believable(contact.address, self._table.config.least_scope)
            or not self._begin(contact, reach, now_s)
        ):
            return False
        self._checking[contact.peer] = None
        self._claims.append(contact)
        return True

    def _begin(self, contact: Contact, reach: Reach, now_s: float) -> bool:
        """Whether to dial a claimed address now."""
        if reach is Reach.HOST:
            return self._dial_backs.begin(contact, now_s)
        return self._addresses.begin(contact.address, now_s)

    def _found(self, contact: Contact, now_s: float) -> None:
        raw = raw_id(contact)
        new = self._table.get(raw) is None
        check = self._table.heard(contact, now_s)
        if check is not None:
            self._checks.append(check)
        if new:
            self.reunion.stranger(contact, now_s)
            if self._table.get(raw) is not None:
                self.reunion.came(contact, now_s)

    def claims(self) -> list[Contact]:
        """The contacts whose addresses to dial, since the last call; report with `checked`."""
        claims, self._claims = self._claims, []
        return claims

    def checked(self, claimed: Contact, reply: Message | None, now_s: float) -> None:
        """Record what answered `Identify` at a claimed address; None if nothing did."""
        if claimed.peer is not None:
            self._checking.pop(claimed.peer, None)
        confirmed = isinstance(reply, Identified) and reply.peer == raw_id(claimed)
        if not self._dial_backs.ended(claimed, now_s, confirmed=confirmed):
            self._addresses.ended(claimed.address, now_s, confirmed=confirmed)
        if confirmed:
            self._found(claimed, now_s)

    def checks(self) -> list[Contact]:
        """The contacts to ping, since the last call: a newcomer waits for each one's place."""
        checks, self._checks = self._checks, []
        return checks

    def misbehaved(self, contact: Contact) -> None:
        """Record that a peer's reply did not fit its request."""
        self._table.drop(raw_id(contact))


def _carried(request: Message) -> bool:
    return isinstance(request, Get) and request.hops > 0


def raw_id(contact: Contact) -> bytes:
    """The id of a contact that a query asks; every such contact has one."""
    assert contact.peer is not None
    return contact.peer.raw
