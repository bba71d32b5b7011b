"""Capacities of a run's servers, as the coordinator knows them, and the moves that follow.

Source:  docs/rebalancing.md.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from p2pswarm.models.blocks import block_costs
from p2pswarm.plan.arrangement import Arrangement, StagedServer, beside_bytes, deaths_per_s
from p2pswarm.plan.capacity import StageCosts
from p2pswarm.plan.move_times import MoveMeter
from p2pswarm.plan.moves import Decision, Rebalancing, Relocation, made_together
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.balance import NOT_MEASURED
from p2pswarm.run.messages.field_limits import MEMBERS_MAX
from p2pswarm.run.messages.membership import CannotPrepare, Join, Load, PrepareStage, load_every_s
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.balance.balance_reports import (
    BalanceAsked,
    BalanceReport,
    KnownServer,
    OrderedMove,
    OrderedPreparation,
    StageState,
)
from p2pswarm.trainer.balance.codec_choice import ServerRates
from p2pswarm.trainer.balance.move_preparation import (
    REST_S,
    ChangeStage,
    Movers,
    PreparedMove,
    PreparedMoves,
    StageDecided,
    StopPreparing,
)
from p2pswarm.trainer.members.membership import Member, Membership


def expected_costs(config: RunConfig) -> list[float] | None:
    """Of the stages of a cut that somebody chose, by their blocks' work; None: they are alike."""
    if not config.cut or config.emulated:
        return None
    costs = block_costs(config.model)
    ends = list(accumulate(config.cut, initial=0))
    work = [sum(costs[first:after]) for first, after in pairwise(ends)]
    mean = sum(work) / len(work)
    return [each / mean for each in work] if min(work) > 0 else None


QUEUE_S = 60.0  # of a server's queue a mean is taken: right after a commit it is empty
SECONDS_LEAST, SECONDS_MOST = 1e-5, 1e5  # of a microbatch: what is told beyond makes no sense
BELIEVED = 2.0  # times what its share shows: routers measure another time than the server does
HALF_LIFE = 128.0  # microbatches of its stage, after which what was seen weighs half as much
LEAST = 32.0  # microbatches of its stage; a share of fewer is a matter of chance


class WorkShares:
    """What servers were seen to do of their stage's work: it bounds what they tell of their speed.

    Routers give work by their own measurements. So a server's share of what its stage counts shows
    how fast it is beside the others, and what it tells over its share is what it says of the whole
    stage. The median of that, in which each weighs as much as its share, is no liar's whose share
    is below a half. What a server tells is believed within `BELIEVED` times its share of the
    median. So the most that a lie adds to the rate of a stage, or takes from it, is what the liar
    does there.
    """

    def __init__(self) -> None:
        self._seen: dict[Incarnation, tuple[float, float]] = {}
        """What it has counted, and what its stage has, in the steps for which it was there."""

    def on_step(self, counts: Mapping[Incarnation, int], size: int) -> None:
        """A step of `size` microbatches is decided; `counts`: of those that are ready now.

        One that is named for the first time may have come in its midst: it begins with the next.
        """
        fade, before = 0.5 ** (size / HALF_LIFE), self._seen
        self._seen = dict.fromkeys(counts, (0.0, 0.0))
        for one, count in counts.items():
            if one in before:
                counted, whole = before[one]
                self._seen[one] = counted * fade + count, whole * fade + size

    def believed(self, rates: Mapping[Incarnation, float]) -> dict[Incarnation, float]:
        """Return what is believed of the `rates` that the servers of one stage tell."""
        shares = {}
        for one in rates:
            counted, whole = self._seen.get(one, (0.0, 0.0))
            if whole >= LEAST:
                shares[one] = (counted + 0.5) / (whole + 1.0)  # never 0, so each has a rate
        ordered = sorted((rates[one] / share, share) for one, share in shares.items())
        left, stage_rate = sum(shares.values()) / 2.0, 0.0
        for implied, share in ordered:
            if left > 0.0:
                left, stage_rate = left - share, implied
        believed = dict(rates)
        for one, share in shares.items():
            shown = stage_rate * share
            believed[one] = min(max(rates[one], shown / BELIEVED), shown * BELIEVED)
        return believed


@dataclass(frozen=True, slots=True)
class ReportedLoad:
    """The last report of a server's load."""

    stage: int
    seconds: float | None
    """A microbatch; None if it is not known."""
    error: float | None
    load: Load
    queued: float
    """Mean length of its queue in the last minute."""
    samples: int


