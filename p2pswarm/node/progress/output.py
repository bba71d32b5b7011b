"""Output of a trainer's events on stdout: a live page, lines, or JSON.

No run ends, or stands still, because nobody reads it: `base/standard_streams.py` sees to that.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import IO, cast

from rich.console import Console
from rich.live import Live

from p2pswarm.base.standard_streams import REAL, STDOUT
from p2pswarm.base.tasks import OwnedTasks
from p2pswarm.base.token_bucket import TokenBucket
from p2pswarm.progress.event_lines import EventLine
from p2pswarm.progress.page import SILENCE_MAX_S, LineFormat, page
from p2pswarm.progress.printable import printable
from p2pswarm.progress.view import RunView

Tell = Callable[[EventLine], None]

LOOK_EVERY_S = 5.0  # for a silence of a minute
DRAW_LEAST_S = 1.0  # one of 20 servers takes 20 ms of the loop, and events may be hundreds a second
DRAW_EVERY_S = 1.0  # the page says how long ago things were


def date_time() -> str:
    """The present date and time for programs, with the zone of this machine."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def shown_time() -> str:
    """The same for people: lines begin with it."""
    return time_of(time.time())


def time_of(at: float) -> str:
    """The date and time of a wall clock, in this machine's zone, for people."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def dated(say: Callable[[str], None]) -> Callable[[str], None]:
    """The same, with the date and time before each line."""
    return lambda line: say(f"{shown_time()}  {line}")


def both(first: Callable[[str], object], second: Callable[[str], object]) -> Callable[[str], None]:
    """Return what says a line twice."""

    def say(line: str) -> None:
        first(line)
        second(line)

    return say


@contextlib.asynccontextmanager
async def output(kind: str, title: str) -> AsyncIterator[Tell]:
    """Show the events of a run while this block lasts; `kind`: as in the settings."""
    if kind == "json":
        yield lambda told: write_line(told.line)
        return
    console = terminal()
    tasks = OwnedTasks()
    try:
        if kind == "lines" or (kind == "auto" and not draws(console)):
            clock = asyncio.get_running_loop().time
            lines = LineFormat(clock())
            tasks.spawn(_end_silence(lines, clock))
            yield lambda told: _write_if(lines.line(told.event, clock(), shown_time()))
            return
        view, clock = RunView(), asyncio.get_running_loop().time
        draws_left = TokenBucket(DRAW_LEAST_S, 1)
        with Live(console=console, auto_refresh=False) as live:

            def draw() -> None:
                live.update(page(view.to_json(time.time()), title, time_of), refresh=True)

            def tell(told: EventLine) -> None:
                view.on_event(told)
                if draws_left.take(clock()):  # else it is drawn within a second
                    draw()

            tasks.spawn(_draw_again(draw))
            try:
                yield tell
            finally:
                draw()
    finally:
        await tasks.close()
        STDOUT.end()


def terminal() -> Console:
    """What pages are drawn on: stdout."""
    return Console(file=cast(IO[str], STDOUT))


def draws(console: Console) -> bool:
    """Return whether a page can be drawn anew in its place; a dumb terminal has lines alone."""
    return console.is_terminal and not console.is_dumb_terminal


async def _draw_again(draw: Callable[[], None]) -> None:
    """Draw the page also while nothing happens."""
    while True:
        await asyncio.sleep(DRAW_EVERY_S)
        draw()


@contextlib.asynccontextmanager
async def reminded(what: str, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Say from time to time that `what` goes on, while this block lasts."""

    async def remind() -> None:
        while True:
            await asyncio.sleep(SILENCE_MAX_S)
            say(f"still {what}")

    tasks = OwnedTasks()
    tasks.spawn(remind())
    try:
        yield
    finally:
        await tasks.close()


async def _end_silence(lines: LineFormat, clock: Callable[[], float]) -> None:
    """Say that the run goes on whenever nothing was said for long."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        _write_if(lines.silence(clock(), shown_time()))


def write_line(text: str) -> None:
    """Write a printable line to stdout, and flush it, if anybody can read it."""
    line = printable(text) + "\n"
    if hasattr(sys.stdout, REAL):
        sys.stdout.write(line)  # above the page that stands there
    else:
        STDOUT.write(line)


def _write_if(text: str | None) -> None:
    if text:
        write_line(text)
