"""Reports of a run: each has a sentence for people, and an event is a line of JSON as well.

`event_lines.py` writes and reads the lines; docs/events.md has every event and field.

Units:   seconds since the first step began, 0 before it; losses in nats per token; bytes.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from p2pswarm.progress.step_seconds import ChainPart, StageTimes, short_s

SHORT_NAMES = {
    "BudgetReached": "budget",
    "CheckpointFailed": "notsaved",
    "CostSoFar": "cost",
    "LeadershipTaken": "leads",
    "MachineFacts": "machine",
    "MicrobatchesAgain": "replayed",
    "RolledBack": "wentback",
    "StoodBy": "stood_by",
}
"""Events whose name in JSON is not that of their class, which another class has."""


class Report:
    """Something that a run reports."""

    __slots__ = ()

    @property
    def text(self) -> str:
        """The sentence for people; "" for figures that only become a part of an event."""
        return ""


KINDS: dict[str, type["Event"]] = {}
"""The kinds of events by their names in JSON; each class of an event adds itself."""


def name_of(kind: type["Event"]) -> str:
    """The name of a kind of events in JSON."""
    return SHORT_NAMES.get(kind.__name__, kind.__name__.lower())


@dataclass(frozen=True, slots=True)
class Event(Report):
    """A report that scripts read: a line of JSON has all of its fields.

    A subclass needs its fields and its `text`; its name in JSON is that of the class.
    """

    seconds: float = field(default=0.0, kw_only=True)
    """Time since the first step that this trainer knows of; 0 before it."""

    def __init_subclass__(cls) -> None:
        KINDS[name_of(cls)] = cls


# The run, its steps and its text.


@dataclass(frozen=True, slots=True)
class Begun(Event):
    """The first event of a process, and of each file: the run, and the node that writes this."""

    run_name: str
    """`run.name`; empty while the node knows of no run."""
    role: str
    """trainer, stage or bootstrap."""
    name: str
    """The name of this machine."""
    software: str
    """The version of the program."""
    steps: int = 0
    """Of the whole run."""
    stages: int = 0
    cut: tuple[int, ...] = ()
    """Blocks of each stage."""
    microbatches: int = 0
    """Of a step."""
    rows: int = 0
    """Of a microbatch."""
    sequence_length: int = 0
    """Tokens of a row."""
    parameters: int = 0
    """Of the whole model; 0: not counted here."""
    model: str = ""
    """Its family."""
    optimizer: str = ""
    codecs: tuple[str, ...] = ()
    """Of activations, of gradients, and of averaging."""
    done: int = 0
    """Steps that were done when this process began."""

    @property
    def step_tokens(self) -> int:
        """Tokens of a step."""
        return self.microbatches * self.rows * self.sequence_length

    @property
    def text(self) -> str:
        who = f"p2pswarm {self.software}, {self.role} {self.name}"
        if not self.stages:
            return who
        after = f", {self.done} are done" if self.done else ""
        size = f"{self.steps} steps of {self.step_tokens:,} tokens, {self.stages} stages"
        return f"{who}: run {self.run_name!r}, {size}{after}"


@dataclass(frozen=True, slots=True)
class MicrobatchCounts:
    """The numbers of microbatches so far."""

    asked: int
    """The microbatches of all steps that have begun; every stage is to count each once."""
    counted: int
    """The microbatches of committed steps that every stage has counted, each once."""
    replayed: int
    """The attempts beyond the first one of each microbatch."""
    quarantined: int = 0
    """The microbatches of committed steps that no stage counts, because they are not finite."""
    voided: int = 0
    """The microbatches in sums that were lost with their servers, and count anew."""


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """The run waits for servers of these stages; if there are none, it goes on."""

    stages: tuple[int, ...]

    @property
    def text(self) -> str:
        if not self.stages:
            return "every stage is served"
        return f"waiting for a server of stage {', '.join(map(str, self.stages))}"


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The first step of this trainer begins."""

    parameters: int
    """0: they are not known, as from afar, where the run has begun long ago."""

    @property
    def text(self) -> str:
        if not self.parameters:
            return "training goes on"
        return f"training begins: {self.parameters:,} parameters"


