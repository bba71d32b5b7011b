"""EventStreams: the newest lines of a run, and the viewers that follow them.

A viewer has a queue. One that does not read is dropped when its queue is full; it comes back with
the number of the last line that it has, and gets those that it lacks. So a slow viewer costs
a bounded memory, and a run nothing.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

VIEWERS_MAX = 16  # a person's tabs and a team's screens; each costs a write four times a second
QUEUE_LINES_MAX = 256  # what a viewer may lag: minutes of a quiet run
KEPT_LINES = 1_000  # what a viewer that comes, or comes back, gets of the past
LINE_CHARS_MAX = 4_096  # of one line that is kept, so that a thousand are 4 MB at most
ID_DIGITS_MAX = 18  # of the number of a line


@dataclass(frozen=True, slots=True)
class NumberedLine:
    """An event as JSON, and its number in the stream."""

    n: int
    line: str


class Viewer:
    """One stream that is open."""

    def __init__(self) -> None:
        self._queue: deque[NumberedLine] = deque()
        self.dropped = False
        """It did not read: its stream is to be closed."""

    def put(self, line: NumberedLine) -> None:
        """Have a line wait for it; a viewer that is full is dropped."""
        if self.dropped:
            return
        if len(self._queue) == QUEUE_LINES_MAX:
            self.dropped = True
            self._queue.clear()
            return
        self._queue.append(line)

    def drain(self) -> list[NumberedLine]:
        """Return the lines that wait, and forget them."""
        lines = list(self._queue)
        self._queue.clear()
        return lines


class EventStreams:
    """The lines that are kept, and who follows."""

    def __init__(self) -> None:
        self._kept: deque[NumberedLine] = deque(maxlen=KEPT_LINES)
        self._viewers: dict[Viewer, None] = {}
        self._n = 0
        """Of the newest line."""

    def on_line(self, line: str) -> None:
        """Take an event's line, for those who follow and those who will."""
        self._n += 1
        if len(line) > LINE_CHARS_MAX:
            return  # its number is missing in the stream, as a gap
        numbered = NumberedLine(self._n, line)
        self._kept.append(numbered)
        for viewer in self._viewers:
            viewer.put(numbered)

    def on_gap(self, lines: int) -> None:
        """Note that so many lines were left out."""
        self._n += lines

    def open(self) -> Viewer | None:
        """A new viewer; None if there are as many as there may be."""
        if len(self._viewers) == VIEWERS_MAX:
            return None
        viewer = Viewer()
        self._viewers[viewer] = None
        return viewer

    def close(self, viewer: Viewer) -> None:
        """Forget a viewer."""
        self._viewers.pop(viewer, None)

    def after(self, n: int) -> Iterator[NumberedLine]:
        """The lines that are kept after the n-th.

        A number beyond the newest is of another process, which counted anew: all are given.
        """
        newest = 0 if n > self._n else n
        return (line for line in self._kept if line.n > newest)

    @property
    def viewers(self) -> int:
        """How many follow."""
        return len(self._viewers)

    @property
    def n(self) -> int:
        """The number of the newest line."""
        return self._n


def last_id(header: str) -> int:
    """The number in a Last-Event-ID header; 0 for what is none."""
    return (
        int(header) if header.isascii() and header.isdigit() and len(header) <= ID_DIGITS_MAX else 0
    )


def message(kind: str, data: str, n: int | None = None) -> bytes:
    """One server-sent event; `data` is one line of JSON.

    Source:  https://html.spec.whatwg.org/multipage/server-sent-events.html
    """
    head = "" if n is None else f"id: {n}\n"
    return f"{head}event: {kind}\ndata: {data}\n\n".encode()
