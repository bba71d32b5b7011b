"""EventLog: a node's events in files, one line each, for `p2pswarm watch` and for questions later.

A thread writes, so that neither the event loop nor a step waits for a disk. Whatever becomes of the
disk, training goes on: what cannot be written is left out, and the numbers show it. A file that is
full gets a number in its name, the oldest are deleted, and each begins with what never comes again.

Units:   bytes, seconds.
"""

import contextlib
import logging
import os
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import private_opener
from p2pswarm.node.progress.queue_thread import QueueThread
from p2pswarm.progress.event_lines import (
    LINE_CHARS_MAX,
    THINNED,
    EventLine,
    UnknownEvent,
    from_line,
)
from p2pswarm.progress.events import Begun, MachineFacts

FILE_BYTES = 64 << 20  # an editor opens it; two thirds of a day of 20 servers
ALL_BYTES = 1 << 30  # ten days of such a run
SYNC_EVERY_S = 1.0  # what a machine that dies may lose
PEERS_EVERY_S = 10.0  # figures twice a second would be most of the file
WAITING_MAX = 10_000  # events that wait for a slow disk: some megabytes
RETRY_S = 10.0  # a disk that was full may have room again
CLOSE_S = 2.0  # Ctrl-C ends a node within 5 s, whatever its disk does
MACHINES_MAX = 4_096  # whose facts a new file repeats
DIGITS = 6
TORN = b'{"v":'  # how each line begins

log = logging.getLogger(__name__)


@contextlib.contextmanager
def open_event_log(path: Path | None, setting: str) -> Iterator[Callable[[EventLine], None]]:
    """Give what takes events to be written to `path` while this block lasts; None: nowhere.

    Raises Unusable for a file that is no log, or cannot be written; `setting` names it.
    """
    if path is None:
        yield lambda _told: None
        return
    try_event_log(path, setting)
    events = EventLog(EventFiles(path))
    events.start()
    try:
        yield events.on_event
    finally:
        events.close()


