"""Scenes of `goes_on.py` in which the chain's rules could keep a run from ever going on.

Each seed draws one way. What is measured goes from the last fault to the end of the next step.

Stopped coordinator: it is stopped for 3 to 40 s while a step is averaged, a standby takes over and
is killed about when it decides, and the first goes on. Away trainer: one of two trainers is gone,
so the other and four servers vote. That trainer is away for 5 to 130 s; meanwhile two or three of
the four die, and it comes back to a majority that lives.
"""

import asyncio
import math
import random
import statistics
from dataclasses import dataclass

from watched_run import PATIENCE_S, STAGES, Wait, WatchedRun

from p2pswarm.net.wire.message import Message
from p2pswarm.progress.events import Report
from p2pswarm.run.chain.messages import Accepted, Prepare, Promise, Propose
from p2pswarm.run.chain.record import VoterId
from p2pswarm.run.messages.step import Commit, Committed, Reduce, Reduced
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.link import WORLD
from p2pswarm.sim.message_watch import Moment
from p2pswarm.sim.network_conditions import Host
from p2pswarm.sim.process import SimProcess
from p2pswarm.trainer.reports.leadership import Leads

FIRST_S = 6.0  # the first records name the standbys and the voters by then
FOR_GOOD_S = 4 * PATIENCE_S
LEAVES, ARRIVES = Moment.LEAVES, Moment.ARRIVES
MICROBATCHES = 8
FORWARDS_S = (0.03, 0.1)

STOP_AT = ((Reduce, LEAVES), (Reduced, ARRIVES), (Propose, LEAVES), (Accepted, ARRIVES))
STOPS_S = ((3.0, 5.0), (5.0, 9.0), (9.0, 20.0), (20.0, 40.0))
KILL_AT = (
    (Prepare, LEAVES),
    (Promise, ARRIVES),
    (Reduce, LEAVES),
    (Reduced, ARRIVES),
    (Propose, LEAVES),
    (Accepted, ARRIVES),
    (Commit, LEAVES),
    (Committed, ARRIVES),
)
KILLS_S = (
    12.0  # so long after the first goes on the successor is killed if it does what is aimed at
)
BACK_S = ((0.5, 5.0), (5.0, 30.0))

AWAY_S = ((5.0, 20.0), (20.0, 70.0), (70.0, 130.0))
AWAY_KINDS = (FaultKind.FREEZE, FaultKind.FREEZE, FaultKind.ISLAND, FaultKind.RESTART)
DEATHS = (FaultKind.KILL, FaultKind.KILL, FaultKind.WIPE)
LED_S = (0.0, 2.0)  # from the takeover on
FIVE_VOTE_S = (8.0, 14.0)  # after the first is gone; the other and four servers vote by then


class LastFault:
    """The faults of one run that are let happen one by one, and when the last of them ended."""

    def __init__(self, watched: WatchedRun) -> None:
        self._watched = watched
        self.at_s = math.inf
        """Since the run began; infinite before the first."""
        self._first_s = math.inf

    def let_happen(self, fault: Fault, *, ends_at_once: bool = False) -> bool:
        """Let it happen now; False if it cannot. `ends_at_once`: nobody waits for what returns."""
        if not WORLD.copy().run(self._watched.swarm.faults.let_happen, fault):
            return False
        self._first_s = min(self._first_s, fault.at_s)
        ends_s = fault.at_s + (0.0 if ends_at_once else fault.seconds)
        self.at_s = ends_s if self.at_s == math.inf else max(self.at_s, ends_s)
        return True

    def wait(self, way: str) -> Wait:
        """Return how long the next step took from then on."""
        watched = self._watched
        later = watched.ends_after(self.at_s)
        took_s = later[0] - watched.begun_s - self.at_s if later else PATIENCE_S
        before = len(watched.ends_s) - len(watched.ends_after(min(self._first_s, FIRST_S)))
        return Wait(way, took_s, statistics.median(watched.steps_s[:before] or [PATIENCE_S]))


@dataclass(slots=True)
class CountedMessage:
    """The n-th message of a kind, counted from when it is aimed at."""

    message: type[Message]
    moment: Moment
    number: int

    def is_it(self, message: type[Message], moment: Moment) -> bool:
        """Return whether this one is meant."""
        if (message, moment) != (self.message, self.moment):
            return False
        self.number -= 1
        return self.number == 0

    def __str__(self) -> str:
        """The aim, before it is counted down."""
        return f"{self.message.__name__} {self.number} {self.moment.value}"


def _aim(rng: random.Random, aims: tuple[tuple[type[Message], Moment], ...]) -> CountedMessage:
    message, moment = rng.choice(aims)
    return CountedMessage(message, moment, rng.randint(1, 4))


