"""Moves of servers to other stages while a run goes on: the rule that a commit asks.

Three settings: `off`; `swarm`, the algorithm of the paper; `priced`, ours. A rule gets an
arrangement and the time, and answers with a decision: who moves, the numbers that it was made
from, and why the rest stays. It never starts two moves of one server within `REST_LEAST_S`.

Source:  docs/rebalancing.md; Ryabinin et al., "SWARM Parallelism" (ICML 2023), Algorithm 2, for
  `swarm`.
"""

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from p2pswarm.plan.arrangement import RISE_LEAST, Arrangement, StagedServer
from p2pswarm.settings.config import BalanceConfig

WEARY = 4.0  # as many moves within an hour as there are servers: a move has to bring 5 times more
WEARY_S = 3600.0
MOVES_A_CHANGE = 4  # an exchange for the stage that it changed, one for the stage that gave to it
REMEMBERED_MAX = 4096  # as many servers as a run can have


class MoveDamping:
    """The moves and the changes of the last hour: where speeds wander, moves do not settle it.

    Each move of the last hour raises what the next one has to bring. Moves that answer a change of
    who is there do not count where they are cheap: a server that came or went leaves the stages
    uneven, and evening them out takes some moves, however often that happens.
    """

    def __init__(self) -> None:
        self._moved_s: deque[float] = deque(maxlen=REMEMBERED_MAX)
        """When servers were sent."""
        self._changed_s: deque[float] = deque(maxlen=REMEMBERED_MAX)
        """When servers were seen to have come or gone."""
        self._there: frozenset[bytes] | None = None

    def on_servers(self, servers: Iterable[bytes], now_s: float) -> bool:
        """Take those that are there; True if one has come or gone since the last time."""
        there = frozenset(servers)
        changes = 0 if self._there is None else len(there ^ self._there)
        self._there = there
        self._changed_s.extend([now_s] * min(changes, REMEMBERED_MAX))
        for times_s in (self._moved_s, self._changed_s):
            while times_s and times_s[0] < now_s - WEARY_S:
                times_s.popleft()
        return changes > 0

    def on_move(self, now_s: float) -> None:
        """A server was sent to another stage."""
        self._moved_s.append(now_s)

    def factor(self, *, cheap: bool) -> float:
        """By what a move has to bring more than where nobody has moved.

        `cheap`: moves cost little of what they bring; else those that answer a change count as
        well, because the next change undoes many of them before they are paid for.
        """
        excess = len(self._moved_s) - MOVES_A_CHANGE * len(self._changed_s) * cheap
        return 1.0 + WEARY * max(0, excess) / max(1, len(self._there or ()))


STEPS_MAX = 64  # of a plan: then it is made anew; a tenth of a second for 1,000 servers
EXCHANGED_MAX = 32  # servers of the slowest stage that are tried in an exchange, of all speeds
NEIGHBOURS = 3  # servers on each side of the wanted speed, of which the first that fits is taken
HORIZON_MAX_S = 3600.0  # a gain is not counted for longer: by then other servers are here


@dataclass(frozen=True, slots=True)
class Relocation:
    """One server moves."""

    server: bytes
    source: int
    target: int
    away_s: float
    """How long it computes nothing."""
    load_s: float
    """How long until it computes in its new stage."""
    fetch_s: float = 0.0
    """How long the stage's state takes over its link."""

    @property
    def fetches_first(self) -> bool:
        """Return whether it serves its old stage until it holds the weights of the new one."""
        return self.away_s < self.load_s


def made_together(moves: Sequence[Relocation]) -> list[list[Relocation]]:
    """Moves as they are made: two servers that change places do it at once."""
    groups: list[list[Relocation]] = []
    for move in moves:
        for group in groups:
            (other,) = group if len(group) == 1 else (None,)
            if other and (other.source, other.target) == (move.target, move.source):
                group.append(move)
                break
        else:
            groups.append([move])
    return groups


@dataclass(frozen=True, slots=True)
class PricedStep:
    """One move, or an exchange of two servers, and the run's rate after it."""

    moves: tuple[Relocation, ...]
    rate_after: float
    price: float
    """In microbatches of the run."""
    load_s: float
    """How long until all of it is done."""


Way = tuple[StagedServer, int, int]
"""A server, the stage that it leaves, and the one that it goes to."""


