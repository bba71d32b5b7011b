"""Who moves to another stage while a run goes on: the rule that is asked after a commit.

Three settings: `off`; `swarm`, the algorithm of the paper; `priced`, ours. A rule is told an
arrangement and the time, and answers with a decision: who moves, the numbers that it was made from,
and why the rest stays. It never starts two moves of one server within `REST_LEAST_S`.

Units:   seconds on the caller's clock; rates in microbatches per second.
Errors:  none.
Source:  docs/rebalancing.md; Ryabinin et al., "SWARM Parallelism" (ICML 2023), Algorithm 2, for
         `swarm`.
"""

from collections import Counter
from dataclasses import dataclass

from p2pswarm.plan.arrangement import Arrangement, StagedServer
from p2pswarm.plan.priced_moves import (
    PricedPlan,
    Relocation,
    best_plan,
    cheaper_step,
)
from p2pswarm.plan.weariness import Weariness
from p2pswarm.settings.config import BalanceConfig

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
        """What everybody gains, as a share."""
        return self.rate_after / self.rate_before - 1 if self.rate_before else 0.0


class Rebalancing:
    """The rule of one run under one coordinator."""

    def __init__(self, config: BalanceConfig) -> None:
        self._config = config
        self._rests: dict[bytes, float] = {}
        """Until when those stay that have moved."""
        self._weariness = Weariness()
        self._begun = False
        """A step was done: who is there from the start has joined."""
        self._moved = False
        """Somebody was moved: the run does not follow a plan any more."""
        self._good_since_s: float | None = None
        """Since when moving has been worth it whenever it was asked."""
        self._due_s: float | None = None
        """When `swarm` moves somebody next."""

    def decide(self, arrangement: Arrangement, now_s: float) -> Decision:
        """Who is to move now; call it when nothing is lost by a move."""
        self._begun = True
        self._rests = {one: until for one, until in self._rests.items() if now_s < until}
        changed = self._weariness.see((one.server for one in arrangement.servers), now_s)
        match self._config.rule:
            case "swarm":
                decision = self._swarm(arrangement, now_s)
            case "priced":
                decision = self._priced(arrangement, now_s, changed=changed)
            case _:
                decision = Decision(why="rebalancing is off")
        self._moved = self._moved or bool(decision.moves)
        for move in decision.moves:
            self._weariness.moved(now_s)
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
        free = [one for one in arrangement.servers if one.stage == source and _may_move(one)]
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
        why = (
            f"stage {target} has the longest queues ({loads[target]}), stage {source} the shortest"
        )
        return Decision((move,), rate, min(after), 1, why, stay)

    def _priced(self, arrangement: Arrangement, now_s: float, *, changed: bool) -> Decision:
        """`changed`: somebody has come or gone, so that the gain is no noise."""
        plan = best_plan(arrangement, frozenset(self._rests))
        stay = _bound(arrangement, self._rests)
        cheap = plan.value >= VALUE_OVER_PRICE_OF_CHEAP * plan.price
        weary, sure = self._weariness.factor(cheap=cheap), changed and cheap
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
        """Why nobody is to move; empty if the plan is worth it."""
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
            worth = f"{plan.value:.0f} microbatches, and the moves cost {plan.price:.0f}"
            return f"{had}: {worth}"
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
                why = f"each stage keeps {arrangement.kept} servers that compute"
                return tuple(moves), why
            moves += step.moves
        return tuple(moves), ""


def _loads(arrangement: Arrangement) -> list[int]:
    """How long the queues of each stage are together, in whole microbatches: less is noise."""
    loads = [0.0] * arrangement.stages
    for one in arrangement.servers:
        loads[one.stage] += one.queued
    return [round(load) for load in loads]


def _may_move(one: StagedServer) -> bool:
    return one.ready and not one.bound


def _bound(arrangement: Arrangement, rests: dict[bytes, float]) -> tuple[tuple[str, int], ...]:
    """Why servers cannot be moved."""
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
