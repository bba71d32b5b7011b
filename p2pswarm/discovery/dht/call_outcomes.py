"""Calls to other peers: how long to wait for each, and what its outcome says of the peer.

Source:  RFC 6298, section 2 (srtt, rttvar, gains 1/8 and 1/4); Dean and Barroso, "The Tail
         at Scale" (2013), for hedged requests.
"""

import random
from collections import deque
from collections.abc import Callable
from enum import Enum, auto

from p2pswarm.base.errors import Late, NotServing, PathError, PeerError, SwarmError
from p2pswarm.base.estimates import RoundTrip, Window
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.recent_items import RecentItems
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.messages import Get, Identified
from p2pswarm.discovery.dht.partition_healing import PartitionHealing
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.discovery.dht.unverified_contacts import AddressChecks, DialBacks, UnverifiedContacts
from p2pswarm.net.cards.card import CardFlags
from p2pswarm.net.endpoint.link_table import ProvenAddress
from p2pswarm.net.os.addresses import believable
from p2pswarm.net.rpc.base import CardSource
from p2pswarm.net.wire.message import Message

PEERS_MAX = 4096  # peers whose round trips are remembered; the oldest is forgotten first
SAMPLES = 128  # first answers of peers, for the quantile below
OUTCOMES = 64  # recent calls, for the share of failures
OUTCOMES_LEAST = 16  # with fewer calls the share means nothing
HEDGE_QUANTILE = 0.9
HEDGE_FIRST_S = 0.25  # before the first sample: an intercontinental round trip
HEDGE_LEAST_S = 0.025  # a busy processor delays an answer this long; more requests delay it more
HEDGE_DEVIATIONS = 2.0  # mean deviations above the mean: about nine of ten normal round trips


class TimeoutEstimator:
    """Learns from the outcome of every call how long to wait for a peer, and how many to ask.

    Each call has two times. At the *deadline* we stop waiting. At the *hedge*, long before, nine
    of ten answers would have come, and another peer is asked as well. So a dead contact costs one
    slow round trip, not a timeout. A lookup that waited for every answer would take 5 s instead of
    250 ms.
    """

    def __init__(self, config: DhtConfig) -> None:
        self._config = config
        self._trips: RecentItems[bytes, RoundTrip] = RecentItems(PEERS_MAX)
        self._firsts = Window(SAMPLES)
        self._first_hedge_s = HEDGE_FIRST_S
        self._failures: deque[bool] = deque(maxlen=OUTCOMES)

    def on_answer(self, raw: bytes, rtt_s: float | None) -> None:
        """Note that a peer answered after `rtt_s`, None if that was not a round trip."""
        self._failures.append(False)
        if rtt_s is None:
            return
        trip = self._trips.get(raw)
        if trip is None:
            config, dial_s = self._config, self._config.deadline_dial_s
            trip = self._trips[raw] = RoundTrip(dial_s, config.deadline_least_s, dial_s)
            self._firsts.add(rtt_s)
            self._first_hedge_s = self._firsts.quantile(HEDGE_QUANTILE) or 0.0
        trip.sample(rtt_s)

    def on_failure(self) -> None:
        """Note that a call was not answered in time, or its link failed."""
        self._failures.append(True)

    @property
    def failure_share(self) -> float:
        """The share of recent calls that failed; 0 until OUTCOMES_LEAST are known."""
        count = len(self._failures)
        return sum(self._failures) / count if count >= OUTCOMES_LEAST else 0.0

    @property
    def alpha(self) -> int:
        """The number of prompt requests that a lookup may have under way."""
        lossy = self.failure_share > self._config.lossy_share
        return self._config.alpha_lossy if lossy else self._config.alpha

    def expected_s(self, raw: bytes) -> float:
        """The peer's smoothed round trip; a slow one if the peer never answered us."""
        trip = self._trips.get(raw)
        return self._first_hedge_s if trip is None or trip.srtt_s is None else trip.srtt_s

    def deadline_s(self, raw: bytes) -> float:
        """Return the time to wait for an answer."""
        trip = self._trips.get(raw)
        if trip is None:
            return self._config.deadline_dial_s
        return min(self._config.deadline_most_s, trip.deadline_s)

    def hedge_s(self, raw: bytes) -> float:
        """Return the time to wait before another peer is asked as well."""
        trip = self._trips.get(raw)
        if trip is None or trip.srtt_s is None:
            return max(HEDGE_LEAST_S, self._first_hedge_s)
        return max(HEDGE_LEAST_S, trip.srtt_s + HEDGE_DEVIATIONS * trip.rttvar_s)


