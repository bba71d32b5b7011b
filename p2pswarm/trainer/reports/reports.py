"""The reports of the coordinator: values with the sentence that they are to people."""

from dataclasses import dataclass, field

from p2pswarm.base.ids import PeerId
from p2pswarm.progress.events import Departure, Left, Report
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.membership import Load, MemberFacts

MB = 1_000_000


def short(incarnation: Incarnation) -> str:
    """The short form of a server's peer id."""
    return PeerId(incarnation.peer).short


# The steps: figures, which the reporter of a node adds up into events.


@dataclass(frozen=True, slots=True)
class RunBegun(Report):
    """The first step begins."""


@dataclass(frozen=True, slots=True)
class StepDone(Report):
    """A step is committed."""

    step: int
    loss: float
    """Mean nats per token over the microbatches whose loss was told; NaN if none was."""
    gradient_norm: float
    learning_rate: float
    microbatches: int
    quarantined: tuple[int, ...] = ()
    """Those of them that were set aside."""
    counted: tuple[tuple[Incarnation, int], ...] = ()
    """How many of the step are in the sum of each member that is there."""
    equal: int = 0
    """Members whose state before the step has the digest of their stage."""
    compared: int = 0
    """Members that told a digest of it."""


@dataclass(frozen=True, slots=True)
class ChainGrown(Report):
    """The record of a step is decided, and its commit follows."""

    height: int
    """Decided records, with this one."""
    head: bytes
    """Its SHA-256."""


@dataclass(frozen=True, slots=True)
class RunFinished(Report):
    """The run is over; `failed` if it could not go on."""

    reason: str
    failed: bool
    version: int | None = field(default=None, compare=False)
    """Of the weights, where this trainer did not lead and was told it."""


@dataclass(frozen=True, slots=True)
class ReferencesKnown(Report):
    """Answers were scored by the first weights, before the first step."""

    known: int
    answers: int
    place: str
    """The file that keeps them."""

    @property
    def complete(self) -> bool:
        """True if all are known."""
        return self.known == self.answers

    @property
    def tenth(self) -> int:
        """How many tenths are known."""
        return self.tenth_of(self.known)

    def tenth_of(self, known: int) -> int:
        """How many tenths so many are."""
        return 10 * known // self.answers

    @property
    def text(self) -> str:
        if self.complete:
            return f"references of {self.answers:,} answers are in {self.place}"
        return f"references of {self.known:,} of {self.answers:,} answers are computed"


# The microbatches and the sums of a step.


@dataclass(frozen=True, slots=True)
class Replayed(Report):
    """Attempts were given up, and are safe to launch again."""

    step: int
    microbatches: tuple[int, ...]
    reason: str

    @property
    def text(self) -> str:
        count = len(self.microbatches)
        many = "microbatches are" if count > 1 else "microbatch is"
        return f"{count} {many} sent again: {self.reason}"


@dataclass(frozen=True, slots=True)
class Quarantined(Report):
    """A microbatch is not finite on any path: it counts as zeros in every stage."""

    step: int
    microbatch: int
    reason: str
    held_out: bool
    """It is one of the held-out batches: their mean loss is then not known."""

    @property
    def text(self) -> str:
        if self.held_out:
            return f"a held-out batch has no loss ({self.reason})"
        return (
            f"microbatch {self.microbatch} of step {self.step + 1} is not finite on any server "
            f"({self.reason}): it counts as zeros"
        )


@dataclass(frozen=True, slots=True)
class NotFiniteThere(Report):
    """A microbatch was not finite on one path and is on another; who is suspected."""

    step: int
    microbatch: int
    suspects: tuple[tuple[Incarnation, int], ...]
    """Members of the attempts that failed and not of the one that did not, with the stage."""
    reason: str

    @property
    def text(self) -> str:
        named = [f"server {short(one)} of stage {stage}" for one, stage in self.suspects]
        who = named[0] if len(named) == 1 else "one of " + ", ".join(named)
        return (
            f"microbatch {self.microbatch} of step {self.step + 1} was not finite with {who} "
            f"({self.reason}), and was with others: look at that machine if it comes again"
        )


@dataclass(frozen=True, slots=True)
class WrongResult(Report):
    """A spot check has found a server that computes wrong; its step is done again."""

    incarnation: Incarnation
    stage: int
    microbatch: int
    reason: str
    pause_s: float | None
    """Time without work; None if its stage has no other server."""

    @property
    def text(self) -> str:
        found = (
            f"server {short(self.incarnation)} of stage {self.stage} computes wrong "
            f"(microbatch {self.microbatch}: {self.reason}); the step is done again"
        )
        if self.pause_s is None:
            return (
                f"{found}, and no other serves its stage: start another, and look at that machine"
            )
        return f"{found}, and it gets no work for {self.pause_s:g} s: look at that machine"


@dataclass(frozen=True, slots=True)
class ResultsTied(Report):
    """Servers of a stage disagree about a microbatch, and nobody can tell who is right."""

    microbatch: int
    stage: int
    servers: tuple[Incarnation, ...]

    @property
    def text(self) -> str:
        names = ", ".join(map(short, self.servers))
        return (
            f"the servers {names} of stage {self.stage} make different results of microbatch "
            f"{self.microbatch}: a third server would tell which is wrong"
        )