@dataclass(frozen=True, slots=True)
class Stepped(Event):
    """A step is committed."""

    step: int
    """The number of steps done: 1 after the first."""
    loss: float
    tokens_per_s: float
    """The rate over the last steps."""
    learning_rate: float
    gradient_norm: float
    counts: MicrobatchCounts
    took_s: float = 0.0
    """Since the step before was committed, or the first one began; 0: not known."""
    equal: int = 0
    """Servers whose weights and moments before this step are those of their stage, by digest."""
    compared: int = 0
    """Servers that told such a digest."""
    height: int = 0
    """Decided records, this step's too."""
    head: str = ""
    """The first digits of the SHA-256 of the newest record."""

    @property
    def text(self) -> str:
        figures = _figures(self.tokens_per_s, self.counts)
        return f"step {self.step:5}  loss {self.loss:.4f}{figures}"


@dataclass(frozen=True, slots=True)
class HeldOut(Event):
    """The loss on text that is never trained on."""

    step: int
    nats_per_token: float
    """Of a run without a tokenizer a token is a byte; of pairs of answers it is nats per pair."""
    preferred: float | None = None
    """The share of held-out pairs whose chosen answer is preferred; None: they are no pairs."""

    @property
    def text(self) -> str:
        before = f"step {self.step:5}  held-out loss {self.nats_per_token:.4f}"
        if self.preferred is None:
            return f"{before} nats/token"
        return f"{before} nats/pair, {self.preferred:.1%} of the chosen answers preferred"


@dataclass(frozen=True, slots=True)
class Checkpointed(Event):
    """The whole state of the run after a step is saved."""

    step: int
    place: str
    """The checkpoint's folder or URL."""
    took_s: float
    """From the request to the end."""

    @property
    def text(self) -> str:
        return f"checkpoint of step {self.step} in {self.took_s:.1f} s: {self.place}"


@dataclass(frozen=True, slots=True)
class CheckpointFailed(Event):
    """A checkpoint was not finished; training goes on."""

    step: int
    reason: str

    @property
    def text(self) -> str:
        return f"no checkpoint of step {self.step}: {self.reason}"


@dataclass(frozen=True, slots=True)
class MicrobatchesAgain(Event):
    """Attempts were given up: these microbatches are sent again, and count once."""

    step: int
    """The number of steps done meanwhile."""
    count: int
    reason: str

    @property
    def text(self) -> str:
        many = "microbatches are" if self.count != 1 else "microbatch is"
        return f"{self.count} {many} sent again: {self.reason}"


@dataclass(frozen=True, slots=True)
class RolledBack(Event):
    """The run goes on from an earlier version; the steps since are done anew."""

    step: int
    """The number of steps done, from now on."""
    before: int
    """That the run had come to."""

    @property
    def text(self) -> str:
        again = self.before > self.step
        anew = f"the steps up to {self.before} are done anew" if again else "nothing is lost"
        return f"the run has gone back to its checkpoint of step {self.step}: {anew}"


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """The run is over."""

    step: int
    reason: str
    failed: bool
    tokens_per_s: float
    """The rate over the whole run, as far as this trainer led it."""
    counts: MicrobatchCounts

    @property
    def outcome(self) -> str:
        """Return how the run ended, without figures."""
        return f"{'failed' if self.failed else 'done'} after {self.step} steps: {self.reason}"

    @property
    def text(self) -> str:
        return self.outcome + _figures(self.tokens_per_s, self.counts)


# The servers.


