"""A swarm without microbatches: rates of servers, stages and the run, under the rules that ship.

A stage does the microbatches of all its servers together, the run those of its slowest stage. The
rules are those of `plan/moves.py`: which stage a newcomer gets, who moves and when, asked
after each commit. A newcomer does nothing until its weights have come. A mover does nothing while
it loads, or, where it fetches first, serves its old stage until the commit at which it changes.
Which of the two it does the rule says, by what moves have taken so far. A stage that has
lost all its servers gets one of the richest stage, which reads the stage's checkpoint for as long,
whatever the rule is. Queues, which the paper's rule goes by, are those of a closed network at the
present rates: u / (1 - u) at a stage that is busy a share u of the time, and the whole window at
the slowest.

What is not done is put down to a cause: `losses`.

Units:   seconds, bytes, microbatches per second of a server of speed 1.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from p2pswarm.plan.arrangement import Arrangement, StagedServer, deaths_per_s
from p2pswarm.plan.move_times import MoveMeter
from p2pswarm.plan.moves import Rebalancing
from p2pswarm.settings.config import BalanceConfig
from p2pswarm.sim.day_record import best_arrangement, best_rate
from p2pswarm.sim.traces import MachineStay

WINDOW = 64  # microbatches under way
ERROR_SHARE = 0.01  # the standard error of a measured speed
MEMORY = 64 << 30  # of a server, beside its stage: enough to fetch another stage's state


@dataclass(frozen=True, slots=True, kw_only=True)
class FluidConfig:
    """The run, and what a move costs."""

    balance: BalanceConfig
    stages: int = 4
    commit_s: float = 30.0
    """From one commit to the next: then the rule is asked."""
    state_bytes: int = 4 << 30
    """Of a stage."""
    link_bytes_per_s: float = 62.5e6
    fetch_first: bool = True
    """Movers have the memory to fetch the weights before they leave their old stage."""
    change_commits: int = 2
    """The commit at which who has fetched them changes: the first proves it, the second is it."""
    changed_s: float = 0.5
    """How long it is away then."""
    join_s: float = 5.0
    """How long any other takes beside its download."""
    silent_s: float = 0.0
    """Until a death is noticed; the whole run is taken to stand so long."""
    redo: bool = False
    """What the dead server has summed in this step is done again by those that its stage has left.

    Other stages have kept what they gave to it; where its stage is faster than the slowest one,
    that is beside the rest of the step.
    """
    copies: tuple[float, float] | None = None
    """Of its sum, each server gives a mate of its stage a copy so often, and it takes so long: only
    what came since is done again, unless both die at once. No such thing ships."""
    rollback_s: float = 0.0
    """What is done again when a stage has lost its weights: half the time between checkpoints."""
    throughput: tuple[float, ...] = ()
    """What so many machines do at best, by their number; empty: by the rates of their stages."""


@dataclass(slots=True)
class Totals:
    """Microbatches of one span of time."""

    possible: float = 0.0
    done: float = 0.0
    machine_s: float = 0.0
    losses: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines, and when they are there."""

    speeds: tuple[float, ...]
    stays: tuple[MachineStay, ...]
    seconds: float