@dataclass(frozen=True, slots=True)
class SumKept(Report):
    """A server has joined again in time, with what it had summed of the current step."""

    step: int
    former: Incarnation
    incarnation: Incarnation
    stage: int
    microbatches: int

    @property
    def text(self) -> str:
        return (
            f"server {short(self.incarnation)} of stage {self.stage} is back: what it had "
            f"counted of the step stands ({self.microbatches})"
        )


@dataclass(frozen=True, slots=True)
class SumVoided(Report):
    """The sum of a server that was lost is done again."""

    incarnation: Incarnation
    stage: int
    reason: str
    microbatches: int

    @property
    def text(self) -> str:
        return (
            f"server {short(self.incarnation)} of stage {self.stage}: {self.reason}; its "
            f"{self.microbatches} microbatches count anew"
        )


@dataclass(frozen=True, slots=True)
class AveragingSlow(Report):
    """An averaging was given up after `took_s`; the next may take `limit_s`."""

    step: int
    took_s: float
    limit_s: float

    @property
    def text(self) -> str:
        return (
            f"averaging step {self.step} took longer than {self.took_s:g} s; the next try may take "
            f"{self.limit_s:g} s"
        )


# The servers.


@dataclass(frozen=True, slots=True)
class MemberJoined(Report):
    """A server was given a stage."""

    incarnation: Incarnation
    stage: int
    address: str

    @property
    def text(self) -> str:
        return f"server {short(self.incarnation)} joins stage {self.stage}"


@dataclass(frozen=True, slots=True)
class MemberReady(Report):
    """A server may be given microbatches."""

    incarnation: Incarnation
    stage: int

    @property
    def text(self) -> str:
        return f"server {short(self.incarnation)} of stage {self.stage} is ready"


MOVES = "it moves to stage "
"""How the reason begins for which a server's part in its stage ends and another begins."""


@dataclass(frozen=True, slots=True)
class MemberLost(Report):
    """An incarnation ended.

    What it had summed is done again, or waited for: `SumKept` or `SumVoided` follows.
    """

    incarnation: Incarnation
    stage: int
    reason: str
    voided: int
    """Microbatches of the current step that were in its sum."""
    why: Departure = Departure.LOST

    @property
    def text(self) -> str:
        left = Left(short(self.incarnation), self.stage, self.why, self.reason, self.voided)
        return left.text


@dataclass(frozen=True, slots=True)
class FactsKnown(Report):
    """A member told of its machine."""

    incarnation: Incarnation
    facts: MemberFacts


@dataclass(frozen=True, slots=True)
class Loaded(Report):
    """A member told how busy it is: figures, which the reporter of a node keeps."""

    incarnation: Incarnation
    stage: int
    load: Load


@dataclass(frozen=True, slots=True)
class ServerFails(Report):
    """A server has failed several times in a row; it gets a pause if it can be spared."""

    incarnation: Incarnation
    stage: int
    failures: int
    reason: str
    pause_s: float | None
    """None if its stage has no other server."""

    @property
    def text(self) -> str:
        who = f"server {short(self.incarnation)} of stage {self.stage}"
        failed = f"{who} failed {self.failures} times in a row ({self.reason})"
        if self.pause_s is None:
            return f"{failed} and no other serves its stage: start another"
        return f"{failed}: it gets no work for {self.pause_s:g} s"


@dataclass(frozen=True, slots=True)
class ServerTooSlow(Report):
    """A server had microbatches for long and counted none, while others had no work."""

    incarnation: Incarnation
    stage: int
    pause_s: float

    @property
    def text(self) -> str:
        who = f"server {short(self.incarnation)} of stage {self.stage}"
        return f"{who} is far slower than others of it: it gets no work for {self.pause_s:g} s"


@dataclass(frozen=True, slots=True)
class RoadBroken(Report):
    """Microbatches do not get from one server to another, nor their gradients back."""

    lower: Incarnation | None
    """None: the trainer below stage 0, or a server that is not known."""
    upper: Incarnation
    stage: int
    """Of the upper one."""
    failures: int
    reason: str

    @property
    def text(self) -> str:
        if self.lower is not None:
            lower = f"server {short(self.lower)} of stage {self.stage - 1}"
        else:
            lower = f"stage {self.stage - 1}" if self.stage else "the trainer"
        upper = f"server {short(self.upper)} of stage {self.stage}"
        return (
            f"microbatches do not get through between {lower} and {upper}, "
            f"{self.failures} times in a row ({self.reason}): look at their network"
        )


@dataclass(frozen=True, slots=True)
class VersionsRefused(Report):
    """Servers cannot read the run, because they speak another version of runs."""

    servers: int
    """Different peers so far."""
    versions: tuple[int, ...]
    """The commonest first; rare ones are left out."""
    ours: int

    @property
    def text(self) -> str:
        who = "1 server speaks" if self.servers == 1 else f"{self.servers} servers speak"
        many = "s" if len(self.versions) > 1 else ""
        versions = ", ".join(map(str, self.versions))
        return (
            f"{who} version{many} {versions} of runs, this trainer {self.ours}: "
            "install the same release on both sides"
        )


