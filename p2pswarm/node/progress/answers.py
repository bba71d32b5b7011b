"""The answers of a trainer to who asks about its run: its status, its moves, its servers."""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from p2pswarm.base.errors import NotServing
from p2pswarm.net.guard.bans import Ban
from p2pswarm.node.progress.common_events import names_of
from p2pswarm.plan.move_times import NO_MOVES
from p2pswarm.progress.events import (
    Checkpointed,
    Departure,
    Ended,
    Event,
    HeldOut,
    Left,
    MicrobatchCounts,
    Peers,
    Started,
    Stepped,
    Waiting,
)
from p2pswarm.progress.printable import nameless
from p2pswarm.progress.time_left import TimeLeft
from p2pswarm.run.messages.balance import (
    BYTES_PER_S_MAX,
    CAPACITIES_TOLD_MAX,
    GAIN_MAX,
    MOVES_TOLD_MAX,
    RATE_MAX,
    REASONS_MAX,
    AskBalance,
    AskCapacities,
    BalanceStatus,
    BoundaryRate,
    MovesTake,
    PastMove,
    RunCapacities,
    ServerCapacity,
    ServerPreparing,
    StageRate,
    StaysPut,
)
from p2pswarm.run.messages.cost import Spent
from p2pswarm.run.messages.field_limits import REASON_CHARS, SECONDS_MAX, PathCounts
from p2pswarm.run.messages.status import (
    BANS_TOLD_MAX,
    AskStatus,
    BanStatus,
    EndRange,
    RunStatus,
    StageStatus,
)
from p2pswarm.trainer.balance.balance_reports import (
    BalanceAsked,
    BalanceReport,
    OrderedMove,
    OrderedPreparation,
)
from p2pswarm.trainer.balance.codec_choice import BoundaryRates, BoundaryState
from p2pswarm.trainer.balance.move_preparation import PreparedMove, StopPreparing

NOT_HERE = "that run is not trained here; look up the runs again"


class LatestStatus:
    """A trainer's answer about its run."""

    def __init__(
        self, run: bytes, stages: int, done: int = 0, microbatches: int = 0, steps: int = 0
    ) -> None:
        """`done`: the steps done before; `microbatches`: those of a step; `steps`: all of them."""
        self._steps = steps
        self._time_left = TimeLeft()
        self._run = run
        self._stages = stages
        self._microbatches = microbatches
        self._first = done
        self._stepped: Stepped | None = None
        self._committed_s = math.nan
        self._held_out: float | None = None
        self._peers: Peers = Peers(())
        self._waiting: tuple[int, ...] = ()
        self._ended: Ended | None = None
        self._saved: Checkpointed | None = None
        self._saved_s = math.nan

    def go_on_after(self, done: int) -> None:
        """Note that the run goes on after so many steps: nothing is known of those here."""
        self._first, self._stepped = done, None

    def on_event(self, event: Event, now_s: float) -> None:
        """Take an event of the run; only the newest of a kind is kept."""
        match event:
            case Started():
                self._time_left.begin(now_s, self._stepped.step if self._stepped else self._first)
            case Left():
                if event.why is not Departure.MOVED:
                    self._time_left.on_loss()
            case Stepped():
                self._stepped, self._committed_s = event, now_s
                self._time_left.on_step(now_s, event.step)
            case HeldOut():
                self._held_out = event.nats_per_token
            case Peers():
                self._peers = event
            case Waiting():
                self._waiting = event.stages
            case Checkpointed():
                self._saved, self._saved_s = event, now_s
            case Ended():
                self._ended = event
            case _:
                pass  # notes are for people who watch

    def answer(
        self,
        question: AskStatus,
        now_s: float,
        bans: Sequence[Ban] = (),
        name: Callable[[bytes], str] = nameless,
        spent: Spent | None = None,
    ) -> RunStatus:
        """The run as it stands at `now_s`; `bans`: those of its trainer's node, longest first.

        `name`: what the owner of a peer calls its machine; empty if nobody knows. `spent`: what the
        run has cost, if whoever asks may know.
        """
        if question.run != self._run:
            raise NotServing(NOT_HERE)
        step, end, saved = self._stepped, self._ended, self._saved
        newest = end or step
        before = self._first * self._microbatches
        counts = newest.counts if newest else MicrobatchCounts(before, before, 0)
        return RunStatus(
            done=step.step if step else self._first,
            loss=_finite(step.loss) if step else None,
            held_out=_finite(self._held_out),
            tokens_per_s=step.tokens_per_s if step else 0.0,
            committed_ago_s=max(0.0, now_s - self._committed_s) if step else None,
            asked=counts.asked,
            counted=counts.counted,
            replayed=counts.replayed,
            waiting=self._waiting,
            stages=self._servers(),
            ended=end.reason[:REASON_CHARS] if end else "",
            saved=saved.step if saved else None,
            saved_ago_s=max(0.0, now_s - self._saved_s) if saved else None,
            bans=tuple(
                BanStatus(ban.peer, ban.offence.value, ban.left_s(now_s))
                for ban in bans[:BANS_TOLD_MAX]
            ),
            names=names_of((ban.peer for ban in bans[:BANS_TOLD_MAX]), name),
            ends=None if end else self._ends(now_s),
            spent=None if spent is None or spent.nothing else spent,
        )

    def _ends(self, now_s: float) -> EndRange | None:
        found = self._time_left.estimate(now_s, self._steps)
        if found is None:
            return None
        times = found.left_s, found.earliest_s, found.latest_s
        return EndRange(*(min(time_s, SECONDS_MAX) for time_s in times))

    def _servers(self) -> tuple[StageStatus, ...]:
        count = Counter((peer.stage, peer.ready) for peer in self._peers.peers)
        return tuple(
            StageStatus(count[stage, True], count[stage, False], self._links(stage))
            for stage in range(self._stages)
        )

    def _links(self, stage: int) -> PathCounts:
        ours = [peer for peer in self._peers.peers if peer.stage == stage]
        return PathCounts(
            sum(peer.direct for peer in ours),
            sum(peer.mapped for peer in ours),
            sum(peer.punched for peer in ours),
            sum(peer.relayed for peer in ours),
        )