def cheaper_step(
    arrangement: Arrangement, rates: Sequence[float], ways: Sequence[Way], gain: float
) -> PricedStep:
    """A move or an exchange, made by fetching first or by leaving first, whichever costs less.

    `rates`: of the stages before it; `gain`: what it brings, in microbatches per second. The run
    stays as slow as it is until the move is made, so waiting has a price, too. Nobody leaves first
    that its stage cannot spare.
    """
    leaving = _step_for(arrangement, rates, ways, first=False)
    if not all(arrangement.may_fetch_first(one, target) for one, _, target in ways):
        return leaving
    fetching = _step_for(arrangement, rates, ways, first=True)
    ready = arrangement.ready_counts()
    may_leave = all(ready[source] > arrangement.kept for _, source, _ in ways)
    waiting = gain * (fetching.load_s - leaving.load_s)
    return leaving if may_leave and leaving.price < fetching.price + waiting else fetching


def _step_for(
    arrangement: Arrangement, rates: Sequence[float], ways: Sequence[Way], *, first: bool
) -> PricedStep:
    """A step made in one way; the rate after it is not known here."""
    moves, away, unused = [], [*rates], 0.0
    for one, source, target in ways:
        load_s = (arrangement.prepared_load_s if first else arrangement.load_s)(one, target)
        away_s = arrangement.times.prepared_s if first else load_s
        fetch_s = arrangement.fetch_s(one, target)
        moves.append(Relocation(one.server, source, target, away_s, load_s, fetch_s))
        rate = arrangement.rate(one, source)
        away[source] -= rate
        unused += rate * away_s / arrangement.stages
    away_s = max(move.away_s for move in moves)
    price = max(unused, (min(rates) - min(away)) * away_s)
    return PricedStep(tuple(moves), min(rates), price, max(move.load_s for move in moves))


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """The steps with the highest value; none if nothing is worth its price."""

    rate_before: float
    steps: tuple[PricedStep, ...] = ()
    value: float = 0.0
    """In microbatches, without the price."""
    price: float = 0.0
    error: float = 0.0
    """The standard error of the gain."""

    @property
    def gain(self) -> float:
        """Microbatches per second that the run gains."""
        return self.steps[-1].rate_after - self.rate_before if self.steps else 0.0

    @property
    def moves(self) -> int:
        """Return how many servers move."""
        return sum(len(step.moves) for step in self.steps)


