"""The faults of a simulated run, drawn from a seed.

Errors:  ValueError for kinds that do not exist, and for a swarm without servers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan

FIRST_S = 1.0  # every server that is there from the start has joined by then
AIM_S = 0.25  # from the start of the averaging to the last answer about the commit
DEADLY = (FaultKind.KILL, FaultKind.RESTART, FaultKind.WIPE)
PAIRED = (FaultKind.CUT, FaultKind.ONE_WAY, FaultKind.RESET)
GUESTS = (FaultKind.VISIT, FaultKind.STANDBY)  # they take no seat
KINDS = tuple(kind.value for kind in FaultKind)
DRAWN = (
    FaultKind.KILL,
    FaultKind.RESTART,
    FaultKind.REJOIN,
    FaultKind.FREEZE,
    FaultKind.CUT,
    FaultKind.ONE_WAY,
    FaultKind.ISLAND,
    FaultKind.RESET,
    FaultKind.SLOW,
)
"""What is drawn if nobody names kinds; the others are in aimed schedules (`aimed_draw.py`)."""
SECONDS: dict[FaultKind, tuple[tuple[float, float], ...]] = {
    FaultKind.KILL: ((0.5, 5.0),),
    FaultKind.RESTART: ((0.5, 5.0), (5.0, 25.0)),
    FaultKind.REJOIN: ((0.1, 5.0), (5.0, 25.0)),
    FaultKind.FREEZE: ((0.2, 5.0), (5.0, 14.0), (16.0, 40.0)),
    FaultKind.CUT: ((0.2, 14.0), (16.0, 40.0)),
    FaultKind.ONE_WAY: ((0.2, 14.0), (16.0, 40.0)),
    FaultKind.ISLAND: ((0.2, 14.0), (16.0, 25.0)),
    FaultKind.RESET: ((0.0, 0.0),),
    FaultKind.SLOW: ((2.0, 30.0),),
    FaultKind.WIPE: ((0.5, 5.0), (5.0, 25.0)),
    FaultKind.CRAWL: ((3.0, 40.0),),
    FaultKind.VISIT: ((0.5, 3.0), (3.0, 30.0)),
    FaultKind.STANDBY: ((0.5, 8.0), (8.0, 30.0)),
}
"""The ranges of how long a fault lasts, equally likely: around the silence that ends a link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """The kinds and the number of faults to draw."""

    kinds: tuple[FaultKind, ...] = DRAWN
    servers: int = 7
    trainers: int = 1
    mortal_trainers: bool = False
    """True if a trainer may be killed, or started again."""
    faults: tuple[int, int] = (3, 10)
    """The least and the most faults of a run."""
    every_s: float = 4.0
    """Mean time between two that are not aimed."""
    steps: int = 25
    """The steps that faults may be aimed at."""
    aimed: float = 0.4
    """The share of faults that are aimed at the end of a step."""

    def __post_init__(self) -> None:
        if self.servers < 1 or self.trainers < 1:
            raise ValueError(f"a swarm of {self.trainers} trainers and {self.servers} servers")
        if not 0 <= self.aimed <= 1 or self.steps < 1:
            raise ValueError(f"a share of {self.aimed} faults aimed at one of {self.steps} steps")
        if not self.kinds:
            raise ValueError("no kind of fault was chosen")

    @property
    def seats(self) -> int:
        """The machines of the swarm."""
        return self.trainers + self.servers


def draw_plan(seed: int, options: FaultOptions) -> FaultPlan:
    """The faults of one seed; the same for the same options."""
    rng = Random(f"faults {seed}")
    faults, at_s = [], FIRST_S
    for _ in range(rng.randint(*options.faults)):
        if rng.random() < options.aimed:
            step = rng.randrange(options.steps)
            faults.append(_draw(rng, rng.uniform(0.0, AIM_S), step, options))
        else:
            at_s += rng.expovariate(1 / options.every_s)
            faults.append(_draw(rng, at_s, None, options))
    return FaultPlan(options.trainers, tuple(faults))


def kinds_named(names: Sequence[str]) -> tuple[FaultKind, ...]:
    """The kinds of these names."""
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise ValueError(f"no fault is called {', '.join(unknown)}: choose from {', '.join(KINDS)}")
    return tuple(FaultKind(name) for name in names)


def _draw(rng: Random, at_s: float, step: int | None, options: FaultOptions) -> Fault:
    kind = rng.choice(options.kinds)
    seconds = rng.uniform(*rng.choice(SECONDS[kind]))
    immortal = kind in DEADLY and not options.mortal_trainers
    servers_only = immortal or kind is FaultKind.CRAWL
    seats = range(options.trainers if servers_only else 0, options.seats)
    if kind in GUESTS:
        hit = []
    elif kind is FaultKind.ISLAND:
        hit = rng.sample(seats, rng.randint(1, max(1, options.seats // 2)))
    else:
        hit = rng.sample(seats, min(2 if kind in PAIRED else 1, len(seats)))
    return Fault(kind, at_s, seconds, tuple(hit), rng.random() < 1 / 2, step)
