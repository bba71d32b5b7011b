"""Microbatches under way: their attempts, paths and time limits, how many, which are fenced."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush

from p2pswarm.base.estimates import Window
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.step import FencedWork
from p2pswarm.trainer.members.membership import AnswerLimits

TIMEOUT_FIRST_S = 120.0  # nothing is measured yet, and first passes are slow
TIMEOUT_MIN_S = 10.0  # below this a pause of the garbage collector or the kernel would count
USUAL_FACTOR = 4.0  # times the 95th percentile: one healthy attempt in thousands is fenced
USUAL_MAX_S = 600.0  # what the percentile may ask for; only slower attempts ask for more
SLOWEST_FACTOR = 2.0  # times the slowest: one that is known to finish is let finish again
BACKOFF = 2.0  # RFC 6298, 5.5
BACKOFF_MAX_S = 3600.0  # as for an averaging: who needs longer cannot be told from who lost it
MEASURED = 64  # attempts remembered
LOOK_SOONER = 2.0  # times less than before: what runs was launched with the longer time


class AttemptTimeout:
    """The time that an attempt may take; kept from step to step.

    An attempt may take four times the 95th percentile of those that finished, and twice the
    slowest of them. If all have become slow, none finishes. So an attempt that was late teaches
    too: the next may take twice as long as it was given, until one finishes.

    What is under way when others turn out late gets more time as well, but at most twice what it
    was launched with. Else each of a window of attempts that are all lost would wait for the one
    before, and double the time once more: sixteen of them would take 2^16 times as long.

    Source: RFC 6298, section 5: a timer that expires is doubled until there is a new measurement.
    """

    def __init__(self) -> None:
        self._took_s = Window(MEASURED)
        self.usual_s = TIMEOUT_FIRST_S
        """The time by those that finished."""
        self._backed_off_s = 0.0

    @property
    def timeout_s(self) -> float:
        """Return how long an attempt that is launched now may be under way."""
        return max(self.usual_s, self._backed_off_s)

    @property
    def median_s(self) -> float:
        """Return how long an attempt takes; 0 before one has finished."""
        return self._took_s.quantile(0.5) or 0.0

    def extended_s(self, given_s: float) -> float:
        """Return how long an attempt may be under way by now that was launched with `given_s`."""
        return max(self.usual_s, min(self._backed_off_s, BACKOFF * given_s))

    def on_completion(self, took_s: float) -> None:
        """An attempt was counted by every stage."""
        self._took_s.add(took_s)
        most_s, slowest_s = self._took_s.quantile(0.95), self._took_s.quantile(1.0)
        assert most_s is not None, "there is a sample now"
        assert slowest_s is not None, "there is a sample now"
        most_s = min(USUAL_MAX_S, USUAL_FACTOR * most_s)
        self.usual_s = max(TIMEOUT_MIN_S, most_s, SLOWEST_FACTOR * slowest_s)
        self._backed_off_s = 0.0

    def on_timeout(self, given_s: float) -> float:
        """An attempt did not finish in time; returns the time that its next one is given."""
        next_s = min(BACKOFF_MAX_S, BACKOFF * given_s)
        self._backed_off_s = max(self._backed_off_s, next_s)
        return next_s


EVALUATION_BASE = 2**61  # held-out batches are numbered from here: no step reaches it
REFERENCE_BASE = EVALUATION_BASE + 2**60
"""Batches of answers whose references are computed are numbered from here."""
RETRY_FIRST_S = 0.02  # doubles with each attempt, so that a broken stage is not hammered
RETRY_MAX_S = 2.0
RETRY_DOUBLINGS_MAX = 7  # then it is RETRY_MAX_S, however often an attempt is lost
REFUSALS_MAX = 24  # about half a minute of retries; then the run ends with the reason
NEVER_S = float("-inf")  # it was never given up


class JobPhase(Enum):
    """The phases of a job."""

    WAITING = "to be launched"
    RUNNING = "in the pipeline"
    FENCING = "given up, and not yet certain that nobody will count it"
    DONE = "counted by every stage"


@dataclass(slots=True)
class MicrobatchJob:
    """One microbatch of the step, a held-out batch, or one whose references are computed."""

    microbatch: int
    work: Work
    phase: JobPhase = JobPhase.WAITING
    attempt: int = -1
    path: list[Incarnation] = field(default_factory=list)
    launched_s: float = 0.0
    not_before_s: float = NEVER_S
    refusals: int = 0
    """Attempts that got stuck; those that were lost with a server do not count."""
    timeout_s: float = 0.0
    """Time that a late attempt has earned the next; 0 if none was late."""
    given_s: float = 0.0
    """Time limit of the running attempt, as it was launched."""
    reason: str = ""
    """Reason why the last attempt was given up."""
    stuck: bool = False
    """An attempt was late or got stuck: the next one computes all, wherever it goes."""
    check: bool = False
    """A spot check: it goes the whole way, and nobody counts it."""
    condemned: bool = False
    """It is not finite on any path: once its last attempt is fenced, it is set aside."""

    @property
    def counts(self) -> bool:
        """True if stages are to count it."""
        return self.work is Work.FORWARD and not self.check

    @property
    def may_use_kept(self) -> bool:
        """True if who has counted it may hand on what it has computed before."""
        return self.counts and not self.stuck


class InFlight:
    """All jobs of one step.

    A job waits, runs, is perhaps fenced and waits again, and is done when every stage has counted
    it. The trainer asks after every note what is late and what to launch. So nothing here walks
    over what is in flight: deadlines and retries stand in heaps, and what went through an
    incarnation is kept by incarnation. An entry of a heap that is no longer true is dropped when
    it comes up.
    """

    def __init__(self, jobs: list[MicrobatchJob], timeout: AttemptTimeout) -> None:
        self._jobs = {job.microbatch: job for job in jobs}
        self._fresh = deque(jobs)
        """Never launched."""
        self._undone = len(jobs)
        self._running: dict[int, MicrobatchJob] = {}
        self._through: dict[Incarnation, dict[int, MicrobatchJob]] = {}
        """Running jobs that go through an incarnation."""
        self._timeout = timeout
        self.begun_s: float | None = None
        self._late: list[tuple[float, int, int]] = []
        """A heap: time to look whether it is late, microbatch, attempt."""
        self._again: list[tuple[float, int]] = []
        """A heap: time of the next launch, microbatch."""
        self._refused: list[tuple[int, int]] = []
        """A heap: its refusals below zero, microbatch."""

    @property
    def under_way(self) -> int:
        """The number of jobs in the pipeline."""
        return len(self._running)

    @property
    def finished(self) -> bool:
        """True if every job is done."""
        return not self._undone

    def add(self, job: MicrobatchJob) -> None:
        """Take on another job, after all others."""
        self._jobs[job.microbatch] = job
        self._fresh.append(job)
        self._undone += 1

    @property
    def all_launched(self) -> bool:
        """True if no job waits to be launched for the first time."""
        while self._fresh and not _is_fresh(self._fresh[0]):
            self._fresh.popleft()
        return not self._fresh

    def job(self, microbatch: int) -> MicrobatchJob | None:
        """The job of a microbatch, if it is of this step."""
        return self._jobs.get(microbatch)

    def was_launched(self, microbatch: int) -> bool:
        """Return whether somebody can have counted it."""
        job = self._jobs.get(microbatch)
        return job is not None and job.attempt >= 0

    def running(self, microbatch: int, attempt: int) -> MicrobatchJob | None:
        """The job, if exactly this attempt of it is in the pipeline."""
        job = self._jobs.get(microbatch)
        current = job is not None and job.phase is JobPhase.RUNNING and job.attempt == attempt
        return job if current else None

    def launch(self, window: int, now_s: float) -> MicrobatchJob | None:
        """Start the next attempt of the first job that may start; None if the window is full."""
        if len(self._running) >= window:
            return None
        job = self._next_again(now_s) or self._next_fresh()
        if job is not None:
            self._running[job.microbatch] = job
            self.begun_s = now_s if self.begun_s is None else self.begun_s
            job.phase, job.launched_s, job.path = JobPhase.RUNNING, now_s, []
            job.attempt += 1
            job.given_s = max(job.timeout_s, self._timeout.timeout_s)
            heappush(self._late, (now_s + self._timeout.usual_s, job.microbatch, job.attempt))
        return job

    def on_handoff(self, job: MicrobatchJob, to: Incarnation) -> None:
        """The running attempt of a job goes through an incarnation."""
        through = self._through.setdefault(to, {})
        if job.microbatch not in through:
            through[job.microbatch] = job
            job.path.append(to)

    def finish(self, job: MicrobatchJob, now_s: float) -> None:
        """Every stage has counted it."""
        if job.phase is JobPhase.RUNNING:
            before_s = self._timeout.usual_s
            self._timeout.on_completion(now_s - job.launched_s)
            if LOOK_SOONER * self._timeout.usual_s <= before_s:
                self._look_sooner()
        if job.phase is not JobPhase.DONE:
            self._undone -= 1
        self._leave(job, JobPhase.DONE)

    def give_up(self, job: MicrobatchJob, reason: str) -> None:
        """The last attempt of a job is to be fenced, though it may be done by what was counted."""
        job.reason = reason
        self._leave(job, JobPhase.FENCING)

    def again(self, job: MicrobatchJob, now_s: float) -> None:
        """Nobody will count the last attempt any more: it may be launched once more."""
        doublings = min(max(0, job.attempt - 1), RETRY_DOUBLINGS_MAX)
        job.not_before_s = now_s + min(RETRY_MAX_S, RETRY_FIRST_S * 2.0**doublings)
        heappush(self._again, (job.not_before_s, job.microbatch))
        self._leave(job, JobPhase.WAITING)

    def touched_by(self, gone: Incarnation) -> list[MicrobatchJob]:
        """The running jobs that went through an incarnation."""
        return list(self._through.get(gone, {}).values())

    def refuse(self, job: MicrobatchJob) -> None:
        """An attempt of a job got stuck."""
        job.refusals += 1
        self._remember_refusals(job)

    def most_refused(self) -> MicrobatchJob | None:
        """The job that got stuck most often, of those that are not done; None if none did."""
        while self._refused:
            job = self._jobs[self._refused[0][1]]
            if job.phase is not JobPhase.DONE:  # an older entry of it is below its newest
                return job
            heappop(self._refused)
        return None

    def late(self, now_s: float) -> list[MicrobatchJob]:
        """The running jobs that have been under way for too long; each is told once."""
        late = []
        for job in self._looked_at(now_s):
            given_s = max(job.timeout_s, self._timeout.extended_s(job.given_s))
            late_s = job.launched_s + given_s
            if late_s <= now_s:
                late.append((job, given_s))
            else:  # look again before that: the time is shorter once one finishes
                pause_s = max(self._timeout.usual_s, now_s - job.launched_s)
                again_s = min(late_s, now_s + pause_s)
                heappush(self._late, (again_s, job.microbatch, job.attempt))
        for job, given_s in late:  # after all: those that are late together do not teach each other
            job.timeout_s = self._timeout.on_timeout(given_s)
        return [job for job, _ in late]

    def next_deadline_s(self, now_s: float) -> float | None:
        """Return when to ask what is late, or what may be launched again."""
        while self._late and self.running(*self._late[0][1:]) is None:
            heappop(self._late)
        times = [self._late[0][0]] if self._late else []
        again_s = self._next_again_s()
        if again_s is not None and again_s > now_s:  # else it waits for the window, not for time
            times.append(again_s)
        return min(times, default=None)

    def _look_sooner(self) -> None:
        """Look at all that run by the time that attempts take now: it was far longer at first."""
        usual_s = self._timeout.usual_s
        for job in self._running.values():
            heappush(self._late, (job.launched_s + usual_s, job.microbatch, job.attempt))

    def _looked_at(self, now_s: float) -> list[MicrobatchJob]:
        """The running jobs of which it is time to look whether they are late, each once."""
        jobs = {}
        while self._late and self._late[0][0] <= now_s:
            _, microbatch, attempt = heappop(self._late)
            if job := self.running(microbatch, attempt):
                jobs[microbatch] = job
        return list(jobs.values())

    def _next_again_s(self) -> float | None:
        """Return when the first of the jobs that wait may be launched again."""
        while self._again:
            not_before_s, microbatch = self._again[0]
            job = self._jobs[microbatch]
            if job.phase is JobPhase.WAITING and job.not_before_s == not_before_s:
                return not_before_s
            heappop(self._again)
        return None

    def _next_again(self, now_s: float) -> MicrobatchJob | None:
        again_s = self._next_again_s()
        if again_s is None or again_s > now_s:
            return None
        return self._jobs[heappop(self._again)[1]]

    def _next_fresh(self) -> MicrobatchJob | None:
        """The next job never launched; some were counted under a former coordinator."""
        return None if self.all_launched else self._fresh.popleft()

    def _leave(self, job: MicrobatchJob, phase: JobPhase) -> None:
        """End the running attempt of a job, if there is one."""
        if job.phase is JobPhase.DONE and phase is not JobPhase.DONE:
            self._undone += 1
            self._remember_refusals(job)
        job.phase = phase
        if self._running.pop(job.microbatch, None) is not None:
            for incarnation in job.path:
                del self._through[incarnation][job.microbatch]

    def _remember_refusals(self, job: MicrobatchJob) -> None:
        if job.refusals:
            heappush(self._refused, (-job.refusals, job.microbatch))


def _is_fresh(job: MicrobatchJob) -> bool:
    """Return whether a job was never launched, and is not counted by all without that."""
    return job.phase is JobPhase.WAITING and job.not_before_s == NEVER_S


FENCE_S = 10.0  # an event loop answers at once; a lost packet or two may come in between
FENCE_NEWCOMER_S = 1.5  # of one that has yet to prove itself: its words are missed after 1.2 s
FENCE_MAX_S = 60.0  # of one that was slow before: a link that is full for so long carries nothing
FENCE_BATCH = 1024  # the limit of `Fence.work`


class Fences:
    """Attempts that are being given up, round by round, and who has not yet promised.

    A round may also be a probe: nothing is given up, but a member that does not answer counts as
    gone. Rounds do not overlap. While a member has not answered, no newcomer is made ready: that
    member could still push a fenced attempt to the newcomer, which was never asked. A suspended
    one, which is waited for too, cannot: it is told of no newcomers any more.
    """

    def __init__(self, limits: AnswerLimits) -> None:
        self._limits = limits
        self._newcomers: frozenset[Incarnation] = frozenset()
        """Those of the round that have less time."""
        self._next: dict[int, MicrobatchJob] = {}
        self._probe = False
        self._open: dict[int, MicrobatchJob] | None = None
        self._silent: dict[Incarnation, float] = {}
        """Time at which each member is overdue that has not answered."""
        self._absent: dict[Incarnation, None] = {}
        """Members that cannot be asked, and whose promise every round needs."""
        self._begun_s = 0.0
        self.deadline_s = math.inf
        """Time to ask which members are overdue."""

    @property
    def asking(self) -> bool:
        """True if a member that was asked in the open round has not answered."""
        return any(one not in self._absent for one in self._silent)

    @property
    def due(self) -> bool:
        """True if the next round is to be opened."""
        return self._open is None and not self.idle

    @property
    def idle(self) -> bool:
        """True if there is nothing to fence, now or next."""
        return self._open is None and not self._next and not self._probe

    @property
    def silent(self) -> list[Incarnation]:
        """The members that have not answered the round."""
        return list(self._silent)

    def unsure(self, job: MicrobatchJob) -> bool:
        """Return whether somebody may still count an attempt of it that was given up."""
        return job.microbatch in self._next or job.microbatch in (self._open or {})

    def add(self, job: MicrobatchJob) -> None:
        """Give up the running attempt of a job: it is fenced in the next round."""
        job.phase = JobPhase.FENCING
        self._next[job.microbatch] = job

    def probe(self) -> None:
        """Open the next round even if there is nothing to fence."""
        self._probe = True

    def limit_s(self, one: Incarnation) -> float:
        """Return how long a member may take to answer."""
        limit_s = self._limits.limit_s(one.peer)
        return FENCE_NEWCOMER_S if one in self._newcomers and limit_s <= FENCE_S else limit_s

    def begin(
        self,
        incarnations: list[Incarnation],
        now_s: float,
        newcomers: Iterable[Incarnation] = (),
    ) -> tuple[FencedWork, ...]:
        """Open a round over `incarnations`; returns what to tell each of them."""
        self._newcomers = frozenset(newcomers)
        self._probe = False
        self._open = dict(list(self._next.items())[:FENCE_BATCH])
        for microbatch in self._open:
            del self._next[microbatch]
        self._silent = {one: now_s + self.limit_s(one) for one in incarnations}
        self._silent |= dict.fromkeys(self._absent, math.inf)
        self._begun_s, self.deadline_s = now_s, min(self._silent.values(), default=now_s)
        return tuple(FencedWork(job.microbatch, job.attempt) for job in self._open.values())

    def overdue(self, now_s: float) -> list[Incarnation]:
        """The members that should have answered by now."""
        return [one for one, due_s in self._silent.items() if now_s >= due_s]

    def wait_longer(self, now_s: float) -> None:
        """Give the members that are overdue and may still answer more time."""
        for one in self.overdue(now_s):
            self._silent[one] = now_s + self.limit_s(one)
        if self._open is not None:
            self.deadline_s = min(self._silent.values(), default=now_s)

    def suspend(self, incarnation: Incarnation) -> None:
        """A member cannot be asked now: wait for it, in the open round and in all that follow."""
        self._absent[incarnation] = None
        if incarnation in self._silent:
            self._silent[incarnation] = math.inf
            self.deadline_s = min(self._silent.values())

    def on_timeout(self, incarnation: Incarnation) -> None:
        """A member did not answer in time: its peer has longer the next time."""
        self._limits.on_timeout(incarnation.peer)

    def on_answer(self, incarnation: Incarnation, now_s: float) -> bool:
        """An incarnation has promised; True if it was asked."""
        asked = self.on_promise(incarnation)
        if asked:
            self._limits.on_answer(incarnation.peer, now_s - self._begun_s)
        return asked

    def on_promise(self, incarnation: Incarnation) -> bool:
        """An incarnation has promised, or has ended; True if it was asked."""
        self._absent.pop(incarnation, None)
        return self._silent.pop(incarnation, None) is not None

    def settle(self) -> list[MicrobatchJob]:
        """The jobs of a round that all members have answered; reading closes the round."""
        if self._silent or self._open is None:
            return []
        settled, self._open = self._open, None
        self.deadline_s = math.inf
        return [job for job in settled.values() if job.phase is JobPhase.FENCING]


WINDOW_PER_ENTRY = 4  # a server of stage 0 computes one while three are on the wire
WINDOW_PER_SERVER = 2  # deep pipelines: each server computes one while one is on its way there
MARGIN, MARGIN_LEAST = 3.5, 1.5  # with 4, queues at the end of a step; bench/busy_share.py
SHRINK, REGROW = 0.8, 1.1  # of the margin, with each step in which a graph was computed again
CHANGE_MAX = 2.0  # from step to step
MEASURED_LEAST = 16  # microbatches of a step; fewer have no middle
FIRST_CHOICE = 4  # times the first servers: so many have finished when the first choice is made
PER_ENTRY_MAX = 128  # inputs that one first-stage server holds; it refuses more than 512


class LaunchPace:
    """The pace of launches, measured by the microbatches that finish; kept from step to step.

    Too few, and servers wait for work; too many, and their memory is full of inputs that wait for
    gradients. By Little's law as many are in flight as finish in a second, times the seconds that
    one takes which waits for nobody. `MARGIN` times that are launched: while two microbatches
    happen to meet at one server, the others still have something to do.

    Both are measured in each step: the rate over its best quarter, so that filling and draining
    the pipeline do not count, and the time by the first that finish, as many as there are first
    servers, because nothing was before them. A queue makes neither greater, so the window does not
    grow without end. Until something was measured, it keeps all ready servers busy on a short
    path; that is too few on a long one, so the first choice is made in the middle of the first
    step.

    A server without memory for a microbatch's graph computes it once more when the gradient comes.
    While any server does that, the margin shrinks with every step, and else it grows again.

    Source: Little, "A Proof for the Queuing Formula L = lambda W" (1961); the best rate times the
    least round trip, with a gain, as in BBR (Cardwell et al., ACM Queue 2016).
    """

    def __init__(self) -> None:
        self._entries = 1
        self._took_s: list[float] = []
        """Times of this step's first microbatches."""
        self._finished_s: list[float] = []
        self._margin = MARGIN
        self._chosen: float | None = None
        self._first = WINDOW_PER_ENTRY
        """The window until something was measured."""
        self._recomputed: dict[Incarnation, int] = {}
        """The graphs that each member computed again, by its last word in this step or before."""
        self._short = False
        """True if one has computed a graph again in this step."""

    def begin(self, *, loaded: bool = False) -> None:
        """The next step begins: choose from what was measured in the last.

        `loaded`: some of it is under way already, so its first ones find queues. Then the times of
        the last step that began without any are kept.
        """
        margin = self._margin * (SHRINK if self._short else REGROW)
        self._margin = max(MARGIN_LEAST, min(MARGIN, margin))
        measured = self._measured()
        if measured is not None:
            before = self._chosen or measured
            self._chosen = min(max(measured, before / CHANGE_MAX), before * CHANGE_MAX)
        self._finished_s, self._short = [], False
        if not loaded:
            self._took_s = []

    def on_completion(self, launched_s: float, now_s: float) -> None:
        """All stages have counted a microbatch that was launched then."""
        if len(self._took_s) < self._entries:
            self._took_s.append(max(0.0, now_s - launched_s))
        self._finished_s.append(now_s)
        if self._chosen is None and self._enough_for_a_first_choice():
            measured = self._measured()
            self._chosen = measured and min(measured, CHANGE_MAX * self._first)

    def on_recomputation(self, member: Incarnation, graphs: int) -> None:
        """A member says how many graphs it has had to compute again since it began."""
        before = self._recomputed.get(member)
        self._recomputed[member] = graphs
        self._short |= before is not None and graphs > before

    def on_end(self, member: Incarnation) -> None:
        """An incarnation is over."""
        self._recomputed.pop(member, None)

    def window(self, entries: int, servers: int) -> int:
        """Return how many may be in flight, with so many servers of stage 0, and of all stages."""
        self._entries = max(1, entries)
        if self._chosen is None:
            self._first = max(WINDOW_PER_ENTRY * entries, WINDOW_PER_SERVER * servers)
            return self._first
        return math.ceil(min(max(self._chosen, 2 * entries), PER_ENTRY_MAX * entries))

    def _enough_for_a_first_choice(self) -> bool:
        """Looks now and then only: each look goes over all that have finished."""
        count = len(self._finished_s)
        return count >= FIRST_CHOICE * self._entries and count % MEASURED_LEAST == 0

    def _measured(self) -> float | None:
        """`MARGIN` times what was in flight in the last step and waited for nobody."""
        times_s, span = self._finished_s, len(self._finished_s) // 4
        if len(times_s) < MEASURED_LEAST:
            return None
        pairs = zip(times_s, times_s[span:], strict=False)
        least_s = min(later_s - sooner_s for sooner_s, later_s in pairs)
        if least_s <= 0:  # they are told together, after a takeover
            return None
        return self._margin * span / least_s * sum(self._took_s) / len(self._took_s)