async def stopped_coordinator(seed: int) -> Wait:
    """The coordinator is stopped in the midst of an averaging, its successor dies, it goes on."""
    rng = random.Random(f"stopped coordinator {seed}")
    trainers, each = rng.choice((2, 2, 3)), rng.choice((1, 1, 2, 3))
    watched = WatchedRun(
        seed,
        rng.choice(FORWARDS_S),
        microbatches=MICROBATCHES,
        trainers=trainers,
        servers=each * STAGES,
        faults=FaultPlan(trainers),
    )
    swarm, faults = watched.swarm, LastFault(watched)
    stop, kill = _aim(rng, STOP_AT), _aim(rng, KILL_AT)
    stop_s, back_s = rng.uniform(*rng.choice(STOPS_S)), rng.uniform(*rng.choice(BACK_S))
    kind, silent = rng.choice((FaultKind.RESTART, FaultKind.KILL)), rng.random() < 1 / 2
    kinds = dict.fromkeys((kind, FaultKind.RESTART))  # where its disk cannot be spared
    way = f"{trainers} trainers, {each} a stage, {stop}: {stop_s:.0f} s, {kind.value} at {kill}"
    killed_s = stopped_s = math.inf

    def on_message(message: type[Message], moment: Moment, here: SimProcess, _: Host) -> None:
        nonlocal killed_s, stopped_s
        seats = [seat for seat in range(trainers) if swarm.process_at(seat) is here]
        now_s = watched.now_s()
        if not seats or now_s < FIRST_S:
            return
        (seat,) = seats
        stops = stopped_s == math.inf and seat == 0
        kills = killed_s == math.inf and seat > 0 and stopped_s < now_s < end_s()
        if stops and stop.is_it(message, moment):
            if faults.let_happen(Fault(FaultKind.FREEZE, now_s, stop_s, (0,))):
                stopped_s = now_s
        elif kills and kill.is_it(message, moment):
            ways = (Fault(one, now_s, back_s, (seat,), silent) for one in kinds)
            if any(faults.let_happen(one, ends_at_once=True) for one in ways):
                killed_s = now_s

    def end_s() -> float:
        """When nothing happens any more."""
        return stopped_s + stop_s + (KILLS_S if killed_s == math.inf else 0.0)

    swarm.world.on_message = on_message
    await watched.watch(lambda: watched.now_s() > end_s() and bool(watched.ends_after(faults.at_s)))
    return faults.wait(way if killed_s < math.inf else f"{way}, which never came")


class AwayTrainer:
    """A trainer and four servers vote; it is away, and two or three of the others die meanwhile."""

    def __init__(self, seed: int) -> None:
        rng = self._rng = random.Random(f"away trainer {seed}")
        each = rng.choice((2, 2, 3))
        lost, self._left = rng.choice(((0, 1), (1, 0)))
        kind = rng.choice((FaultKind.KILL, FaultKind.FREEZE))
        gone = Fault(kind, FIRST_S, FOR_GOOD_S, (lost,), silent=True)
        self._watched = WatchedRun(
            seed,
            rng.choice(FORWARDS_S),
            microbatches=MICROBATCHES,
            trainers=2,
            servers=each * STAGES,
            faults=FaultPlan(2, (gone,)),
        )
        self._swarm, self._faults = self._watched.swarm, LastFault(self._watched)
        self._led = asyncio.Event()
        self._heard, self._swarm.heard = self._swarm.heard, self._hear
        self._away_s, self._kind = rng.uniform(*rng.choice(AWAY_S)), rng.choice(AWAY_KINDS)
        self._at_once = lost == 0 and rng.random() < 1 / 3
        self._deaths = sorted(rng.uniform(0.0, self._away_s) for _ in range(rng.choice((2, 2, 3))))
        self._died = 0
        self._way = f"{each} a stage, without {lost}, {self._kind.value} {self._away_s:.0f} s"
        self._way += " just after the takeover" if self._at_once else ""

    async def play(self) -> Wait:
        """Return how long the next step took from the last fault on."""
        watched, faults = self._watched, self._faults
        await watched.watch(lambda: bool(watched.ends_after(faults.at_s)), self._go_away())
        return faults.wait(f"{self._way}, {self._died} of {len(self._deaths)} die")

    def _hear(self, report: Report) -> None:
        self._heard(report)
        if isinstance(report, Leads) and report.term > 1:
            self._led.set()

    async def _go_away(self) -> None:
        rng, now_s = self._rng, self._watched.now_s
        if self._at_once:
            await self._led.wait()
            await asyncio.sleep(rng.uniform(*LED_S))
        else:
            await asyncio.sleep(FIRST_S + rng.uniform(*FIVE_VOTE_S))
        begun_s, silent = now_s(), rng.random() < 1 / 2
        self._faults.let_happen(Fault(self._kind, begun_s, self._away_s, (self._left,), silent))
        for death_s in self._deaths:
            await asyncio.sleep(begun_s + death_s - now_s())
            self._kill_a_voter()

    def _kill_a_voter(self) -> None:
        rng, swarm = self._rng, self._swarm
        peers = {voter.peer for voter in self._electorates()[0]}
        seats = range(swarm.config.trainers, swarm.seats)
        others = [seat for seat in seats if swarm.process_at(seat).host.peer.raw in peers]
        rng.shuffle(others)
        back_s = rng.choice((rng.uniform(*rng.choice(BACK_S)), FOR_GOOD_S))
        kind, silent = rng.choice(DEATHS), rng.random() < 1 / 2
        for seat in others:
            fault = Fault(kind, self._watched.now_s(), back_s, (seat,), silent)
            if self._may_die(seat) and self._faults.let_happen(fault, ends_at_once=True):
                self._died += 1
                return

    def _electorates(self) -> list[tuple[VoterId, ...]]:
        """The voters of the newest decided record, and of those that were accepted after it."""
        swarm = self._swarm
        disks = [one.disk for one in (*swarm.trainers.seats, *swarm.machines) if not one.gone]
        read = [disk.restored(swarm.trainers.genesis) for disk in disks]
        head = max((one.learner.chain.head for one in read), key=lambda one: one.height)
        accepted = [one.register.accepted for one in read]
        later = [one for one in accepted if one is not None and one.height >= head.height]
        return [head.voters, *(one.voters for one in later)]

    def _may_die(self, seat: int) -> bool:
        """Return whether the trainer that comes back has a majority without this server."""
        swarm = self._swarm
        there = {swarm.trainers.seats[self._left].chain_disk.voter} | {
            one.chain_disk.voter
            for one in swarm.machines
            if one.died_s is None and one.rpc is not swarm.process_at(seat)
        }
        return all(
            2 * sum(voter in there for voter in named) > len(named) for named in self._electorates()
        )
