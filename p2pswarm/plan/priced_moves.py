"""Which moves make the slowest stage faster, and what they are worth.

Only the slowest stage limits the run. So a step brings a server into it: one that moves there, or
one in exchange for a slower one. Of all such steps the best is the one after which the slower of
the two stages is fastest. The search goes on from there until no step helps.

Units:   microbatches per second, microbatches, seconds.
Errors:  none.
Source:  docs/rebalancing.md, "`priced`".
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from p2pswarm.plan.arrangement import RISE_LEAST, Arrangement, StagedServer

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
        """Whether it serves its old stage until it holds the weights of the new one."""
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
        """How many servers move."""
        return sum(len(step.moves) for step in self.steps)


class _PaperMoves:
    """An arrangement that is changed step by step on paper."""

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
        """Who comes, who goes in exchange, and from which stage."""
        arrangement = self.arrangement
        for source, rate in enumerate(self.rates):
            if rate <= self.rates[target]:
                continue
            each = 1 / arrangement.cost(target) + 1 / arrangement.cost(source)
            wanted = (rate - self.rates[target]) / each
            if self.counts[source] > arrangement.kept:
                for comes in self._about(source, wanted, target):
                    yield comes, None, source
            for speed, _, goes in _spread(self._free[target]):
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
        """Whether a server has the memory for a stage, and is there before nobody gains by it."""
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


def _spread(
    free: list[tuple[float, bytes, StagedServer]],
) -> list[tuple[float, bytes, StagedServer]]:
    """Some of them, from the slowest to the fastest."""
    return free[:: -(-len(free) // EXCHANGED_MAX)] if free else free


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
