"""The demo's picture and figures."""

from pathlib import Path

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.demo.options import Options
from p2pswarm.commands.demo.summary import (
    draw,
    draw_moves,
    failure,
    rows,
    summary,
    title,
)
from p2pswarm.commands.picture import picture_format
from p2pswarm.progress.events import Ended, HeldOut, MicrobatchCounts, Relocated, Stepped
from p2pswarm.progress.history import RunHistory


def told() -> RunHistory:
    history = RunHistory()
    for step in range(1, 30):
        counts = MicrobatchCounts(8 * step, 8 * step, 0)
        history.on_event(
            Stepped(step, 5.0 / step, 900.0 + step, 1e-3, 1.0, counts, seconds=step / 2)
        )
        if step == 15:
            history.on_kill()
    history.on_event(HeldOut(0, 5.5))
    history.on_event(HeldOut(29, 2.5, seconds=14.5))
    return history


def test_the_picture_is_drawn(tmp_path):
    draw(told(), tmp_path / "loss.png.part", "a run", "png")

    assert (tmp_path / "loss.png.part").read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_a_short_run_is_drawn_too(tmp_path):
    history = RunHistory()
    history.on_event(Stepped(1, 5.0, 900.0, 1e-3, 1.0, MicrobatchCounts(8, 8, 0), seconds=1.0))

    draw(history, tmp_path / "loss.svg", "a run", "svg")

    assert "<svg" in (tmp_path / "loss.svg").read_text()


def test_the_picture_of_a_rehearsal_names_who_moved(tmp_path):
    history = told()
    history.on_event(Relocated("abcd2345", 0, 1, 0.5, 5.0, 1, seconds=3.0))

    draw_moves(history, tmp_path / "moves.svg", "a run", "svg")

    assert "<!-- abcd2345: stage 0 to 1 -->" in (tmp_path / "moves.svg").read_text()
    assert ("servers moved", "1") in rows(history, 1.0)


def test_the_summary_has_the_keys_that_scripts_read():
    history = told()
    history.on_event(Ended(29, "done", False, 912.5, MicrobatchCounts(232, 232, 5), seconds=15.0))

    assert summary(history, 7.5) == {
        "held_out": [[0.0, 0, 5.5], [14.5, 29, 2.5]],
        "tokens_per_s": 912.5,
        "steps": 29,
        "microbatches": {"asked": 232, "counted": 232, "replayed": 5},
        "kills": 1,
        "moves": 0,
        "seconds_to_ready": 7.5,
    }


@pytest.mark.parametrize("name", ["loss.png", "loss.SVG", "a/b.pdf"])
def test_the_suffix_chooses_the_format(name):
    assert picture_format(Path(name)) == name.lower().rpartition(".")[2]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("loss.xyz", r"loss\.xyz: \.xyz is no format for a picture: use .*\.png"),
        ("loss.pgf", r"\.pgf is no format"),
        ("loss", "without a suffix there is no format"),
    ],
)
def test_a_format_that_there_is_not_is_named_with_those_there_are(name, complaint):
    with pytest.raises(Unusable, match=complaint):
        picture_format(Path(name))


def test_the_rows_say_what_came_out():
    history = told()
    history.on_event(Ended(29, "done", False, 912.5, MicrobatchCounts(232, 232, 5), seconds=15.0))

    shown = dict(rows(history, 7.5))

    assert shown == {
        "steps": "29",
        "microbatches": "232 asked, 232 counted in every stage, 5 replayed",
        "servers killed": "1",
        "held-out loss": "5.500 -> 2.500 nats/byte in 14 s",
        "throughput": "912 tokens/s",
        "ready after": "7.5 s",
    }
    assert "held-out loss" not in dict(rows(RunHistory(), 0.0))


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        (None, "the run did not end"),
        (
            Ended(1, "stage 1 is bare", True, 1.0, MicrobatchCounts(8, 0, 0), seconds=1.0),
            "stage 1 is bare",
        ),
        (
            Ended(1, "done", False, 1.0, MicrobatchCounts(8, 5, 0), seconds=1.0),
            "3 microbatches were not counted",
        ),
        (Ended(1, "done", False, 1.0, MicrobatchCounts(8, 8, 0), seconds=1.0), ""),
    ],
)
def test_a_run_that_is_not_whole_has_failed(ended, why):
    history = RunHistory()
    if ended:
        history.on_event(ended)

    assert failure(history) == why


def test_the_title_names_the_text():
    assert title(Options()).endswith("learns Python's library")
    assert title(Options(data=Path("a/poems"))).endswith("learns poems")
