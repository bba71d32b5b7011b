"""A run's history, its lines and its page: what a person sees of the events."""

import math

import pytest
from rich.console import Console

from p2pswarm.progress.events import (
    Checkpointed,
    Ended,
    HeldOut,
    MicrobatchCounts,
    Note,
    PeerLine,
    Peers,
    Started,
    Stepped,
    Waiting,
)
from p2pswarm.progress.history import NOTES_SHOWN, RunHistory
from p2pswarm.progress.page import SILENCE_MAX_S, STEP_EVERY_S, LineFormat, curve, page


def stepped(step: int, seconds: float = 0.0, loss: float = 3.0) -> Stepped:
    return Stepped(
        step, loss, 1000.0, 1e-3, 0.5, MicrobatchCounts(8 * step, 8 * step, 0), seconds=seconds
    )


def peer(name: str, stage: int, *, ready: bool = True) -> PeerLine:
    return PeerLine(name, stage, ready, 0, 1.0)


def shown(history: RunHistory, width: int = 120) -> str:
    console = Console(width=width, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(page(history, 100, "a run"))
    return captured.get()


def test_the_history_knows_how_far_the_run_is():
    history = RunHistory()
    assert (history.step, history.seconds, history.counts) == (0, 0.0, MicrobatchCounts(0, 0, 0))

    history.on_event(stepped(1, 2.0))
    history.on_event(stepped(2, 4.0))

    assert (history.step, history.seconds, history.counts) == (2, 4.0, MicrobatchCounts(16, 16, 0))


def test_the_end_has_the_last_word_on_the_tally():
    history = RunHistory()
    history.on_event(stepped(1))

    history.on_event(Ended(1, "done", False, 10.0, MicrobatchCounts(8, 8, 2), seconds=5.0))

    assert history.counts == MicrobatchCounts(8, 8, 2)


def test_a_kill_is_noted_where_the_run_stands():
    history = RunHistory()
    history.on_event(stepped(7, 3.5))

    history.on_kill()

    assert [(kill.seconds, kill.step) for kill in history.kills] == [(3.5, 7)]


def test_ready_servers_are_told_by_stage():
    history = RunHistory()
    history.on_event(Peers((peer("a", 0), peer("b", 1), peer("c", 1, ready=False))))

    assert history.stages == (0, 1)
    assert [p.peer for p in history.ready(1)] == ["b"]


def test_only_the_last_notes_are_kept():
    history = RunHistory()
    for i in range(3 * NOTES_SHOWN):
        history.on_event(Note(str(i)))

    assert [note.event.text for note in history.notes][-1] == str(3 * NOTES_SHOWN - 1)
    assert len(history.notes) == NOTES_SHOWN


def test_a_checkpoint_is_a_note_too():
    history = RunHistory()
    history.on_event(Checkpointed(3, "/there", 0.25, seconds=2.0))

    assert [note.event.text for note in history.notes] == ["checkpoint of step 3 in 0.2 s: /there"]


def test_the_page_shows_what_is_waited_for_then_the_figures():
    history = RunHistory()
    assert "waiting for the first step" in shown(history)

    history.on_event(Waiting((1,)))
    assert "waiting for a server of stage 1" in shown(history)

    for event in (
        Started(10),
        stepped(1, loss=5.5),
        HeldOut(1, 4.25),
        Peers((peer("abcdefgh", 0), peer("ijklmnop", 1, ready=False))),
        Note("ijklmnop joined", seconds=1.0),
    ):
        history.on_event(event)
    text = shown(history)

    assert "waiting" not in text
    for part in ("1 of 100", "5.500", "4.250", "1,000", "abcdefgh", "joining", "ijklmnop joined"):
        assert part in text


def test_the_page_bears_a_note_with_markup_in_it():
    history = RunHistory()
    history.on_event(Note("peer said [/red] [bold]"))

    assert "[/red] [bold]" in shown(history)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_newest_values_are_seen_however_narrow_the_terminal(width):
    history = RunHistory()
    for step in range(1, 301):
        loss = 9.0 if step == 300 else 5.0
        history.on_event(
            Stepped(step, loss, 1000.0, 1e-3, 1.0, MicrobatchCounts(8, 8, 0), seconds=step)
        )

    lines = shown(history, width).splitlines()

    curve_line = next(line for line in lines if "train loss" in line)
    assert curve_line.rstrip(" │").endswith("█")
    assert {len(line) for line in lines} == {width}
    assert "…" not in "".join(lines)


@pytest.mark.parametrize(
    ("failed", "text"), [(True, "failed after 3 steps: bare"), (False, "done after 3 steps: bare")]
)
def test_the_page_tells_how_the_run_ended_beside_its_last_figures(failed, text):
    history = RunHistory()
    history.on_event(stepped(3, 1.0))
    history.on_event(Ended(3, "bare", failed, 1.0, MicrobatchCounts(1, 1, 0), seconds=9.0))

    assert text in shown(history)
    assert "3 of 100" in shown(history)


def test_the_page_keeps_the_figures_while_the_run_waits():
    history = RunHistory()
    history.on_event(stepped(3, 1.0))
    history.on_event(Waiting((1,), seconds=9.0))

    assert "waiting for a server of stage 1" in shown(history)
    assert "3 of 100" in shown(history)


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([1.0, 2.0, 3.0], "▁▅█"),
        ([2.0], "▁"),
        ([1.0, math.nan, 3.0, math.inf], "▁█"),
        ([math.nan], ""),
        ([], ""),
    ],
)
def test_a_curve_spans_its_values(values, drawn):
    assert curve(values, 60) == drawn


