"""Microbatches that a server hands on to others of its stage, and who may be at fault for it."""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from p2pswarm.base.recent_items import RecentItems
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import MEMBERS_MAX
from p2pswarm.trainer.members.membership import Member
from p2pswarm.trainer.step.in_flight import MEASURED, MicrobatchJob

SHARED_MIN = 3  # of one server: to launch two again costs about as much as to wait for them
HANDED_ON_MAX = 4  # times in a step: what is lost each time is at most a forward in each stage
LOOK_S = 0.5  # between two looks for what is stalled
PACE_SAMPLES = 5  # of a server's pace; of fewer than `SHARED_MIN` nothing follows
STALL_SAMPLES = 8  # fewer say little of the slowest twentieth
STALLED = 4.0  # times the 95th percentile of the stage
STALLED_MOST = (
    16.0  # times its 75th: one that takes ever longer raises the 95th, and finishes little
)
KEPT = 2.0  # times that of gradients, where no other server of the stage is idle
NAMED_MIN = 2  # servers that finish nothing of what one member says that they have
STALLED_LEAST_S = 1.0  # below this a pause of the garbage collector or the kernel would count
BELIEVED_S = 10.0  # a server finds within 8 s that nothing comes from another
BELIEVED_AGAIN_S = 600.0  # so whoever says falsely that it waits wins a sixtieth of the time
STALLED_FIRST_S = 2.0  # while a stage is not measured: first passes are slow


@dataclass(frozen=True, slots=True)
class JourneyHop:
    """A microbatch was given to a server, or its gradient was."""

    stage: int
    """-1: its gradient has left the first stage."""
    server: Incarnation | None
    """None: no note has named it."""
    returning: bool
    at_s: float


@dataclass(slots=True)
class _Holding:
    """Who has the running attempt of a microbatch."""

    attempt: int
    since_s: float
    stage: int
    holder: Incarnation | None = None
    """None: a server that no note has named yet."""
    teller: Incarnation | None = None
    """The member that says so; None: the trainer."""
    returning: bool = False
    """True once a stage has computed the gradient."""
    waits: bool = False
    """True if its holder has computed it, and waits for a server of the next stage."""
    servers: dict[int, Incarnation] = field(default_factory=dict)
    """By their stages."""
    hops: list[JourneyHop] = field(default_factory=list)
    """Its way so far."""


@dataclass(frozen=True, slots=True)
class HeldMicrobatch:
    """A microbatch under way, and who has it as notes tell."""

    microbatch: int
    stage: int
    holder: Incarnation
    giver: Incarnation | None
    """The server from which the holder has it, or is to get it; None: the trainer."""
    for_s: float
    """How long the holder has had it."""
    returning: bool
    """It is a gradient on its way back."""
    waits: bool
    """Its holder has computed it, and waits for a server of the next stage."""


@dataclass(frozen=True, slots=True)
class StalledJob:
    """A microbatch that gets on nowhere, and who has it."""

    job: MicrobatchJob
    holder: Incarnation
    stage: int
    took_s: float
    """For how long its holder has had it, or has finished nothing."""
    teller: Incarnation | None = None
    """The member that says that the holder has it; None: the trainer."""
    blameless: bool = False
    """Its holder gets on, but has so many that it would finish this one too late; or it waits for
    a server of this stage."""
    returning: bool = False
    """It is a gradient that has come back."""


@dataclass(slots=True)
class _FinishedWork:
    """What a server has finished in a step."""

    finished_s: float = -math.inf
    """When it finished something last."""
    returned_s: float = -math.inf
    """When it finished a gradient last that had come back to it."""
    paces_s: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_SAMPLES))
    """How long it took from one thing that it finished to the next, while it had any."""


NOTHING_FINISHED = _FinishedWork()


@dataclass(slots=True)
class _Stall:
    """A server that was stalled in this step."""

    since_s: float
    tellers: dict[Incarnation | None, None] = field(default_factory=dict)
    """Who says that it had what it did not finish; None: the trainer."""

    @property
    def teller(self) -> Incarnation | None:
        """The member that alone says so, if there is one."""
        return next(iter(self.tellers)) if len(self.tellers) == 1 else None


