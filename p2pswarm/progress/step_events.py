"""Events of where a step's seconds go, and of steps that stall; and the view of the newest.

Units:   seconds; steps as people count them, 1 for the first.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from p2pswarm.progress.events import Event
from p2pswarm.progress.printable import printable

STALLS_KEPT = 20
WHY_CHARS = 500
PARTS = ("forward_s", "backward_s", "transfer_s", "waiting_s", "averaging_s", "commit_s")
"""The parts of a server's time, in the order in which people are shown them."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Where the seconds of one stage went in a step: the mean of its servers."""

    servers: int
    """Those that the mean is of; 0: none had measured a whole step."""
    forward_s: float
    """In the last stage all that is done with a microbatch."""
    backward_s: float
    transfer_s: float
    """It computed nothing, and what it had made was on its way to another server."""
    waiting_s: float
    averaging_s: float
    commit_s: float
    busiest: str = ""
    """The short peer id of the server that waited least."""
    doubtful: int = 0
    """Servers whose claims do not fit the step, and are left out."""

    @property
    def sum_s(self) -> float:
        """All parts together."""
        return float(sum(getattr(self, name) for name in PARTS))


@dataclass(frozen=True, slots=True)
class ChainPart:
    """A part of the slowest chain of a step."""

    part: str
    """filling, launch, forward, backward, closing, averaging or deciding."""
    stage: int | None
    server: str
    """The short peer id, where one server is named."""
    took_s: float


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


STEP_EVENTS: tuple[type[Event], ...] = (Phases, Stalled, StallEnded)


class StepView:
    """The newest phases and stalls of a run, as pages show them."""

    def __init__(self) -> None:
        self._phases: Phases | None = None
        self._stalls: deque[tuple[float, Stalled]] = deque(maxlen=STALLS_KEPT)
        self._open = False

    def on_event(self, event: Event, at: float) -> None:
        """Take an event of the run."""
        match event:
            case Phases():
                self._phases = event
            case Stalled():
                self._stalls.append((at, event))
                self._open = True
            case StallEnded():
                self._open = False

    def phases(self) -> dict[str, Any] | None:
        """The newest step's seconds, as JSON has them; None before there are any."""
        newest = self._phases
        if newest is None:
            return None
        return {
            "step": newest.step,
            "took_s": newest.took_s,
            "stages": [asdict(one) for one in newest.stages],
            "chain": [
                {**asdict(one), "part": printable(one.part[:20]), "server": printable(one.server)}
                for one in newest.chain
            ],
            "text": chain_text(newest.took_s, newest.chain),
        }

    def waits(self) -> dict[str, Any]:
        """Who waits for whom, and the last stalls."""
        stalls = [
            {
                "at": at,
                "step": one.step,
                "for_s": one.for_s,
                "usual_s": one.usual_s,
                "cause": printable(one.cause[:20]),
                "servers": [printable(server[:64]) for server in one.servers[:16]],
                "stages": list(one.stages[:16]),
                "text": printable(one.text[:WHY_CHARS]),
            }
            for at, one in self._stalls
        ]
        return {"now": stalls[-1] if stalls and self._open else None, "stalls": stalls}


def short_s(seconds: float) -> str:
    """A time with the digits that anybody reads."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"  # noqa: PLR2004


def chain_text(
    took_s: float,
    chain: Sequence[ChainPart],
    called: Callable[[str], str] = lambda server: server,
) -> str:
    """The slowest chain in one line; `called`: what people call a server."""
    parts = [text for one in chain if (text := _part_text(one, called))]
    return f"{short_s(took_s)}: {', '.join(parts)}" if parts else short_s(took_s)


def _part_text(one: ChainPart, called: Callable[[str], str]) -> str:
    who = f" at {called(one.server)}" if one.server else ""
    stage = "" if one.stage is None else f" (stage {one.stage})"
    match one.part:
        case "filling":
            busiest = f", {called(one.server)}{stage} is busiest" if one.server else ""
            what = f"until the last microbatch sets out{busiest}"
        case "launch":
            what = "until the first stage has it"
        case "forward" | "backward":
            what = f"{one.part}{who}{stage}"
        case "closing":
            what = "until all is known to be counted"
        case "averaging":
            what = f"averaging, last{who}{stage}" if one.server else "averaging"
        case "deciding":
            what = "until the record is decided"
        case _:
            what = printable(one.part)
    return f"{short_s(one.took_s)} {what}"
