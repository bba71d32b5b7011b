"""The roads to other servers that are in use now: which of them carry nothing any more.

A link ends after 15 s of silence. A push or an averaging that waits for a server behind a cut
wants to know sooner, because all others wait for it. So a server asks each peer for which a
stream of it has waited a second whether it is still there, and again each second. The other's
event loop answers at once, whatever it computes. A road without an answer for `SILENT_S` is
broken: its streams end, and new ones are refused, until there is an answer. When the link has
ended it asks on: a question dials. Else every 15 s of a long cut would cost the time anew in
which it is found. A question on a broken road is given up soon and asked anew: what was sent
into a cut may be lost, and the road would count as broken for long after it is whole. A peer
that cannot be dialled is behind a broken road at once.

A peer whose answer came late, but came, is given twice that time from then on.

The others of its stage a server asks from time to time though no stream waits for them: it has
to average with all of them when all else of the step is done, and a cut that is found only then
costs the most. In a large stage one of two asks the other, and that is enough while all is well:
who was asked waits for the next question, and asks itself when that does not come. Questions
that come faster than the beat do not count: their sender has no answer of ours.

An averaging fills links both ways, and an answer waits behind its bytes: for as long as an
averaging takes, and not longer. So where each of the last ones with a peer took a moment, a
silence of seconds is not their bytes. One that has not averaged with us yet may have a slow
link.

    WAITING -> ASKED -> WAITING       a stream is in use for a while; an answer came
    ASKED -> BROKEN -> WAITING        no answer came; one came later, or none for a minute
    WAITING, ASKED -> BROKEN          the peer could not be dialled
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

ASK_AFTER_S = 1.0  # most streams are over by then, and cost no question
SILENT_S = 3.0  # TCP has sent a lost packet again by then, three times
AVERAGING_SILENT_S = 8.0  # an averaging fills links both ways; an answer waits behind its bytes
SILENT_MAX_S = 15.0  # then the link ends anyway
FORGOTTEN_S = 60.0  # a peer that was not reached for so long has left, or comes back as another
LEARNED = 2.0  # times the slowest answer that came
AVERAGING_WAIT_S = 1.0  # nobody else can average in a peer's place, and an answer may be coming
AVERAGINGS = 8  # that tell how long the bytes of one keep a link full
AVERAGING_FACTOR = 4.0  # times the longest of them: links and gradients do not change faster
BEAT_S = 2.0  # so a cut is found in 5 s; most of them begin long before the averaging
BEATS_PER_S = 2.5  # to all mates: in a large stage one that leaves is a small loss
TURN = 1.5  # times the beat: who was asked asks itself only if it is not asked again by then
RARE = 0.5  # times the beat: who is asked more often is asked because its road looks broken
STALE_MAX = 8  # times the roads: so many dues are kept, most of which are over
LATE_S = 1.0  # a deadline that comes later found this process stopped: it did not listen


class PeerHealthState(Enum):
    """What is known of one road."""

    WAITING = auto()
    """It is in use, and the next question has its time."""
    ASKED = auto()
    """An answer is due."""
    BROKEN = auto()
    """No answer has come in time."""


@dataclass(frozen=True, slots=True)
class Question:
    """Ask a peer whether it is there; the outcome comes back as `answered`."""

    peer: bytes
    asked_s: float
    within_s: float
    """How long to wait for the answer."""


@dataclass(slots=True)
class _Road:
    """The road to one peer."""

    due_s: float
    streams: int = 0
    state: PeerHealthState = PeerHealthState.WAITING
    open: Question | None = None
    """The newest question, while it has no outcome."""
    broke_s: float = 0.0
    asked_s: float = float("-inf")
    """When the peer asked us last."""


_Due = tuple[float, int, bytes, _Road]
"""When, in which order, and the road to which peer."""


class PeerHealth:
    """The roads of one server, by peer."""

    def __init__(self, ask_after_s: float = ASK_AFTER_S, silent_s: float = SILENT_S) -> None:
        self._ask_after_s = ask_after_s
        self._silent_s = silent_s
        self._roads: dict[bytes, _Road] = {}
        self._slowest_s: dict[bytes, float] = {}
        """The slowest answer of a peer, if it was slower than most are."""
        self._averagings_s: dict[bytes, deque[float]] = {}
        """How long the last averagings took, for each peer of the newest."""
        self._watched: dict[bytes, None] = {}
        """Who is asked though no stream waits."""
        self._beat_s = BEAT_S
        self._to_ask: list[Question] = []
        self._broken: list[bytes] = []
        self._silent: set[bytes] = set()
        """The peers at the end of broken roads."""
        self._dues: list[_Due] = []
        """When roads are due, as a heap; those of them that are so no more are passed over."""
        self._numbered = 0

    def begun(self, now_s: float) -> None:
        """A session begins, and the questions of the one before are over without an answer.

        What was broken is broken still, until its peer answers, and who owes an answer owes it
        still: else each takeover would cost the time anew in which a cut is found.
        """
        self._watched = {}
        self._dues.clear()
        for peer, road in list(self._roads.items()):
            road.open = None
            if road.state is PeerHealthState.BROKEN:
                self._ask(peer, road, now_s)
            elif road.state is PeerHealthState.ASKED:
                again_s = now_s + min(SILENT_S, self._limit_s(peer))  # the answer may have come
                self._set_due(peer, road, max(road.due_s, again_s))
                self._ask(peer, road, now_s)
            elif road.streams:
                self._wait(peer, road, now_s + self._ask_after_s)
            else:
                del self._roads[peer]

    def watch(self, peers: Iterable[bytes], now_s: float) -> None:
        """Ask these from time to time, and those of before no more."""
        before, self._watched = self._watched, dict.fromkeys(peers)
        self._beat_s = max(BEAT_S, len(self._watched) / BEATS_PER_S)
        new = [peer for peer in self._watched if peer not in self._roads]
        for number, peer in enumerate(new, start=1):  # not all in one moment
            self._roads[peer] = _Road(0.0)
            self._wait(peer, self._roads[peer], now_s + self._beat_s * number / len(new))
        for peer in before:
            if (road := self._roads.get(peer)) is not None:
                self._drop_idle(peer, road)

    @property
    def apart(self) -> tuple[bytes, ...]:
        """Those of whom it is watched whether something comes, and nothing does."""
        if not self._silent:
            return ()
        return tuple(peer for peer in self._watched if peer in self._silent)

    def opened(self, peer: bytes, now_s: float) -> None:
        """A stream to a peer is in use."""
        if peer not in self._roads:
            self._roads[peer] = _Road(0.0)
        road = self._roads[peer]
        if not road.streams and road.state is PeerHealthState.WAITING:
            self._wait(peer, road, now_s + self._ask_after_s)
        road.streams += 1
        if road.state is PeerHealthState.ASKED:  # its bytes may be in the answer's way from now on
            self._set_due(peer, road, max(road.due_s, now_s + self._limit_s(peer)))

    def closed(self, peer: bytes) -> None:
        """A stream to a peer is over."""
        road = self._roads[peer]
        road.streams -= 1
        self._drop_idle(peer, road)

    def asked(self, peer: bytes, now_s: float) -> None:
        """A peer asks us: in a large stage our own question waits for its next one."""
        road = self._roads.get(peer)
        if road is None or self._beat_s == BEAT_S:
            return
        before_s, road.asked_s = road.asked_s, now_s
        rare = now_s >= before_s + RARE * self._beat_s
        if rare and road.state is PeerHealthState.WAITING and not road.streams:
            self._set_due(peer, road, now_s + TURN * self._beat_s)

    def unreachable(self, peer: bytes, now_s: float) -> None:
        """A peer that a stream is in use to, or was to be, could not be dialled."""
        road = self._roads[peer]
        if road.state is not PeerHealthState.BROKEN:
            self._break(peer, road, now_s)

    def averaged(self, peers: Iterable[bytes], took_s: float) -> None:
        """An averaging with these peers succeeded."""
        before = self._averagings_s
        self._averagings_s = {peer: before.get(peer, deque(maxlen=AVERAGINGS)) for peer in peers}
        for times_s in self._averagings_s.values():
            times_s.append(took_s)

    @property
    def broken_peers(self) -> list[bytes]:
        """Return the peers from which nothing comes at present, by their ids."""
        return sorted(self._silent)

    def is_broken(self, peer: bytes) -> bool:
        """Return whether nothing comes from a peer at present."""
        return peer in self._silent

    def answered(self, question: Question, now_s: float, *, there: bool) -> None:
        """A question is over: with an answer, or because the link ended or time did."""
        peer, took_s = question.peer, now_s - question.asked_s
        if there and LEARNED * took_s > self._least_s(peer):
            self._slowest_s[peer] = min(SILENT_MAX_S, took_s)
        elif there:
            self._slowest_s.pop(peer, None)
        road = self._roads.get(peer)
        if road is None:
            return
        newest = road.open is question
        if newest:
            road.open = None
        if not there:
            if not newest:
                return  # it is asked anew already
            awaited = peer in self._watched or now_s < road.broke_s + FORGOTTEN_S
            if road.state is PeerHealthState.BROKEN and awaited:
                self._set_due(peer, road, now_s + self._ask_after_s)
                return
        self._silent.discard(peer)
        self._wait(peer, road, now_s + (self._ask_after_s if road.streams else self._beat_s))
        self._drop_idle(peer, road)

    def to_ask(self) -> Iterator[Question]:
        """The questions to ask now; drained by reading."""
        drained, self._to_ask = self._to_ask, []
        return iter(drained)

    def broken(self) -> Iterator[bytes]:
        """The peers whose streams are to end now; drained by reading."""
        drained, self._broken = self._broken, []
        return iter(drained)

    def next_deadline_s(self) -> float | None:
        """Return when to call `on_deadline`; sooner than needed, if what was due is over."""
        if not self._roads:
            self._dues.clear()
        return self._dues[0][0] if self._dues else None

    def on_deadline(self, now_s: float) -> None:
        """Ask, and see who has not answered."""
        while self._dues:
            holds = self._holds(self._dues[0])
            if holds and self._dues[0][0] > now_s:
                return
            _, _, peer, road = heapq.heappop(self._dues)
            if holds:
                self._on_due(peer, road, now_s)

    def _holds(self, due: _Due) -> bool:
        """Return whether a road is still due then."""
        due_s, _, peer, road = due
        return road.due_s == due_s and self._roads.get(peer) is road

    def _on_due(self, peer: bytes, road: _Road, now_s: float) -> None:
        if road.state is PeerHealthState.BROKEN:
            if road.open is None:
                self._ask(peer, road, now_s)
        elif road.state is PeerHealthState.WAITING:
            road.state = PeerHealthState.ASKED
            self._set_due(peer, road, now_s + self._limit_s(peer))
            self._ask(peer, road, now_s)
        elif now_s - road.due_s > LATE_S:
            self._set_due(peer, road, now_s + self._limit_s(peer))
        else:
            self._break(peer, road, now_s)

    def _wait(self, peer: bytes, road: _Road, due_s: float) -> None:
        road.state = PeerHealthState.WAITING
        self._set_due(peer, road, due_s)

    def _set_due(self, peer: bytes, road: _Road, due_s: float) -> None:
        road.due_s = due_s
        if len(self._dues) > STALE_MAX * len(self._roads) + STALE_MAX:
            self._dues = [each for each in self._dues if each[3] is not road and self._holds(each)]
            heapq.heapify(self._dues)
        self._numbered += 1
        heapq.heappush(self._dues, (due_s, self._numbered, peer, road))

    def _drop_idle(self, peer: bytes, road: _Road) -> None:
        """Forget a road that is whole and that nobody needs."""
        if not road.streams and road.state is PeerHealthState.WAITING and peer not in self._watched:
            del self._roads[peer]

    def _break(self, peer: bytes, road: _Road, now_s: float) -> None:
        """Nothing comes from a peer: its streams end, and it is asked anew, by another dial."""
        road.state, road.broke_s = PeerHealthState.BROKEN, now_s
        self._silent.add(peer)
        self._broken.append(peer)
        self._ask(peer, road, now_s)

    def _ask(self, peer: bytes, road: _Road, now_s: float) -> None:
        broken = road.state is PeerHealthState.BROKEN
        within_s = self._patience_s(peer, SILENT_S) if broken else SILENT_MAX_S
        road.open = Question(peer, now_s, within_s)
        self._to_ask.append(road.open)

    def _least_s(self, peer: bytes) -> float:
        """Return how long a peer may be silent, if it was never slow."""
        if not (averagings_s := self._averagings_s.get(peer)):
            return self._silent_s
        return min(self._silent_s, max(SILENT_S, AVERAGING_FACTOR * max(averagings_s)))

    def _limit_s(self, peer: bytes) -> float:
        """Return how long a peer may be silent; a third one's bytes may be in the way, too."""
        return self._patience_s(peer, self._least_s(peer))

    def _patience_s(self, peer: bytes, least_s: float) -> float:
        learned_s = LEARNED * self._slowest_s.get(peer, 0.0)
        return min(SILENT_MAX_S, max(least_s, learned_s))