def try_event_log(path: Path | None, setting: str) -> None:
    """Raise Unusable for a log that cannot be written, before anything is done for it."""
    if path is None:
        return
    there = path.exists()
    if there and not path.is_file():
        raise Unusable(f"{path}: is no file: name another in {setting}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            file.seek(0)
            first = file.readline(LINE_CHARS_MAX)
    except OSError as error:
        why = error.strerror or error
        raise Unusable(f"{path}: {why}: name another file in {setting}") from error
    if not there:
        path.unlink()
    if first and not _is_event(first):
        raise Unusable(f"{path}: is no log of events: name another file in {setting}")


def _is_event(line: bytes) -> bool:
    if not line.endswith(b"\n"):
        return line.startswith(TORN)  # its writer was killed
    try:
        from_line(line.decode(errors="replace"))
    except UnknownEvent:
        return True  # of a newer release
    except ValueError:
        return False
    return True


def log_files(path: Path) -> list[Path]:
    """The files of a log, the oldest first; the one that has the log's name is the newest."""
    digits = "[0-9]" * DIGITS
    older = sorted(path.parent.glob(f"{glob_text(path.stem)}.{digits}{path.suffix}"))
    return [*older, path]


def glob_text(text: str) -> str:
    """A name in which no character is one of a pattern."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


class EventFiles:
    """The files of one log; OSError is the caller's."""

    def __init__(
        self, path: Path, file_bytes: int = FILE_BYTES, all_bytes: int = ALL_BYTES
    ) -> None:
        self.path = path
        self._file_bytes = file_bytes
        self._all_bytes = all_bytes
        self._file: BinaryIO | None = None
        self._size = 0
        self._last = 0
        """The number of the newest event that was written."""
        self._begun: EventLine | None = None
        self._machines: dict[str, EventLine] = {}

    def learn(self, told: EventLine) -> None:
        """Remember an event that a new file is to begin with."""
        match told.event:
            case Begun():
                self._begun = told
            case MachineFacts(server=server):
                self._machines.pop(server, None)
                self._machines[server] = told
                if len(self._machines) > MACHINES_MAX:
                    del self._machines[next(iter(self._machines))]

    def write(self, told: EventLine) -> None:
        """Append an event; in a new file, if this one is full or gone."""
        if self._file is None:
            self._open(told)
        elif self._size >= self._file_bytes:
            self._rotate(told)
        self._append(told.line)
        self._last = told.n

    def sync(self) -> None:
        """Have the disk keep what was written; open a new file if this one is gone."""
        if self._file is None:
            return
        os.fsync(self._file.fileno())
        if not self._is_there():
            self.close()

    def close(self) -> None:
        """End the file, as it is."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # it was told already, or is not needed any more
                file.close()

    def _open(self, told: EventLine) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = open(self.path, "ab", buffering=0, opener=private_opener)  # noqa: SIM115
        try:
            self._size = _cut_torn_line(self.path)
        except OSError:
            file.close()
            raise
        self._file = file
        if self._last:  # the file before is gone, or was not to be written
            self._head(told)

    def _rotate(self, told: EventLine) -> None:
        self.sync()
        if self._file is not None:
            self.close()
            self._put_aside()
        self._open(told)

    def _put_aside(self) -> None:
        """Give the file a number, and delete the oldest of too many."""
        older = log_files(self.path)[:-1]
        number = int(older[-1].stem[-DIGITS:]) + 1 if older else 1
        place = self.path.with_name(f"{self.path.stem}.{number:0{DIGITS}}{self.path.suffix}")
        self.path.replace(place)
        sizes = {each: each.stat().st_size for each in [*older, place]}
        for each in older:
            if sum(sizes.values()) + self._file_bytes > self._all_bytes:
                each.unlink()
                del sizes[each]

    def _head(self, told: EventLine) -> None:
        """Begin a file with what is told once: the run, and the machines."""
        for each in filter(None, [self._begun, *self._machines.values()]):
            if each.n < told.n:
                self._append(replace(each, at=told.at, n=max(1, self._last)).line)

    def _append(self, line: str) -> None:
        assert self._file is not None, "it is open"
        data = f"{line}\n".encode()
        while data:
            written = self._file.write(data)
            self._size += written
            data = data[written:]

    def _is_there(self) -> bool:
        """Return whether the path still leads to the file."""
        assert self._file is not None, "it is open"
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False


def _cut_torn_line(path: Path) -> int:
    """Take away a last line without its end, whose writer was killed; returns the size."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        begin = max(0, size - LINE_CHARS_MAX)
        file.seek(begin)
        end = begin + file.read().rfind(b"\n") + 1
        if end < size and (end or not begin):
            file.truncate(end)
            size = end
        return size


class EventLog:
    """Takes events on the event loop, and writes them on its thread."""

    def __init__(self, files: EventFiles, retry_s: float = RETRY_S) -> None:
        """`retry_s`: after a write that failed, until the next is tried."""
        self._files = files
        self._wait_s = retry_s
        self._thread = QueueThread[EventLine]("event log", self._write_all, WAITING_MAX)
        self._thinned_at: dict[type, float] = {}
        self._failed = False
        """True from the first write that fails to the next that does not."""
        self._retry_s = 0.0

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def on_event(self, told: EventLine) -> None:
        """Take an event; never waits."""
        if isinstance(told.event, THINNED):
            kind = type(told.event)
            before = self._thinned_at.get(kind, float("-inf"))
            if before <= told.at < before + PEERS_EVERY_S:
                return
            self._thinned_at[kind] = told.at
        self._thread.put(told, self._say_full)

    def close(self) -> None:
        """Write what waits, for some seconds at most."""
        self._thread.close(CLOSE_S)

    def _say_full(self) -> None:
        log.warning("%s: the disk is too slow, events are left out", self._files.path)

    def _write_all(self) -> None:
        synced_s, unsynced, open_ = time.monotonic(), False, True
        while open_:
            wait_s = max(0.0, synced_s + SYNC_EVERY_S - time.monotonic()) if unsynced else None
            with contextlib.suppress(queue.Empty):
                told = self._thread.items.get(timeout=wait_s)
                open_ = told is not None
                if told is not None:
                    self._files.learn(told)
                    unsynced = self._try(partial(self._files.write, told)) or unsynced
            if unsynced and (not open_ or time.monotonic() >= synced_s + SYNC_EVERY_S):
                self._try(self._files.sync)
                synced_s, unsynced = time.monotonic(), False
        self._files.close()

    def _try(self, work: Callable[[], None]) -> bool:
        """Do it if the disk can; say in one line when it no longer can, and when it can again."""
        path = self._files.path
        if self._failed and time.monotonic() < self._retry_s:
            return False
        try:
            work()
        except OSError as error:
            if not self._failed:
                log.warning(
                    "%s: no events are written until it can be: %s; training goes on",
                    path,
                    error.strerror or error,
                )
            self._failed, self._retry_s = True, time.monotonic() + self._wait_s
            self._files.close()
            return False
        if self._failed:
            self._failed = False
            log.warning("%s: events are written again", path)
        return True