def sensible(seconds: float | None) -> float | None:
    """The time of a microbatch as a server tells it; None for one that makes no sense."""
    return seconds if seconds is not None and SECONDS_LEAST <= seconds <= SECONDS_MOST else None


class ReportedLoads:
    """The last word of each server of a run; numbers that make no sense count as not known."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self.loads: dict[bytes, ReportedLoad] = {}

    def on_load(self, peer: bytes, stage: int, load: Load, servers: int) -> ReportedLoad:
        """A server of a stage tells; `servers`: how many there are, by which all tell as often."""
        measured, last = load.capacity.measured, stage == self._stages - 1
        seconds = sensible(measured.seconds(last=last))
        before = self.loads.pop(peer, None)
        if before is not None and before.stage != stage:
            before = None  # that was another queue
        most = max(1, round(QUEUE_S / load_every_s(servers)))
        samples = min(before.samples + 1, most) if before else 1
        queued = before.queued if before else 0.0
        queued += (load.queued - queued) / samples
        told = ReportedLoad(
            stage, seconds, measured.relative_error(last=last), load, queued, samples
        )
        self.loads[peer] = told
        if len(self.loads) > MEMBERS_MAX:
            del self.loads[next(iter(self.loads))]
        return told

    def speed(self, peer: bytes, costs: tuple[float, ...]) -> tuple[float | None, float | None]:
        """Of a server, by what its stage costs, and how sure that is."""
        told = self.loads.get(peer)
        if told is None or told.seconds is None:
            return None, None
        return costs[told.stage] / told.seconds, told.error

    def state_bytes(self) -> tuple[int | None, ...]:
        """Of each stage, as most of its servers tell."""
        told: list[list[int]] = [[] for _ in range(self._stages)]
        for one in self.loads.values():
            if (nbytes := one.load.capacity.state_bytes) is not None:
                told[one.stage].append(nbytes)
        return tuple(sorted(each)[(len(each) - 1) // 2] if each else None for each in told)


ASK_EVERY_S = 2.0  # a plan for 1,000 servers takes a tenth of a second
ASK_PER_SERVER_S = 0.005
BACK_S = 60.0  # who is out for longer has died
REJOIN_S = 30.0  # who was sent to another stage joins at once; a coordinator that averages is slow


@dataclass(frozen=True, slots=True)
class _OnItsWay:
    """A server that was sent to another stage."""

    target: int
    until_s: float
    """Time by which it has to have joined."""
    joined: bool = False
    """It has, and loads its weights."""
    proved: bool = False
    """It has fetched them before it left."""


class Balance:
    """The capacities of a run's servers under one coordinator.

    The rule (`plan/moves.py`) is asked right after a commit: then a server's sum is empty, and a
    move loses nothing. A server with the memory fetches its new stage's weights first, and moves
    at a later commit (`move_preparation.py`). It is sent out of the run, and is given its new
    stage when it joins again. Newcomers are placed by the same numbers.
    """

    def __init__(self, config: RunConfig, members: Membership) -> None:
        self._config = config
        self._members = members
        self._ends = frozenset(config.tied_ends or ())
        """Stages that no server of another one observes: both reduce a tied tensor."""
        self._rule = Rebalancing(config.balance, config.min_replicas)
        self._costs = StageCosts(config.stages, MEMBERS_MAX, expected_costs(config))
        self._reported = ReportedLoads(config.stages)
        self._shares = WorkShares()
        self._moving: dict[bytes, _OnItsWay] = {}
        """Those that were sent to another stage, and are not ready there."""
        self._prepared = PreparedMoves()
        self._meter = MoveMeter()
        self._worth: dict[PreparedMove, tuple[float, float, int]] = {}
        """Gain, time away and the plan's moves, of each move that is prepared."""
        self._left: dict[bytes, float] = {}
        """Time at which each left that is not back."""
        self._deaths = 0
        self._server_s = 0.0
        self._asked_s: float | None = None

    def on_load(self, member: Member, load: Load) -> None:
        """A member tells how busy it is, and what it has measured."""
        peer = member.incarnation.peer
        told = self._reported.on_load(peer, member.stage, load, self._members.ready_count())
        if told.seconds is not None:
            self._costs.on_time(peer, member.stage, told.seconds)

    def on_counts(self, counts: Mapping[Incarnation, int], size: int) -> None:
        """A step of `size` microbatches is decided; `counts`: of the ready members."""
        self._shares.on_step(counts, size)

    def server_rates(self) -> list[list[ServerRates]]:
        """What the ready servers of each stage have measured, for the choice of codecs."""
        stages = range(self._config.stages)
        return [[*map(self._rates, self._members.ready(stage))] for stage in stages]

    def _rates(self, member: Member) -> ServerRates:
        told = self._reported.loads.get(member.incarnation.peer)
        if told is None or told.stage != member.stage:
            return ServerRates()
        measured = told.load.capacity.measured
        compute_s = sensible(measured.compute_s(last=member.stage == self._config.stages - 1))
        return ServerRates(compute_s, measured.up_bytes_per_s, measured.down_bytes_per_s)

    def on_join(self, peer: bytes, join: Join, now_s: float) -> Join:
        """Return what a server asks for, with the stage that it is to have."""
        back = self._left.pop(peer, None) is not None
        moving = self._moving.get(peer)
        if moving is not None and now_s < moving.until_s and not join.pinned:
            self._moving[peer] = replace(moving, joined=True, until_s=math.inf)
            fetched = join.stage == moving.target  # before it left
            return join if fetched else _without_weights(join, moving.target)
        self._moving.pop(peer, None)
        served = join.pinned or join.version is not None or back
        if join.stage is not None and served:  # it holds the weights, or has begun to fetch them
            return join
        if not (open_stages := self._members.open_stages()):
            return join
        arrangement = self._arrangement(now_s)
        return replace(join, stage=self._rule.place(arrangement, open_stages, join.stage))

    def on_ready(self, peer: bytes, now_s: float) -> None:
        """A server computes: if it has moved, it is there."""
        self._moving.pop(peer, None)
        self._meter.on_ready(peer, now_s)

    def proved(self, peer: bytes, stage: int | None) -> bool:
        """Return whether a server was sent to this stage after it had shown the right weights."""
        moving = self._moving.get(peer)
        return moving is not None and moving.proved and moving.target == stage

    def on_end(self, incarnation: Incarnation, now_s: float) -> None:
        """An incarnation is over."""
        self._prepared.on_end(incarnation)
        peer = incarnation.peer
        moving = self._moving.get(peer)
        if moving is not None and not moving.joined:
            return  # it was sent, and is on its way
        self._meter.on_end(peer)
        self._moving.pop(peer, None)
        self._left[peer] = now_s
        if len(self._left) > MEMBERS_MAX:
            del self._left[next(iter(self._left))]

    @property
    def beside(self) -> list[tuple[int, int]]:
        """The stages of servers that prepare, and those that they prepare for."""
        return [(move.source, move.target) for move in self._prepared.moves]

    def movers(self, step: int) -> Movers:
        """Return who observes a stage and serves another one, when a step is reduced."""
        return self._prepared.movers(step) if self._worth else Movers()

    def on_observation(self, by: Incarnation, step: int, held: StageDecided) -> None:
        """A server has a reduction of the stage that it prepares for."""
        self._prepared.on_observation(by, step, held)

    def on_preparation_refusal(self, by: Incarnation, note: CannotPrepare) -> list[BalanceReport]:
        """A server does not hold another stage beside its own."""
        moves = [m for m in self._prepared.moves if (m.mover, m.target) == (by, note.stage)]
        if not moves:
            return []  # that is over already
        self._prepared.on_refusal(by, note.lacks_bytes)
        refused = [StopPreparing(move, note.reason) for move in moves]
        return [*refused, *self.stopped()]

    def stopped(self) -> list[BalanceReport]:
        """The moves that are over without having been made."""
        over = [one for one in self._prepared.drain() if isinstance(one, StopPreparing)]
        if len(self._worth) > len(self._prepared.moves):
            self._worth = {move: self._worth[move] for move in self._prepared.moves}
        return list(over)

    def on_commit(
        self, step: int, had: Mapping[int, StageDecided], now_s: float
    ) -> list[BalanceReport]:
        """Return which servers change stage at the commit of a step, and which stay.

        `had`: the state and the gradient of each stage in that step.
        """
        self._meter.on_commit(now_s)
        if not self._worth or not self._prepared.moves:
            return []
        arrangement = self._arrangement(now_s)
        computing = [self._members.ready_count(stage) for stage in range(self._config.stages)]
        self._prepared.stop_harmful(computing, arrangement.kept, now_s)

        def helps(moves: tuple[PreparedMove, ...]) -> bool:
            if any(move.mover in self._members.leaving for move in moves):
                return False
            return arrangement.still_helps((m.mover.peer, m.source, m.target) for m in moves)

        self._prepared.on_commit(step, had, helps)
        reports: list[BalanceReport] = []
        for ended in self._prepared.drain():
            move = ended.move
            if isinstance(ended, ChangeStage):
                until_s = now_s + REJOIN_S + (0.0 if ended.whole else REST_S)
                self._moving[move.mover.peer] = _OnItsWay(move.target, until_s, proved=True)
                self._meter.on_leave(move.mover.peer, now_s)
                worth = self._worth[move]
                reports.append(OrderedMove(move.mover, move.source, move.target, *worth))
            else:
                reports.append(ended)
        return reports

    def order_moves(
        self, step: int, avoided: Callable[[bytes], bool], now_s: float
    ) -> list[BalanceReport]:
        """Return which servers move; the sessions of those that go now are to end.

        `step`: the one that begins; `avoided`: whether a peer fails at its work.
        """
        pause_s = max(ASK_EVERY_S, ASK_PER_SERVER_S * self._members.ready_count())
        if self._asked_s is not None and now_s < self._asked_s + pause_s:
            return []
        self._look_around(now_s)
        arrangement = self._arrangement(now_s, avoided)
        decision = self._rule.decide(arrangement, now_s)
        stages, floor = self._stages(arrangement), arrangement.floor
        known, prepared = self._known(arrangement), self._prepared.moves
        asked = BalanceAsked(decision, stages, floor, known, prepared, arrangement.times)
        reports: list[BalanceReport] = [asked]
        for moves in made_together(decision.moves):
            members = [self._members.of_peer(move.server) for move in moves]
            living = [(m, one.incarnation) for m, one in zip(moves, members, strict=True) if one]
            if all(move.fetches_first for move in moves) and len(living) == len(moves):
                reports += self._prepare(living, decision, arrangement, step, now_s)
                continue
            for move, incarnation in living:
                self._moving[move.server] = _OnItsWay(move.target, now_s + REJOIN_S)
                self._meter.on_order(move.server, move.fetch_s, now_s, prepared=False)
                numbers = decision.gain, move.away_s, decision.planned
                reports.append(OrderedMove(incarnation, move.source, move.target, *numbers))
        return reports

    def _prepare(
        self,
        moves: Sequence[tuple[Relocation, Incarnation]],
        decision: Decision,
        arrangement: Arrangement,
        step: int,
        now_s: float,
    ) -> list[BalanceReport]:
        """Moves that are made together, once all have fetched the weights."""
        prepared = [PreparedMove(one, move.source, move.target) for move, one in moves]
        self._prepared.begin(prepared, now_s)
        reports: list[BalanceReport] = []
        for (relocation, _), move in zip(moves, prepared, strict=True):
            self._worth[move] = decision.gain, relocation.away_s, decision.planned
            self._meter.on_order(relocation.server, relocation.fetch_s, now_s, prepared=True)
            nbytes = arrangement.state_of(move.target)
            order = PrepareStage(move.target, step, b"", nbytes)
            where = move.mover, move.source, move.target
            reports.append(OrderedPreparation(*where, decision.gain, decision.planned, order))
        return reports

    def _look_around(self, now_s: float) -> None:
        """Count the time of all servers, and those that have died in it."""
        if self._asked_s is not None:
            self._server_s += (now_s - self._asked_s) * self._members.ready_count()
        self._asked_s = now_s
        dead = [peer for peer, left_s in self._left.items() if now_s >= left_s + BACK_S]
        self._deaths += len(dead)
        for peer in dead:
            del self._left[peer]
            self._reported.loads.pop(peer, None)
        late = [peer for peer, moving in self._moving.items() if now_s >= moving.until_s]
        for peer in late:
            del self._moving[peer]
            self._meter.on_end(peer)
            self._deaths += 1

    def _arrangement(
        self, now_s: float, avoided: Callable[[bytes], bool] = lambda _peer: False
    ) -> Arrangement:
        """All servers as they are now; those that will leave do not count.

        Those that prepare count where they go: they are on their way.
        """
        members, costs = self._members, self._costs.costs()
        believed = self._believed()
        servers = [
            self._staged(one, costs, believed.get(one.incarnation), avoided)
            for one in (*members.ready(), *members.waiting())
            if one.incarnation not in members.leaving
        ]
        for peer, moving in self._moving.items():
            if members.of_peer(peer) is None and now_s < moving.until_s:
                speed, error = self._reported.speed(peer, costs)
                away = StagedServer(
                    server=peer, stage=moving.target, speed=speed, error=error, ready=False
                )
                servers.append(away)
        return Arrangement(
            stages=self._config.stages,
            servers=tuple(sorted(servers, key=lambda one: one.server)),
            costs=costs,
            state_bytes=self._reported.state_bytes(),
            deaths_per_s=deaths_per_s(self._deaths, self._server_s),
            moving=len(self._moving),
            preparing=len(self._prepared.moves),
            fetch_first=self._roomy(servers),
            times=self._meter.times,
        )

    def _roomy(self, servers: Sequence[StagedServer]) -> bool:
        """Return whether most servers can hold another stage beside their own: moves are cheap."""
        largest = max((nbytes for nbytes in self._reported.state_bytes() if nbytes), default=0)
        room = [one.free_bytes for one in servers if one.free_bytes is not None]
        return 2 * sum(not beside_bytes(largest, free) for free in room) > len(servers)

    def _believed(self) -> dict[Incarnation, float]:
        """The rates of ready members in their stages, as far as they are believed."""
        rates: dict[int, dict[Incarnation, float]] = {}
        for one in self._members.ready():
            told = self._reported.loads.get(one.incarnation.peer)
            if told is not None and told.seconds is not None and told.stage == one.stage:
                rates.setdefault(one.stage, {})[one.incarnation] = 1 / told.seconds
        return {one: r for each in rates.values() for one, r in self._shares.believed(each).items()}

    def _staged(
        self,
        member: Member,
        costs: tuple[float, ...],
        rate: float | None,
        avoided: Callable[[bytes], bool],
    ) -> StagedServer:
        peer = member.incarnation.peer
        bound = "was told which stage to serve" if member.pinned else ""
        if not bound and avoided(peer):
            bound = "fails at its work"
        speed, error = self._reported.speed(peer, costs)
        if rate is not None:
            speed = rate * costs[member.stage]
        told = self._reported.loads.get(peer)
        capacity = told.load.capacity if told else None
        targets = [m.target for m in self._prepared.moves if m.mover == member.incarnation]
        return StagedServer(
            server=peer,
            stage=targets[0] if targets else member.stage,
            speed=speed,
            error=error,
            ready=member.ready and not targets,
            leaves_first=self._prepared.too_large(peer, self._config.stages) | self._ends,
            bound=bound,
            link_bytes_per_s=capacity.link_bytes_per_s if capacity else None,
            free_bytes=capacity.free_bytes if capacity else None,
            queued=told.queued if told else 0.0,
        )

    def _known(self, arrangement: Arrangement) -> tuple[KnownServer, ...]:
        """Return what each server told last, if it was of the stage where it is."""
        known = []
        for one in arrangement.servers:
            told = self._reported.loads.get(one.server)
            there = told is not None and told.stage == one.stage
            capacity = told.load.capacity if told is not None and there else NOT_MEASURED
            known.append(KnownServer(one.server, one.stage, one.ready, capacity))
        return tuple(known)

    def _stages(self, arrangement: Arrangement) -> tuple[StageState, ...]:
        rates, counts = arrangement.rates(), arrangement.ready_counts()
        waits: list[list[float]] = [[] for _ in rates]
        unmeasured = [0] * len(rates)
        for one in arrangement.servers:
            unmeasured[one.stage] += one.speed is None
            told = self._reported.loads.get(one.server)
            if told is not None and told.load.capacity.queue_s is not None and one.ready:
                waits[one.stage].append(told.load.capacity.queue_s)
        return tuple(
            StageState(rate, sum(wait) / len(wait) if wait else None, count, unknown)
            for rate, wait, count, unknown in zip(rates, waits, counts, unmeasured, strict=True)
        )


def _without_weights(join: Join, stage: int) -> Join:
    """A server comes to another stage: what it holds is of no use there."""
    return replace(join, stage=stage, version=None, digest=b"", held=(), sum=None)
