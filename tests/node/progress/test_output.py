"""Where a trainer's events go."""

import errno
import io
import os
import sys

import pytest

from p2pswarm.node.progress.output import output, write_line
from p2pswarm.progress.events import Ended, MicrobatchCounts, Note, from_line

ESCAPES = "\x1b[2J\rforged\n"
EVENTS = [
    Note(f"a server left: {ESCAPES}", seconds=1.0),
    Ended(3, ESCAPES, True, 1.0, MicrobatchCounts(0, 0, 0), seconds=2.0),
]


@pytest.mark.parametrize("kind", ["lines", "page"])
def test_what_a_peer_said_does_not_reach_the_terminal_as_it_is(kind, capsys):
    with output(kind, 10, "a run") as tell:
        for event in EVENTS:
            tell(event)

    said = capsys.readouterr().out
    assert "\x1b[2J" not in said
    assert "\r" not in said
    assert "?[2J?forged?" in said


def test_json_has_what_a_peer_said_as_it_is_and_stays_a_line(capsys):
    with output("json", 10, "a run") as tell:
        for event in EVENTS:
            tell(event)

    assert [from_line(line) for line in capsys.readouterr().out.splitlines()] == EVENTS


class Unwritable(io.StringIO):
    """A stdout whose terminal is closed, or whose disk is full."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.error = OSError(number, os.strerror(number))

    def write(self, _: str) -> int:
        raise self.error


@pytest.mark.parametrize("kind", ["lines", "page", "json"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EPIPE, errno.ENOSPC])
def test_a_stdout_that_cannot_be_written_ends_nothing(kind, number, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Unwritable(number))

    with output(kind, 10, "a run") as tell:
        for event in EVENTS:
            tell(event)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "none"])
def test_a_process_without_stdout_says_nothing(closed, monkeypatch):
    nowhere = io.StringIO()
    nowhere.close()
    monkeypatch.setattr(sys, "stdout", nowhere if closed else None)

    write_line("a line")