class _PaperMoves:
    """An arrangement that is changed step by step on paper.

    Only the slowest stage limits the run. So a step brings a server into it: one that moves there,
    or one in exchange for a slower one. Of all such steps the best is the one after which the
    slower of the two stages is fastest. The search goes on from there until no step helps.
    """

    def __init__(self, arrangement: Arrangement, resting: frozenset[bytes]) -> None:
        self.arrangement = arrangement
        each = max(1.0, len(arrangement.servers) / arrangement.stages)
        self.horizon_s = min(HORIZON_MAX_S, 1 / (each * arrangement.deaths_per_s))
        """For how long a gain counts: until a stage loses a server, and the rest is moved anew."""
        self.rates = arrangement.rates()
        self.counts = [0] * arrangement.stages
        self._free: list[list[tuple[float, bytes, StagedServer]]] = [
            [] for _ in range(arrangement.stages)
        ]
        """The servers of each stage that may move, by speed."""
        for one in arrangement.servers:
            self.counts[one.stage] += 1
            if one.ready and not one.bound and one.server not in resting:
                self._free[one.stage].append((arrangement.speed(one), one.server, one))
        for free in self._free:
            free.sort(key=lambda each: each[:2])

    def step(self) -> PricedStep | None:
        """Take the best step into the slowest stage; None if none helps."""
        slowest = min(range(len(self.rates)), key=lambda stage: (self.rates[stage], stage))
        best: tuple[float, int, bytes, bytes] | None = None
        taken: tuple[StagedServer, StagedServer | None, int] | None = None
        for comes, goes, source in self._candidates(slowest):
            after = min(self._after(comes, goes, source, slowest))
            if after <= self.rates[slowest] * (1 + RISE_LEAST):
                continue
            rank = after, -(goes is not None), comes.server, goes.server if goes else b""
            if best is None or rank > best:
                best, taken = rank, (comes, goes, source)
        return None if taken is None else self._take(*taken, slowest)

    def _candidates(self, target: int) -> Iterator[tuple[StagedServer, StagedServer | None, int]]:
        """Yield who comes, who goes in exchange, and from which stage."""
        arrangement, free = self.arrangement, self._free[target]
        some = free[:: max(1, -(-len(free) // EXCHANGED_MAX))]  # from the slowest to the fastest
        for source, rate in enumerate(self.rates):
            if rate <= self.rates[target]:
                continue
            each = 1 / arrangement.cost(target) + 1 / arrangement.cost(source)
            wanted = (rate - self.rates[target]) / each
            if self.counts[source] > arrangement.kept:
                for comes in self._about(source, wanted, target):
                    yield comes, None, source
            for speed, _, goes in some:
                if not self._fits(goes, source):
                    continue
                for comes in self._about(source, wanted + speed, target):
                    if arrangement.speed(comes) > speed:
                        yield comes, goes, source

    def _about(self, stage: int, speed: float, target: int) -> Iterator[StagedServer]:
        """The servers of a stage next to a speed, one above and one below, that fit the target."""
        free = self._free[stage]
        at = bisect_left(free, speed, key=lambda each: each[0])
        for side in (range(at, at + NEIGHBOURS), range(at - 1, at - 1 - NEIGHBOURS, -1)):
            for place in side:
                if 0 <= place < len(free):
                    one = free[place][2]
                    if self._fits(one, target):
                        yield one
                        break

    def _fits(self, one: StagedServer, stage: int) -> bool:
        """Return whether a server has the memory for a stage, and is there in time for a gain."""
        arrangement = self.arrangement
        there = arrangement.load_s(one, stage) < self.horizon_s
        return there and not arrangement.lacks_bytes(one, stage)

    def _after(
        self, comes: StagedServer, goes: StagedServer | None, source: int, target: int
    ) -> tuple[float, float]:
        """The rates of source and target after a step."""
        arrangement = self.arrangement
        net = arrangement.speed(comes) - (arrangement.speed(goes) if goes else 0.0)
        return (
            self.rates[source] - net / arrangement.cost(source),
            self.rates[target] + net / arrangement.cost(target),
        )

    def _take(
        self, comes: StagedServer, goes: StagedServer | None, source: int, target: int
    ) -> PricedStep:
        rates, after = self.rates, self._after(comes, goes, source, target)
        ways = [(comes, source, target)] + ([(goes, target, source)] if goes else [])
        step = cheaper_step(self.arrangement, rates, ways, min(after) - rates[target])
        for one, leaves, _ in ways:
            self._free[leaves] = [each for each in self._free[leaves] if each[2] is not one]
        rates[source], rates[target] = after
        if goes is None:
            self.counts[source] -= 1
            self.counts[target] += 1
        return replace(step, rate_after=min(rates))


def best_plan(arrangement: Arrangement, resting: frozenset[bytes] = frozenset()) -> PricedPlan:
    """The beginning of the steps that is worth most; `resting` servers stay.

    A server is moved once at most: the search never takes back what it has done.
    """
    rates = arrangement.rates()
    before = min(rates)
    if min(arrangement.ready_counts()) == 0:
        return PricedPlan(before)  # the run stands still, and nobody can give that stage's weights
    trial = _PaperMoves(arrangement, resting)
    steps: list[PricedStep] = []
    best, best_value, price, elapsed_s, spent = 0, 0.0, 0.0, 0.0, 0.0
    while len(steps) < STEPS_MAX and (step := trial.step()) is not None:
        steps.append(step)
        spent += step.price
        elapsed_s = max(elapsed_s, step.load_s)
        value = (step.rate_after - before) * (trial.horizon_s - elapsed_s)
        if value - spent > best_value - price:
            best, best_value, price = len(steps), value, spent
    errors = arrangement.errors()
    slow = rates.index(before)
    others = (error for stage, error in enumerate(errors) if stage != slow)
    error = math.hypot(errors[slow], max(others, default=0.0))
    return PricedPlan(before, tuple(steps[:best]), best_value, price, error)


REST_MAX_S = 600.0  # who has moved stays no longer: ten times what a move of a large stage takes
REST_LEAST_S, REST_OVER_LOAD = 60.0, 2.0  # as long as a speed is averaged; twice what it has loaded
VALUE_OVER_PRICE = 2.0  # prices are estimates
VALUE_OVER_PRICE_OF_CHEAP = 10.0  # then a move that the next change undoes was paid for before
ERRORS_LEAST = 3.0  # standard errors: one gain in 700 of pure noise is as large
PREPARING_AT_ONCE = 4  # count as one that is away: half of all at most, so each has a donor
RESTS_MAX = 4096  # as many servers as a run can have


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rule says at one moment."""

    moves: tuple[Relocation, ...] = ()
    rate_before: float = 0.0
    """Of the run, by what was measured."""
    rate_after: float = 0.0
    """When all of these moves are done, and those that the plan has yet to make."""
    planned: int = 0
    """Moves of the whole plan, these among them."""
    why: str = ""
    """Why nobody moves, or not more; empty if nothing was asked."""
    stay: tuple[tuple[str, int], ...] = ()
    """Why servers cannot be moved, and how many, the commonest first."""

    @property
    def gain(self) -> float:
        """Return what everybody gains, as a share."""
        return self.rate_after / self.rate_before - 1 if self.rate_before else 0.0


class Rebalancing:
    """The rule of one run under one coordinator."""

    def __init__(self, config: BalanceConfig, gathered: int = 1) -> None:
        """`gathered`: how many servers of each stage the run waits for before its first step."""
        self._config = config
        self._gathered = gathered
        self._rests: dict[bytes, float] = {}
        """Until when those stay that have moved."""
        self._damping = MoveDamping()
        self._begun = False
        """A step was done: who is there from the start has joined."""
        self._moved = False
        """Somebody was moved: the run does not follow a plan any more."""
        self._good_since_s: float | None = None
        """Since when moving has been worth it whenever it was asked."""
        self._due_s: float | None = None
        """When `swarm` moves somebody next."""

    def decide(self, arrangement: Arrangement, now_s: float) -> Decision:
        """Return who is to move now; call it when nothing is lost by a move."""
        self._begun = True
        self._rests = {one: until for one, until in self._rests.items() if now_s < until}
        changed = self._damping.on_servers((one.server for one in arrangement.servers), now_s)
        match self._config.rule:
            case "swarm":
                decision = self._swarm(arrangement, now_s)
            case "priced":
                decision = self._priced(arrangement, now_s, changed=changed)
            case _:
                decision = Decision(why="rebalancing is off")
        self._moved = self._moved or bool(decision.moves)
        for move in decision.moves:
            self._damping.on_move(now_s)
            if len(self._rests) < RESTS_MAX:
                rest_s = max(REST_LEAST_S, REST_OVER_LOAD * move.load_s)
                self._rests[move.server] = now_s + min(REST_MAX_S, rest_s)
        return decision

    def place(
        self, arrangement: Arrangement, open_stages: list[int], planned: int | None = None
    ) -> int:
        """The stage of `open_stages` where a newcomer helps most.

        `planned`: where a plan wants it. The plan is followed until this rule has moved somebody,
        because reality differs then, or while the run goes on and another stage has nobody.
        """
        heads = Counter(one.stage for one in arrangement.servers)
        if planned in open_stages and not self._moved:
            deserted = self._begun and any(not heads[stage] for stage in open_stages)
            if not deserted or not heads[planned]:
                return planned
        if not self._begun:  # however cheap its work is, a stage with too few lets all wait
            few = [stage for stage in open_stages if heads[stage] < self._gathered]
            open_stages = few or open_stages
        if self._config.rule == "off":
            return min(open_stages, key=lambda stage: (heads[stage], stage))
        if self._config.rule == "swarm":
            loads = _loads(arrangement)
            return min(open_stages, key=lambda stage: (-loads[stage], heads[stage], stage))
        rates, floor = arrangement.rates(), arrangement.floor
        return min(
            open_stages,
            key=lambda stage: (min(heads[stage], floor), rates[stage], heads[stage], stage),
        )

    def _swarm(self, arrangement: Arrangement, now_s: float) -> Decision:
        """The least loaded server of the least loaded stage moves to the most loaded stage."""
        if self._due_s is None:
            self._due_s = now_s + self._config.every_s
        if now_s < self._due_s:
            return Decision(why=f"the next move is in {self._due_s - now_s:.0f} s")
        self._due_s = now_s + self._config.every_s
        loads, counts = _loads(arrangement), arrangement.ready_counts()
        source = min(range(len(loads)), key=lambda stage: (loads[stage], stage))
        target = max(range(len(loads)), key=lambda stage: (loads[stage], -stage))
        rate, stay = min(arrangement.rates()), _bound(arrangement, {})
        if loads[source] == loads[target]:
            return Decision(rate_before=rate, why="all queues are as long", stay=stay)
        there = [one for one in arrangement.servers if one.stage == source]
        free = [one for one in there if one.ready and not one.bound]
        free = [one for one in free if not arrangement.lacks_bytes(one, target)]
        if counts[source] <= 1 or not counts[target] or not free:
            why = f"stage {source} has the shortest queues, and nobody to spare"
            return Decision(rate_before=rate, why=why, stay=stay)
        one = min(free, key=lambda each: (each.queued, each.server))
        rates = arrangement.rates()
        after = rates.copy()
        after[source] -= arrangement.rate(one, source)
        after[target] += arrangement.rate(one, target)
        gain = max(0.0, min(after) - rate)
        (move,) = cheaper_step(arrangement, rates, [(one, source, target)], gain).moves
        longest = f"stage {target} has the longest queues ({loads[target]})"
        why = f"{longest}, stage {source} the shortest"
        return Decision((move,), rate, min(after), 1, why, stay)

    def _priced(self, arrangement: Arrangement, now_s: float, *, changed: bool) -> Decision:
        """`changed`: somebody has come or gone, so that the gain is no noise."""
        plan = best_plan(arrangement, frozenset(self._rests))
        stay = _bound(arrangement, self._rests)
        cheap = plan.value >= VALUE_OVER_PRICE_OF_CHEAP * plan.price
        weary, sure = self._damping.factor(cheap=cheap), changed and cheap
        if why := self._refused(plan, self._config.least_gain * weary):
            self._good_since_s = None
            return Decision((), plan.rate_before, plan.rate_before, 0, why, stay)
        after = plan.rate_before + plan.gain
        numbers = plan.rate_before, after, plan.moves
        if self._good_since_s is None:
            self._good_since_s = now_s
        steady_s = now_s - self._good_since_s
        if not sure and (steady_s < self._config.steady_s or steady_s == 0):
            gain = _percent(plan.gain / plan.rate_before)
            why = f"{gain} is to be had: it has to last {self._config.steady_s:.0f} s"
            return Decision((), *numbers, why, stay)
        moves, why = self._batch(arrangement, plan)
        return Decision(moves, *numbers, why, stay)

    def _refused(self, plan: PricedPlan, least_gain: float) -> str:
        """Return why nobody is to move; empty if the plan is worth it."""
        before = plan.rate_before
        if not plan.steps:
            return "no move makes the slowest stage faster for what it costs"
        gain = plan.gain
        least, noise = least_gain * before, ERRORS_LEAST * plan.error
        had = f"{_percent(gain / before)} is to be had"
        if gain < least:
            return f"{had}, and less than {_percent(least / before)} moves nobody"
        if gain < noise:
            return f"{had}, and less than {_percent(noise / before)} may be noise"
        if plan.value < VALUE_OVER_PRICE * plan.price:
            return f"{had}: {plan.value:.0f} microbatches, and the moves cost {plan.price:.0f}"
        return ""

    def _batch(
        self, arrangement: Arrangement, plan: PricedPlan
    ) -> tuple[tuple[Relocation, ...], str]:
        """The first steps, as many as may be under way at once; why not more."""
        most = max(1, int(self._config.moving_share * len(arrangement.servers)))
        counts = arrangement.ready_counts()
        taken = arrangement.moving + arrangement.preparing / PREPARING_AT_ONCE
        moves: list[Relocation] = []
        for step in plan.steps:
            each = PREPARING_AT_ONCE if step.moves[0].fetches_first else 1
            taken += len(step.moves) / each
            alone = not moves and not arrangement.moving and not arrangement.preparing
            if taken > most and not alone:  # an exchange is made as one, however small the swarm is
                return tuple(moves), f"{most} may move at once, and the plan has {plan.moves} moves"
            for move in step.moves:
                counts[move.source] -= 1
                counts[move.target] += len(step.moves) > 1 and move.fetches_first
            if any(counts[move.source] < arrangement.kept for move in step.moves):
                return tuple(moves), f"each stage keeps {arrangement.kept} servers that compute"
            moves += step.moves
        return tuple(moves), ""


def _loads(arrangement: Arrangement) -> list[int]:
    """How long the queues of each stage are together, in whole microbatches: less is noise."""
    loads = [0.0] * arrangement.stages
    for one in arrangement.servers:
        loads[one.stage] += one.queued
    return [round(load) for load in loads]


def _bound(arrangement: Arrangement, rests: dict[bytes, float]) -> tuple[tuple[str, int], ...]:
    """Return why servers cannot be moved."""
    reasons: Counter[str] = Counter()
    for one in arrangement.servers:
        if one.bound:
            reasons[one.bound] += 1
        elif not one.ready:
            reasons["loads its weights"] += 1
        elif one.server in rests:
            reasons["has moved lately"] += 1
    return tuple(sorted(reasons.items(), key=lambda each: (-each[1], each[0])))


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"
