"""A run as people see it: a live page of a terminal, drawn repeatedly; or lines for a log file.

Units:   nats per byte.
"""

import math

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from p2pswarm.progress.events import Ended, Event, Peers, Started, Stepped, Waiting
from p2pswarm.progress.history import RunHistory
from p2pswarm.progress.printable import printable

BLOCKS = " ▁▂▃▄▅▆▇█"
CURVE_CHARS = 60  # a longer line shows no more
CURVE_CHARS_MIN = 8
SILENCE_MAX_S = 60.0  # people look at a log after some minutes, and ask whether it hangs
STEP_EVERY_S = 5.0  # one line of a step in this time is enough for a run of minutes or days


def page(history: RunHistory, steps: int, title: str) -> RenderableType:
    """The whole page of a run of `steps` steps."""
    parts: list[RenderableType] = [_state(history)]
    if history.steps:
        parts.append(_figures(history, steps))
    if history.peers:
        parts.append(_peers(history))
    if history.notes:
        parts.append(Text())
        parts += [_note(note.at, note.event.text) for note in history.notes]
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def _state(history: RunHistory) -> RenderableType:
    """One line that tells what the run is doing."""
    if history.ended:
        style = "red" if history.ended.failed else "green"
        return Text(printable(history.ended.outcome), style=style)
    if history.waiting:
        return Text(history.waiting.text, style="yellow")
    if not history.steps:
        return Text("waiting for the first step", style="yellow")
    return Text("training", style="dim")


def _figures(history: RunHistory, steps: int) -> RenderableType:
    last = history.steps[-1]
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column()
    bar = ProgressBar(total=steps, completed=last.step, width=None)
    grid.add_row("step", f"{last.step} of {steps}", bar)
    grid.add_row("train loss", f"{last.loss:.3f}", Curve([s.loss for s in history.steps]))
    if history.held_out:
        held_out = [point.nats_per_token for point in history.held_out]
        grid.add_row("held-out loss", f"{held_out[-1]:.3f}", Curve(held_out))
    rates = [s.tokens_per_s for s in history.steps]
    grid.add_row("tokens/s", f"{last.tokens_per_s:,.0f}", Curve(rates))
    counts = history.counts
    told = f"{counts.counted} counted, {counts.replayed} replayed"
    grid.add_row("microbatches", str(counts.asked), told)
    return grid


def _peers(history: RunHistory) -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in ("stage", "server", "state"):
        table.add_column(name)
    for name in ("queue", "microbatches/s"):
        table.add_column(name, justify="right")
    for peer in sorted(history.peers, key=lambda peer: (peer.stage, peer.peer)):
        state = Text("ready", "green") if peer.ready else Text("joining", "yellow")
        row = (str(peer.stage), peer.peer, state, str(peer.queued), f"{peer.rate_per_s:.1f}")
        table.add_row(*row)
    return table


def _note(at: str, text: str) -> Text:
    return Text.assemble((f"{at}  ", "dim"), printable(text))


class Curve:
    """Values as one line of block characters, as wide as there is space."""

    def __init__(self, values: list[float]) -> None:
        self._values = values

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(CURVE_CHARS_MIN, options.max_width), options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(curve(self._values, min(options.max_width, CURVE_CHARS)), no_wrap=True)


def curve(values: list[float], chars: int) -> str:
    """At most `chars` blocks with the newest value at the right; long histories are thinned."""
    finite = [value for value in values if math.isfinite(value)]
    width = min(len(finite), chars)
    if not width:
        return ""
    shown = [finite[(i + 1) * len(finite) // width - 1] for i in range(width)]
    low, high = min(shown), max(shown)
    scale = (len(BLOCKS) - 2) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[1 + round((value - low) * scale)] for value in shown)


class LineFormat:
    """Chooses the events to print, and says that the run goes on where there are none.

    A line begins with the date and time, which the caller tells as `at`; `now_s` is on its clock.
    """

    def __init__(self, now_s: float) -> None:
        self._next_s = 0.0
        self._told_s = now_s
        """When the last line was printed."""
        self._state = "waiting for the first step"
        self._servers = ""

    def line(self, event: Event, now_s: float, at: str) -> str | None:
        """The line for an event, or None if it is to be left out."""
        self._follow(event)
        if isinstance(event, Peers) or not event.text:
            return None
        if isinstance(event, Stepped):
            if event.seconds < self._next_s:
                return None
            self._next_s = event.seconds + STEP_EVERY_S
        self._told_s = now_s
        return f"{at}  {event.text}"

    def silence(self, now_s: float, at: str) -> str | None:
        """A line that says what the run is doing, if none has come for long; else None."""
        if now_s < self._told_s + SILENCE_MAX_S or not self._state:
            return None
        self._told_s = now_s
        return f"{at}  still {self._state}{self._servers}"

    def _follow(self, event: Event) -> None:
        match event:
            case Waiting():
                self._state = event.text if event.stages else "waiting for the next step"
            case Started():
                self._state = "computing the first step"
            case Stepped():
                self._state = f"computing step {event.step + 1}"
            case Peers():
                ready = sum(peer.ready for peer in event.peers)
                rate = sum(peer.rate_per_s for peer in event.peers)
                self._servers = (
                    f": {ready} of {len(event.peers)} servers are ready, and count {rate:.2g} "
                    "microbatches/s together"
                )
            case Ended():
                self._state = "" if event.failed else "saving what was learnt"
                self._servers = ""