class FluidSwarm:
    """One fleet under one rule; `play` it once."""

    def __init__(self, config: FluidConfig, speeds: Sequence[float]) -> None:
        self._config = config
        self._speeds = speeds
        self._rule = Rebalancing(config.balance)
        self._servers: dict[int, StagedServer] = {}
        self._ready_s: dict[int, float] = {}
        self._from: dict[int, int] = {}
        """The stage that a mover comes from."""
        self._leaves_s: dict[int, float] = {}
        """Until when a mover serves it."""
        self._meter = MoveMeter()
        self._dying: set[int] = set()
        """Those that die at this moment."""
        self._lost: Counter[int] = Counter()
        """What each stage has to do again in this step, in microbatches."""
        self._lost_s = 0.0
        """By how much the step is longer for it."""
        self._best: dict[tuple[int, ...], float] = {}
        self._deaths = 0
        self._server_s = 0.0
        self._stalled_until_s = 0.0
        self.moves = 0
        self.lost_stages = 0

    def play(
        self, stays: Sequence[MachineStay], seconds: float, spans: Sequence[float]
    ) -> list[Totals]:
        """Let machines come and go; the totals between each two times of `spans`."""
        changes = sorted({t for s in stays for t in (s.begin_s, s.end_s) if t < seconds})
        commits = [step * self._config.commit_s for step in range(1, self._commits(seconds))]
        due = sorted({*changes, *commits, *(t for t in spans if t < seconds)})
        totals = [Totals() for _ in spans[1:]]
        ends: dict[float, list[MachineStay]] = {}
        begins: dict[float, list[MachineStay]] = {}
        for stay in stays:
            ends.setdefault(stay.end_s, []).append(stay)
            begins.setdefault(stay.begin_s, []).append(stay)
        steps = set(commits)
        for now_s, until_s in zip(due, [*due[1:], seconds], strict=True):
            self._dying = {stay.machine for stay in ends.get(now_s, ())}
            for stay in ends.get(now_s, ()):
                self._leave(stay.machine, now_s)
            for stay in begins.get(now_s, ()):
                self._join(stay.machine, now_s)
            if now_s in steps:
                self._committed(now_s)
            span = max(place for place, at_s in enumerate(spans[:-1]) if at_s <= now_s)
            self._pass(now_s, until_s, totals[span])
        return totals

    def _commits(self, seconds: float) -> int:
        return int(seconds / self._config.commit_s)

    def _pass(self, now_s: float, until_s: float, total: Totals) -> None:
        """Count what is done until the next change; servers become ready in between."""
        config = self._config
        times = (*self._ready_s.values(), *self._leaves_s.values())
        inside = {t for t in times if now_s < t < until_s}
        if now_s < self._stalled_until_s < until_s:
            inside.add(self._stalled_until_s)
        edges = [now_s, *sorted(inside), until_s]
        for begin_s, end_s in pairwise(edges):
            took_s = end_s - begin_s
            there = sorted(self._servers)
            loading = [one for one in there if begin_s < self._ready_s[one]]
            fresh = {one for one in loading if one not in self._from}
            away = {one for one in loading if begin_s >= self._leaves_s.get(one, 0.0)}
            possible = self._optimum(there)
            without_new = self._optimum([one for one in there if one not in fresh])
            computing = self._optimum([one for one in there if one not in fresh | away])
            rate = self._rate(begin_s)
            redone = begin_s < self._stalled_until_s
            total.machine_s += len(there) * took_s
            if config.throughput and possible:
                took_s *= config.throughput[len(there)] / possible
            total.possible += possible * took_s
            total.done += 0.0 if redone else rate * took_s
            total.losses["newcomers load"] += (possible - without_new) * took_s
            total.losses["movers load"] += (without_new - computing) * took_s
            if rate <= 0.0:
                total.losses["a stage has nobody"] += computing * took_s
                continue
            total.losses["work is done again"] += rate * took_s if redone else 0.0
            cause = "a better arrangement is loading" if loading else "servers stand unevenly"
            total.losses[cause] += (computing - rate) * took_s

    def _optimum(self, machines: Sequence[int]) -> float:
        """The rate of these machines, if each stood where it helps most."""
        key = tuple(machines)
        if key not in self._best:
            speeds = [self._speeds[one] for one in machines]
            self._best[key] = best_rate(speeds, (1.0,) * self._config.stages)
        return self._best[key]

    def _rates(self, now_s: float) -> list[float]:
        rates = [0.0] * self._config.stages
        for one, server in self._servers.items():
            if now_s >= self._ready_s[one]:
                rates[server.stage] += self._speeds[one]
            elif now_s < self._leaves_s.get(one, 0.0):
                rates[self._from[one]] += self._speeds[one]
        return rates

    def _rate(self, now_s: float) -> float:
        return min(self._rates(now_s))

    def _arrangement(self, now_s: float) -> Arrangement:
        """What the coordinator knows."""
        config = self._config
        for one in [o for o in self._from if now_s >= self._ready_s[o]]:
            self._meter.on_leave(self._servers[one].server, self._leaves_s.pop(one))
            self._meter.on_ready(self._servers[one].server, self._ready_s[one])
            del self._from[one]
        rates = self._rates(now_s)
        slowest = min(rates)
        queued = [
            WINDOW if rate <= slowest else min(WINDOW, slowest / (rate - slowest)) for rate in rates
        ]
        serving = sum(now_s < until_s for until_s in self._leaves_s.values())
        servers = []
        for one, server in sorted(self._servers.items()):
            ready = now_s >= self._ready_s[one]
            share = self._speeds[one] / rates[server.stage] if ready else 0.0
            servers.append(replace(server, ready=ready, queued=round(queued[server.stage] * share)))
        return Arrangement(
            stages=config.stages,
            servers=tuple(servers),
            costs=(1.0,) * config.stages,
            state_bytes=(config.state_bytes,) * config.stages,
            deaths_per_s=deaths_per_s(self._deaths, self._server_s),
            moving=len(self._from) - serving,
            preparing=serving,
            fetch_first=config.fetch_first,
            times=self._meter.times,
        )

    def _join(self, one: int, now_s: float) -> None:
        """A machine comes."""
        stages = range(self._config.stages)
        arrangement = self._arrangement(now_s)
        held = {each.stage for each in self._servers.values()}
        empty = [stage for stage in stages if stage not in held]
        stage = empty[0] if empty else self._rule.place(arrangement, list(stages))
        server = StagedServer(
            server=one.to_bytes(32),
            stage=stage,
            speed=self._speeds[one],
            error=ERROR_SHARE,
            link_bytes_per_s=self._config.link_bytes_per_s,
            free_bytes=MEMORY,
        )
        self._servers[one] = server
        self._ready_s[one] = now_s + self._config.join_s + arrangement.fetch_s(server, stage)

    def _leave(self, one: int, now_s: float) -> None:
        """A machine is taken; a stage without servers gets one of the richest."""
        config = self._config
        self._deaths += 1
        before = self._rates(now_s)
        gone = self._servers.pop(one)
        ready_s = self._ready_s.pop(one)
        held = now_s >= ready_s
        serves = now_s < self._leaves_s.pop(one, 0.0)
        source = self._from.pop(one, gone.stage)
        stage, held = source if serves else gone.stage, held or serves
        self._meter.on_end(gone.server)
        self._stalled_until_s = max(self._stalled_until_s, now_s + config.silent_s)
        if config.redo and held:
            done_s = now_s % config.commit_s
            worked_s = done_s if serves else min(done_s, now_s - ready_s)
            lost_s = max(0.0, worked_s - self._copied_s(one, stage, now_s))
            busy = min(before) / before[stage] if before[stage] else 0.0
            self._lost[stage] += lost_s * self._speeds[one] * busy
            self._lengthen(min(before), now_s)
        if held and stage not in self._held(now_s):
            self.lost_stages += 1
            self._stalled_until_s += config.rollback_s
        for empty in range(config.stages):
            self._fill(empty, now_s)

    def _lengthen(self, run_rate: float, now_s: float) -> None:
        """A stage has something to do again; `run_rate`: of the run before that."""
        rates = self._rates(now_s)
        if min(rates) <= 0.0:
            return  # the run stands until somebody serves that stage, and this is far less
        rest = (self._config.commit_s - now_s % self._config.commit_s) * run_rate
        ends_s = max((rest + self._lost[n]) / one for n, one in enumerate(rates))
        longer_s = ends_s - rest / min(rates)
        self._stalled_until_s += max(0.0, longer_s - self._lost_s)
        self._lost_s = max(longer_s, self._lost_s)

    def _copied_s(self, gone: int, stage: int, now_s: float) -> float:
        """The part of the step's beginning of whose sum a living mate has a copy."""
        if self._config.copies is None:
            return 0.0
        mates = [o for o, each in self._servers.items() if each.stage == stage]
        mates = sorted((o for o in mates if now_s >= self._ready_s[o]), key=lambda o: (o < gone, o))
        if not mates or mates[0] in self._dying:
            return 0.0
        every_s, takes_s = self._config.copies
        return max(0.0, (now_s % self._config.commit_s - takes_s) // every_s * every_s)

    def _held(self, now_s: float) -> set[int]:
        """The stages whose weights somebody has."""
        movers = {self._from[one] for one, until in self._leaves_s.items() if now_s < until}
        ready = {e.stage for one, e in self._servers.items() if now_s >= self._ready_s[one]}
        return movers | ready

    def _fill(self, stage: int, now_s: float) -> None:
        """Give an empty stage a server."""
        if any(each.stage == stage for each in self._servers.values()):
            return
        counts = Counter(each.stage for each in self._servers.values())
        if not counts or max(counts.values()) < 2:
            return  # nobody leaves its stage without a server
        richest = max(counts, key=lambda each: (counts[each], -each))
        mover = min(one for one, each in self._servers.items() if each.stage == richest)
        fetch_s = self._arrangement(now_s).fetch_s(self._servers[mover], stage)
        ready_s = now_s + self._config.join_s + fetch_s
        self._send(mover, stage, ready_s if self._config.fetch_first else now_s, ready_s)

    def _committed(self, now_s: float) -> None:
        """A step is done: nothing is lost by a move now."""
        self._lost.clear()
        self._lost_s = 0.0
        self._server_s += self._config.commit_s * len(self._servers)
        if self._rate(now_s) <= 0.0:
            return  # no step ends while a stage has nobody
        self._meter.on_commit(now_s)
        arrangement = self._arrangement(now_s)
        for move in self._rule.decide(arrangement, now_s).moves:
            first = move.fetches_first
            self.moves += 1
            self._meter.on_order(move.server, move.fetch_s, now_s, prepared=first)
            step_s = self._config.commit_s
            commits = math.ceil(move.fetch_s / step_s) + self._config.change_commits - 1
            leaves_s = now_s + commits * step_s * first
            took_s = self._config.changed_s if first else self._config.join_s + move.fetch_s
            self._send(int.from_bytes(move.server), move.target, leaves_s, leaves_s + took_s)

    def _send(self, one: int, stage: int, leaves_s: float, ready_s: float) -> None:
        self._from[one] = self._servers[one].stage
        self._servers[one] = replace(self._servers[one], stage=stage)
        self._leaves_s[one], self._ready_s[one] = leaves_s, ready_s


def ceiling(fleet: Fleet, late_s: float, stages: int) -> float:
    """The share of the optimum of a rule that loses nothing by a move, but is `late_s` behind.

    At each moment the servers stand as would have been best so long ago, less those that have died
    since: who has just died cannot be replaced before the weights have come. It is no proof: who
    stands otherwise can be lucky about who dies.
    """
    stays, speeds, end_s = fleet.stays, fleet.speeds, fleet.seconds
    times = {t for s in stays for t in (s.begin_s, s.end_s, s.begin_s + late_s, s.end_s + late_s)}
    due = sorted(t for t in times if t < end_s)
    shares = (1.0,) * stages
    possible = done = 0.0
    for now_s, until_s in zip(due, [*due[1:], end_s], strict=True):
        there = [speeds[s.machine] for s in stays if s.begin_s <= now_s < s.end_s]
        before = [s for s in stays if s.begin_s <= now_s - late_s < s.end_s]
        rates = [0.0] * stages
        placed = best_arrangement([speeds[s.machine] for s in before], shares)
        for stay, stage in zip(before, placed, strict=True):
            rates[stage] += speeds[stay.machine] if now_s < stay.end_s else 0.0
        possible += best_rate(there, shares) * (until_s - now_s)
        done += min(rates) * (until_s - now_s)
    return done / possible
