"""Where a step's seconds go, as people and scripts have it: a row for each stage, and a chain.

Units:   seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2pswarm.progress.printable import printable

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
    parts = [text for one in chain if (text := part_text(one, called))]
    return f"{short_s(took_s)}: {', '.join(parts)}" if parts else short_s(took_s)


def part_text(one: ChainPart, called: Callable[[str], str]) -> str:
    """A part of the slowest chain, in words."""
    who = f" at {called(one.server)}" if one.server else ""
    stage = "" if one.stage is None else f" of stage {one.stage}"
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
