"""Where a trainer's events go."""

import asyncio
import errno
import io
import os
import sys
from datetime import datetime, timedelta

import pytest
from rich.console import Console

from p2pswarm.node.progress.output import draws, output, reminded, write_line
from p2pswarm.progress.event_lines import EventLine, from_line
from p2pswarm.progress.events import Ended, Event, MicrobatchCounts, Note, Stepped, Waiting
from p2pswarm.sim.loop import run as in_virtual_time

ESCAPES = "\x1b[2J\rforged\n"
AT = 1_764_105_600.123


def told(event: Event, n: int = 1) -> EventLine:
    return EventLine(AT, "5f0c", "k7f2", n, event)


EVENTS = [
    Note(f"a server left: {ESCAPES}", seconds=1.0),
    Ended(3, ESCAPES, True, 1.0, MicrobatchCounts(0, 0, 0), seconds=2.0),
]


@pytest.mark.parametrize("kind", ["lines", "page"])
async def test_what_a_peer_said_does_not_reach_the_terminal_as_it_is(kind, capsys):
    async with output(kind, "a run") as tell:
        for event in EVENTS:
            tell(told(event))

    said = capsys.readouterr().out
    assert "\x1b[2J" not in said
    assert "\r" not in said
    assert "?[2J?forged?" in said


async def test_json_has_what_a_peer_said_as_it_is_and_stays_a_line(capsys):
    async with output("json", "a run") as tell:
        for event in EVENTS:
            tell(told(event))

    lines = capsys.readouterr().out.splitlines()
    assert [from_line(line) for line in lines] == [told(event) for event in EVENTS]


async def test_lines_have_the_date_and_the_time(capsys):
    async with output("lines", "a run") as tell:
        tell(told(EVENTS[0]))

    (line,) = capsys.readouterr().out.splitlines()
    at = datetime.strptime(line[:19], "%Y-%m-%d %H:%M:%S").astimezone()
    assert line[19:].startswith("  a server left")
    assert timedelta(minutes=-1) <= at - datetime.now().astimezone() <= timedelta()


def test_a_page_says_how_long_ago_things_were_though_nothing_happens(capsys):
    counts = MicrobatchCounts(8, 8, 0)

    async def main():
        async with output("live", "a run") as tell:
            for step in range(3):
                tell(
                    EventLine(
                        AT + step, "5f0c", "k7f2", 1, Stepped(step, 3.0, 9.0, 1e-3, 1.0, counts)
                    )
                )
            await asyncio.sleep(10.0)

    in_virtual_time(main(), 1)

    assert "no step for" in capsys.readouterr().out


def test_a_flood_of_events_draws_the_page_twice_a_second(monkeypatch):
    """Each takes milliseconds of the loop that trains."""
    drawn = []
    monkeypatch.setattr("p2pswarm.node.progress.output.page", lambda *_: drawn.append(1) or "")

    async def main():
        async with output("live", "a run") as tell:
            for number in range(1_000):
                tell(told(Note("a"), number + 1))
                await asyncio.sleep(0.001)

    in_virtual_time(main(), 1)

    assert len(drawn) <= 4


def test_a_silence_is_ended_by_what_the_run_is_doing(capsys):
    async def main():
        async with output("lines", "a run") as tell:
            tell(told(Waiting((0, 1))))
            await asyncio.sleep(3_600.0)

    in_virtual_time(main(), 1)

    first, *more = capsys.readouterr().out.splitlines()
    assert first.endswith("  waiting for a server of stage 0, 1")
    assert {line[19:] for line in more} == {"  still waiting for a server of stage 0, 1"}
    assert 55 <= len(more) <= 60


@pytest.mark.parametrize(("term", "drawn"), [("dumb", False), ("xterm", True)])
def test_a_terminal_without_a_cursor_has_lines_and_no_page(term, drawn, monkeypatch):
    """Its page would be drawn once, at the end of the run."""
    monkeypatch.setenv("TERM", term)

    assert draws(Console(file=io.StringIO(), force_terminal=True)) == drawn


def test_long_work_is_told_to_go_on_from_time_to_time():
    said = []

    async def main():
        async with reminded("reading the text", said.append):
            await asyncio.sleep(200.0)
        await asyncio.sleep(200.0)

    in_virtual_time(main(), 1)

    assert said == ["still reading the text"] * 3


class Unwritable(io.StringIO):
    """A stdout whose terminal is closed, or whose disk is full."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.error = OSError(number, os.strerror(number))

    def write(self, _: str) -> int:
        raise self.error


@pytest.mark.parametrize("kind", ["lines", "page", "json"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EPIPE, errno.ENOSPC])
async def test_a_stdout_that_cannot_be_written_ends_nothing(kind, number, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Unwritable(number))

    async with output(kind, "a run") as tell:
        for event in EVENTS:
            tell(told(event))


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "none"])
def test_a_process_without_stdout_says_nothing(closed, monkeypatch):
    nowhere = io.StringIO()
    nowhere.close()
    monkeypatch.setattr(sys, "stdout", nowhere if closed else None)

    write_line("a line")
