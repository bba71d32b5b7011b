"""Showing a run from its log: the page of the terminal again, lines, or JSON for scripts.

Errors:  Unusable for a file that cannot be read, or that has no event.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console
from rich.live import Live

from p2pswarm.commands.arguments import say, say_beside
from p2pswarm.commands.watch.replay import replay
from p2pswarm.node.progress.event_files import read_events
from p2pswarm.node.progress.output import STDOUT, time_of
from p2pswarm.node.shutdown import INTERRUPTED
from p2pswarm.progress.event_lines import EventLine
from p2pswarm.progress.page import LineFormat, page
from p2pswarm.progress.printable import printable
from p2pswarm.progress.view import RunView

DRAW_EVERY_S = 0.1  # faster than eyes, and slower than a log is read


def main(files: Sequence[Path], run: str, *, speed: float, as_json: bool) -> int:
    """Show the run of these files; returns the exit code."""
    events = read_events(files, run, lambda remark: say_beside(printable(remark)))
    if as_json:
        view = RunView()
        for told in events:
            view.on_event(told)
        say(json.dumps(summary(view), allow_nan=False))
        return 0
    console = Console(file=cast(IO[str], STDOUT))
    if not console.is_terminal:
        lines = LineFormat(0.0)
        for told in events:
            if text := lines.line(told.event, told.at, time_of(told.at)):
                say(printable(text))
        return 0
    try:
        asyncio.run(draw(replay(events, speed), console))
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


async def draw(events: AsyncIterator[EventLine], console: Console) -> None:
    """Draw the page of a run whose events come from anywhere, to the last one."""
    view, clock, next_s = RunView(), asyncio.get_running_loop().time, 0.0
    with Live(console=console, auto_refresh=False) as live:

        def refresh() -> None:
            now_s = view.newest_at or 0.0
            run = view.to_json(now_s)
            live.update(page(run, f"run {run['name']}", time_of), refresh=True)

        try:
            async for told in events:
                view.on_event(told)
                if clock() >= next_s:
                    next_s = clock() + DRAW_EVERY_S
                    refresh()
        finally:
            refresh()


def summary(view: RunView) -> dict[str, Any]:
    """The run at the end of its log, for scripts."""
    run = view.to_json(view.newest_at or 0.0, events=0)
    rows = run["servers"]
    named = Counter(row["name"] for row in rows.values())
    wanted = ("run", "name", "state", "loss", "held_out", "totals", "stalls", "spent")
    return {
        "steps": run["step"],
        "of_steps": run["steps"],
        "stages": len(run["stages"]),
        "servers": {
            _key(server, row["name"], named[row["name"]]): {"id": server, **row}
            for server, row in rows.items()
        },
        **{name: run[name] for name in wanted},
    }


def _key(server: str, name: str, count: int) -> str:
    """The name of a server's machine; with its id where `count` of them have the same."""
    if not name:
        return server
    return name if count == 1 else f"{name} {server}"