class CallOutcome(Enum):
    """The outcome of a call."""

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
    """Notes the outcome of calls in the routing table and the round-trip times.

    A busy peer stays in the table. A peer that does not serve the DHT, or broke the protocol,
    leaves the table at once. A peer that does not answer leaves it after `strikes` failures in a
    row; `PartitionHealing` remembers it, and notes newcomers.

    A peer enters the table only at an address where we have dialled it ourselves. At the host from
    which its own link comes it is dialled back first (`DialBacks`). For another address that it
    claims there are narrower bounds (`AddressChecks`).
    """

    def __init__(
        self,
        table: Table,
        timeouts: TimeoutEstimator,
        reach: Callable[[Contact], ProvenAddress],
        cards: CardSource,
    ) -> None:
        """`reach`: what the links that are up show of a peer's address."""
        self._cards = cards
        self._table = table
        self.timeouts = timeouts
        self._reach = reach
        self.unverified = UnverifiedContacts(cards, self._at_home)
        self.healing = PartitionHealing(random.Random(table.own.raw))
        self._dial_backs = DialBacks()
        self._addresses = AddressChecks()
        self._checks: list[Contact] = []
        self._claims: list[Contact] = []
        self._checking: dict[PeerId, None] = {}
        """The peers that are being looked for where they claim to be."""

    def deadline_s(self, contact: Contact, request: Message) -> float:
        """Return the time that a call may take; longer if the peer may carry it on."""
        deadline_s = self.timeouts.deadline_s(raw_id(contact))
        return deadline_s + self._table.config.carry_s if _carried(request) else deadline_s

    def on_outcome(
        self, contact: Contact, request: Message, outcome: CallOutcome, begun_s: float, now_s: float
    ) -> None:
        """Record how a call that began at `begun_s` has ended."""
        raw = raw_id(contact)
        self._on_word(contact, outcome, now_s)
        match outcome:
            case CallOutcome.ANSWERED:
                self.timeouts.on_answer(raw, None if _carried(request) else now_s - begun_s)
                self.on_contact(contact, now_s)
            case CallOutcome.BUSY:
                self.on_contact(contact, now_s)
            case CallOutcome.LATE | CallOutcome.LOST:
                self.timeouts.on_failure()
                self._on_failure(raw, now_s)
            case _:  # the peer broke the protocol, or does not serve
                self._table.drop(raw)

    def _on_word(self, contact: Contact, outcome: CallOutcome, now_s: float) -> None:
        """Note whether the peer is where somebody has named it, if somebody has."""
        well = outcome not in (CallOutcome.LATE, CallOutcome.LOST, CallOutcome.BREACH)
        there = well or self._reach(contact) is ProvenAddress.DIALLED
        somebody = there or outcome is CallOutcome.BREACH
        self.unverified.on_outcome(contact, now_s, found=there, somebody=somebody)

    def _on_failure(self, raw: bytes, now_s: float) -> None:
        known = self._table.get(raw)
        self._table.on_failure(raw)
        if known is not None and self._table.get(raw) is None:
            self.healing.on_loss(known.contact, now_s)

    def _at_home(self, contact: Contact) -> bool:
        """Return whether a peer is in the table at this address."""
        known = self._table.get(raw_id(contact))
        return known is not None and known.contact.address == contact.address

    def on_request(self, peer: PeerId, now_s: float) -> None:
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
                if self.on_contact(contact, now_s):
                    return

    def on_contact(self, contact: Contact, now_s: float) -> bool:
        """Record that a server has reached us; where it can be dialled may be a mere claim.

        Returns whether it is known to be there, or is being looked for there.
        """
        if self._at_home(contact):
            self._found(contact, now_s)
            return True
        reach = self._reach(contact)
        if reach is ProvenAddress.DIALLED or self._dial_backs.found(contact, now_s):
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

    def _begin(self, contact: Contact, reach: ProvenAddress, now_s: float) -> bool:
        if reach is ProvenAddress.HOST:
            return self._dial_backs.begin(contact, now_s)
        return self._addresses.begin(contact.address, now_s)

    def _found(self, contact: Contact, now_s: float) -> None:
        raw = raw_id(contact)
        new = self._table.get(raw) is None
        check = self._table.on_contact(contact, now_s)
        if check is not None:
            self._checks.append(check)
        if new:
            self.healing.on_stranger(contact, now_s)
            if self._table.get(raw) is not None:
                self.healing.on_entry(contact, now_s)

    def claims(self) -> list[Contact]:
        """The contacts whose addresses to dial, since the last call; report with `on_check`."""
        claims, self._claims = self._claims, []
        return claims

    def on_check(self, claimed: Contact, reply: Message | None, now_s: float) -> None:
        """Record what answered `Identify` at a claimed address; None if nothing did."""
        if claimed.peer is not None:
            self._checking.pop(claimed.peer, None)
        confirmed = isinstance(reply, Identified) and reply.peer == raw_id(claimed)
        if not self._dial_backs.on_outcome(claimed, now_s, confirmed=confirmed):
            self._addresses.on_outcome(claimed.address, now_s, confirmed=confirmed)
        if confirmed:
            self._found(claimed, now_s)

    def checks(self) -> list[Contact]:
        """The contacts to ping, since the last call: a newcomer waits for each one's place."""
        checks, self._checks = self._checks, []
        return checks

    def on_breach(self, contact: Contact) -> None:
        """Record that a peer's reply did not fit its request."""
        self._table.drop(raw_id(contact))


def _carried(request: Message) -> bool:
    return isinstance(request, Get) and request.hops > 0


def raw_id(contact: Contact) -> bytes:
    """The id of a contact that a query asks; every such contact has one."""
    assert contact.peer is not None
    return contact.peer.raw
