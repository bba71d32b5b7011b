"""Checks of results: a microbatch that is finite nowhere is set aside, some are computed twice.

Units:   microbatches by their global number; a check has the number plus `CHECK_BASE`.
Source:  docs/training.md, "A gradient that is not finite"; docs/spot_checks.md.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.microbatch import CHECK_BASE, Sketch
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.members.blame import Blame
from p2pswarm.trainer.reports.reports import Quarantined, ResultsTied, WrongResult
from p2pswarm.trainer.step.in_flight import InFlight, JobPhase, MicrobatchJob
from p2pswarm.trainer.step.ledger import StepLedger

SHARE_MAX = 1 / 8  # of a step: what is left is still an unbiased gradient of most of the batch
STEPS_MAX = 5  # in a row, each with a microbatch set aside: it is the weights by now, not the text


def most_in_step(microbatches: int) -> int:
    """Return how many microbatches of a step may be set aside: a share of it, and one at least."""
    return max(1, int(microbatches * SHARE_MAX))


class Quarantine:
    """Microbatches that were set aside in the step in progress, and in the steps before it.

    A microbatch that is not finite on any path counts as a gradient of zeros in every stage. The
    step divides by the same number as ever, so its weights are those of a plain loop with the same
    rule. One such microbatch is an accident of the text. Many of them, or some in each step, mean
    that the training has failed, and then the run ends while the weights are whole.
    """

    def __init__(self, microbatches: int) -> None:
        """`microbatches`: of a step."""
        self._size = microbatches
        self._here: dict[int, list[int]] = {}
        """By step: with a delay the next one is under way, too."""
        self._steps = 0
        """Steps in a row, up to the last decided one, each with a microbatch set aside."""
        self.hopeless: str | None = None
        """Reason why the run must end, if it must."""

    def add(self, aside: Quarantined) -> None:
        """A microbatch was set aside in the step."""
        if aside.held_out:
            return  # nothing is trained on it
        step, reason = aside.step, aside.reason
        here = self._here.setdefault(step, [])
        here.append(aside.microbatch)
        if len(here) > most_in_step(self._size):
            count = f"{len(here)} of the {self._size} microbatches of step {step}"
            self.hopeless = f"{count} are not finite on any server: {reason}"
        elif self._steps + 1 > STEPS_MAX:
            row = f"{STEPS_MAX + 1} steps in a row have a microbatch that is not finite"
            self.hopeless = f"{row}: {reason}"

    def on_decision(self, step: float = math.inf) -> tuple[int, ...]:
        """The step is over; what was set aside in it, in order."""
        over = [number for number in self._here if number <= step]
        here = tuple(sorted(m for number in over for m in self._here.pop(number)))
        self._steps = self._steps + 1 if here else 0
        return here


OPINIONS_MAX = 8  # attempts of one check: by chance a third server is mostly among them
LARGER = 8.0  # a stage makes the differences of its inputs larger
OF_DTYPE = {"float32": 1e-4, "float64": 1e-9}
OF_CODEC = {
    "raw": 0.0,
    "planes-zstd": 0.0,
    "fp16": 5e-4,
    "bf16": 4e-3,
    "int8": 1e-2,
    "int8-ef": 0.1,
    "dither6": 0.06,
    "dither5": 0.12,
    "dither4": 0.25,
    "dither3": 0.6,
    "dither2": 1.0,
    "nvfp4": 0.25,
    "nvfp4-eden": 0.3,
    "mxfp4": 0.35,
}
"""Rounding of each codec, relative to the length of a tensor; a few times the usual."""

Numbers = tuple[float, ...]
"""A sketch."""

Place = tuple[int, int]
"""A microbatch, and how far it has come: stage by stage up, then down; the last stage is once."""

CONTRADICTS = "it gave other results than most for the same input, or different ones itself"
BROKEN_WAY = "what it gave and what the next server took are not the same"
UNTOLD = "it did not tell what it took and gave"


def tolerance(config: RunConfig) -> float:
    """Return how far apart two tensors may be that mean the same, relative to their length."""
    codecs = config.codecs
    names = [codecs.activation, codecs.gradient]
    if codecs.choice == "measured":
        names += codecs.coarsest
    names += [entry.partition("=")[2] for entry in (*codecs.activation_keys, *codecs.gradient_keys)]
    return OF_DTYPE[config.model.dtype] + max(OF_CODEC[name] for name in names)


def agree(one: Numbers, other: Numbers, tolerance: float) -> bool:
    """Return whether two sketches are as close as `tolerance` times the longer of them allows.

    An empty one agrees with all; sketches of two lengths do not agree.
    """
    if not one or not other:
        return True
    if len(one) != len(other):
        return False
    apart = math.hypot(*(a - b for a, b in zip(one, other, strict=True)))
    return apart <= tolerance * max(math.hypot(*one), math.hypot(*other))


@dataclass(frozen=True, slots=True)
class Opinion:
    """One server's result for one input."""

    by: Incarnation
    took: Numbers
    gave: Numbers
    size: float


