"""The servers of each stage, and what follows: the run's rate, and the servers that a stage needs.

Units:   microbatches per second, seconds, bytes; stages from 0.
Source:  docs/rebalancing.md.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2pswarm.plan.move_times import AWAY_PRIOR_S, NO_MOVES, MoveTimes

LINK_ASSUMED_BYTES_PER_S = 12.5e6  # 100 Mbit/s, a slow line of a home, where nothing was measured
LINK_LEAST_BYTES_PER_S = 1.25e5  # 1 Mbit/s: who says less is not worth waiting for, or lies
LOAD_MAX_S = 1e6  # so that no sum of what peers say overflows
HELD_BYTES_PER_STATE_BYTE = 5 / 3  # at least: weights, two moments; a gradient's sum, its average
ENGINE_BYTES_PER_STATE_BYTE = 11 / 6  # at most: the same, and a copy of the weights in bfloat16
ON_THEIR_WAY_BYTES = 36 << 20  # six pieces of 6 MiB, of three donors (docs/state.md)
RISE_LEAST = 1e-9  # of the slower stage's rate: what is less is a rounding error
ERROR_ASSUMED = 0.5  # of a time that is not known, or not for long enough: it may be half as much
STAGE_LOST_EVERY_S = 30 * 86_400.0  # at most so often may a stage lose all its servers at once
KEPT_LEAST = 2  # who leaves forgets its weights; a single other one may be dead, and not missed yet
SERVER_LIFE_ASSUMED_S = 86_400.0  # before any has died: spot machines live for hours, others longer


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedServer:
    """One server of a run."""

    server: bytes
    stage: int
    """Where it serves, or will when it has its weights."""
    speed: float | None = None
    """Microbatches per second in a stage of cost 1; None: not measured yet."""
    error: float | None = None
    """The standard error of its speed, as a share of it; None: not known."""
    ready: bool = True
    """It computes; else it loads its weights."""
    bound: str = ""
    """Why it cannot be moved, in words that follow "it"; empty: it can."""
    link_bytes_per_s: float | None = None
    free_bytes: int | None = None
    """Memory beside what its present stage takes."""
    queued: float = 0.0
    """Microbatches that wait there, in the mean of the last minute."""
    leaves_first: frozenset[int] = frozenset()
    """Stages that it cannot hold beside its own, whatever memory it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """All servers of a run, as the coordinator knows them at one moment.

    The run is as fast as its slowest stage, and a stage as fast as its servers together.
    """

    stages: int
    servers: tuple[StagedServer, ...]
    """In the order of their ids."""
    costs: tuple[float, ...] = ()
    """Of the stages relative to each other; none: they cost the same."""
    state_bytes: tuple[int | None, ...] = ()
    """Of each stage; None where nobody has told."""
    deaths_per_s: float = 1 / SERVER_LIFE_ASSUMED_S
    """Of one server."""
    moving: int = 0
    """So many are on their way from one stage to another."""
    preparing: int = 0
    """So many fetch another stage's state, and serve their own meanwhile."""
    fetch_first: bool = False
    """Servers with the memory for it fetch another stage's state before they leave their own."""
    times: MoveTimes = NO_MOVES
    """What a move takes beside the download."""
    usual: float = field(init=False, default=1.0)
    """The speed of a server that was not measured."""
    floor: int = field(init=False, default=1)
    """So many ready servers each stage is to have."""
    kept: int = field(init=False, default=KEPT_LEAST)
    """So many ready servers a stage keeps that gives one away."""
    largest_state: int = field(init=False, default=0)
    """The bytes of the largest state that is known."""

    def __post_init__(self) -> None:
        speeds = [one.speed for one in self.servers if one.speed]
        object.__setattr__(self, "usual", statistics.median(speeds) if speeds else 1.0)
        most = max(1, sum(one.ready for one in self.servers) // self.stages)
        links = [one.link_bytes_per_s for one in self.servers if one.link_bytes_per_s]
        link = statistics.median(links) if links else LINK_ASSUMED_BYTES_PER_S
        link = max(link, LINK_LEAST_BYTES_PER_S)
        largest = max((nbytes for nbytes in self.state_bytes if nbytes), default=0)
        replace_s = AWAY_PRIOR_S + largest / link
        floor = replicas_needed(self.deaths_per_s, replace_s, most)
        object.__setattr__(self, "floor", floor)
        object.__setattr__(self, "kept", max(floor, KEPT_LEAST))
        object.__setattr__(self, "largest_state", largest)

    def cost(self, stage: int) -> float:
        """Return what a microbatch costs in a stage."""
        return self.costs[stage] if self.costs else 1.0

    def speed(self, one: StagedServer) -> float:
        """Of a server; the usual one if it was not measured."""
        return one.speed or self.usual

    def rate(self, one: StagedServer, stage: int) -> float:
        """The microbatches per second of a server in a stage."""
        return self.speed(one) / self.cost(stage)

    def rates(self) -> list[float]:
        """Of each stage, with the servers that load its weights."""
        rates = [0.0] * self.stages
        for one in self.servers:
            rates[one.stage] += self.rate(one, one.stage)
        return rates

    def ready_counts(self) -> list[int]:
        """The servers of each stage that compute."""
        counts = [0] * self.stages
        for one in self.servers:
            counts[one.stage] += one.ready
        return counts

    def errors(self) -> list[float]:
        """The standard error of each stage's rate."""
        squares = [0.0] * self.stages
        for one in self.servers:
            known = one.speed is not None and one.error is not None
            share = one.error if known and one.error is not None else ERROR_ASSUMED
            squares[one.stage] += (share * self.rate(one, one.stage)) ** 2
        return [square**0.5 for square in squares]

    def state_of(self, stage: int) -> int:
        """The bytes of a stage's state; of the largest that is known where it is not."""
        told = self.state_bytes[stage] if self.state_bytes else None
        return self.largest_state if told is None else told

    def may_fetch_first(self, one: StagedServer, stage: int) -> bool:
        """Return whether a server can hold a stage's state beside its own, as far as is known."""
        if not self.fetch_first or one.free_bytes is None or stage in one.leaves_first:
            return False
        return not beside_bytes(self.state_of(stage), one.free_bytes)

    def load_s(self, one: StagedServer, stage: int) -> float:
        """Seconds until a server computes in a stage, if it does nothing else until then."""
        return min(LOAD_MAX_S, self.times.unprepared_s + self.fetch_s(one, stage))

    def prepared_load_s(self, one: StagedServer, stage: int) -> float:
        """The same of one that fetches the state first, and serves its old stage meanwhile."""
        times = self.times
        return min(LOAD_MAX_S, times.prepared_s + times.waits_s + self.fetch_s(one, stage))

    def fetch_s(self, one: StagedServer, stage: int) -> float:
        """Return how long a stage's state takes over a server's link."""
        rate = max(one.link_bytes_per_s or LINK_ASSUMED_BYTES_PER_S, LINK_LEAST_BYTES_PER_S)
        return min(LOAD_MAX_S, self.state_of(stage) / rate)

    def lacks_bytes(self, one: StagedServer, stage: int) -> int:
        """How much memory a server lacks for a stage, after it has left its own; 0 if none."""
        if one.free_bytes is None:
            return 0
        more = self.state_of(stage) - self.state_of(one.stage)
        return max(0, int(more * ENGINE_BYTES_PER_STATE_BYTE) - one.free_bytes)

    def still_helps(self, moves: Iterable[tuple[bytes, int, int]]) -> bool:
        """Return whether moves under way are still worth making: server, source and target.

        The servers count where they go. Without the moves, the slowest of all stages that they
        concern would be slower.
        """
        speeds = {one.server: self.speed(one) for one in self.servers}
        rates = self.rates()
        without, stages = rates.copy(), set[int]()
        for server, source, target in moves:
            if (speed := speeds.get(server)) is not None:
                without[target] -= speed / self.cost(target)
                without[source] += speed / self.cost(source)
                stages |= {source, target}
        slowest = min((without[stage] for stage in stages), default=math.inf)
        return min((rates[stage] for stage in stages), default=0.0) > slowest * (1 + RISE_LEAST)


def beside_bytes(state_bytes: int, free_bytes: int) -> int:
    """Return how much memory lacks for another stage beside the one that is served; 0 if none.

    Its weights, moments, sum and average, and the pieces that are on their way.
    """
    needed = int(state_bytes * ENGINE_BYTES_PER_STATE_BYTE) + ON_THEIR_WAY_BYTES
    return max(0, needed - free_bytes)


def replicas_needed(deaths_per_s: float, replace_s: float, most: int) -> int:
    """Return how many servers a stage needs, so that it seldom loses all of them; at most `most`.

    One of n dies; then all others would have to die before another has the weights, `replace_s`
    later. That happens n d (d t)^(n-1) times a second.
    """
    die_meanwhile = min(1.0, deaths_per_s * replace_s)
    for count in range(1, most):
        if count * deaths_per_s * die_meanwhile ** (count - 1) * STAGE_LOST_EVERY_S <= 1.0:
            return count
    return most


def deaths_per_s(deaths: int, server_s: float) -> float:
    """Return how often a server dies, by those that did in so many seconds of all servers together.

    Before much was seen, it is taken to live for `SERVER_LIFE_ASSUMED_S`.
    """
    return (deaths + 1.0) / (server_s + SERVER_LIFE_ASSUMED_S)
