"""Streams whose reader has stopped, is gone, or has other letters."""

import contextlib
import errno
import io
import logging
import os
import sys
import threading

from p2pswarm.base.standard_streams import WAITING_MAX, StandardStream

LINE = f"{'a' * 999}\n"


@contextlib.contextmanager
def piped(monkeypatch):
    """Stdout as a pipe of its own, for the block; gives its other end."""
    read, write = os.pipe()
    with (
        open(read, "rb") as reader,  # noqa: PTH123 - a number is no path
        open(write, "w", encoding="ascii") as writer,  # noqa: PTH123
        monkeypatch.context() as patched,
    ):
        patched.setattr(sys, "stdout", writer)
        yield reader


def test_a_reader_that_has_stopped_holds_nobody_up_and_goes_on_where_it_was(monkeypatch, caplog):
    stream, said = StandardStream("stdout"), []
    with piped(monkeypatch) as reader, caplog.at_level(logging.WARNING):
        for _ in range(2 * WAITING_MAX // len(LINE)):
            stream.write(LINE)
        reads = threading.Thread(target=lambda: said.extend(iter(reader.readline, b"end\n")))
        reads.start()
        stream.end()
        stream.write("end\n")
        reads.join()

    assert WAITING_MAX <= sum(map(len, said)) + len(LINE) < 2 * WAITING_MAX
    assert set(said) == {LINE.encode()}
    assert [record.message for record in caplog.records] == [
        "nobody reads stdout: what comes now is left out there"
    ]


def test_what_was_written_is_there_when_a_process_ends(monkeypatch):
    stream = StandardStream("stdout")
    with piped(monkeypatch) as reader:
        sys.stdout.write("of another\n")
        stream.write("a line\n")

        stream.end()

        assert os.read(reader.fileno(), 100) == b"of another\na line\n"


def test_a_letter_that_a_stream_has_not_is_a_question_mark(monkeypatch):
    stream = StandardStream("stdout")
    with piped(monkeypatch) as reader:
        stream.write("run 'Zürich' ▁▂\n")

        assert reader.readline() == b"run 'Z?rich' ??\n"


def test_a_reader_that_is_gone_is_passed_over(monkeypatch):
    stream = StandardStream("stdout")
    with piped(monkeypatch) as reader:
        reader.close()

        stream.write("a line\n")
        stream.end()

    assert not stream.waits


def test_a_log_that_leads_to_the_stream_itself_tells_of_no_failure_there(monkeypatch):
    """Else each line that cannot be written makes another one."""
    stream = StandardStream("stdout")
    told = logging.StreamHandler(stream)
    logger = logging.getLogger("p2pswarm.base.standard_streams")
    with piped(monkeypatch) as reader:
        monkeypatch.setattr(logger, "handlers", [told])
        monkeypatch.setattr(logger, "level", logging.DEBUG)
        reader.close()

        stream.write("a line\n")
        stream.end()
        given = stream._given
        stream.end()

    assert given == stream._given == len("a line\n")


class NoDisk(io.StringIO):
    """A stream that is no file, and takes no more."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_interpreter_does_not_try_again_what_could_not_be_written(monkeypatch):
    monkeypatch.setattr(sys, "stdout", NoDisk())
    stream = StandardStream("stdout")

    stream.write("a line\n")
    stream.end()

    assert sys.stdout is None
