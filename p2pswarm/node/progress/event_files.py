"""Reading logs of events: several files as one row of events in the order of their clocks.

Errors:  Unusable for a file that cannot be read, or that has no event.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from p2pswarm.base.errors import Unusable
from p2pswarm.node.progress.event_log import log_files
from p2pswarm.progress.event_lines import LINE_CHARS_MAX, EventLine, EventReader

REMARKS_MAX = 20  # what is wrong with a log is clear by then


def read_events(paths: Sequence[Path], run: str, say: Callable[[str], None]) -> Iterator[EventLine]:
    """The events of all files; one that has numbered files beside it is read with them.

    `run`: the first digits of the run's id; empty: the run of the first event. `say` is told what
    is wrong with the files, a line each.
    """
    reader, found, said = EventReader(run), False, 0
    rows = [_events(path, reader) for path in dict.fromkeys(paths)]
    for told in heapq.merge(*rows, key=lambda one: one.at):
        found = True
        said = _say(reader, said, say)
        yield told
    _say(reader, said, say)
    if not found:
        named = ", ".join(map(str, paths))
        which = f" of run {run}" if run else ""
        raise Unusable(f"{named}: no event{which}: name a file of train.log or serve.log")


def _say(reader: EventReader, said: int, say: Callable[[str], None]) -> int:
    for remark in reader.drain():
        said += 1
        if said <= REMARKS_MAX:
            say(remark)
    return said


def _events(path: Path, reader: EventReader) -> Iterator[EventLine]:
    """The events of one log, the oldest file first."""
    files = [each for each in log_files(path) if each == path or each.is_file()]
    if len(files) > 1 and not path.exists():
        files.remove(path)  # the newest file may not be begun yet
    for each in files:
        try:
            with each.open("rb") as file:
                for number, line in enumerate(_lines(file), 1):
                    told = reader.on_line(line, str(each), number)
                    if told is not None:
                        yield told
        except OSError as error:
            why = error.strerror or error
            raise Unusable(f"{each}: cannot be read: {why}; name another file") from error


def _lines(file: BinaryIO) -> Iterator[str]:
    """The lines of a file, without their ends; of one that is too long only the beginning."""
    while data := file.readline(LINE_CHARS_MAX + 1):
        whole = data.endswith(b"\n") or len(data) <= LINE_CHARS_MAX
        yield data.decode(errors="replace").rstrip("\r\n")
        while not whole and (rest := file.readline(LINE_CHARS_MAX)):
            whole = rest.endswith(b"\n")
