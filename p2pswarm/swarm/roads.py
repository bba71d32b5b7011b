"""The roads to other servers that are in use now: which of them carry nothing any more.

A link ends after 15 s of silence. A push or an averaging that waits for a server behind a cut
wants to know sooner, because all others wait for it. So a server asks each peer for which a stream
of it has waited a second whether it is still there, and again each second. The other's event loop
answers at once, whatever it computes. A road without an answer for `SILENT_S` is broken: its
streams end, and new ones are refused, until there is an answer. When the link has ended it asks on:
a question dials. Else every 15 s of a long cut would cost the time anew in which it is found.

A peer whose answer came late, but came, is given twice that time from then on.

    WAITING -> ASKED -> WAITING       a stream is in use for a while; an answer came
    ASKED -> BROKEN -> WAITING        no answer came; one came later, or none for a minute

Units:   seconds on the caller's clock.
Errors:  none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

ASK_AFTER_S = 1.0  # most streams are over by then, and cost no question
SILENT_S = 3.0  # TCP has sent a lost packet again by then, three times
AVERAGING_SILENT_S = 8.0  # an averaging fills links both ways; an answer waits behind its bytes
SILENT_MAX_S = 15.0  # then the link ends anyway
FORGOTTEN_S = 60.0  # a peer that was not reached for so long has left, or comes back as another
LEARNED = 2.0  # times the slowest answer that came
LATE_S = 1.0  # a deadline that comes later found this process stopped: it did not listen


class RoadState(Enum):
    """What is known of one road."""

    WAITING = auto()
    """It is in use, and the next question has its time."""
    ASKED = auto()
    """An answer is due."""
    BROKEN = auto()
    """No answer has come in time."""


@dataclass(slots=True)
class _Road:
    """The road to one peer."""

    due_s: float
    streams: int = 0
    state: RoadState = RoadState.WAITING
    asked_s: float = 0.0
    asking: bool = False
    broke_s: float = 0.0


class Roads:
    """The roads of one server, by peer."""

    def __init__(self, ask_after_s: float = ASK_AFTER_S, silent_s: float = SILENT_S) -> None:
        self._ask_after_s = ask_after_s
        self._silent_s = silent_s
        self._roads: dict[bytes, _Road] = {}
        self._slowest_s: dict[bytes, float] = {}
        """The slowest answer of a peer, if it was slower than most are."""
        self._to_ask: list[bytes] = []
        self._broken: list[bytes] = []

    def begun(self, now_s: float) -> None:
        """A session begins, and the questions of the one before are over without an answer.

        What was broken is broken still, until its peer answers: else each takeover would cost the
        time anew in which a cut is found.
        """
        for peer, road in list(self._roads.items()):
            if road.state is RoadState.BROKEN:
                self._ask(peer, road, now_s)
            elif road.streams:
                road.state, road.due_s = RoadState.WAITING, now_s + self._ask_after_s
            else:
                del self._roads[peer]

    def opened(self, peer: bytes, now_s: float) -> None:
        """A stream to a peer is in use."""
        road = self._roads.setdefault(peer, _Road(now_s + self._ask_after_s))
        if not road.streams and road.state is RoadState.WAITING:
            road.due_s = now_s + self._ask_after_s
        road.streams += 1

    def closed(self, peer: bytes) -> None:
        """A stream to a peer is over."""
        road = self._roads[peer]
        road.streams -= 1
        if not road.streams and road.state is RoadState.WAITING:
            del self._roads[peer]

    def is_broken(self, peer: bytes) -> bool:
        """Whether nothing comes from a peer at present."""
        road = self._roads.get(peer)
        return road is not None and road.state is RoadState.BROKEN

    def answered(self, peer: bytes, now_s: float, *, there: bool) -> None:
        """A question is over: with an answer, or because the link ended or time did."""
        road = self._roads[peer]
        took_s = now_s - road.asked_s
        road.asking = False
        if not there and road.state is RoadState.BROKEN and now_s < road.broke_s + FORGOTTEN_S:
            road.due_s = now_s + self._ask_after_s
            return
        if there and LEARNED * took_s > self._silent_s:
            self._slowest_s[peer] = min(SILENT_MAX_S, took_s)
        elif there:
            self._slowest_s.pop(peer, None)
        road.state, road.due_s = RoadState.WAITING, now_s + self._ask_after_s
        if not road.streams:
            del self._roads[peer]

    def to_ask(self) -> Iterator[bytes]:
        """The peers to be asked now; drained by reading."""
        drained, self._to_ask = self._to_ask, []
        return iter(drained)

    def broken(self) -> Iterator[bytes]:
        """The peers whose streams are to end now; drained by reading."""
        drained, self._broken = self._broken, []
        return iter(drained)

    def next_deadline_s(self) -> float | None:
        """When to call `on_deadline`."""
        roads = self._roads.values()
        due = (r.due_s for r in roads if r.state is not RoadState.BROKEN or not r.asking)
        return min(due, default=None)

    def on_deadline(self, now_s: float) -> None:
        """Ask, and see who has not answered."""
        for peer, road in self._roads.items():
            if now_s < road.due_s:
                continue
            if road.state is RoadState.BROKEN:
                if not road.asking:
                    self._ask(peer, road, now_s)
            elif road.state is RoadState.WAITING:
                road.state, road.due_s = RoadState.ASKED, now_s + self._limit_s(peer)
                self._ask(peer, road, now_s)
            elif now_s - road.due_s > LATE_S:
                road.due_s = now_s + self._limit_s(peer)
            else:
                road.state, road.broke_s = RoadState.BROKEN, now_s
                self._broken.append(peer)

    def _ask(self, peer: bytes, road: _Road, now_s: float) -> None:
        road.asked_s, road.asking = now_s, True
        self._to_ask.append(peer)

    def _limit_s(self, peer: bytes) -> float:
        learned_s = LEARNED * self._slowest_s.get(peer, 0.0)
        return min(SILENT_MAX_S, max(self._silent_s, learned_s))
