"""Lookup: the iterative lookup, which decides which peer to ask next and when to stop; its queries.

Source:  Maymounkov and Mazieres, "Kademlia" (2002), 2.3; rust-libp2p's closest-peers query for
         the form; go-libp2p-kad-dht for stopping after the `beta` closest.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Contact
from p2pswarm.discovery.dht.call_outcomes import TimeoutEstimator, raw_id
from p2pswarm.discovery.dht.crowding import CROWDED, Crowd, is_crowded, is_dense
from p2pswarm.discovery.dht.messages import Find, Found
from p2pswarm.discovery.dht.unverified_contacts import UnverifiedContacts, Word, teller_of
from p2pswarm.net.os.addresses import Scope, believable, expected_of
from p2pswarm.net.wire.message import Message

CANDIDATES_MAX = 256  # remembered; the farthest unasked ones are forgotten first
ASKS_MAX = 96  # requests of one lookup: four times what the largest honest one makes
CLAIMS_MAX = 3  # addresses of one peer in one lookup, each from another network of tellers
CREDIT = 2  # asks on one network's word of which none was answered; each answer allows two more
BUSY = 3  # with fewer prompt requests than this under way, somebody without credit is asked


class CandidateState(Enum):
    """The state of a contact in the lookup."""

    NEW = auto()
    ASKED = auto()
    SLOW = auto()
    """It was asked, and is slower than nine of ten answers."""
    ANSWERED = auto()
    FAILED = auto()
    IGNORED = auto()
    """It was not asked, because who named it is not believed."""


GONE = (CandidateState.FAILED, CandidateState.IGNORED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions:
    """The limits of one lookup."""

    width: int
    """Only this many of the closest contacts that have not failed are asked (k)."""
    settle: int
    """The lookup is over when this many of the closest have answered."""
    patience_s: float
    """The lookup is over after this long in any case."""
    first: int = CANDIDATES_MAX
    """The number of contacts to ask before one has answered, failed or is late."""
    asks: int = ASKS_MAX
    """The most requests in all."""
    least_scope: Scope = Scope.PRIVATE
    """Contacts whose addresses have a smaller scope are not asked."""
    choice: int = 1
    """The next contact is the one with the shortest round trip among this many closest."""
    size: float = 0.0
    """About how many servers there are, to see a crowd around the target; 0 looks for none."""
    closed: bool = False
    """True if only the contacts that it begins with are asked, not those that these name."""
    shunned: Crowd | None = None
    """No peer of this crowd is asked."""


@dataclass(slots=True, eq=False)
class _Candidate:
    """A contact and its state."""

    contact: Contact
    raw: bytes
    distance: int
    teller: str
    """The network that named the contact; empty if its word needs no bound."""
    state: CandidateState = CandidateState.NEW
    slow_at_s: float = 0.0
    _claims: int = 1
    _others: list[tuple[Contact, str]] = field(default_factory=list)

    def also(self, contact: Contact, teller: str) -> None:
        """Note what another teller says of the same peer."""
        if self._claims >= CLAIMS_MAX or (teller and teller == self.teller):
            return
        failed = self.state is CandidateState.FAILED
        if contact.address == self.contact.address and (failed or not teller):
            return  # nothing new
        self._claims += 1
        self._others.append((contact, teller))
        if self.state in GONE:
            self.give_up(self.state)

    def give_up(self, state: CandidateState) -> None:
        """Go on with what another teller says; else the state is `state`."""
        tried = self.contact.address
        self.state = state
        while self._others:
            contact, teller = self._others.pop(0)
            if state is CandidateState.IGNORED or contact.address != tried:
                self.contact, self.teller, self.state = contact, teller, CandidateState.NEW
                return


class Lookup:
    """Finds the peers closest to `target`.

    It keeps the contacts that it has learned, closest first, and asks the closest ones that it has
    not asked yet. Two rules make it fast when many contacts are dead:
    * it is over when the `settle` closest have answered, even if others have not;
    * when a contact is slower than nine of ten, another one is asked in its place. A late answer
      still counts.

    A peer with a public address is not believed private ones: see `net/os/addresses.py`. Whom
    others name is dialled as far as they are believed: see `unverified_contacts.py`. A liar could
    name a peer's id with a wrong address, to hide it; so a few addresses of one peer are tried, if
    different tellers name them.

    At most `alpha` requests are under way that are not late, and at most 2 * `alpha` in all. A
    useless answer only adds no contacts.
    """

    def __init__(
        self,
        target: bytes,
        own: bytes,
        options: LookupOptions,
        timeouts: TimeoutEstimator,
        now_s: float,
        unverified: UnverifiedContacts,
    ) -> None:
        """`unverified`: what came of earlier lookups."""
        self.target = target
        self.finished = False
        self.crowded = False
        """True if it ended because the peers that answered stand too close to the target."""
        self.asked = 0
        """The number of requests so far."""
        self._number = int.from_bytes(target)
        self._own = own
        self._options = options
        self._timeouts = timeouts
        self.unverified = unverified
        self._candidates: list[_Candidate] = []
        self._distances: list[int] = []
        self._by_peer: dict[bytes, _Candidate] = {}
        self._prompt: dict[bytes, _Candidate] = {}
        self._slow = 0
        self._answered = 0
        self._credit: defaultdict[str, int] = defaultdict(lambda: CREDIT)
        """The number that may still be asked on the word of each network."""
        self._proven: set[str] = set()
        """The networks that have named somebody who answered."""
        self._end_s = now_s + options.patience_s

    def on_contacts(self, contacts: Iterable[Contact], teller: Contact | None = None) -> None:
        """Add contacts of peers that may be close, as `teller` named them; None: our table."""
        if self._options.closed and teller is not None:
            return
        least = expected_of(teller.address.host) if teller else Scope.PRIVATE
        public = Scope.PUBLIC in (least, self._options.least_scope)
        for contact in contacts:
            peer = contact.peer
            if peer is None or peer.raw == self._own or self.shuns(contact):
                continue
            if public and not believable(contact.address, Scope.PUBLIC):
                continue
            known = self._by_peer.get(peer.raw)
            if known is not None:
                known.also(contact, teller_of(contact, teller))
                continue
            distance = int.from_bytes(peer.raw) ^ self._number
            at = bisect(self._distances, distance)
            if at < CANDIDATES_MAX:
                named_by = teller_of(contact, teller)
                candidate = _Candidate(contact, peer.raw, distance, named_by)
                self._distances.insert(at, distance)
                self._candidates.insert(at, candidate)
                self._by_peer[peer.raw] = candidate
        if len(self._candidates) > CANDIDATES_MAX:
            self._forget_farthest()

    def shuns(self, contact: Contact) -> bool:
        """Return whether a contact stands where the crowd stands that this lookup goes round."""
        crowd, peer = self._options.shunned, contact.peer
        return crowd is not None and peer is not None and crowd.holds(peer)

    def _forget_farthest(self) -> None:
        for candidate in self._candidates[CANDIDATES_MAX:]:
            if candidate.state is CandidateState.NEW:
                del self._by_peer[candidate.raw]
        self._candidates = [each for each in self._candidates if each.raw in self._by_peer]
        self._distances = [each.distance for each in self._candidates]

    def drain(self, now_s: float) -> list[Contact]:
        """The contacts to ask now; report each outcome with `on_response` or `on_failure`."""
        asks: list[Contact] = []
        alpha = self._timeouts.alpha
        if not self.resolved:
            alpha = min(alpha, self._options.first)
        while not self.finished and self._may_ask(alpha) and (candidate := self._next(now_s)):
            self.unverified.begin(candidate.contact, candidate.teller, now_s)
            self._credit[candidate.teller] -= 1
            candidate.state = CandidateState.ASKED
            candidate.slow_at_s = now_s + self._timeouts.hedge_s(candidate.raw)
            self._prompt[candidate.raw] = candidate
            self.asked += 1
            asks.append(candidate.contact)
        if not self._prompt and not self._slow:
            self.finished = True  # no peer is left to ask, and no answer can come
        return asks

    @property
    def resolved(self) -> int:
        """The number of asked peers that have answered, failed, or are late."""
        return self.asked - len(self._prompt)

    def _may_ask(self, alpha: int) -> bool:
        prompt = len(self._prompt)
        return (
            prompt < alpha and prompt + self._slow < 2 * alpha and self.asked < self._options.asks
        )

    def _believed(self, candidate: _Candidate, now_s: float) -> bool:
        """Return whether a candidate is to be asked now; what else is said of it may be."""
        while candidate.state is CandidateState.NEW:
            word = self.unverified.word(candidate.contact, candidate.teller, now_s)
            if word is Word.DIAL:
                return True
            if word is Word.WAIT and (self._prompt or self._slow):
                return False
            candidate.give_up(CandidateState.IGNORED)
        return False

    def _next(self, now_s: float) -> _Candidate | None:
        """The best contact to ask next, among the `width` closest that have not failed."""
        seen = 0
        choice: list[_Candidate] = []
        spare: _Candidate | None = None
        for candidate in self._candidates:
            if candidate.state is CandidateState.NEW:
                if candidate.teller and not self._believed(candidate, now_s):
                    continue
                if candidate.teller and self._credit[candidate.teller] <= 0:
                    spare = spare or candidate
                    continue
                choice.append(candidate)
                if len(choice) >= self._options.choice:
                    break
            elif candidate.state not in GONE and candidate.state is not CandidateState.SLOW:
                seen += 1
                if seen >= self._options.width:
                    break
        if len(choice) > 1:
            return min(choice, key=self._expected_s)
        if not choice and len(self._prompt) < BUSY:
            return spare
        return choice[0] if choice else None

    def _expected_s(self, candidate: _Candidate) -> tuple[float, int]:
        return self._timeouts.expected_s(candidate.raw), candidate.distance

    def on_response(self, raw: bytes, closer: Iterable[Contact]) -> None:
        """An asked peer has answered with contacts that may be closer."""
        self._close(raw, CandidateState.ANSWERED)
        self._answered += 1
        teller = self._by_peer[raw].teller
        self._credit[teller] += 2
        self._proven.add(teller)
        self.on_contacts(closer, self._by_peer[raw].contact)
        self._check_settled()

    def on_failure(self, raw: bytes) -> None:
        """An asked peer did not answer, or broke the protocol."""
        self._close(raw, CandidateState.FAILED)
        self._by_peer[raw].give_up(CandidateState.FAILED)
        self._check_settled()

    def _close(self, raw: bytes, state: CandidateState) -> None:
        candidate = self._by_peer[raw]
        if self._prompt.pop(raw, None) is None:
            self._slow -= 1
        candidate.state = state

    def stop(self) -> None:
        """Stop the lookup: the caller has found what it needs."""
        self.finished = True

    def next_deadline_s(self) -> float | None:
        """The time to call `on_deadline`; None once the lookup has finished."""
        if self.finished:
            return None
        slow_s = [each.slow_at_s for each in self._prompt.values()]
        return min(slow_s, default=self._end_s)

    def on_deadline(self, now_s: float) -> None:
        """Mark the peers that are late, and end the lookup when its time is over."""
        for raw, candidate in tuple(self._prompt.items()):
            if candidate.slow_at_s <= now_s:
                candidate.state = CandidateState.SLOW
                del self._prompt[raw]
                self._slow += 1
        self._check_settled()
        if now_s >= self._end_s:
            self.finished = True

    def _check_settled(self) -> None:
        """Finish if the `settle` closest have answered, or stand too close together."""
        settle, size = self._options.settle, self._options.size
        if size and self._see_crowd(size):
            return
        answered: list[int] = []
        for candidate in self._candidates:
            if candidate.state is CandidateState.ANSWERED:
                answered.append(candidate.distance)
                if size and len(answered) == settle and is_dense(answered, size):
                    settle = self._options.width
                if len(answered) >= settle:
                    self.finished = True
                    return
            elif self._awaited(candidate):
                return

    def _awaited(self, candidate: _Candidate) -> bool:
        """Return whether a candidate may still answer, so that farther ones do not decide.

        Whom a network names of whose names nobody has answered yet is asked, and not waited for.
        """
        if candidate.state is CandidateState.NEW:
            teller = candidate.teller
            return not teller or teller in self._proven or self._credit[teller] > 0
        return candidate.state is CandidateState.ASKED

    def _see_crowd(self, size: float) -> bool:
        """Only peers that answered count: nobody sees a crowd of ids that a liar has made up."""
        if self._answered < min(CROWDED):
            return False
        if is_crowded([each.distance for each in self._answerers()], size):
            self.crowded = self.finished = True
        return self.crowded

    def closest(self, count: int) -> list[Contact]:
        """The closest peers that have not failed, closest first; late ones come last.

        Those whom nobody else than unproven networks name are left out: they may be invented.
        """
        prompt = [
            c for c in self._candidates if c.state is CandidateState.ANSWERED or self._awaited(c)
        ]
        late = [c for c in self._candidates if c.state is CandidateState.SLOW]
        return [each.contact for each in (prompt + late)[:count]]

    def responders(self, count: int) -> list[Contact]:
        """The closest peers that answered, closest first."""
        return [each.contact for each in self._answerers()[:count]]

    def _answerers(self) -> list[_Candidate]:
        return [each for each in self._candidates if each.state is CandidateState.ANSWERED]


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """A request and the contact to send it to."""

    contact: Contact
    request: Message
    at_leisure: bool = False
    """True if it may wait and be sent with others; only for a `Store`."""


class Query(Protocol):
    """A question to many peers: a machine whose requests the pump sends.

    After each input, call `drain` until it returns nothing.
    """

    @property
    def ready(self) -> bool:
        """True if the tasks that wait for the outcome may go on."""

    @property
    def finished(self) -> bool:
        """True if there is nothing more to ask; late answers may still be reported."""

    def drain(self, now_s: float) -> list[QueryRequest]:
        """The requests to send now; report the outcome of each."""

    def on_response(self, contact: Contact, reply: Message, now_s: float) -> None:
        """An asked peer has answered; if this raises BadMessage, call `on_failure` next."""

    def on_failure(self, contact: Contact) -> None:
        """An asked peer did not answer, or broke the protocol."""

    def next_deadline_s(self) -> float | None:
        """The time to call `on_deadline`; None if nothing is due."""

    def on_deadline(self, now_s: float) -> None:
        """The deadline has come."""


class LookupQuery:
    """A query that asks the peers of a lookup, and ends with it."""

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup

    @property
    def ready(self) -> bool:
        """True if the lookup is over."""
        return self.lookup.finished

    @property
    def finished(self) -> bool:
        """True if the lookup is over."""
        return self.lookup.finished

    def on_failure(self, contact: Contact) -> None:
        """See `Query`."""
        self.lookup.on_failure(raw_id(contact))

    def next_deadline_s(self) -> float | None:
        """See `Query`."""
        return self.lookup.next_deadline_s()

    def on_deadline(self, now_s: float) -> None:
        """See `Query`."""
        self.lookup.on_deadline(now_s)


class FindNode(LookupQuery):
    """The query for the peers closest to an id, a lookup that sends `Find`."""

    def __init__(self, lookup: Lookup, first_round: int | None = None) -> None:
        """`first_round`: ready when this many peers were resolved; None: ready at the end."""
        super().__init__(lookup)
        self._request = Find(lookup.target)
        self._first_round = first_round

    @property
    def ready(self) -> bool:
        """True if the lookup or its first round is over."""
        if self._first_round is not None and self.lookup.resolved >= self._first_round:
            return True
        return self.lookup.finished

    def drain(self, now_s: float) -> list[QueryRequest]:
        """See `Query`."""
        return [QueryRequest(contact, self._request) for contact in self.lookup.drain(now_s)]

    def on_response(self, contact: Contact, reply: Message, now_s: float) -> None:
        """See `Query`."""
        del now_s
        if not isinstance(reply, Found):
            raise BadMessage(f"{type(reply).__name__} does not answer Find")
        closer = self.lookup.unverified.named(reply.peer_list, contact)
        self.lookup.on_response(raw_id(contact), closer)