# The weights of the stages.


@dataclass(frozen=True, slots=True)
class LastLeaves(Report):
    """The last server of a stage that has the weights was asked to leave."""

    stage: int
    version: int
    incarnation: Incarnation
    stays_s: float
    saved: bool = False
    """A checkpoint is being written."""

    @property
    def text(self) -> str:
        what = (
            f"the last server of stage {self.stage}, {short(self.incarnation)}, leaves in "
            f"{self.stays_s:.0f} s at most"
        )
        if not self.saved:
            return (
                f"{what}: without another server by then, version {self.version} of its weights is "
                "lost, and no checkpoint.target is set"
            )
        return (
            f"{what}: a checkpoint of step {self.version} is being written; "
            "start another server of this stage"
        )


@dataclass(frozen=True, slots=True)
class WeightsSought(Report):
    """No server holds a stage's weights any more; this one held them last."""

    stage: int
    version: int
    last: Incarnation
    address: str

    @property
    def text(self) -> str:
        return (
            f"the weights of stage {self.stage} (version {self.version}) were last at server "
            f"{short(self.last)}, {self.address}: start it again if it stands still"
        )


@dataclass(frozen=True, slots=True)
class DigestsTied(Report):
    """As many members of a stage report one digest as another; the first peer's stands."""

    stage: int
    version: int

    @property
    def text(self) -> str:
        return (
            f"the servers of stage {self.stage} disagree about version {self.version}, as many on "
            "each side; the first goes on: a third server would tell which is wrong"
        )


@dataclass(frozen=True, slots=True)
class BeganWrong(Report):
    """The first step was decided with a state that is not the one the run begins with."""

    stage: int

    @property
    def text(self) -> str:
        return (
            f"stage {self.stage} began with other weights than its run begins with: a server made "
            "them wrong, and was alone; begin the run again for the right ones"
        )


# The checkpoints, and the return to them. `Checkpointed` and
# `CheckpointFailed` are events.


@dataclass(frozen=True, slots=True)
class StateFetched(Report):
    """No server of a stage may write checkpoints: this trainer fetches the state each time."""

    stage: int

    @property
    def text(self) -> str:
        return (
            f"no server of stage {self.stage} may write to checkpoint.target: this trainer fetches "
            "its state and writes it, and steps wait for that; an owner lets a server write with "
            "serve.checkpoint_targets, or --checkpoint-target"
        )


@dataclass(frozen=True, slots=True)
class CheckpointProgress(Report):
    """Progress of a checkpoint that somebody waits for."""

    version: int
    written: int
    """Bytes."""
    size: int
    """Bytes of the state of all stages from which a word has come."""
    stages_saved: int
    stages: int

    @property
    def text(self) -> str:
        parts = [f"{self.stages_saved} of {self.stages} stages saved"]
        if self.size:
            parts.append(f"{self.written / self.size:.0%} of {self.size / MB:,.1f} MB")
        return f"checkpoint of step {self.version}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class NewestCopy(Report):
    """Place of the newest copy of the weights that stages have lost."""

    stages: tuple[int, ...]
    version: int
    """That the run has come to."""
    saved: int | None
    """The version of the newest checkpoint; None if there is none."""
    place: str
    """Its folder, or the target."""
    age_s: float | None
    """None if it was written under another trainer."""
    rewind_s: float | None
    """Time until the run goes back to it by itself; None: it does not."""

    @property
    def text(self) -> str:
        many = "stages" if len(self.stages) > 1 else "stage"
        lost = (
            f"no server has brought back the weights of {many} {', '.join(map(str, self.stages))}"
        )
        if self.saved is not None:
            age = "" if self.age_s is None else f", {self.age_s:.0f} s old"
            copy = f"the newest copy is the checkpoint of step {self.saved}{age}, in {self.place}"
        elif self.place:
            copy = f"there is no checkpoint yet in {self.place}"
        else:
            copy = "the run has no checkpoints (checkpoint.target)"
        if self.rewind_s is not None:
            back = "it" if self.saved is not None else "its first weights"
            return f"{lost}: {copy}; the run goes back to {back} in {self.rewind_s:.0f} s"
        if self.saved is None:
            return f"{lost}: {copy}; the run waits for a server that has them"
        return f"{lost}: {copy}; to go on from there, stop this trainer and start it with --resume"


@dataclass(frozen=True, slots=True)
class WentBack(Report):
    """The run goes on from an earlier version; the steps since are done anew."""

    version: int
    before: int
    """The version that it had come to."""

    @property
    def text(self) -> str:
        again = self.before > self.version
        anew = f"the steps up to {self.before} are done anew" if again else "nothing is lost"
        return f"the run has gone back to its checkpoint of step {self.version}: {anew}"


@dataclass(frozen=True, slots=True)
class CannotGoBack(Report):
    """There is nothing to go back to just now; that is tried again."""

    reason: str

    @property
    def text(self) -> str:
        return f"no checkpoint to go back to: {self.reason}"


# The trainers.