Camp = list[Opinion]
"""Opinions about one place that agree."""


def _peers(camp: Camp) -> dict[bytes, Incarnation]:
    return {opinion.by.peer: opinion.by for opinion in camp}


def _wrong(camps: list[Camp]) -> list[Incarnation]:
    """Return the servers that contradict themselves, or else all but a clear majority."""
    everybody = {peer: by for camp in camps for peer, by in _peers(camp).items()}
    seen = Counter(peer for camp in camps for peer in _peers(camp))
    if twice := [by for peer, by in everybody.items() if seen[peer] > 1]:
        return twice
    most, second, *_ = sorted((len(_peers(camp)) for camp in camps), reverse=True)
    if most <= second:
        return []
    right = _peers(max(camps, key=lambda camp: len(_peers(camp))))
    return [by for peer, by in everybody.items() if peer not in right]


class SpotChecks:
    """The spot checks of a step, and their results.

    Every server tells sketches of what it took and gave, and does not know whether they are looked
    at. Servers that took the same must give the same, as far as rounding allows. A server is wrong
    that contradicts itself, or a majority. Sketches that nobody asked for are forgotten.
    """

    def __init__(self, config: RunConfig, key: bytes) -> None:
        """`key`: a secret of the trainer, which chooses the microbatches."""
        self.share = config.spot_check_share
        self._config = config
        self._last = config.stages - 1
        self._key = key
        self._near = tolerance(config)
        self._opinions: dict[Place, list[Opinion]] = {}
        self._ways: dict[tuple[int, int], dict[int, Opinion]] = {}
        """By number and attempt, then by place."""
        self._open: set[Place] = set()
        self._wrong: dict[Incarnation, WrongResult] = {}
        self._forgotten: dict[Incarnation, None] = {}
        """Members that have told something in this step that was forgotten."""

    def of_step(self) -> "SpotChecks":
        """Those of one more step; who is found wrong in any step is found in all."""
        made = SpotChecks(self._config, self._key)
        made._wrong = self._wrong
        return made

    def chosen(self, microbatch: int) -> bool:
        """Return whether a microbatch is to be computed twice."""
        digest = hashlib.sha256(self._key + microbatch.to_bytes(8)).digest()
        return int.from_bytes(digest[:8]) < self.share * 2**64

    def on_sketch(self, by: Incarnation, stage: int, note: Sketch) -> None:
        """A server tells what it took and gave."""
        microbatch = note.microbatch % CHECK_BASE
        if not self.chosen(microbatch):
            return
        opinion = Opinion(by, note.took, note.gave, note.size)
        at = stage if note.work == Work.FORWARD else 2 * self._last - stage
        self._opinions.setdefault((microbatch, at), []).append(opinion)
        self._judge((microbatch, at))
        way = self._ways.setdefault((note.microbatch, note.attempt), {})
        way[at] = opinion
        self._compare(microbatch, at - 1, way)
        self._compare(microbatch, at, way)

    def on_check(self, microbatch: int, holders: dict[int, Incarnation]) -> None:
        """A check is through; `holders` counted the microbatch, and must have told about it."""
        for stage, holder in holders.items():
            if holder in self._forgotten:
                continue
            for at in {stage, 2 * self._last - stage}:
                told = self._opinions.get((microbatch, at), ())
                if all(opinion.by != holder for opinion in told):
                    self._name(holder, microbatch, stage, UNTOLD)

    def wrong(self) -> list[WrongResult]:
        """The servers that were found to be wrong; drained by reading."""
        drained = list(self._wrong.values())
        self._wrong.clear()
        return drained

    def disputed(self, microbatch: int) -> bool:
        """Return whether servers disagree about it, and it is not clear who is wrong."""
        return any(place[0] == microbatch for place in self._open)

    def tied(self, microbatch: int) -> ResultsTied | None:
        """No more opinions will come: who disagrees, if anybody does."""
        places = [place for place in sorted(self._open) if place[0] == microbatch]
        if not places:
            return None
        self._open.difference_update(places)
        by = dict.fromkeys(opinion.by for opinion in self._opinions[places[0]])
        return ResultsTied(microbatch, self._stage(places[0]), tuple(by))

    def begin_anew(self) -> None:
        """The step's sums are void. Who has told something, and lives, need not tell it again."""
        told = {opinion.by: None for opinions in self._opinions.values() for opinion in opinions}
        self._opinions, self._ways, self._open = {}, {}, set()
        self._forgotten |= told

    def _judge(self, place: Place) -> None:
        """Compare all that took what the last one took."""
        *_, last = opinions = self._opinions[place]
        camps: list[Camp] = []
        for opinion in opinions:
            if not agree(opinion.took, last.took, self._near):
                continue
            for camp in camps:
                if self._same(camp[0], opinion):
                    camp.append(opinion)
                    break
            else:
                camps.append([opinion])
        self._open.discard(place)
        if len(camps) > 1:
            if wrong := _wrong(camps):
                for by in wrong:
                    self._name(by, place[0], self._stage(place), CONTRADICTS)
            else:
                self._open.add(place)

    def _same(self, one: Opinion, other: Opinion) -> bool:
        near = LARGER * self._near
        sizes = (one.size,), (other.size,)
        return agree(one.gave, other.gave, near) and agree(*sizes, near)

    def _compare(self, microbatch: int, at: int, way: dict[int, Opinion]) -> None:
        """Compare what a server gave with what the next one of the same attempt took."""
        giver, taker = way.get(at), way.get(at + 1)
        if giver is None or taker is None:
            return
        ends = (giver, at, giver.gave), (taker, at + 1, taker.took)
        if giver.gave and taker.took and agree(giver.gave, taker.took, self._near):
            return
        quiet = [end for end in ends if not end[2]]  # who tells nothing must be hiding something
        for opinion, place, _ in quiet or ends:
            self._name(opinion.by, microbatch, self._stage((microbatch, place)), BROKEN_WAY)

    def _stage(self, place: Place) -> int:
        return place[1] if place[1] <= self._last else 2 * self._last - place[1]

    def _name(self, by: Incarnation, microbatch: int, stage: int, reason: str) -> None:
        self._wrong.setdefault(by, WrongResult(by, stage, microbatch, reason, None))


