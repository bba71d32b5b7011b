"""Servers that fetch their new stage's state while they serve the old one, and when they change.

A mover observes the reductions of its new stage as a newcomer does, and answers each `Reduce` with
the digests of the state and of the gradient that it has. By that answer it is known what it will
hold after the commit. It is never waited for: neither a reduction nor a commit depends on it.

    FETCHING -> PROVED -> over: it changes stage, right after a commit
        any  -> over: it is told to stop, and serves its old stage on

PROVED: the state and the gradient of its last answer are those of its new stage, so that after that
step's commit it holds the stage's weights. It changes at the next commit, whether or not it has
answered for that step: with the commit it waits for the rest of one gradient at most. So that this
is a moment, what is reduced in that step is sent to it with the members (`prompt`), though other
observers get it after them.

An exchange of two is one move: both change at the same commit, or neither does.

Errors:  ValueError for a server that is asked twice. What comes from a server that was not asked,
         or has been told to stop, is ignored.
Source:  docs/rebalancing.md, "Fetching beforehand".
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from p2pswarm.progress.events import Report
from p2pswarm.run.member_view import Incarnation
from p2pswarm.trainer.reports.reports import short

PREPARE_S = 3600.0  # as long as a newcomer may take: 10 GB at 22 Mbit/s
REST_S = 120.0  # for the rest of that gradient: 1 GB at 70 Mbit/s; a silent one ends long before
WRONG_MAX = 2  # answers with another state than the stage's; who was mended once has a bad memory
LACKING_MAX = 4096  # servers remembered as too small; as many as a run can have


@dataclass(frozen=True, slots=True)
class PreparedMove:
    """One server that is to serve another stage."""

    mover: Incarnation
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class ChangeStage:
    """A mover leaves its old stage now, and joins the new one with its weights."""

    move: PreparedMove
    whole: bool
    """It has the gradient that the commit applies; else it waits for the rest of that."""


@dataclass(frozen=True, slots=True)
class StopPreparing(Report):
    """A mover stays where it is, and frees the memory."""

    move: PreparedMove
    reason: str
    """In words that follow "it stays in stage 1: "."""

    @property
    def text(self) -> str:
        """The server, its stage, and the reason."""
        return f"{short(self.move.mover)} stays in stage {self.move.source}: {self.reason}"


Ended = ChangeStage | StopPreparing


@dataclass(frozen=True, slots=True)
class Movers:
    """Servers that observe a stage and serve another one, when a step is reduced."""

    by_stage: Mapping[int, Sequence[Incarnation]] = field(default_factory=dict)
    prompt: frozenset[Incarnation] = frozenset()
    """Those that change stage with the step's commit, if that is still worth it then."""


class _MoverProgress(Enum):
    """The state of a mover's weights of its new stage."""

    FETCHING = "its last answer was not of the stage's state"
    PROVED = "after the commit before this one it has the stage's weights"
    WHOLE = "it has the gradient of this step as well"


@dataclass(frozen=True, slots=True)
class StageDecided:
    """State and gradient of a stage in a decided step, by its members' digests."""

    state: bytes
    """Of the state that the step was computed with; empty if it is not known."""
    gradient: bytes


@dataclass(frozen=True, slots=True)
class _ObserverAnswer:
    """A mover's word about the last reduction that it observed."""

    step: int
    held: StageDecided
    judged: bool = False
    """It was compared with what the stage had."""


@dataclass(slots=True)
class _MoveGroup:
    """One move, or the two of an exchange."""

    moves: tuple[PreparedMove, ...]
    until_s: float
    answers: dict[Incarnation, _ObserverAnswer] = field(default_factory=dict)
    wrong: Counter[Incarnation] = field(default_factory=Counter)

    def stop(self, reason: str) -> list[Ended]:
        """Return what becomes of its moves if none is made."""
        return [StopPreparing(move, reason) for move in self.moves]


