"""`p2pswarm watch`: a logged run as a page, as lines, and as JSON for scripts."""

import asyncio
import io
import json

import pytest
from rich.console import Console

from p2pswarm.command_line import main
from p2pswarm.commands.watch.replay import PAUSE_MAX_S, replay
from p2pswarm.commands.watch.watch import draw, with_page
from p2pswarm.progress.event_lines import EventLine, EventNumbers
from p2pswarm.progress.events import (
    Begun,
    Departure,
    Ended,
    Event,
    Joined,
    Left,
    MachineFacts,
    MicrobatchCounts,
    Note,
    Serving,
    Started,
    Stepped,
)
from p2pswarm.progress.view import RunView
from p2pswarm.sim.loop import run as in_virtual_time
from p2pswarm.web.health import NodeHealth
from p2pswarm.web.run_page import RunPage

COUNTS = MicrobatchCounts(8, 8, 0)


def lines_of(*events: Event, by: str = "k7f2", every_s: float = 1.0) -> list[EventLine]:
    at = 1_764_000_000.0

    def wall() -> float:
        nonlocal at
        at += every_s
        return at

    numbers = EventNumbers("5f0c", by, wall)
    return [numbers.stamp(event) for event in events]


RUN = lines_of(
    Begun("a run", "trainer", "attic", "0.1.0", steps=3, stages=2),
    *(MachineFacts(server, name) for server, name in [("ann", "desk"), ("bob", "rack")]),
    *(MachineFacts(server, "rack") for server in ("cid",)),
    *(Joined(server, stage) for server, stage in [("ann", 0), ("bob", 1), ("cid", 1), ("dan", 1)]),
    *(Serving(server, stage) for server, stage in [("ann", 0), ("bob", 1), ("cid", 1)]),
    Started(10),
    *(Stepped(step, 3.0, 100.0, 1e-3, 0.5, COUNTS) for step in (1, 2, 3)),
    Left("cid", 1, Departure.LOST, "no answer", 0),
    Ended(3, "all steps are done", False, 90.0, COUNTS),
)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "run.events.jsonl"
    path.write_text("".join(f"{told.line}\n" for told in RUN))
    return path


def test_scripts_get_one_object(log, capsys):
    assert main(["watch", str(log), "--json"]) == 0

    said, beside = capsys.readouterr()
    found = json.loads(said)
    assert beside == ""
    assert (found["steps"], found["stages"], found["stalls"], found["spent"]) == (3, 2, [], None)
    assert (found["state"], found["name"], found["of_steps"]) == ("ended", "a run", 3)
    states = {name: row["state"] for name, row in found["servers"].items()}
    assert states == {"desk": "ready", "rack bob": "ready", "dan": "joining", "rack cid": "lost"}
    assert found["servers"]["desk"]["id"] == "ann"


def test_without_a_terminal_the_events_are_lines_with_their_own_dates(log, capsys):
    assert main(["watch", str(log)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("  server ann joins stage 0")
    assert lines[0].startswith("2025-11-2")
    assert lines[-1].endswith(
        "done after 3 steps: all steps are done       90 tokens/s  counted 8  replayed 0"
    )


def test_what_is_wrong_with_a_log_is_said_beside_the_answer(log, capsys):
    text = log.read_text().splitlines()
    log.write_text("\n".join([text[0], text[3][:50], *text[3:]]))

    assert main(["watch", str(log), "--json"]) == 0

    said, beside = capsys.readouterr()
    assert json.loads(said)["steps"] == 3
    assert beside.splitlines() == [
        f"{log}: line 2 is torn, or no event: such lines are passed over",
        f"{log}: before line 3, 2 events of k7f2 lack",
    ]


@pytest.mark.parametrize("speed", ["0", "nan", "fast", "-1", "1e9"])
def test_a_speed_that_is_none_is_refused(log, speed, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(log), "--speed", speed])

    assert ended.value.code == 2
    assert "is not a number from 0.1 to 1,000,000" in capsys.readouterr().err


def test_a_file_that_is_no_log_is_refused_in_a_line(tmp_path, capsys):
    (tmp_path / "book.txt").write_text("Call me Ishmael.\n")

    assert main(["watch", str(tmp_path / "book.txt"), "--json"]) == 2

    *_, error = capsys.readouterr().err.splitlines()
    assert error.endswith("no event: name a file of train.log or serve.log")


def test_a_replay_takes_its_time_divided_by_the_speed_and_no_night():
    told = [*lines_of(*[Note("a")] * 5, every_s=30.0), *lines_of(Note("b"), every_s=1e6)]

    async def paced() -> list[float]:
        clock = asyncio.get_running_loop().time
        return [clock() async for _ in replay(told, 60.0)]

    times_s = in_virtual_time(paced(), 1)

    assert times_s == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0, 2.0 + PAUSE_MAX_S])


def test_a_replay_leaves_out_no_event_however_fast_it_is():
    async def shown() -> RunPage:
        page = RunPage(NodeHealth("watch", 0.0), lambda: 0.0)
        async for _ in with_page(replay(lines_of(*[Note("a")] * 900), 1e6), page):
            pass
        return page

    page = in_virtual_time(shown(), 1)

    assert (page.left_out, len(list(page.streams.after(0)))) == (0, 900)


def test_a_run_from_afar_is_lines_where_no_page_can_be_drawn(capsys):
    in_virtual_time(draw(replay(RUN, 60.0), Console(file=io.StringIO()), RunView(), lambda: 0.0), 1)

    *_, last = capsys.readouterr().out.splitlines()
    assert "done after 3 steps: all steps are done" in last


def test_a_terminal_shows_the_page_to_the_end_of_the_run():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, height=40)

    view = RunView()
    in_virtual_time(draw(replay(RUN, 60.0), console, view, lambda: view.newest_at or 0.0), 1)

    assert "done after 3 steps: all steps are done" in screen.getvalue()
    assert "3 of 3" in screen.getvalue()
