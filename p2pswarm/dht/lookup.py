"""The iterative lookup as a machine: which peer to ask next, and when enough is known.

It keeps the contacts it has heard of, closest first, and asks the closest ones that
it has not asked. Two rules make it fast where tables are full of the dead:
* it is over when the `settle` closest have answered, not when everyone has;
* a contact that is slower than nine of ten is passed over, and another is asked in its
  place. If it answers after all, what it says still counts.

Units:   seconds on the caller's monotonic clock.
Shapes:  at most `alpha` prompt requests under way, at most `alpha` more that are late.
Errors:  none: whatever a peer answers, it can only be of no use.
Source:  Maymounkov and Mazieres (2002), 2.3; rust-libp2p `kad/src/query/peers/closest.rs` for the
         form; go-libp2p-kad-dht for the resiliency of `beta` closest.
"""

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from p2pswarm.dht.timeouts import TimeoutEstimator
from p2pswarm.ids import Contact

CANDIDATES_MAX = 256  # remembered; the farthest unasked one goes first
ASKS_MAX = 96  # of one lookup: four times what the largest honest one takes


class CandidateState(Enum):
    """What has become of a contact."""

    NEW = auto()
    ASKED = auto()
    SLOW = auto()
    """Asked, and slower than nine of ten answers."""
    ANSWERED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions:
    """What a lookup is for."""

    width: int
    """How many of the closest peers it is about (k)."""
    settle: int
    """It is over when this many of the closest have answered."""
    patience_s: float
    """It is over after this long in any case."""
    first: int = CANDIDATES_MAX
    """How many to ask before one of them has answered or is late."""
    asks: int = ASKS_MAX
    """How many requests it makes at most."""
    choice: int = 1
    """Among how many of the closest by distance the nearest by round trip is asked."""


class _Candidate:
    """A contact and what has become of it."""

    __slots__ = ("contact", "distance", "raw", "slow_at_s", "state")

    def __init__(self, contact: Contact, raw: bytes, distance: int) -> None:
        self.contact = contact
        self.raw = raw
        self.distance = distance
        self.state = CandidateState.NEW
        self.slow_at_s = 0.0


