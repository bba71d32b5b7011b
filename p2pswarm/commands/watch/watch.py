"""Showing a run from its log: the page of the terminal again, lines, or JSON for scripts.

Errors:  Unusable for a file that cannot be read, or that has no event.
"""

import asyncio
import json
import secrets
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from p2pswarm.base.exit_codes import INTERRUPTED
from p2pswarm.commands.arguments import say, say_beside
from p2pswarm.commands.watch.replay import replay
from p2pswarm.node.page import PROCESS_BYTES, places_of, served, token_of
from p2pswarm.node.progress.event_files import read_events
from p2pswarm.node.progress.output import draws, terminal, time_of, write_line
from p2pswarm.node.stack.node_page import page_link
from p2pswarm.progress.event_lines import EventLine
from p2pswarm.progress.page import LineFormat, page
from p2pswarm.progress.printable import printable
from p2pswarm.progress.view import RunView
from p2pswarm.settings.page_config import AUTO, OFF, PageConfig
from p2pswarm.web.health import HealthAnswer, NodeHealth
from p2pswarm.web.run_page import RunPage

DRAW_EVERY_S = 0.1  # faster than eyes, and slower than a log is read


def main(files: Sequence[Path], run: str, *, speed: float, page: PageConfig, as_json: bool) -> int:
    """Show the run of these files; returns the exit code."""
    events = read_events(files, run, lambda remark: say_beside(printable(remark)))
    if as_json:
        view = RunView()
        for told in events:
            view.on_event(told)
        say(json.dumps(summary(view), allow_nan=False))
        return 0
    console = terminal()
    if not draws(console) and page.listen in (AUTO, OFF):
        lines = LineFormat(0.0)
        for told in events:
            if text := lines.line(told.event, told.at, time_of(told.at)):
                say(printable(text))
        return 0
    take_interrupts()
    try:
        asyncio.run(show(replay(events, speed), console, page))
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def take_interrupts() -> None:
    """Have Ctrl-C end the page in order from now on: the terminal gets its cursor back."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


async def show(
    events: AsyncIterator[EventLine],
    console: Console,
    config: PageConfig,
    wall: Callable[[], float] | None = None,
) -> None:
    """Show a run in the terminal and on a page, to its last event; the page stays for who reads.

    `wall`: the wall clock; None: that of the newest event, as in a replay.
    """
    view, clock = RunView(), asyncio.get_running_loop().time
    now = wall or (lambda: view.newest_at or 0.0)
    shown = RunPage(NodeHealth("watch", clock()), now, secrets.token_hex(PROCESS_BYTES))
    shown.view = view
    shown.health.of_role = lambda: HealthAnswer(ok=True, why="shows a run")
    places = places_of(config, "watch", in_terminal=draws(console))
    if not places:
        await draw(events, console, view, now)
        return
    token = token_of(None)
    async with served(shown, places, token, config.names) as address:
        write_line(f"page {page_link(address, token)}")
        await draw(with_page(events, shown), console, view, now)
        write_line("that is all; the page stays until Ctrl-C")
        await asyncio.Event().wait()


async def with_page(events: AsyncIterator[EventLine], shown: RunPage) -> AsyncIterator[EventLine]:
    """Give the same events, and have a page show each when it was taken.

    What is too much for people is so by the clock of the run: a fast replay leaves out no more.
    """
    passed_s, before = 0.0, None
    async for told in events:
        yield told
        passed_s += 0.0 if before is None else max(0.0, told.at - before)
        before = told.at
        shown.on_line(told, passed_s)


async def draw(
    events: AsyncIterator[EventLine], console: Console, view: RunView, now: Callable[[], float]
) -> None:
    """Draw the page of a run whose events come from anywhere, to the last one; else lines."""
    clock, next_s = asyncio.get_running_loop().time, 0.0
    if not draws(console):
        lines = LineFormat(clock())
        async for told in events:
            view.on_event(told)
            if text := lines.line(told.event, clock(), time_of(told.at)):
                write_line(text)
        return
    with Live(console=console, auto_refresh=False) as live:

        def refresh() -> None:
            run = view.to_json(now())
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