def test_a_long_curve_is_thinned_and_ends_with_the_newest():
    drawn = curve([0.0] * 1000 + [1.0], 30)

    assert len(drawn) == 30
    assert drawn[-1] == "█"


AT = "2026-11-26 16:05:00"


def test_lines_pass_over_steps_that_nobody_has_time_to_read():
    lines = LineFormat(0.0)
    times_s = [i * STEP_EVERY_S / 10 for i in range(41)]

    told = [lines.line(stepped(i, times_s[i]), times_s[i], AT) for i in range(41)]

    assert len([line for line in told if line]) == 5


def test_a_line_has_the_date_and_the_text_of_an_event_and_servers_have_none():
    lines = LineFormat(0.0)

    assert lines.line(HeldOut(3, 2.5, seconds=2.0), 2.0, AT) == (
        "2026-11-26 16:05:00  step     3  held-out loss 2.5000 nats/token"
    )
    assert lines.line(Peers(()), 2.0, AT) is None


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([], "still waiting for the first step"),
        ([Waiting((0, 1))], "still waiting for a server of stage 0, 1"),
        ([Waiting((0,)), Waiting(())], "still waiting for the next step"),
        ([Started(7)], "still computing the first step"),
        ([stepped(3, 1.0)], "still computing step 4"),
        (
            [
                stepped(3, 1.0),
                Peers((PeerLine("a", 0, True, 1, 2.0), PeerLine("b", 1, False, 0, 0))),
            ],
            "still computing step 4: 1 of 2 servers are ready, and count 2 microbatches/s together",
        ),
    ],
)
def test_a_long_silence_is_ended_by_what_the_run_is_doing(events, says):
    lines = LineFormat(0.0)
    for event in events:
        lines.line(event, 0.0, AT)

    assert lines.silence(SILENCE_MAX_S - 1, AT) is None
    assert lines.silence(SILENCE_MAX_S, AT) == f"{AT}  {says}"
    assert lines.silence(SILENCE_MAX_S + 1, AT) is None
    assert lines.silence(2 * SILENCE_MAX_S, AT) == f"{AT}  {says}"


@pytest.mark.parametrize(
    ("failed", "says"), [(True, None), (False, f"{AT}  still saving what was learnt")]
)
def test_a_run_that_is_over_saves_what_was_learnt_or_is_silent(failed, says):
    lines = LineFormat(0.0)
    lines.line(Peers((peer("a", 0),)), 0.0, AT)
    lines.line(Ended(3, "done", failed, 1.0, MicrobatchCounts(0, 0, 0)), 0.0, AT)

    assert lines.silence(1e6, AT) == says
