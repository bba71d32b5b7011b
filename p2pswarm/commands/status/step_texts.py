"""Texts of `p2pswarm explain` about a step's seconds: a table, the slowest chain, and a stall."""

import dataclasses
from collections.abc import Callable

from p2pswarm.base.ids import PeerId
from p2pswarm.node.progress.why import chain_part, stage_times
from p2pswarm.progress.events import called
from p2pswarm.progress.printable import printable
from p2pswarm.progress.step_seconds import PARTS, StageTimes, chain_text, short_s
from p2pswarm.run.messages.waits import RunWhy

NOT_MEASURED = "no step was measured yet: where its seconds go is known after the second one"
COLUMN = 9  # characters of a number and the space before it


def why_lines(why: RunWhy | None) -> list[str]:
    """Where the seconds of the last step went, in some lines; None: its trainer does not say."""
    if why is None:
        return []
    lines = [f"  {printable(why.stalled)}"] if why.stalled else []
    if not why.step:
        return [*lines, f"  {NOT_MEASURED}"]
    usually = "" if why.usual_s is None else f", usually {short_s(why.usual_s)}"
    now = f"the next one is under way for {short_s(why.under_way_s)}"
    lines.append(f"  step {why.step:,} took {short_s(why.seconds)}{usually}; {now}; in seconds:")
    heads = (name.removesuffix("_s") for name in PARTS)
    lines.append("    stage servers" + "".join(f"{head:>{COLUMN + 1}}" for head in heads))
    names = _names(why)

    def named(server: str) -> str:
        return called(server, names.get(server, ""))

    rows = map(stage_times, why.stages)
    lines += [f"    {_row(number, row, named)}" for number, row in enumerate(rows)]
    chain = tuple(map(chain_part, why.chain))
    return [*lines, f"  the slowest chain took {chain_text(why.seconds, chain, named)}"]


def _names(why: RunWhy) -> dict[str, str]:
    """The names of machines, by the short ids of their servers."""
    return {PeerId(one.peer).short: printable(one.name) for one in why.names}


def _row(number: int, row: StageTimes, named: Callable[[str], str]) -> str:
    doubtful = f"   {row.doubtful} with claims that do not fit" if row.doubtful else ""
    if not row.servers:
        return f"{number:>5} {row.servers:>7}   not measured yet{doubtful}"
    times = "".join(f"{getattr(row, name):>{COLUMN + 1}.3f}" for name in PARTS)
    return f"{number:>5} {row.servers:>7}{times}   {named(row.busiest)} waited least{doubtful}"


def why_fields(why: RunWhy | None) -> dict[str, object] | None:
    """The same as JSON has it."""
    if why is None:
        return None
    return {
        "step": why.step,
        "took_s": why.seconds,
        "usual_s": why.usual_s,
        "under_way_s": why.under_way_s,
        "stages": [dataclasses.asdict(stage_times(row)) for row in why.stages],
        "chain": [dataclasses.asdict(chain_part(link)) for link in why.chain],
        "stalled": printable(why.stalled),
        "names": _names(why),
    }
