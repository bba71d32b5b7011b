"""Gossip: one member's part in spreading a run's directory: what it asks, answers and refuses.

Its pump calls `poll` at each deadline, asks whom it names, and tells what came of that.

Units:   seconds on the caller's monotonic clock; `wall_ms` milliseconds since 1970.
Errors:  BadMessage for a peer that passes on what its maker did not sign; Busy for one that asks
         too often; Refused for one that may not be in the run.
Source:  docs/directory.md; Demers et al., "Epidemic Algorithms for Replicated Database
         Maintenance" (PODC 1987), for anti-entropy that pushes and pulls.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage, Busy, Refused
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.token_bucket import TokenBucket
from p2pswarm.discovery.gossip.directory import Directory, Taken, everybody
from p2pswarm.discovery.gossip.messages import (
    PREFIX_BYTES,
    AgedRecord,
    Compare,
    Compared,
    Deliver,
    Delivered,
    RunStanding,
)
from p2pswarm.discovery.gossip.own_record import OwnRecord
from p2pswarm.discovery.gossip.partners import Outcome, Partners
from p2pswarm.discovery.gossip.record import PeerRecord, RecordReader
from p2pswarm.net.cards.card import Card
from p2pswarm.net.wire.message import Message

ROUND_S = 1.0
JITTER = 0.2
ASKING_MAX = 3  # exchanges under way: one that nobody answers takes 3 s, and must not stop others
EACH_EVERY_S, EACH_BURST = 0.25, 8  # calls of one peer that are answered; an exchange takes two
ALL_EVERY_S, ALL_BURST = 1 / 16, 32  # of all peers: 8 exchanges a second, of 13 ms at most each
CALLERS_MAX = 256  # peers whose calls are counted; the one that called longest ago is forgotten
BUSY_S = 1.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """Compare directories with a member; tell with `answered`, and at the end with `ended`."""

    contact: Contact
    question: Compare


@dataclass(frozen=True, slots=True)
class GossipMember:
    """What makes one member's part this one."""

    run: bytes
    own: Contact
    admitted: Callable[[PeerId], bool] = everybody
    """Whether a peer may be in the run."""


class Gossip:
    """One member of one run."""

    def __init__(
        self,
        membership: GossipMember,
        own: OwnRecord,
        partners: Partners,
        reader: RecordReader,
        rng: random.Random,
    ) -> None:
        assert membership.own.peer is not None, "we know our own id"
        self.directory = Directory(rng, membership.admitted)
        self.partners = partners
        self._membership = membership
        self._me = membership.own.peer
        self._own = own
        self._reader = reader
        self._rng = rng
        self._round_s = -float("inf")
        self._asking = 0
        self._news = False
        self._callers: dict[PeerId, TokenBucket] = {}
        self._all = TokenBucket(ALL_EVERY_S, ALL_BURST)

    # What we say

    def stand(self, standing: RunStanding) -> None:
        """Say from now on what we are in one role."""
        self._own.stand(standing)

    def withdraw(self, role: int) -> None:
        """Have one role no longer."""
        self._own.withdraw(role)

    def farewell(self, card: Card, now_s: float, wall_ms: int) -> tuple[list[Contact], Deliver]:
        """Our last record, if we said anything, and to whom to tell it."""
        if not self._own.leave():
            return [], Deliver(self._membership.run, ())
        record = self._renew(card, now_s, wall_ms)
        told = Deliver(self._membership.run, (AgedRecord(record.signed, 0.0),))
        return self.partners.present, told

    def poll(self, card: Card, now_s: float, wall_ms: int) -> Exchange | None:
        """Do what is due; whom to ask now, if it is time for that."""
        if self.directory.on_deadline(now_s):
            self._news = True
        self._own.card_is(card)
        if self._own.next_deadline_s() <= now_s:
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
        return Exchange(contact, self.directory.question(self._membership.run))

    def next_deadline_s(self) -> float:
        """When to poll again."""
        return min(self._round_s, self.directory.next_deadline_s(), self._own.next_deadline_s())

    def _renew(self, card: Card, now_s: float, wall_ms: int) -> PeerRecord:
        record = self._own.sign(card, len(self.directory), now_s, wall_ms)
        self.directory.take(record, 0.0, now_s)
        self.directory.met(self._me)
        return record

    # What others say

    def answered(self, reply: Message, now_s: float) -> Deliver | None:
        """Take an answer; what to send back. Raises BadMessage for what is none."""
        if not isinstance(reply, Compared):
            raise BadMessage(f"{type(reply).__name__} does not answer Compare")
        self._take(reply.records, now_s)
        wanted = reply.wanted
        prefixes = [wanted[at : at + PREFIX_BYTES] for at in range(0, len(wanted), PREFIX_BYTES)]
        records = self.directory.records(prefixes, now_s)
        return Deliver(self._membership.run, records) if records else None

    def ended(self, exchange: Exchange, outcome: Outcome, now_s: float) -> None:
        """An exchange of ours is over."""
        self._asking -= 1
        self.partners.ended(exchange.contact, outcome, self.directory, now_s)

    def compare(self, peer: PeerId, question: Compare, now_s: float) -> Compared:
        """Answer a member that compares its directory with ours."""
        self._let_in(peer, now_s)
        return self.directory.answer(question, now_s)

    def deliver(self, peer: PeerId, told: Deliver, now_s: float) -> Delivered:
        """Take records that a member brings."""
        self._let_in(peer, now_s)
        self._take(told.records, now_s)
        return Delivered()

    def news(self) -> bool:
        """Whether the directory has changed since the last call."""
        news, self._news = self._news, False
        return news

    def _take(self, records: Iterable[AgedRecord], now_s: float) -> None:
        for aged in records:
            record = self._reader.read(aged.record)
            if record.run != self._membership.run:
                raise BadMessage("a directory record of another run")
            if record.peer == self._me:
                self._own.heard_of(record.version, now_s)
            elif self.directory.take(record, aged.age_s, now_s) is Taken.NEWS:
                self._news = True

    def _let_in(self, peer: PeerId, now_s: float) -> None:
        if not self._membership.admitted(peer):
            raise Refused("only members of the run may ask this")
        allowance = self._callers.pop(peer, None) or TokenBucket(EACH_EVERY_S, EACH_BURST)
        self._callers[peer] = allowance
        if len(self._callers) > CALLERS_MAX:
            del self._callers[next(iter(self._callers))]
        if not (self._all.left(now_s) and allowance.take(now_s)):
            raise Busy("the directory is asked too often", BUSY_S)
        self._all.take(now_s)