@dataclass(frozen=True, slots=True)
class _FirstStall:
    """When a microbatch was stalled first, and who may be at fault for all its stalls since."""

    since_s: float
    suspects: frozenset[Incarnation | None]


@dataclass(frozen=True, slots=True)
class StallSuspect:
    """A server that may be at fault for what is stalled."""

    one: Incarnation
    teller: Incarnation | None
    """Who alone says that it had anything; None: several do, or the trainer."""
    cost_s: float
    """How long ago that began."""


class WorkStealing:
    """The microbatches that were handed on in one step, and those that are to be.

    All microbatches of a step are mostly under way when a server comes, and a push stays where it
    is: a stage that had one slow server would stay slow, though three others are back. Therefore
    what a server has more than its share of is given up, fenced like any attempt, and launched
    again; routers choose the new server then.

    The oldest attempts stay: they are the likeliest to be computed already. Each microbatch is
    handed on a few times in a step at most, so servers that come and go cannot hold it up for
    ever. Once would not do: servers also come when the run begins, before any cut.

    The same is done with what is *stalled*: the server that has it has finished nothing for
    several times as long as its stage usually takes for one, while another server of the stage has
    nothing to do. So is what a far slower one would finish as late, because it has many. The time
    doubles with each time that the microbatch is handed on, so a stage that has become slow gets
    on, too. Until the stage is measured a few seconds count: a server that is far slower than those
    that come after it may have all there is. Source: backup tasks of
    MapReduce (Dean and Ghemawat, OSDI 2004, 3.6); here the first attempt is fenced, because both
    would count.
    """

    def __init__(self, stages: int) -> None:
        self._took_s: list[deque[float]] = [deque(maxlen=MEASURED) for _ in range(stages)]
        """How long servers of each stage take for a microbatch, or its gradient."""
        self._back_s: list[deque[float]] = [deque(maxlen=MEASURED) for _ in range(stages)]
        """How long they take for a gradient that comes back to them."""
        self._work: dict[Incarnation, _FinishedWork] = {}
        self._moved: Counter[int] = Counter()
        self._stalls: dict[Incarnation, _Stall] = {}
        """Of the servers that were stalled in this step."""
        self._first: dict[int, _FirstStall] = {}
        """Of the microbatches that were stalled in this step."""
        self._believed_s = RecentItems[bytes, float](MEMBERS_MAX)
        """When it was first believed of each peer, lately, that it waits for another."""
        self._held: dict[int, _Holding] = {}
        self.next_look_s = math.inf
        """Time to ask what is stalled; infinite while nobody has anything."""

    def begin(self, *, loaded: bool = False) -> None:
        """The next step begins; `loaded`: some of it is under way already."""
        self._moved.clear()
        self._stalls.clear()
        self._first.clear()
        if loaded:
            there = {one for held in self._held.values() for one in held.servers.values()}
            self._work = {one: made for one, made in self._work.items() if one in there}
            return
        self._held.clear()
        self._work.clear()
        self.next_look_s = math.inf

    def holder(self, job: MicrobatchJob, stage: int) -> Incarnation | None:
        """Return which server of a stage the running attempt of a job went to, if it is known."""
        held = self._held.get(job.microbatch)
        return held.servers.get(stage) if held and held.attempt == job.attempt else None

    def on_handoff(
        self,
        job: MicrobatchJob,
        stage: int,
        to: Incarnation,
        now_s: float,
        by: Incarnation | None = None,
    ) -> None:
        """A server has the running attempt of a job now; `by`: who says so, None: the trainer."""
        held = self._held.get(job.microbatch)
        if held is None or held.attempt != job.attempt:
            held = self._held[job.microbatch] = _Holding(job.attempt, now_s, stage)
        held.servers[stage] = to
        self.next_look_s = min(self.next_look_s, now_s + LOOK_S)
        if not held.returning and stage >= held.stage:  # notes may overtake each other
            self._pass(held, stage, now_s)
            held.teller = by
            self._hop(held, JourneyHop(stage, to, returning=False, at_s=now_s))

    def on_wait(self, job: MicrobatchJob, by: Incarnation, now_s: float) -> None:
        """The server that has a job has computed it, and waits for a server of the next stage."""
        held = self._held.get(job.microbatch)
        if held is None or held.attempt != job.attempt or held.holder != by or held.returning:
            return
        if not held.waits:
            self._measure(held, by, now_s)
            held.waits, held.since_s = True, now_s

    def on_gradient(self, job: MicrobatchJob, stage: int, now_s: float) -> None:
        """A server of a stage has computed the gradient: the one below has it now."""
        held = self._held.get(job.microbatch)
        if held is not None and held.attempt == job.attempt:
            self._pass(held, stage - 1, now_s)
            held.returning, held.teller = True, held.servers.get(stage)
            self._hop(held, JourneyHop(stage - 1, held.holder, returning=True, at_s=now_s))

    def journey(self, microbatch: int) -> tuple[JourneyHop, ...]:
        """Return the way of a microbatch's last attempt, as notes told it."""
        held = self._held.get(microbatch)
        return () if held is None else tuple(held.hops)

    def under_way(
        self, running: Callable[[int, int], MicrobatchJob | None], now_s: float
    ) -> list[HeldMicrobatch]:
        """Return who has what, the longest first; `running`: as for `stalled`."""
        found = []
        for microbatch, held in self._held.items():
            if held.holder is None or running(microbatch, held.attempt) is None:
                continue
            giver = held.servers.get(held.stage + (1 if held.returning else -1))
            what = microbatch, held.stage, held.holder, giver, now_s - held.since_s
            found.append(HeldMicrobatch(*what, held.returning, held.waits))
        return sorted(found, key=lambda one: (-one.for_s, one.microbatch))

    def surplus(self, there: Iterable[Sequence[MicrobatchJob]]) -> list[MicrobatchJob]:
        """Return what is to be given up; `there`: what each server has yet to count, by age."""
        loads = list(there)
        share = -(-sum(map(len, loads)) // len(loads))
        surplus = [
            job
            for jobs in loads
            if len(jobs) >= SHARED_MIN
            for job in jobs[share:]
            if self._moved[job.microbatch] < HANDED_ON_MAX
        ]
        self._moved.update(job.microbatch for job in surplus)
        return surplus

    def stalled(
        self,
        running: Callable[[int, int], MicrobatchJob | None],
        ready: Callable[[int], Sequence[Member]],
        now_s: float,
    ) -> list[StalledJob]:
        """Return what is to be given up, because an idle server of the stage does it sooner.

        `running`: the job of a microbatch, if exactly this attempt of it is in the pipeline;
        `ready`: the servers of a stage.
        """
        self.next_look_s = now_s + LOOK_S if self._held else math.inf
        there, busy = self._look(running, ready, now_s)
        stalled = []
        for stage, jobs in there.items():
            limit_s = self._limit_s(stage)
            here = [one for one in jobs if not one.blameless]
            if any(server.incarnation not in busy for server in ready(stage)):
                late = (one for one in jobs if self._is_stalled(one, limit_s))
                found = [self._as_believed(one, now_s) if one.blameless else one for one in late]
                stalled += found or self._too_many(stage, here, limit_s)
            else:
                stalled += self._kept(stage, here) or self._named_by_one(here, limit_s)
        for one in stalled:
            if one.blameless:
                continue
            since_s = self._since_s(one, now_s)
            stall = self._stalls.setdefault(one.holder, _Stall(since_s))
            stall.since_s = min(stall.since_s, since_s)
            stall.tellers[one.teller] = None
        self._moved.update(one.job.microbatch for one in stalled)
        return stalled

    def _look(
        self,
        running: Callable[[int, int], MicrobatchJob | None],
        ready: Callable[[int], Sequence[Member]],
        now_s: float,
    ) -> tuple[dict[int, list[StalledJob]], dict[Incarnation, None]]:
        """All jobs under way by the stage that each waits for, and the servers that have any."""
        there: dict[int, list[StalledJob]] = {}
        busy: dict[Incarnation, None] = {}
        for microbatch, held in list(self._held.items()):
            job, holder = running(microbatch, held.attempt), held.holder
            if job is None:
                del self._held[microbatch]
                continue
            if self._has_nowhere_to_go(held, ready):
                held.since_s = now_s
            if holder is None:
                continue
            if not held.waits:
                busy[holder] = None
            if job.counts:
                took_s = now_s - held.since_s if held.waits else self._took(held, now_s)
                stage = held.stage + held.waits
                what = job, holder, stage, took_s, held.teller
                one = StalledJob(*what, blameless=held.waits, returning=held.returning)
                there.setdefault(stage, []).append(one)
        return there, busy

    def _has_nowhere_to_go(self, held: _Holding, ready: Callable[[int], Sequence[Member]]) -> bool:
        """Return whether no server serves the stage that a job goes to next."""
        onward = not held.returning and held.stage + 1 < len(self._took_s)
        return onward and not ready(held.stage + 1)

    def _as_believed(self, one: StalledJob, now_s: float) -> StalledJob:
        """A job that waits for a server of the next stage, as its holder says; believed for long
        enough to find that server dead, and then not again for a while.
        """
        since_s = self._believed_s.get(one.holder.peer, -math.inf)
        if now_s >= since_s + BELIEVED_AGAIN_S:
            since_s = self._believed_s[one.holder.peer] = now_s
        return one if now_s < since_s + BELIEVED_S else replace(one, blameless=False)

    def _since_s(self, one: StalledJob, now_s: float) -> float:
        """Since when a holder may have held up a job.

        It may be since the job was stalled first, if the holder had it then or alone said who did.
        """
        pair = frozenset((one.holder, one.teller))
        first = self._first.get(one.job.microbatch)
        if first is not None and (common := first.suspects & pair):
            self._first[one.job.microbatch] = replace(first, suspects=common)
            if one.holder in common:
                return first.since_s
        else:
            self._first[one.job.microbatch] = _FirstStall(now_s - one.took_s, pair)
        return now_s - one.took_s

    def suspects(
        self,
        holders: Iterable[Incarnation],
        now_s: float,
        pauses: Callable[[bytes], int] = lambda _peer: 0,
    ) -> list[StallSuspect]:
        """Return who may be at fault that these are stalled, each once.

        If one member alone says of two that they have something, and they finish nothing, it is the
        likelier one: it may have handed on nothing. So it is if it had more `pauses` before.
        """
        alone: dict[Incarnation, list[_Stall]] = {}
        for stall in self._stalls.values():
            if (teller := stall.teller) is not None:
                alone.setdefault(teller, []).append(stall)
        found: dict[Incarnation, StallSuspect] = {}
        for holder in holders:
            stall = self._stalls[holder]
            teller, since_s = stall.teller, stall.since_s
            if teller is not None and (
                len(alone[teller]) >= NAMED_MIN or pauses(teller.peer) > pauses(holder.peer)
            ):
                since_s = min(each.since_s for each in alone[teller])
                found[teller] = StallSuspect(teller, None, now_s - since_s)
            else:
                found[holder] = StallSuspect(holder, teller, now_s - since_s)
        return list(found.values())

    def _limit_s(self, stage: int, times_s: Sequence[float] = ()) -> float:
        """How long a server of a stage may take for what was never handed on.

        `times_s`: how long servers took for the like of it; too few: what all of their work took.
        """
        measured = times_s if len(times_s) >= STALL_SAMPLES else self._took_s[stage]
        if len(measured) < STALL_SAMPLES:
            return STALLED_FIRST_S
        ordered = sorted(measured)
        slow_s = ordered[int(0.95 * (len(measured) - 1))]
        most_s = STALLED_MOST * ordered[int(0.75 * (len(measured) - 1))]
        return max(STALLED_LEAST_S, min(STALLED * slow_s, most_s))

    def _kept(self, stage: int, jobs: Sequence[StalledJob]) -> list[StalledJob]:
        """The gradients that a server keeps, though others of its stage have work, too.

        A server computes gradients before all else. One that has had a gradient for far longer than
        others take, and has finished none meanwhile, does not work at it. Each that it keeps would
        else hold a place in the window until the step has nothing else to do.
        """
        if len(self._back_s[stage]) < STALL_SAMPLES:
            return []
        limit_s = KEPT * max(self._limit_s(stage), self._limit_s(stage, self._back_s[stage]))
        return [one for one in jobs if one.returning and self._is_stalled(one, limit_s)]

    def _named_by_one(self, jobs: Sequence[StalledJob], limit_s: float) -> list[StalledJob]:
        """All that a stage waits for, if it waits for what one member alone says that it has."""
        late = [one for one in jobs if self._is_stalled(one, limit_s)]
        tellers = dict.fromkeys(one.teller for one in jobs)
        several = len({one.holder for one in late}) >= NAMED_MIN
        return late if several and len(tellers) == 1 and None not in tellers else []

    def _too_many(self, stage: int, jobs: Sequence[StalledJob], limit_s: float) -> list[StalledJob]:
        """The newest that a slow server will not have finished within the limit, at its pace."""
        measured = sorted(self._took_s[stage])
        if len(measured) < STALL_SAMPLES:
            return []
        slow_s = STALLED * measured[len(measured) // 2]
        by_holder: dict[Incarnation, list[StalledJob]] = {}
        for one in jobs:
            by_holder.setdefault(one.holder, []).append(one)
        late = []
        for holder, queue in by_holder.items():
            paces_s = sorted(self._work.get(holder, NOTHING_FINISHED).paces_s)
            if len(paces_s) < SHARED_MIN:
                continue
            pace_s = paces_s[len(paces_s) // 2]
            if pace_s < slow_s:
                continue
            later = queue[1:] if len(queue) >= SHARED_MIN else []
            for place, one in enumerate(later, start=2):
                times = self._moved[one.job.microbatch]
                if times < HANDED_ON_MAX and place * pace_s > limit_s * 2.0**times:
                    late.append(replace(one, blameless=True))
        return late

    def _is_stalled(self, one: StalledJob, limit_s: float) -> bool:
        times = self._moved[one.job.microbatch]
        return times < HANDED_ON_MAX and one.took_s > limit_s * 2.0**times

    def _took(self, held: _Holding, now_s: float) -> float:
        """For how long its holder has had it, or has finished nothing; of gradients no gradient."""
        if held.holder is None:
            return 0.0
        made = self._work.get(held.holder, NOTHING_FINISHED)
        done_s = made.returned_s if held.returning else made.finished_s
        return max(0.0, now_s - max(held.since_s, done_s))

    def _pass(self, held: _Holding, stage: int, now_s: float) -> None:
        if held.holder is not None and not held.waits:
            self._measure(held, held.holder, now_s)
        held.holder, held.stage, held.since_s = held.servers.get(stage), stage, now_s
        held.waits = False

    def _hop(self, held: _Holding, hop: JourneyHop) -> None:
        """Note where it goes; members that say so without end lengthen no list."""
        if len(held.hops) < 2 * len(self._took_s) + 2:
            held.hops.append(hop)

    def _measure(self, held: _Holding, holder: Incarnation, now_s: float) -> None:
        """Note how long a server took for what it has finished."""
        took_s = self._took(held, now_s)
        self._took_s[held.stage].append(took_s)
        made = self._work.setdefault(holder, _FinishedWork())
        made.paces_s.append(took_s)
        made.finished_s = now_s
        if held.returning:
            self._back_s[held.stage].append(took_s)
            made.returned_s = now_s
