"""Output of a trainer's events on stdout: a live page, lines, or JSON.

Nothing is written any more once the reader of stdout is gone.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live

from p2pswarm.progress.events import Event, to_line
from p2pswarm.progress.history import RunHistory
from p2pswarm.progress.page import LineFormat, page
from p2pswarm.progress.printable import printable

Tell = Callable[[Event], None]


@contextlib.contextmanager
def output(kind: str, steps: int, title: str) -> Iterator[Tell]:
    """Show the events of a run while this block lasts; `kind`: as in the settings."""
    if kind == "json":
        yield lambda event: write_line(to_line(event))
        return
    console = Console()
    lines = LineFormat()
    if kind == "lines" or (kind == "auto" and not console.is_terminal):
        yield lambda event: _write_if(lines.line(event))
        return
    history = RunHistory()
    with Live(console=console, auto_refresh=False) as live:

        def tell(event: Event) -> None:
            history.on_event(event)
            live.update(page(history, steps, title), refresh=True)

        yield tell


def write_line(text: str) -> None:
    """Write a printable line to stdout, and flush it; a closed stdout is ignored."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(printable(text) + "\n")
        sys.stdout.flush()


def _write_if(text: str | None) -> None:
    if text:
        write_line(text)
