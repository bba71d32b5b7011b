"""Who has moved in the run of a trainer, and why nobody else does: as an answer to `AskBalance`.

And what its servers have measured, as an answer to `AskCapacities`.

Units:   `now_s` seconds on the caller's clock.
Errors:  NotServing for another run.
"""

from collections import deque
from collections.abc import Mapping
from itertools import islice

from p2pswarm.base.errors import NotServing
from p2pswarm.plan.move_times import NO_MOVES, MoveTimes
from p2pswarm.run.messages.balance import (
    CAPACITIES_TOLD_MAX,
    GAIN_MAX,
    MOVES_TOLD_MAX,
    RATE_MAX,
    REASONS_MAX,
    AskBalance,
    AskCapacities,
    BalanceStatus,
    MovesTake,
    PastMove,
    RunCapacities,
    ServerCapacity,
    ServerPreparing,
    StageRate,
    StaysPut,
)
from p2pswarm.run.messages.types import REASON_CHARS
from p2pswarm.trainer.balance.balance_reports import (
    BalanceAsked,
    BalanceReport,
    OrderedMove,
    OrderedPreparation,
)
from p2pswarm.trainer.balance.move_preparation import PreparedMove, StopPreparing

NOT_HERE = "that run is not trained here; look up the runs again"


class LatestBalance:
    """What a trainer says about its decisions when it is asked."""

    def __init__(self, run: bytes, rule: str) -> None:
        self._run = run
        self._rule = rule
        self._asked: BalanceAsked | None = None
        self._asked_s = 0.0
        self._moves: deque[tuple[float, OrderedMove]] = deque(maxlen=MOVES_TOLD_MAX)
        self._preparing: dict[PreparedMove, tuple[float, float]] = {}
        """When each was ordered, and its gain."""

    def on_report(self, report: BalanceReport, now_s: float) -> None:
        """Take a report; of the questions only the newest is kept."""
        match report:
            case BalanceAsked():
                self._asked, self._asked_s = report, now_s
                under_way = set(report.preparing)
                for move in [each for each in self._preparing if each not in under_way]:
                    del self._preparing[move]  # its server is gone
            case OrderedPreparation():
                self._preparing[_move_of(report)] = now_s, report.gain
            case OrderedMove():
                self._moves.appendleft((now_s, report))
                self._preparing.pop(_move_of(report), None)
            case StopPreparing(move):
                self._preparing.pop(move, None)

    def answer(self, question: AskBalance, now_s: float) -> BalanceStatus:
        """The decisions as they stand at `now_s`."""
        if question.run != self._run:
            raise NotServing(NOT_HERE)
        asked = self._asked
        stages = asked.stages if asked else ()
        decision = asked.decision if asked else None
        return BalanceStatus(
            rule=self._rule,
            asked_ago_s=max(0.0, now_s - self._asked_s) if asked else None,
            floor=asked.floor if asked else 0,
            stages=tuple(
                StageRate(min(one.rate_per_s, RATE_MAX), one.queue_s, one.ready, one.unmeasured)
                for one in stages
            ),
            moves=tuple(
                PastMove(
                    max(0.0, now_s - at_s),
                    move.incarnation.peer,
                    move.source,
                    move.target,
                    min(move.gain, GAIN_MAX),
                    move.away_s,
                    move.planned,
                )
                for at_s, move in self._moves
            ),
            preparing=tuple(
                ServerPreparing(
                    max(0.0, now_s - at_s),
                    move.mover.peer,
                    move.source,
                    move.target,
                    min(gain, GAIN_MAX),
                )
                for move, (at_s, gain) in islice(reversed(self._preparing.items()), MOVES_TOLD_MAX)
            ),
            why=decision.why[:REASON_CHARS] if decision else "",
            stay=tuple(
                StaysPut(servers, reason)
                for reason, servers in (decision.stay[:REASONS_MAX] if decision else ())
            ),
            take=_moves_take(asked.times if asked else NO_MOVES),
        )

    def capacities(self, question: AskCapacities, rtts_s: Mapping[bytes, float]) -> RunCapacities:
        """Return what servers have measured; `rtts_s`: of this node's links, by peer.

        Nothing is known before the first step was looked at.
        """
        if question.run != self._run:
            raise NotServing(NOT_HERE)
        known = self._asked.servers if self._asked else ()
        told = known[question.first : question.first + CAPACITIES_TOLD_MAX]
        servers = tuple(
            ServerCapacity(one.peer, one.stage, one.ready, rtts_s.get(one.peer), one.capacity)
            for one in told
        )
        return RunCapacities(servers, len(known))


def _moves_take(times: MoveTimes) -> MovesTake:
    """Return what moves take, as it is told."""
    return MovesTake(
        times.prepared_s, times.waits_s, times.unprepared_s, times.prepared, times.unprepared
    )


def _move_of(report: OrderedMove | OrderedPreparation) -> PreparedMove:
    """A move as it is known while it is prepared."""
    return PreparedMove(report.incarnation, report.source, report.target)