def _finite(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None


class LatestBalance:
    """A trainer's answers about its decisions."""

    def __init__(self, run: bytes, rule: str) -> None:
        self._run = run
        self._rule = rule
        self._asked: BalanceAsked | None = None
        self._asked_s = 0.0
        self._boundaries: tuple[BoundaryState, ...] = ()
        self._moves: deque[tuple[float, OrderedMove]] = deque(maxlen=MOVES_TOLD_MAX)
        self._preparing: dict[PreparedMove, tuple[float, float]] = {}
        """Time of each order, and its gain."""

    def on_report(self, report: BalanceReport, now_s: float) -> None:
        """Take a report; of the questions only the newest is kept."""
        match report:
            case BalanceAsked():
                self._asked, self._asked_s = report, now_s
                under_way = set(report.preparing)
                for move in [each for each in self._preparing if each not in under_way]:
                    del self._preparing[move]  # its server is gone
            case BoundaryRates(states):
                self._boundaries = states
            case OrderedPreparation():
                self._preparing[_move_of(report)] = now_s, report.gain
            case OrderedMove():
                self._moves.appendleft((now_s, report))
                self._preparing.pop(_move_of(report), None)
            case StopPreparing(move):
                self._preparing.pop(move, None)

    def answer(
        self, question: AskBalance, now_s: float, name: Callable[[bytes], str] = nameless
    ) -> BalanceStatus:
        """The decisions as they stand at `now_s`; `name`: as in the status."""
        if question.run != self._run:
            raise NotServing(NOT_HERE)
        asked = self._asked
        stages = asked.stages if asked else ()
        times = asked.times if asked else NO_MOVES
        decision = asked.decision if asked else None
        newest = tuple(islice(reversed(self._preparing.items()), MOVES_TOLD_MAX))
        named = [move.incarnation.peer for _, move in self._moves]
        named += [move.mover.peer for move, _ in newest]
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
                for move, (at_s, gain) in newest
            ),
            why=decision.why[:REASON_CHARS] if decision else "",
            stay=tuple(
                StaysPut(servers, reason)
                for reason, servers in (decision.stay[:REASONS_MAX] if decision else ())
            ),
            take=MovesTake(
                times.prepared_s,
                times.waits_s,
                times.unprepared_s,
                times.prepared,
                times.unprepared,
            ),
            boundaries=tuple(map(_boundary, self._boundaries)),
            names=names_of(named, name),
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


def _boundary(state: BoundaryState) -> BoundaryRate:
    """What is told of a boundary; numbers beyond what a message has are cut."""
    up, down = (
        None if rate is None else min(rate, BYTES_PER_S_MAX)
        for rate in (state.up_bytes_per_s, state.down_bytes_per_s)
    )
    return BoundaryRate(
        state.stage,
        state.codecs.activation,
        state.codecs.gradient,
        up,
        down,
        min(state.up_s, SECONDS_MAX),
        min(state.down_s, SECONDS_MAX),
        None if state.compute_s is None else min(state.compute_s, SECONDS_MAX),
        state.why,
    )


def _move_of(report: OrderedMove | OrderedPreparation) -> PreparedMove:
    """A move as it is known while it is prepared."""
    return PreparedMove(report.incarnation, report.source, report.target)
