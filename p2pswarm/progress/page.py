"""A run as people see it: a live page of a terminal, drawn repeatedly; or lines for a log file.

The page is drawn from a snapshot of `view.py`, as that of a browser is.

Units:   losses in nats per token; `at` in seconds since 1970.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from p2pswarm.progress.budget import money
from p2pswarm.progress.cost_events import CostSoFar
from p2pswarm.progress.events import (
    Begun,
    Ended,
    Event,
    MachineFacts,
    Peers,
    Started,
    Stepped,
    Waiting,
    long_text,
    seconds_text,
)
from p2pswarm.progress.printable import printable
from p2pswarm.progress.view import Snapshot

BLOCKS = " ▁▂▃▄▅▆▇█"
CURVE_CHARS = 60  # a longer line shows no more
CURVE_CHARS_MIN = 8
NOTES_SHOWN = 10  # what fits under the tables of a small terminal
SILENCE_MAX_S = 60.0  # people look at a log after some minutes, and ask whether it hangs
STEP_EVERY_S = 5.0  # one line of a step in this time is enough for a run of minutes or days
IN_THE_STATE = {"begun", "started", "waiting"}  # events that the first line tells
CENTURY_S = 100 * 365 * 86_400.0  # beyond it there may be no date: Python has them to the year 9999
STYLES = {"ready": "green", "joining": "yellow", "moving": "yellow", "lost": "dim"}


def page(run: Snapshot, title: str, date_time: Callable[[float], str]) -> RenderableType:
    """The whole page; `date_time` is a wall clock's time for people."""
    parts: list[RenderableType] = [_state(run)]
    if outlook := _outlook(run, date_time):
        parts.append(Text(outlook, style="dim"))
    if run["step"]:
        parts.append(_figures(run))
    if run["stages"]:
        parts.append(_servers(run))
    notes = [one for one in run["events"] if one["event"] not in IN_THE_STATE]
    if notes:
        parts.append(Text())
        parts += [_note(date_time(one["at"]), one["text"]) for one in notes[-NOTES_SHOWN:]]
    return Panel(Group(*parts), title=printable(title), title_align="left", border_style="dim")


def _state(run: Snapshot) -> RenderableType:
    """One line that tells what the run is doing."""
    match run["state"]:
        case "ended" | "failed" as state:
            return Text(run["ended"], style="red" if state == "failed" else "green")
        case "waiting":
            since = run["waiting"]["since"]
            waits = Waiting(tuple(run["waiting"]["stages"])).text
            return Text(f"{waits}{_for(run['at'] - since)}", style="yellow")
        case "stalled":
            usual = seconds_text(run["usual_step_s"])
            stands = f"no step for {seconds_text(run['committed_ago_s'])}, usually {usual}"
            return Text(stands, style="yellow")
        case "training" if run["step"]:
            return Text("training", style="dim")
    return Text("waiting for the first step", style="yellow")


def _outlook(run: Snapshot, date_time: Callable[[float], str]) -> str:
    """When the run is done, and what it costs, as far as that is known."""
    eta, cost, parts = run["eta"], run["cost"], []
    if eta is not None:
        if eta["left_s"] > CENTURY_S:  # steps without end, or a run that stands still in its first
            parts.append("not done within a century at this speed")
        else:
            minutes = date_time(eta["at"])[:-3]  # nobody knows the second
            parts.append(f"done {minutes} ± {long_text(eta['spread_s'])}")
    if cost is not None:
        currency, budget = cost["currency"], cost["budget"]
        of = f" of {money(budget, currency)}" if budget else ""
        parts.append(f"{money(cost['total'] or 0.0, currency)} so far{of}")
        parts.append(f"{money(cost['per_hour'] or 0.0, currency)}/h")
        if (each := cost["useful_per_mtoken"]) is not None:
            parts.append(f"{money(each, currency)}/Mtoken useful")
    return "   ".join(parts)


def _for(seconds: float) -> str:
    return f", for {seconds_text(seconds)}" if seconds >= 1.0 else ""


def _figures(run: Snapshot) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column()
    curves = {
        name: Curve([value for *_, value in points]) for name, points in run["curves"].items()
    }
    bar = ProgressBar(total=max(run["steps"], run["step"]), completed=run["step"], width=None)
    grid.add_row("step", f"{run['step']} of {run['steps']}", bar)
    grid.add_row("train loss", _loss(run["loss"]), curves["loss"])
    if run["held_out"] is not None:
        grid.add_row("held-out loss", _loss(run["held_out"]), curves["held_out"])
    rate: RenderableType = curves["tokens_per_s"]
    if run["state"] == "stalled":
        rate = Text(f"the last step was {seconds_text(run['committed_ago_s'])} ago", "yellow")
    per_s = run["tokens_per_s"] if run["whole_tokens_per_s"] is None else run["whole_tokens_per_s"]
    grid.add_row("tokens/s", f"{per_s:,.0f}", rate)
    counts, exact = run["counts"], run["exactness"]
    told = f"{counts['counted']} counted, {run['totals']['again']} sent again"
    if exact["compared"]:
        told += f"; weights equal {exact['equal']} of {exact['compared']}"
    grid.add_row("microbatches", str(counts["asked"]), told)
    return grid


def _loss(loss: float | None) -> str:
    return "not known" if loss is None else f"{loss:.3f}"


def _servers(run: Snapshot) -> RenderableType:
    """A row for each server, and one for each stage that has none."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in ("stage", "server", "machine", "state"):
        table.add_column(name)
    for name in ("queue", "microbatches/s"):
        table.add_column(name, justify="right")
    rows = run["servers"]
    for stage in run["stages"]:
        number = str(stage["stage"])
        here = [name for name, row in rows.items() if row["stage"] == stage["stage"]]
        if not stage["ready"]:
            since = run["at"] - (stage["since"] if stage["since"] is not None else run["at"])
            table.add_row(number, Text(f"nobody{_for(since)}", "yellow"), "", "", "", "")
        for name in here:
            row = rows[name]
            state, figures = Text(_state_of(row, run["at"]), STYLES[row["state"]]), ("", "")
            if row["state"] in ("ready", "joining"):
                figures = str(row["queued"] or 0), f"{row['rate_per_s'] or 0.0:.1f}"
            table.add_row(number, name, row["name"], state, *figures)
    return table


def _state_of(row: Mapping[str, Any], now_s: float) -> str:
    if row["state"] == "joining" and (share := row["weights_share"]) is not None and share < 1.0:
        return f"joining {math.floor(100 * share)} %"
    if row["state"] != "lost":
        return str(row["state"])
    return f"lost {seconds_text(max(0.0, now_s - row['since']))} ago"


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
        if isinstance(event, Peers | Begun | MachineFacts | CostSoFar) or not event.text:
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
