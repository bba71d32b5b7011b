"""Handover of the run: its coordinator misses a stage, or votes, that a standby reaches.

Source:  docs/chain.md.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, TypeVar

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import TRAINERS_MAX, VOTERS_MAX
from p2pswarm.run.messages.trainers import KNOCKS_MAX, PROBES_MAX, CoordinatorProbe, Whereabouts
from p2pswarm.trainer.members.membership import Member

T = TypeVar("T")

MISSED_S = 2.0  # a server that has lost its link looks for its trainer, and is back by then
UNHEARD_S = 3.0  # of missing a stage while no standby answers; then any of them may do better
ASK_AGAIN_S, ASK_AGAIN_MAX_S = 1.0, 5.0  # a dead server is missed for long: ask less and less often
SERVERS_MAX = 4  # of one stage: a stage is reached by any of them
KNOCK_S = 12.0  # a server without a coordinator dials others between, each for 5 s if it is cut off
SEEK_S = 1.5  # one that hears nothing from its coordinator asks each second who leads
PAUSE_S = 10.0  # a handover takes two seconds, and the first step after it some more
PAUSE_MAX_S = 300.0  # roads change within minutes


class Handover:
    """One trainer's rule for handing over, through all its terms.

    A coordinator can be cut off from all servers of a stage while its voters and standbys hear it:
    no one would ever stand against it, and no step would end. The same holds for one that is cut
    off from most voters. So it asks the standbys whom they reach, and at the same time asks the
    missed servers and voters itself. It hands over to one that has just reached a server of every
    stage and enough voters, if it has not reached these itself. All of this is for progress: voters
    decide who leads, whatever is said here.

    Two trainers do not hand over to each other for ever. Each hands over at once the first time.
    If no record was decided since, it waits before the next time, twice as long each time, while
    the trainer that it named last is there. A dead one did not fail for a false answer, and is not
    named again before that time is over.
    """

    def __init__(self, stages: int) -> None:
        self._servers: list[dict[bytes, Whereabouts]] = [{} for _ in range(stages)]
        """Servers of each stage, as far as this trainer knows, the newest first."""
        self._waiting: Collection[bytes] = ()
        self._voteless_s = math.inf
        """Time since which votes are lacking."""
        self._missed_s: dict[int, float] = {}
        """Time since which nobody of a stage is heard."""
        self._asked: list[tuple[bytes, ...]] = [() for _ in range(stages)]
        self._ask_s = -math.inf
        self._ask_pause_s = ASK_AGAIN_S
        self._named: dict[bytes, float] = {}
        """Time at which each trainer may be handed the run again; the newest stands last."""
        self._unheard_again_s = -math.inf
        """Time at which it may be handed to one again that has not answered."""
        self._pause_s = 0.0
        self._height = -1

    def on_term(self) -> None:
        """A term of this trainer begins: nobody has joined it yet."""
        self._missed_s.clear()
        self._voteless_s = math.inf
        self._ask_s = -math.inf

    def look(
        self,
        ready: Sequence[Sequence[Member]],
        silent: Callable[[Incarnation], bool],
        now_s: float,
        waiting: Collection[bytes] = (),
        *,
        voteless: bool = False,
    ) -> bool:
        """Return whether to ask the standbys now; `ready`: the ready members of each stage.

        `waiting`: members that are heard and not ready. Whoever reaches these is no better off.
        `voteless`: too few voters answer.
        """
        self._waiting = waiting
        before = len(self._missed_s), self._voteless_s < math.inf
        self._voteless_s = min(self._voteless_s, now_s) if voteless else math.inf
        anywhere = {one.incarnation.peer for members in ready for one in members}
        for stage, members in enumerate(ready):
            if members:
                self._servers[stage] = self._last_servers(stage, members, anywhere)
            if not all(silent(one.incarnation) for one in members):
                self._missed_s.pop(stage, None)
            else:  # members that are silent were waited for already
                since_s = now_s - MISSED_S if members else now_s
                self._missed_s[stage] = min(self._missed_s.get(stage, since_s), since_s)
        if (len(self._missed_s), voteless) != before:
            self._ask_s, self._ask_pause_s = now_s, ASK_AGAIN_S
        misses = bool(self._missed(now_s)) or self._is_voteless(now_s)
        return now_s >= self._ask_s and misses

    def question(self, voters: Sequence[Whereabouts], now_s: float) -> tuple[Whereabouts, ...]:
        """Return whom the standbys are asked about: the missed stages' servers first."""
        missed = self._missed(now_s)
        room = PROBES_MAX - VOTERS_MAX
        asked: dict[bytes, Whereabouts] = {one.peer: one for one in voters[:VOTERS_MAX]}
        self._asked = [() for _ in self._servers]
        for stage in sorted(range(len(self._servers)), key=lambda one: one not in missed):
            servers = self._absent(stage)[:room]
            room -= len(servers)
            self._asked[stage] = tuple(one.peer for one in servers)
            asked |= {one.peer: one for one in servers}
        self._ask_s = now_s + self._ask_pause_s
        self._ask_pause_s = min(2 * self._ask_pause_s, ASK_AGAIN_MAX_S)
        return tuple(asked.values())

    def missed(self, voters: Sequence[Whereabouts], now_s: float) -> list[Whereabouts]:
        """The servers of the missed stages, and `voters` if votes are: this trainer asks them."""
        servers = [one for stage in self._missed(now_s) for one in self._absent(stage)]
        lacking = voters if self._is_voteless(now_s) else ()
        return [*servers, *(one for one in lacking if one not in servers)]

    def on_knocks(self, knocks: Iterable[CoordinatorProbe], step: int) -> None:
        """Servers ask a standby for a stage: those that hold its weights are asked about, too."""
        for knock in knocks:
            # one that missed the last commit can apply it
            if knock.version + 1 >= step and knock.stage in self._missed_s:
                servers = self._servers[knock.stage]
                if len(servers) < 2 * SERVERS_MAX:
                    servers[knock.where.peer] = knock.where

    def successor(
        self,
        ours: Collection[bytes],
        theirs: Sequence[tuple[bytes, Collection[bytes]]],
        voters: Collection[bytes],
        now_s: float,
    ) -> bytes | None:
        """Return which trainer is to lead, if any.

        `ours`: the peers that this trainer has reached; `theirs`: the standbys by rank, with the
        peers that each has reached; `voters`: those of the head but this trainer's own.
        """
        unheard = {one for one in voters if one not in ours} if self._is_voteless(now_s) else set()
        lacking = bool(self._lacking(ours, now_s))
        if not lacking and not unheard:
            return None
        waits = {trainer for trainer, again_s in self._named.items() if now_s < again_s}
        last = next(reversed(self._named), None)
        if last in waits and any(trainer == last and reached for trainer, reached in theirs):
            return None
        for trainer, reached in theirs:
            if trainer in waits:
                continue
            every_stage = all(
                any(peer in reached for peer in self._asked[stage])
                for stage in range(len(self._asked))
                if self._asked[stage] or stage in self._missed_s
            )
            votes = 1 + sum(peer in reached or peer == trainer for peer in voters)
            if not every_stage or 2 * votes <= len(voters) + 1:
                continue
            if lacking or not unheard.isdisjoint(reached):
                return trainer
        return None

    def unheard_successor(
        self, ours: Collection[bytes], standbys: Iterable[bytes], now_s: float
    ) -> bytes | None:
        """Return which standby is to lead though none has answered, if any; `standbys`: by rank.

        The way from it to this trainer may be cut alone. While a stage is missed no step ends here,
        so little is lost if it is dead: this trainer stands again a few seconds later. It is tried
        rarely, because a stage may be gone for good.
        """
        since_s = min((self._missed_s[one] for one in self._lacking(ours, now_s)), default=math.inf)
        if now_s < max(since_s + UNHEARD_S, self._unheard_again_s):
            return None
        waits = {trainer for trainer, again_s in self._named.items() if now_s < again_s}
        to = next((one for one in standbys if one not in waits), None)
        if to is not None:
            self._unheard_again_s = now_s + PAUSE_MAX_S
        return to

    def on_handover(self, to: bytes, height: int, now_s: float) -> None:
        """It is done; `height`: of the head. Not again before there is a reason to hope."""
        again = height == self._height
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S) if again else PAUSE_S
        self._named.pop(to, None)
        self._named[to], self._height = now_s + self._pause_s, height
        if len(self._named) > TRAINERS_MAX:
            del self._named[next(iter(self._named))]

    def _last_servers(
        self, stage: int, members: Sequence[Member], anywhere: Collection[bytes]
    ) -> dict[bytes, Whereabouts]:
        """The ready ones, and former ones that serve no other stage: others may reach those."""
        now = [Whereabouts(one.incarnation.peer, one.address) for one in members]
        former = [one for peer, one in self._servers[stage].items() if peer not in anywhere]
        return {one.peer: one for one in (*now, *former)[:SERVERS_MAX]}

    def _absent(self, stage: int) -> list[Whereabouts]:
        """The known servers of a stage that do not wait here to be ready."""
        return [one for peer, one in self._servers[stage].items() if peer not in self._waiting]

    def _lacking(self, ours: Collection[bytes], now_s: float) -> list[int]:
        """The missed stages of which this trainer has reached nobody; `ours`: whom it reached."""
        return [
            stage
            for stage in self._missed(now_s)
            if self._asked[stage] and not any(peer in ours for peer in self._asked[stage])
        ]

    def _is_voteless(self, now_s: float) -> bool:
        """Return whether votes have been lacking for long enough."""
        return now_s >= self._voteless_s + MISSED_S

    def _missed(self, now_s: float) -> list[int]:
        """The stages of which nobody was heard for long enough."""
        return [s for s, since_s in sorted(self._missed_s.items()) if now_s >= since_s + MISSED_S]


class RecentWords(Generic[T]):
    """The last words of peers, for a while."""

    def __init__(self, keep_s: float) -> None:
        """`keep_s`: how long each is kept."""
        self._keep_s = keep_s
        self._said: dict[bytes, tuple[float, T]] = {}

    def add(self, peer: bytes, said: T, now_s: float) -> None:
        """A peer says something."""
        self._forget(now_s)
        if len(self._said) < KNOCKS_MAX or peer in self._said:
            self._said[peer] = now_s, said

    def all(self, now_s: float) -> tuple[T, ...]:
        """Return the words of the last moment."""
        self._forget(now_s)
        return tuple(said for _, said in self._said.values())

    def _forget(self, now_s: float) -> None:
        self._said = {p: one for p, one in self._said.items() if now_s < one[0] + self._keep_s}
