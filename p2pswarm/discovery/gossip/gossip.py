"""Gossip: one member's part in spreading a run's directory: whom it asks, what it answers.

Units:   seconds on the caller's monotonic clock; `wall_ms` milliseconds since 1970.
Errors:  BadMessage for a peer that passes on what its maker did not sign; Busy for one that asks
         too often; Refused for one that may not be in the run.
Source:  docs/directory.md; Demers et al., "Epidemic Algorithms for Replicated Database
         Maintenance" (PODC 1987), for anti-entropy that pushes and pulls.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from p2pswarm.base.errors import BadMessage, Busy, Refused
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.recent_items import RecentItems
from p2pswarm.base.token_bucket import TokenBucket
from p2pswarm.discovery.gossip.directory import Acceptance, Directory, everybody
from p2pswarm.discovery.gossip.messages import (
    PREFIX_BYTES,
    AgedRecord,
    Compare,
    Compared,
    Deliver,
    Delivered,
)
from p2pswarm.discovery.gossip.record import OwnRecord, PeerRecord, RecordReader, contact_of
from p2pswarm.net.cards.card import Card
from p2pswarm.net.os.addresses import Scope
from p2pswarm.net.wire.message import Message

PARTNERS_MAX = 8  # links that gossip keeps up
ENTRIES_MAX = 64
PICKS = 8  # tries to find a random member that may be asked
AVOIDED_S = 60.0  # a member that did not answer
REFUSED_S = 3.0  # one that is busy, as the trainer is when everybody comes at once
HOST_AVOIDED_S = 600.0  # where somebody whom we have never met was not found
AVOIDED_MAX = 4096  # hosts and members; about 1 MB


class Outcome(Enum):
    """The outcome of an exchange."""

    ANSWERED = auto()
    REFUSED = auto()
    """It is there, and is busy or not in the run."""
    SILENT = auto()
    """It was not found, did not answer, or broke the protocol."""


class _RoundKind(Enum):
    """The kind of member that a round asks."""

    MISSING = auto()
    ANYBODY = auto()
    PARTNER = auto()


_MOST_ROUNDS = (_RoundKind.PARTNER, _RoundKind.ANYBODY, _RoundKind.PARTNER)
_ROUNDS = (_RoundKind.MISSING, *_MOST_ROUNDS, *_MOST_ROUNDS, _RoundKind.PARTNER)


class Partners:
    """The members that one member asks next.

    Mostly it is somebody to whom a link is up already; sometimes a random member, so that nobody
    can be surrounded and news take every way; and sometimes somebody who is missing, so that what
    was cut in two becomes one again.

    Source: docs/directory.md, "How it spreads"; RFC 9000, 21.5, for requests that a peer is made
    to send to others.
    """

    def __init__(self, own: Contact, least: Scope, rng: random.Random) -> None:
        """`least`: the smallest scope of addresses that are believed."""
        self._own = own
        self._least = least
        self._rng = rng
        self._round = 0
        self._latest = False
        """True if the one that was lost last is asked next, else a random one."""
        self._partners: RecentItems[Contact, None] = RecentItems(PARTNERS_MAX)
        """The members that have answered us; the latest last."""
        self._entries: RecentItems[PeerId, Contact] = RecentItems(ENTRIES_MAX)
        self._avoided_s: RecentItems[PeerId | str, float] = RecentItems(AVOIDED_MAX)
        """Time until which a member or a host is left alone."""

    def enter_through(self, contacts: Iterable[Contact]) -> None:
        """These are in the run, as the DHT or the user says."""
        for contact in contacts:
            if contact.peer is not None and contact.peer != self._own.peer:
                self._entries[contact.peer] = contact

    @property
    def present(self) -> list[Contact]:
        """The members that have answered us lately; the latest last."""
        return list(self._partners)

    def next(self, directory: Directory, now_s: float) -> Contact | None:
        """Return the member to ask now; None if nobody is known."""
        kind = _ROUNDS[self._round % len(_ROUNDS)]
        self._round += 1
        if kind is _RoundKind.PARTNER and self._partners:
            return self._rng.choice(list(self._partners))
        anybody = self._anybody(directory, now_s)
        if anybody is None or kind is _RoundKind.MISSING:
            return self._missing(directory, now_s) or anybody or self._entry()
        return anybody

    def _entry(self) -> Contact | None:
        """An entry point, whatever came of it before: nobody else can be asked."""
        return self._rng.choice(list(self._entries.values())) if self._entries else None

    def on_outcome(
        self, contact: Contact, outcome: Outcome, directory: Directory, now_s: float
    ) -> None:
        """Note how an exchange that we began has ended."""
        assert contact.peer is not None, "whoever is asked has an id"
        self._partners.pop(contact, None)
        if outcome is not Outcome.SILENT:
            directory.on_contact(contact.peer)
            self._avoided_s.pop(contact.address.host, None)
        match outcome:
            case Outcome.ANSWERED:
                self._avoided_s.pop(contact.peer, None)
                self._partners[contact] = None
            case Outcome.REFUSED:
                self._avoided_s[contact.peer] = now_s + REFUSED_S
            case Outcome.SILENT:
                self._avoided_s[contact.peer] = now_s + AVOIDED_S
                if not directory.reached(contact.peer) and contact.peer not in self._entries:
                    self._avoided_s[contact.address.host] = now_s + HOST_AVOIDED_S

    def contact(self, record: PeerRecord) -> Contact | None:
        """Return where a member can be dialled, as far as it is believed."""
        return contact_of(record, self._least, self._own.address)

    def _anybody(self, directory: Directory, now_s: float) -> Contact | None:
        for _ in range(PICKS):
            record = directory.pick()
            if record is None:
                return None
            contact = self._askable(record, directory, now_s)
            if contact is not None and not self._avoids(record.peer, now_s):
                return contact
        return None

    def _missing(self, directory: Directory, now_s: float) -> Contact | None:
        """A member whose record has died, or an entry point that has none."""
        entries = [c for peer, c in self._entries.items() if directory.get(peer) is None]
        lost = [
            contact
            for record in directory.missing()
            if record.peer not in self._entries
            and (contact := self._askable(record, directory, now_s)) is not None
        ]
        missing = lost + entries  # somebody told us of entry points, so they count as the latest
        if not missing:
            return None
        self._latest = not self._latest
        return missing[-1] if self._latest else self._rng.choice(missing)

    def _askable(self, record: PeerRecord, directory: Directory, now_s: float) -> Contact | None:
        """Return where to ask a peer; None if it cannot be dialled, or its host is left alone."""
        if record.peer == self._own.peer or record.left:
            return None
        contact = self.contact(record)
        if contact is None or directory.reached(record.peer):
            return contact
        return None if self._avoids(contact.address.host, now_s) else contact

    def _avoids(self, whom: PeerId | str, now_s: float) -> bool:
        return self._avoided_s.get(whom, 0.0) > now_s


ROUND_S = 1.0
JITTER = 0.2
ASKING_MAX = 3  # exchanges under way: one that nobody answers takes 3 s, and must not stop others
EACH_EVERY_S, EACH_BURST = 0.25, 8  # calls of one peer that are answered; an exchange takes two
ALL_EVERY_S, ALL_BURST = 1 / 16, 32  # of all peers: 8 exchanges a second, of 13 ms at most each
CALLERS_MAX = 256  # peers whose calls are counted; the one that called longest ago is forgotten
BUSY_S = 1.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """Compare directories with a member; report to `on_answer`, and at the end to `on_outcome`."""

    contact: Contact
    question: Compare


class Gossip:
    """One member's part in spreading a run's directory: what it asks, answers and refuses.

    Its pump calls `drain` at each deadline, asks whom it names, and tells what came of that.
    """

    def __init__(
        self,
        own: OwnRecord,
        partners: Partners,
        reader: RecordReader,
        rng: random.Random,
        admitted: Callable[[PeerId], bool] = everybody,
    ) -> None:
        """`admitted`: whether a peer may be in the run."""
        self.directory = Directory(rng, admitted)
        self.partners = partners
        self.own = own
        self._admitted = admitted
        self._reader = reader
        self._rng = rng
        self._round_s = -float("inf")
        self._asking = 0
        self._news = False
        self._callers: RecentItems[PeerId, TokenBucket] = RecentItems(CALLERS_MAX)
        self._all = TokenBucket(ALL_EVERY_S, ALL_BURST)

    # What we say

    def farewell(self, card: Card, now_s: float, wall_ms: int) -> tuple[list[Contact], Deliver]:
        """Our last record, if we said anything, and to whom to tell it."""
        if not self.own.leave():
            return [], Deliver(self.own.run, ())
        record = self._renew(card, now_s, wall_ms)
        told = Deliver(self.own.run, (AgedRecord(record.signed, 0.0),))
        return self.partners.present, told

    def drain(self, card: Card, now_s: float, wall_ms: int) -> Exchange | None:
        """Do what is due; whom to ask now, if it is time for that."""
        if self.directory.on_deadline(now_s):
            self._news = True
        self.own.on_card(card)
        if self.own.next_deadline_s() <= now_s:
            self._renew(card, now_s, wall_ms)
        if now_s < self._round_s:
            return None
        self._round_s = now_s + ROUND_S * self._rng.uniform(1 - JITTER, 1 + JITTER)
        if self._asking >= ASKING_MAX:
            return None
        contact = self.partners.next(self.directory, now_s)
        if contact is None:
            return None
        self._asking += 1
        return Exchange(contact, self.directory.question(self.own.run))

    def next_deadline_s(self) -> float:
        """Return when to poll again."""
        return min(self._round_s, self.directory.next_deadline_s(), self.own.next_deadline_s())

    def _renew(self, card: Card, now_s: float, wall_ms: int) -> PeerRecord:
        record = self.own.sign(card, len(self.directory), now_s, wall_ms)
        self.directory.take(record, 0.0, now_s)
        self.directory.on_contact(self.own.peer)
        return record

    # What others say

    def on_answer(self, reply: Message, now_s: float) -> Deliver | None:
        """Take an answer; what to send back. Raises BadMessage for what is none."""
        if not isinstance(reply, Compared):
            raise BadMessage(f"{type(reply).__name__} does not answer Compare")
        self._take(reply.records, now_s)
        wanted = reply.wanted
        prefixes = [wanted[at : at + PREFIX_BYTES] for at in range(0, len(wanted), PREFIX_BYTES)]
        records = self.directory.records(prefixes, now_s)
        return Deliver(self.own.run, records) if records else None

    def on_outcome(self, exchange: Exchange, outcome: Outcome, now_s: float) -> None:
        """An exchange of ours is over."""
        self._asking -= 1
        self.partners.on_outcome(exchange.contact, outcome, self.directory, now_s)

    def on_compare(self, peer: PeerId, question: Compare, now_s: float) -> Compared:
        """Answer a member that compares its directory with ours."""
        self._let_in(peer, now_s)
        return self.directory.answer(question, now_s)

    def on_deliver(self, peer: PeerId, told: Deliver, now_s: float) -> Delivered:
        """Take records that a member brings."""
        self._let_in(peer, now_s)
        self._take(told.records, now_s)
        return Delivered()

    def take_change(self) -> bool:
        """Return whether the directory has changed since the last call."""
        news, self._news = self._news, False
        return news

    def _take(self, records: Iterable[AgedRecord], now_s: float) -> None:
        for aged in records:
            record = self._reader.read(aged.record)
            if record.run != self.own.run:
                raise BadMessage("a directory record of another run")
            if record.peer == self.own.peer:
                self.own.on_version(record.version, now_s)
            elif self.directory.take(record, aged.age_s, now_s) is Acceptance.NEWS:
                self._news = True

    def _let_in(self, peer: PeerId, now_s: float) -> None:
        if not self._admitted(peer):
            raise Refused("only members of the run may ask this")
        allowance = self._callers.get(peer) or TokenBucket(EACH_EVERY_S, EACH_BURST)
        self._callers[peer] = allowance
        if not (self._all.left(now_s) and allowance.take(now_s)):
            raise Busy("the directory is asked too often", BUSY_S)
        self._all.take(now_s)