class Lookup:
    """Finds the peers closest to `target`."""

    def __init__(
        self,
        target: bytes,
        own: bytes,
        options: LookupOptions,
        timeouts: TimeoutEstimator,
        now_s: float,
    ) -> None:
        self.target = target
        self.finished = False
        self.asked = 0
        """Requests so far."""
        self._number = int.from_bytes(target)
        self._own = own
        self._options = options
        self._timeouts = timeouts
        self._candidates: list[_Candidate] = []
        self._distances: list[int] = []
        self._by_peer: dict[bytes, _Candidate] = {}
        self._prompt: dict[bytes, _Candidate] = {}
        self._slow = 0
        self._end_s = now_s + options.patience_s

    def learned(self, contacts: Iterable[Contact]) -> None:
        """Take contacts of peers that might be close."""
        for contact in contacts:
            peer = contact.peer
            if peer is None or peer.raw in self._by_peer or peer.raw == self._own:
                continue
            distance = int.from_bytes(peer.raw) ^ self._number
            at = bisect(self._distances, distance)
            if at < CANDIDATES_MAX:
                candidate = _Candidate(contact, peer.raw, distance)
                self._distances.insert(at, distance)
                self._candidates.insert(at, candidate)
                self._by_peer[peer.raw] = candidate
        if len(self._candidates) > CANDIDATES_MAX:
            self._forget_farthest()

    def _forget_farthest(self) -> None:
        for candidate in self._candidates[CANDIDATES_MAX:]:
            if candidate.state is CandidateState.NEW:
                del self._by_peer[candidate.raw]
        kept = [each for each in self._candidates if each.raw in self._by_peer]
        self._candidates = kept
        self._distances = [each.distance for each in kept]

    def poll(self, now_s: float) -> list[Contact]:
        """Whom to ask now; tell the outcome of each by `on_response` or `on_failure` later."""
        asks: list[Contact] = []
        alpha = self._timeouts.alpha
        if not self.resolved:
            alpha = min(alpha, self._options.first)
        while not self.finished and self._room(alpha):
            candidate = self._next()
            if candidate is None:
                break
            candidate.state = CandidateState.ASKED
            candidate.slow_at_s = now_s + self._timeouts.hedge_s(candidate.raw)
            self._prompt[candidate.raw] = candidate
            self.asked += 1
            asks.append(candidate.contact)
        if not self._prompt and not self._slow:
            self.finished = True  # nobody is left to ask, and nobody who could still answer
        return asks

    @property
    def resolved(self) -> int:
        """How many of the peers that were asked have answered, failed, or are late."""
        return self.asked - len(self._prompt)

    def _room(self, alpha: int) -> bool:
        prompt = len(self._prompt)
        return (
            prompt < alpha and prompt + self._slow < 2 * alpha and self.asked < self._options.asks
        )

    def _next(self) -> _Candidate | None:
        """The best that was not asked, among the `width` closest that have not failed."""
        seen = 0
        choice: list[_Candidate] = []
        for candidate in self._candidates:
            if candidate.state is CandidateState.NEW:
                choice.append(candidate)
                if len(choice) >= self._options.choice:
                    break
            elif (
                candidate.state is not CandidateState.FAILED
                and candidate.state is not CandidateState.SLOW
            ):
                seen += 1
                if seen >= self._options.width:
                    break
        if len(choice) > 1:
            return min(choice, key=self._expected_s)
        return choice[0] if choice else None

    def _expected_s(self, candidate: _Candidate) -> tuple[float, int]:
        return self._timeouts.expected_s(candidate.raw), candidate.distance

    def on_response(self, raw: bytes, closer: Iterable[Contact]) -> None:
        """A peer that was asked has answered with contacts it thinks closer."""
        self._close(raw, CandidateState.ANSWERED)
        self.learned(closer)
        self._look_up()

    def on_failure(self, raw: bytes) -> None:
        """A peer that was asked did not answer, or not as it should."""
        self._close(raw, CandidateState.FAILED)
        self._look_up()

    def _close(self, raw: bytes, state: CandidateState) -> None:
        candidate = self._by_peer[raw]
        if self._prompt.pop(raw, None) is None:
            self._slow -= 1
        candidate.state = state

    def stop(self) -> None:
        """Enough is known: the caller has what it was looking for."""
        self.finished = True

    def next_deadline_s(self) -> float | None:
        """When `on_deadline` wants to be called; None once the lookup has finished."""
        if self.finished:
            return None
        slow_s = [each.slow_at_s for each in self._prompt.values()]
        return min(slow_s, default=self._end_s)

    def on_deadline(self, now_s: float) -> None:
        """Pass over the peers that are late."""
        for raw, candidate in tuple(self._prompt.items()):
            if candidate.slow_at_s <= now_s:
                candidate.state = CandidateState.SLOW
                del self._prompt[raw]
                self._slow += 1
        self._look_up()
        if now_s >= self._end_s:
            self.finished = True

    def _look_up(self) -> None:
        """See whether it is over."""
        answered = 0
        for candidate in self._candidates:
            if candidate.state is CandidateState.ANSWERED:
                answered += 1
                if answered >= self._options.settle:
                    self.finished = True
                    return
            elif candidate.state in (CandidateState.NEW, CandidateState.ASKED):
                return

    def closest(self, count: int) -> list[Contact]:
        """The closest peers that may be alive, closest first; those that are late come last."""
        prompt = [
            c
            for c in self._candidates
            if c.state not in (CandidateState.FAILED, CandidateState.SLOW)
        ]
        late = [c for c in self._candidates if c.state is CandidateState.SLOW]
        return [each.contact for each in (prompt + late)[:count]]

    def heard_from(self) -> Sequence[bytes]:
        """The ids of the peers that answered, closest first."""
        return [each.raw for each in self._candidates if each.state is CandidateState.ANSWERED]
