"""A run for a terminal: a page that is drawn again and again.

Units:   seconds since the first step; nats per byte.
"""

import math

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from p2pswarm.progress.history import RunHistory

BLOCKS = " ▁▂▃▄▅▆▇█"
CURVE_CHARS = 60


def page(history: RunHistory, steps: int, title: str) -> RenderableType:
    """The whole page."""
    parts: list[RenderableType] = [_figures(history, steps), _peers(history)]
    if history.notes:
        parts.append(Text())
        parts += [_note(note.seconds, note.text) for note in history.notes]
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def _figures(history: RunHistory, steps: int) -> RenderableType:
    if history.waiting:
        where = ", ".join(str(stage) for stage in history.waiting.stages)
        return Text(f"waiting for a server of stage {where}", style="yellow")
    if not history.steps:
        return Text("waiting for the first step", style="yellow")
    last = history.steps[-1]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_column()
    bar = ProgressBar(total=steps, completed=last.step, width=CURVE_CHARS)
    grid.add_row("step", f"{last.step} of {steps}", bar)
    grid.add_row("train loss", f"{last.loss:.3f}", curve([s.loss for s in history.steps]))
    if history.held_out:
        held_out = [point.nats_per_byte for point in history.held_out]
        grid.add_row("held-out loss", f"{held_out[-1]:.3f}", curve(held_out))
    rates = [s.tokens_per_s for s in history.steps]
    grid.add_row("tokens/s", f"{last.tokens_per_s:,.0f}", curve(rates))
    counts = history.counts
    told = f"{counts.counted} counted, {counts.replayed} replayed"
    grid.add_row("microbatches", str(counts.asked), told)
    return grid


def _peers(history: RunHistory) -> RenderableType:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("stage", "server", "state"):
        table.add_column(name)
    for name in ("queue", "microbatches/s"):
        table.add_column(name, justify="right")
    for peer in sorted(history.peers, key=lambda peer: (peer.stage, peer.peer)):
        state = Text("ready", "green") if peer.ready else Text("joining", "yellow")
        row = (str(peer.stage), peer.peer, state, str(peer.queued), f"{peer.rate_per_s:.1f}")
        table.add_row(*row)
    return table


def _note(seconds: float, text: str) -> Text:
    return Text.assemble((f"{seconds:7.1f} s  ", "dim"), text)


def curve(values: list[float]) -> str:
    """A line of blocks, the newest value at the right; long histories are thinned out."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    width = min(len(finite), CURVE_CHARS)
    shown = [finite[(i + 1) * len(finite) // width - 1] for i in range(width)]
    low, high = min(shown), max(shown)
    scale = (len(BLOCKS) - 2) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[1 + round((value - low) * scale)] for value in shown)