HOLDS_IT = "its sum holds a microbatch that is not finite"


CheckReport = Quarantined | ResultsTied | WrongResult


class ResultChecks:
    """The quarantine and the spot checks in one step.

    Both may find that sums hold what must not be counted. A sum cannot give up one microbatch, so
    the incarnations that hold it are void, and their work is done again.
    """

    def __init__(
        self,
        number: int,
        jobs: InFlight,
        ledger: StepLedger,
        quarantine: Quarantine,
        checks: SpotChecks,
    ) -> None:
        """`quarantine`, `checks`: they last for the whole run."""
        self._number = number
        self._jobs = jobs
        self._ledger = ledger
        self._quarantine = quarantine
        self._checks = checks.of_step()
        self._condemned: list[MicrobatchJob] = []
        self._reports: list[CheckReport] = []
        self.aside: set[int] = set()
        """The microbatches and held-out batches that were set aside."""

    def on_sketch(self, by: Incarnation, stage: int, note: Sketch) -> None:
        """A server tells what it took and gave."""
        if note.step == self._number and self._checks.share:
            self._checks.on_sketch(by, stage, note)

    def on_completion(self, microbatch: int, now_s: float) -> None:
        """Every stage has counted a microbatch, perhaps again: it may have to be checked."""
        if not self._checks.share or not self._checks.chosen(microbatch):
            return
        job = self._jobs.job(microbatch + CHECK_BASE)
        if job is None:
            check = MicrobatchJob(microbatch + CHECK_BASE, Work.FORWARD, check=True)
            self._jobs.add(check)
        elif job.phase is JobPhase.DONE:
            self._jobs.again(job, now_s)

    def on_check(self, job: MicrobatchJob, now_s: float) -> None:
        """A check is through: stage 0 had its gradient, or it was tried in vain for too long."""
        microbatch = job.microbatch - CHECK_BASE
        self._checks.on_check(microbatch, self._ledger.counted_by(microbatch))
        self._jobs.finish(job, now_s)
        if not self._checks.disputed(microbatch):
            return
        if job.attempt + 1 < OPINIONS_MAX:
            self._jobs.again(job, now_s)
        elif tied := self._checks.tied(microbatch):
            self._reports.append(tied)

    def acquit(self, job: MicrobatchJob) -> None:
        """Every stage has counted it after all."""
        job.condemned = False
        if job in self._condemned:
            self._condemned.remove(job)

    def to_void(self, condemned: Iterable[int]) -> list[tuple[Incarnation, str]]:
        """Return whose incarnation must end because of what its sum holds, and why.

        `condemned`: microbatches that are not finite on any path, also of another step.
        """
        for microbatch in condemned:
            job = self._jobs.job(microbatch)
            if job is not None and not job.condemned:
                job.condemned = True
                self._condemned.append(job)
        return [(one, HOLDS_IT) for job in self._unsound() for one in self._holders(job)]

    def wrong(self, blame: Blame, now_s: float) -> list[WrongResult]:
        """The servers that were found wrong, in any step; drained by reading."""
        found = [blame.on_wrong_result(result, now_s) for result in self._checks.wrong()]
        self._reports += found
        return found

    def begin_anew(self) -> list[tuple[Incarnation, str]]:
        """A server was found wrong: return whose sum of the step is void, and why."""
        self._checks.begin_anew()  # what is done again is checked again
        return [(one, f"step {self._number} is done again") for one in self._ledger.counting]

    def set_aside(self, now_s: float) -> list[CheckReport]:
        """Nobody holds what is to be set aside any more: do it; what people are to know."""
        for job in self._unsound():
            held_out = job.work is Work.EVALUATE
            self._condemned.remove(job)
            self._jobs.finish(job, now_s)
            if job.check:
                continue
            self.aside.add(job.microbatch)
            if not held_out:
                self._ledger.set_aside(job.microbatch)
            report = Quarantined(self._number, job.microbatch, job.reason, held_out)
            self._quarantine.add(report)
            self._reports.append(report)
        drained, self._reports = self._reports, []
        return drained

    def _unsound(self) -> list[MicrobatchJob]:
        """The condemned jobs of which nothing is under way any more."""
        return [job for job in self._condemned if job.phase is JobPhase.WAITING]

    def _holders(self, job: MicrobatchJob) -> tuple[Incarnation, ...]:
        return self._ledger.who_counted(job.microbatch) if job.counts else ()


def sums_to_void(
    checks: Sequence[ResultChecks], blame: Blame, now_s: float
) -> list[tuple[Incarnation, str]]:
    """Return whose incarnation must end because of what its sums hold, and why.

    `checks`: of the steps under way. With a server that was found wrong all sums are void: others
    computed with what it gave, in either step.
    """
    condemned = blame.condemned()
    void = [each for one in checks for each in one.to_void(condemned)]
    if wrong := checks[0].wrong(blame, now_s):
        void += [(result.incarnation, result.reason) for result in wrong]
        void += [each for one in checks for each in one.begin_anew()]
    return void