class PreparedMoves:
    """The moves under way that are prepared, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._groups: list[_MoveGroup] = []
        self._ended: list[Ended] = []
        self._decided: dict[int, Mapping[int, StageDecided]] = {}
        """State and gradient of each stage in the last two steps."""
        self._lacking: dict[tuple[bytes, int], None] = {}
        """Servers and stages for which they lack memory beside their own, as they have said."""

    @property
    def moves(self) -> tuple[PreparedMove, ...]:
        """The moves under way."""
        return tuple(move for group in self._groups for move in group.moves)

    def movers(self, step: int) -> Movers:
        """Return who is to receive what stages reduce in a step, beside their newcomers."""
        by_stage: dict[int, list[Incarnation]] = {}
        for move in self.moves:
            by_stage.setdefault(move.target, []).append(move.mover)
        prompt = frozenset(
            move.mover
            for group in self._groups
            if all(self._proved(group, one, step - 1) for one in group.moves)
            for move in group.moves
        )
        return Movers(by_stage, prompt)

    def too_large(self, peer: bytes, stages: int) -> frozenset[int]:
        """The stages for which a server has said that it lacks memory."""
        if not self._lacking:  # as nearly always, and a plan asks it of each server
            return frozenset()
        return frozenset(stage for stage in range(stages) if (peer, stage) in self._lacking)

    def drain(self) -> list[Ended]:
        """The moves that are over, and how; drained by reading."""
        drained, self._ended = self._ended, []
        return drained

    def begin(self, moves: Sequence[PreparedMove], now_s: float) -> None:
        """These servers are told to prepare; several change at the same commit or not at all."""
        movers = [one.mover.peer for one in (*self.moves, *moves)]
        if len(set(movers)) < len(movers):
            raise ValueError("a server prepares for one stage at a time")
        if any(move.source == move.target for move in moves):
            raise ValueError("a server moves to another stage than its own")
        if moves:
            self._groups.append(_MoveGroup(tuple(moves), now_s + PREPARE_S))

    def on_refusal(self, mover: Incarnation, lacks_bytes: int) -> None:
        """A mover has no memory for both stages: it may move by leaving first, if that pays."""
        if (group := self._group_of(mover)) is None:
            return
        for move in group.moves:
            if move.mover == mover:
                self._lacking[mover.peer, move.target] = None
        if len(self._lacking) > LACKING_MAX:
            del self._lacking[next(iter(self._lacking))]
        lack = f"{lacks_bytes / 1e9:.1f} GB of memory to hold both stages"
        others = [one for one in group.moves if one.mover != mover]
        self._end(group, [StopPreparing(one, f"the other server lacks {lack}") for one in others])

    def on_observation(self, mover: Incarnation, step: int, held: StageDecided) -> None:
        """A mover has a reduction of its new stage, and the weights if `held.state` says them."""
        group = self._group_of(mover)
        last = group.answers.get(mover) if group is not None else None
        if group is not None and (last is None or step >= last.step):
            group.answers[mover] = _ObserverAnswer(step, held)

    def on_end(self, incarnation: Incarnation) -> None:
        """An incarnation is over; a mover that dies needs no word."""
        if (group := self._group_of(incarnation)) is not None:
            reason = "the other server of the exchange is gone"
            self._end(group, [one for one in group.stop(reason) if one.move.mover != incarnation])
        for key in [key for key in self._lacking if key[0] == incarnation.peer]:
            del self._lacking[key]  # another process may have more memory

    def stop_harmful(self, ready: Sequence[int], kept: int, now_s: float) -> None:
        """Stop what would leave a stage too small, the newest first, or takes too long.

        `ready`: how many servers of each stage compute, with those that prepare to leave it;
        `kept`: how many a stage keeps that gives one away.
        """
        for group in tuple(self._groups):
            if now_s >= group.until_s:
                reason = f"it has not fetched the state in {PREPARE_S:.0f} s"
                self._end(group, group.stop(reason))
        for group in reversed(tuple(self._groups)):
            if any(not ready[move.target] for move in group.moves):
                reason = "nobody serves the new stage, who could give its state"
            elif any(self._left(move.source, ready) < kept for move in group.moves):
                reason = f"each stage keeps {kept} servers that compute"
            else:
                continue
            self._end(group, group.stop(reason))

    def on_commit(
        self,
        step: int,
        stages: Mapping[int, StageDecided],
        helps: Callable[[tuple[PreparedMove, ...]], bool],
    ) -> None:
        """A step is decided, and its commit goes out: who can, changes now.

        `helps`: whether moves are still worth making.
        """
        self._decided[step] = stages
        self._decided = {at: had for at, had in self._decided.items() if step - 2 < at <= step}
        for group in tuple(self._groups):
            progress = [self._progress(group, move, step) for move in group.moves]
            whole = [each is _MoverProgress.WHOLE for each in progress]
            if any(group.wrong[move.mover] >= WRONG_MAX for move in group.moves):
                self._end(group, group.stop("the state that it fetched is not the stage's"))
            elif _MoverProgress.FETCHING in progress:
                continue
            elif not helps(group.moves):
                self._end(group, group.stop("it would help nobody any more"))
            else:
                pairs = zip(group.moves, whole, strict=True)
                self._end(group, [ChangeStage(move, here) for move, here in pairs])

    def _progress(self, group: _MoveGroup, move: PreparedMove, step: int) -> _MoverProgress:
        """Return what a mover's last answer means at the commit of `step`."""
        answer = group.answers.get(move.mover)
        if answer is None or not answer.held.state:
            return _MoverProgress.FETCHING
        had = self._decided.get(answer.step, {}).get(move.target)
        if had is None or not had.state:
            return _MoverProgress.FETCHING
        right = answer.held == had
        if not answer.judged:
            group.answers[move.mover] = replace(answer, judged=True)
            group.wrong[move.mover] += not right
        if not right:
            return _MoverProgress.FETCHING
        return _MoverProgress.WHOLE if answer.step == step else _MoverProgress.PROVED

    def _proved(self, group: _MoveGroup, move: PreparedMove, step: int) -> bool:
        """Return whether a mover's last answer is of `step`, and what its new stage had then."""
        answer, had = group.answers.get(move.mover), self._decided.get(step, {}).get(move.target)
        return answer is not None and bool(answer.held.state) and answer.held == had

    def _group_of(self, mover: Incarnation) -> _MoveGroup | None:
        groups = (g for g in self._groups if any(move.mover == mover for move in g.moves))
        return next(groups, None)

    def _left(self, stage: int, ready: Sequence[int]) -> int:
        """The servers of a stage when all moves under way are made; exchanged ones at once."""
        left = ready[stage]
        for group in self._groups:
            net = sum(move.target == stage for move in group.moves)
            net -= sum(move.source == stage for move in group.moves)
            left += min(0, net)  # who comes alone may come later than another one leaves
        return left

    def _end(self, group: _MoveGroup, ended: Sequence[Ended]) -> None:
        self._groups.remove(group)
        self._ended += ended
