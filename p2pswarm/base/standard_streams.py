"""Stdout and stderr of a node: it goes on, whether anybody reads them or not.

The kernel says EIO for a terminal that is closed, EPIPE for a pipe without a reader, ENOSPC for a
file on a full disk. With `>&-` there is no stream at all. Such a write is passed over. Where the
reader has stopped, as with Ctrl-S, in a pager, or behind a connection that hangs, a write does not
return. So a thread of its own writes, and what would wait for too long is left out.
"""

import atexit
import contextlib
import io
import logging
import os
import queue
import sys
import threading
from typing import Any, TextIO

WAITING_MAX = 1 << 20  # bytes that wait for a reader: minutes of a run's events
END_S = 1.0  # for a reader to take the last lines; a node ends without it
REAL = "rich_proxied_file"  # the stream that a page of `rich` stands before

_log = logging.getLogger(__name__)


class StandardStream:
    """One of the two, as it is when text is written; like a file for whoever writes."""

    def __init__(self, name: str) -> None:
        """`name`: that of the stream in `sys`."""
        self._name = name
        self._texts: queue.SimpleQueue[_StreamBytes | threading.Event] = queue.SimpleQueue()
        """Bytes to write; and events to set once all before them is written.

        A handler of a signal may put something in while the thread that it interrupts does.
        """
        self._thread: threading.Thread | None = None
        self._given = self._taken = 0
        """Bytes that were put into the queue, and that came out of it."""
        self._left_out = False
        """True while texts are left out."""

    @property
    def waits(self) -> int:
        """The bytes that wait for a reader."""
        return self._given - self._taken

    def write(self, text: str) -> int:
        """Write text, if there is anything to write it to; waits for nobody who reads."""
        stream = self._stream()
        if stream is None:
            return len(text)
        raw = _raw(stream)
        if raw is None:  # a notebook's, or a test's
            with contextlib.suppress(OSError):  # the log leads here, too: nobody can be told
                stream.write(with_letters_of(stream, text))
        else:
            self.flush()  # what others have written comes first
            self._give(raw, text.replace("\n", os.linesep).encode(_encoding(stream), "replace"))
        return len(text)

    def flush(self) -> None:
        """Flush what others have written: our own texts are under way."""
        stream = self._stream()
        if stream is not None:
            # RuntimeError: this is a handler of a signal, which came in the midst of a flush
            with contextlib.suppress(OSError, RuntimeError):
                stream.flush()

    def end(self) -> None:
        """Wait for a moment until all is written.

        The interpreter flushes as it ends, and what it could not write would be a failure.
        """
        if self._thread is not None:
            written = threading.Event()
            self._texts.put(written)
            written.wait(END_S)
        stream = self._stream()
        if stream is not None:
            try:
                stream.flush()
            except OSError:
                setattr(sys, self._name, None)

    def _stream(self) -> TextIO | None:
        """The stream itself, also while a page stands before it; None if there is none."""
        stream = getattr(sys, self._name)
        stream = getattr(stream, REAL, stream)
        return None if stream is None or stream.closed else stream

    def _give(self, raw: io.RawIOBase, data: bytes) -> None:
        """Have the thread write, unless too much waits already."""
        # half, so that the warning about a slow reader is seldom
        most = WAITING_MAX // 2 if self._left_out else WAITING_MAX
        if self.waits + len(data) > most:
            if not self._left_out:
                self._left_out = True
                _log.warning("nobody reads %s: what comes now is left out there", self._name)
            return
        self._left_out = False
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name=self._name, daemon=True)
            self._thread.start()
            atexit.register(self.end)
        self._given += len(data)
        self._texts.put(_StreamBytes(raw, data))

    def _write_all(self) -> None:
        while True:
            next_ = self._texts.get()
            if isinstance(next_, threading.Event):
                next_.set()
                continue
            next_.write()
            self._taken += len(next_.data)

    def __getattr__(self, name: str) -> Any:
        """What else a console asks of a file: whether it is a terminal, its encoding."""
        if name == REAL:
            raise AttributeError(name)  # else the page would be written there, and wait
        return getattr(self._stream(), name)


class _StreamBytes:
    """Bytes for a stream."""

    def __init__(self, raw: io.RawIOBase, data: bytes) -> None:
        self._raw, self.data = raw, data

    def write(self) -> None:
        """Write them, without the lock of a buffer that the interpreter's end would want."""
        rest = memoryview(self.data)
        with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed meanwhile
            while rest:
                rest = rest[self._raw.write(rest) or len(rest) :]


def _raw(stream: TextIO) -> io.RawIOBase | None:
    """What writes the bytes of a stream; None for one that is no file."""
    buffer = getattr(stream, "buffer", None)
    raw = buffer if isinstance(buffer, io.RawIOBase) else getattr(buffer, "raw", None)
    return raw if isinstance(raw, io.RawIOBase) else None


def with_letters_of(stream: TextIO, text: str) -> str:
    """A text with a question mark for each letter that a stream has not: some have few."""
    encoding = _encoding(stream)
    return text.encode(encoding, "replace").decode(encoding)


def _encoding(stream: TextIO) -> str:
    return stream.encoding or "utf-8"


STDOUT = StandardStream("stdout")
STDERR = StandardStream("stderr")