@dataclass(frozen=True, slots=True)
class PeerLine:
    """One server, as the trainer sees it; None: it has not measured that."""

    peer: str
    """The short form of its peer id."""
    stage: int
    ready: bool
    queued: int
    """Microbatches that wait there."""
    rate_per_s: float
    """Microbatches counted per second."""
    direct: int = 0
    """Number of its links to the trainer and other servers that lead to them directly."""
    mapped: int = 0
    """Number of those through a router that forwards a port."""
    punched: int = 0
    relayed: int = 0
    counted: int = 0
    """Microbatches of committed steps in its sums, since it joined this trainer."""
    recomputed: int = 0
    """Backward passes whose forward was computed twice, because memory was short."""
    unheard_s: float = 0.0
    """How long it has heard nothing from the trainer, as it says."""
    weights_share: float = 1.0
    """The share of its stage's weights that it has; a newcomer fetches the others."""
    forward_s: float | None = None
    """Of a microbatch."""
    backward_s: float | None = None
    queue_s: float | None = None
    """Mean wait of a microbatch."""
    in_bytes: float | None = None
    """That a microbatch takes in, forward and backward."""
    out_bytes: float | None = None
    up_bytes_per_s: float | None = None
    """The rate of its links to the next stage, while they are busy."""
    down_bytes_per_s: float | None = None
    """The same of its links to the stage before."""
    link_bytes_per_s: float | None = None
    """What its links carried each way while its stage averaged."""
    free_bytes: int | None = None
    """Memory of its device that is free."""
    state_bytes: int | None = None
    """Its weights and moments."""
    price_per_hour: float | None = None
    """What its owner says that it costs; None: nothing."""
    currency: str = ""
    """Of that price, in three letters."""


@dataclass(frozen=True, slots=True)
class Peers(Event):
    """The servers of the run, all of them."""

    peers: tuple[PeerLine, ...]

    @property
    def text(self) -> str:
        return "1 server" if len(self.peers) == 1 else f"{len(self.peers)} servers"


@dataclass(frozen=True, slots=True)
class MachineFacts(Event):
    """What a server tells of its machine once: for people, and nobody has checked it."""

    server: str
    """The short form of its peer id."""
    name: str
    """`node.name`: what its owner calls it."""
    device: str = ""
    """What computes."""
    threads: int = 0
    """Of the processor, for computing."""
    region: str = ""
    """`node.region`: where its owner says that it is."""
    software: str = ""
    """The version of the program."""

    @property
    def text(self) -> str:
        more = ", ".join(filter(None, (self.device, self.region)))
        of = f"p2pswarm {self.software}" if self.software else "p2pswarm"
        return f"server {self.server} is {self.name}{f' ({more})' if more else ''}, with {of}"


@dataclass(frozen=True, slots=True)
class Joined(Event):
    """A server was given a stage, and fetches its weights."""

    server: str
    stage: int
    name: str = ""
    """Of its machine, as far as it is known."""

    @property
    def text(self) -> str:
        return f"server {called(self.server, self.name)} joins stage {self.stage}"


@dataclass(frozen=True, slots=True)
class Serving(Event):
    """A server gets microbatches of its stage from now on."""

    server: str
    stage: int
    name: str = ""

    @property
    def text(self) -> str:
        return f"server {called(self.server, self.name)} of stage {self.stage} is ready"


class Departure(StrEnum):
    """Why a server's part in its stage is over."""

    MOVED = "moved"
    """It goes to another stage."""
    ASKED = "asked"
    """Its user asked it to leave, or it left by itself."""
    SILENT = "silent"
    """It did not answer in time."""
    LOST = "lost"
    """Its link broke."""
    WRONG = "wrong"
    """It computed something else than others, or said what no honest server says."""


@dataclass(frozen=True, slots=True)
class Left(Event):
    """A server's part in its stage is over."""

    server: str
    stage: int
    why: Departure
    reason: str
    """In words that follow "it is lost:", or "it moves" and to where."""
    again: int
    """Microbatches of the current step that were in its sum, and count anew."""
    name: str = ""

    @property
    def text(self) -> str:
        again = f"; its {self.again} microbatches count anew" if self.again else ""
        who = f"server {called(self.server, self.name)} of stage {self.stage}"
        if self.why is Departure.MOVED:
            return f"{who} {self.reason.removeprefix('it ')}{again}"
        return f"{who} {SAID[self.why]}: {self.reason}{again}"


SAID = {
    Departure.ASKED: "leaves",
    Departure.SILENT: "is lost",
    Departure.LOST: "is lost",
    Departure.WRONG: "is put out",
}
"""How a departure is told."""


