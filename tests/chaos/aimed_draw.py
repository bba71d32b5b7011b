"""Aimed schedules, drawn from a seed: a shape, timed faults, and chains of aimed ones."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.messages import (
    Accepted,
    Denied,
    FetchRecords,
    HandOver,
    Heartbeat,
    Prepare,
    Promise,
    Propose,
)
from p2pswarm.run.chain.record import CommitRecord
from p2pswarm.run.messages.membership import (
    Apart,
    Assigned,
    Join,
    Load,
    Ready,
    StandsBy,
    StillThere,
    View,
)
from p2pswarm.run.messages.microbatch import Counted, Handed, Push, Receipt, Undelivered
from p2pswarm.run.messages.state import AskPiece, FetchPieces, StateOffer
from p2pswarm.run.messages.step import (
    CannotAverage,
    Commit,
    Committed,
    Fence,
    Fenced,
    Reduce,
    Reduced,
    Shard,
)
from p2pswarm.run.messages.trainers import (
    Alive,
    AskReachable,
    Enlist,
    NotHeard,
    ReachableStages,
    Trainers,
    WhoLeads,
)
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.message_watch import Moment

from .aims import Aim, AimedFault, Chain, Phase, Role, Whom
from .fault_draw import DEADLY, FIRST_S, PAIRED, SECONDS

COORDINATOR, STANDBY, SERVER = Role.COORDINATOR, Role.STANDBY, Role.SERVER


@dataclass(frozen=True, slots=True)
class Traffic:
    """A kind of message, and the roles at its ends."""

    message: type[Message]
    sender: Role
    receiver: Role


EVERY_STEP = (
    Traffic(Push, COORDINATOR, SERVER),
    Traffic(Push, SERVER, SERVER),
    Traffic(Receipt, SERVER, SERVER),
    Traffic(Counted, SERVER, COORDINATOR),
    Traffic(Handed, SERVER, COORDINATOR),
    Traffic(Reduce, COORDINATOR, SERVER),
    Traffic(Shard, SERVER, SERVER),
    Traffic(Reduced, SERVER, COORDINATOR),
    Traffic(Propose, COORDINATOR, SERVER),
    Traffic(Propose, COORDINATOR, STANDBY),
    Traffic(Accepted, SERVER, COORDINATOR),
    Traffic(Accepted, STANDBY, COORDINATOR),
    Traffic(Commit, COORDINATOR, SERVER),
    Traffic(Committed, SERVER, COORDINATOR),
    Traffic(Ready, SERVER, COORDINATOR),
    Traffic(Trainers, COORDINATOR, SERVER),
    Traffic(Heartbeat, COORDINATOR, STANDBY),
    Traffic(Alive, COORDINATOR, STANDBY),
    Traffic(Load, SERVER, COORDINATOR),
)
"""What is sent in each step of a run to which nothing happens, if it has a standby."""
AFTER_A_FAULT = (
    Traffic(Prepare, STANDBY, SERVER),
    Traffic(Prepare, STANDBY, STANDBY),
    Traffic(Promise, SERVER, STANDBY),
    Traffic(Denied, SERVER, STANDBY),
    Traffic(Denied, SERVER, COORDINATOR),
    Traffic(Propose, STANDBY, SERVER),
    Traffic(Accepted, SERVER, STANDBY),
    Traffic(FetchRecords, STANDBY, SERVER),
    Traffic(CommitRecord, SERVER, STANDBY),
    Traffic(WhoLeads, SERVER, STANDBY),
    Traffic(StandsBy, STANDBY, SERVER),
    Traffic(Enlist, STANDBY, COORDINATOR),
    Traffic(Trainers, COORDINATOR, STANDBY),
    Traffic(Join, SERVER, COORDINATOR),
    Traffic(Join, SERVER, STANDBY),
    Traffic(Assigned, COORDINATOR, SERVER),
    Traffic(View, COORDINATOR, SERVER),
    Traffic(Ready, SERVER, COORDINATOR),
    Traffic(Fence, COORDINATOR, SERVER),
    Traffic(Fenced, SERVER, COORDINATOR),
    Traffic(Undelivered, SERVER, COORDINATOR),
    Traffic(FetchPieces, SERVER, SERVER),
    Traffic(StateOffer, SERVER, SERVER),
    Traffic(AskPiece, SERVER, SERVER),
    Traffic(StillThere, SERVER, SERVER),
    Traffic(Apart, SERVER, COORDINATOR),
    Traffic(CannotAverage, SERVER, COORDINATOR),
    Traffic(NotHeard, STANDBY, COORDINATOR),
    Traffic(AskReachable, COORDINATOR, STANDBY),
    Traffic(ReachableStages, STANDBY, COORDINATOR),
    Traffic(HandOver, COORDINATOR, STANDBY),
)
"""What is sent only when something has happened."""

HITS = (
    *(FaultKind.FREEZE,) * 3,
    *(FaultKind.KILL,) * 2,
    *(FaultKind.RESTART,) * 2,
    *(FaultKind.ONE_WAY,) * 2,
    FaultKind.WIPE,
    FaultKind.CUT,
    FaultKind.RESET,
    FaultKind.REJOIN,
    FaultKind.SLOW,
    FaultKind.CRAWL,
)
"""The kinds of aimed faults, the more dangerous ones several times."""
CHAINS, LINKS = (1, 3), (1, 3)
NUMBER_END = 9  # a step of chaos has eight microbatches
AT_ONCE_S = 1e-4  # the message has left or is read, and nothing else has happened
SOON_S = 0.25  # an aimed fault that is not at once comes within this: some round trips
TURNS, TURN_S = (2, 6), (3.0, 20.0)  # two trainers frozen in turn: how often, how long
GUESTS_S = 12.0  # for how long guests come
NEWCOMER_EVERY_S, NEWCOMER_S = (0.3, 1.2), (0.5, 3.0)
STANDBY_EVERY_S, STANDBY_S = (1.0, 6.0), (0.5, 8.0)
CRAWLERS, CRAWL_S = (1, 2), (5.0, 40.0)


@dataclass(frozen=True, slots=True)
class AimedOptions:
    """The swarm for which a schedule is drawn."""

    servers: int
    trainers: int
    steps: int
    """The steps that faults may be aimed at."""


@dataclass(frozen=True, slots=True)
class AimedPlan:
    """All that goes wrong in an aimed run."""

    plan: FaultPlan
    """What has a time."""
    chains: tuple[Chain, ...]


def draw_aimed(seed: int, options: AimedOptions) -> AimedPlan:
    """The schedule of one seed; the same for the same options."""
    rng = Random(f"aimed {seed}")
    draw = rng.choice(SCHEDULES)
    faults, chains = draw(rng, options)
    return AimedPlan(FaultPlan(options.trainers, faults), chains)


Schedule = tuple[tuple[Fault, ...], tuple[Chain, ...]]


def _shots(rng: Random, options: AimedOptions) -> Schedule:
    """Some chains of aimed faults."""
    return (), tuple(_chain(rng, options) for _ in range(rng.randint(*CHAINS)))


def _turns(rng: Random, options: AimedOptions) -> Schedule:
    """Whoever coordinates is frozen, and then its successor, in turn; one of them may die."""
    first = _aim(rng, options, EVERY_STEP, step=rng.randrange(options.steps))
    traffic, others = (*EVERY_STEP, *AFTER_A_FAULT), range(rng.randint(*TURNS))
    aims = [first, *(_aim(rng, options, traffic, step=0) for _ in others)]
    kinds = [FaultKind.FREEZE] * len(aims)
    if rng.random() < 1 / 2:
        kinds[-1] = FaultKind.KILL
    return (), (
        tuple(
            _at(rng, aim, kind, (Whom.COORDINATOR,), rng.uniform(*TURN_S))
            for aim, kind in zip(aims, kinds, strict=True)
        ),
    )


def _standbys(rng: Random, options: AimedOptions) -> Schedule:
    """Standbys come and go, or are started again; meanwhile something is aimed at."""
    faults, at_s = [], FIRST_S
    while at_s < GUESTS_S:
        at_s += rng.uniform(*STANDBY_EVERY_S)
        seconds, silent = rng.uniform(*STANDBY_S), rng.random() < 1 / 2
        kind = rng.choice((FaultKind.STANDBY, FaultKind.RESTART, FaultKind.WIPE, FaultKind.KILL))
        if options.trainers > 1 and kind is not FaultKind.STANDBY:
            seats: tuple[int, ...] = (rng.randrange(1, options.trainers),)
        else:
            kind, seats = FaultKind.STANDBY, ()
        faults.append(Fault(kind, at_s, seconds, seats, silent))
    return tuple(faults), (_chain(rng, options),)


def _newcomers(rng: Random, options: AimedOptions) -> Schedule:
    """Servers come and die; meanwhile something is aimed at."""
    faults, at_s = [], FIRST_S
    while at_s < GUESTS_S:
        at_s += rng.uniform(*NEWCOMER_EVERY_S)
        seconds, silent = rng.uniform(*NEWCOMER_S), rng.random() < 1 / 2
        faults.append(Fault(FaultKind.VISIT, at_s, seconds, (), silent))
    return tuple(faults), (_chain(rng, options),)


def _crawlers(rng: Random, options: AimedOptions) -> Schedule:
    """Servers become a hundred times slower; meanwhile something is aimed at."""
    servers = range(options.trainers, options.trainers + options.servers)
    faults = []
    for seat in rng.sample(servers, min(rng.randint(*CRAWLERS), len(servers))):
        step = rng.choice((None, rng.randrange(options.steps)))
        at_s = rng.uniform(0.0, SOON_S if step is not None else FIRST_S)
        faults.append(Fault(FaultKind.CRAWL, at_s, rng.uniform(*CRAWL_S), (seat,), step=step))
    return tuple(faults), (_chain(rng, options),)


SCHEDULES: tuple[Callable[[Random, AimedOptions], Schedule], ...] = (
    *(_shots,) * 5,
    *(_turns,) * 2,
    _standbys,
    _newcomers,
    _crawlers,
)
"""The kinds of schedules, the most various one several times."""


def _chain(rng: Random, options: AimedOptions) -> Chain:
    """Faults one after another; the later ones are also aimed at what the earlier ones cause."""
    aim = _aim(rng, options, EVERY_STEP, step=rng.randrange(options.steps))
    links = [_shot(rng, aim)]
    for _ in range(rng.randint(*LINKS) - 1):
        aim = _aim(rng, options, (*EVERY_STEP, *AFTER_A_FAULT), step=0)
        links.append(_shot(rng, aim))
    return tuple(links)


def _aim(rng: Random, options: AimedOptions, traffic: tuple[Traffic, ...], step: int) -> Aim:
    if options.trainers == 1:
        traffic = tuple(one for one in traffic if STANDBY not in (one.sender, one.receiver))
    one = rng.choice(traffic)
    moment = rng.choice(tuple(Moment))
    role = one.sender if moment is Moment.LEAVES else one.receiver
    number = int(NUMBER_END ** rng.random())  # the first ones more often
    phase = rng.choice((None, None, *Phase)) if one in AFTER_A_FAULT else None
    return Aim(one.message, moment, role, number, phase, step)


def _shot(rng: Random, aim: Aim) -> AimedFault:
    kind = rng.choice(HITS)
    if kind in PAIRED:
        whom = rng.choice(((Whom.HERE, Whom.THERE), (Whom.THERE, Whom.HERE)))
    else:
        whom = (rng.choice((*(Whom.HERE,) * 3, *(Whom.THERE,) * 3, *Whom)),)
    return _at(rng, aim, kind, whom, rng.uniform(*rng.choice(SECONDS[kind])))


def _at(
    rng: Random, aim: Aim, kind: FaultKind, whom: tuple[Whom, ...], seconds: float
) -> AimedFault:
    after_s = rng.choice((0.0, 0.0, AT_ONCE_S, rng.uniform(0.0, SOON_S)))
    silent = kind in DEADLY and rng.random() < 1 / 2
    return AimedFault(aim, kind, whom, seconds, after_s, silent, rng.random())