@dataclass(frozen=True, slots=True)
class Relocated(Event):
    """A server is sent to another stage."""

    server: str
    """The short form of its peer id."""
    source: int
    target: int
    gain: float
    """Everybody's gain by the plan that it is a part of, as a share."""
    away_s: float
    """Time in which it computes nothing."""
    planned: int
    """Moves of that plan."""

    @property
    def text(self) -> str:
        worth = worth_text(self.gain, self.planned, self.away_s)
        return f"{self.server} moves from stage {self.source} to {self.target}: {worth}"


@dataclass(frozen=True, slots=True)
class Why(Event):
    """Why nobody moves to another stage, or not more; told when the reason changes."""

    text: str = field()
    rates_per_s: tuple[float, ...] = ()
    """Microbatches a second that each stage could do."""
    slowest: int | None = None
    """The stage that the run is as fast as; None: nothing is measured yet."""


# The seconds of a step.


@dataclass(frozen=True, slots=True)
class Phases(Event):
    """Where the seconds of a step went; of some steps, at most once a second."""

    step: int
    took_s: float
    """From the commit before it to its own."""
    stages: tuple[StageTimes, ...]
    """All of them, in order."""
    chain: tuple[ChainPart, ...]
    """What its end waited for, one after another: the seconds add up to `took_s`."""


@dataclass(frozen=True, slots=True)
class Stalled(Event):
    """A step takes far longer than others; who waits for whom."""

    step: int
    """That does not end."""
    for_s: float
    """Since it began; of a trainer that was stopped, for how long it was."""
    usual_s: float | None
    """How long steps take; None: not measured yet."""
    cause: str
    """unserved, silent, link, computing, queue, averaging, commit, sum, votes, network, stopped or
    unknown (docs/slow.md)."""
    servers: tuple[str, ...]
    """Short peer ids of those that the run waits for; of a link both ends, the sender first."""
    stages: tuple[int, ...]
    """Their stages; or those that nobody serves."""
    why: str
    """The cause in words."""

    @property
    def text(self) -> str:
        usually = "" if self.usual_s is None else f", usually {short_s(self.usual_s)}"
        return f"step {self.step} takes {short_s(self.for_s)}{usually}: {self.why}"


@dataclass(frozen=True, slots=True)
class StallEnded(Event):
    """A step that had stalled is done."""

    step: int
    took_s: float

    @property
    def text(self) -> str:
        return f"step {self.step} is done after {short_s(self.took_s)}: the run goes on"


# The trainers.


@dataclass(frozen=True, slots=True)
class LeadershipTaken(Event):
    """This trainer coordinates the run from now on."""

    term: int
    step: int
    """The number of steps done."""

    @property
    def text(self) -> str:
        return f"this trainer coordinates the run: it goes on after step {self.step}"


@dataclass(frozen=True, slots=True)
class StoodBy(Event):
    """A trainer stands by: this one, or another one."""

    trainer: str
    """The short form of its peer id; empty: the one that tells this."""
    reason: str

    @property
    def text(self) -> str:
        return self.reason


# All else.


@dataclass(frozen=True, slots=True)
class Note(Event):
    """A message for people."""

    text: str = field()  # without `field()` the property of `Report` would be its default
    kind: str = ""
    """What it is about, for programs; empty: any."""
    servers: tuple[str, ...] = ()
    """The short forms of the peer ids that it names."""


def called(server: str, name: str) -> str:
    """A server for people: its short id, and the name of its machine if that is known."""
    return f"{server} ({name})" if name else server


def _figures(tokens_per_s: float, counts: MicrobatchCounts) -> str:
    return f"  {tokens_per_s:7.0f} tokens/s  counted {counts.counted}  replayed {counts.replayed}"


def gain_text(gain: float) -> str:
    """Return what a move brings, as a share."""
    return f"{100 * gain:+.0f} % for everybody"


def worth_text(gain: float, planned: int, away_s: float) -> str:
    """Return what a move brings and what it costs."""
    more = f" with {planned - 1} more" if planned > 1 else ""
    return f"{gain_text(gain)}{more}, costs {seconds_text(away_s)} of its time"


def long_text(seconds: float) -> str:
    """A time in the unit that people would use."""
    for unit, size_s in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def seconds_text(seconds: float) -> str:
    """A time that is short or long: 0.02 s, 0.5 s, 40 s."""
    return f"{seconds:.1g} s" if seconds < 1 else f"{seconds:.0f} s"
