"""The page of a terminal and the lines of a log: what a person sees of the events."""

import math

import pytest
from rich.console import Console

from p2pswarm.progress.event_lines import EventNumbers
from p2pswarm.progress.events import (
    Begun,
    Departure,
    Ended,
    Event,
    HeldOut,
    Left,
    MachineFacts,
    MicrobatchCounts,
    Note,
    PeerLine,
    Peers,
    Started,
    Stepped,
    Waiting,
)
from p2pswarm.progress.page import SILENCE_MAX_S, STEP_EVERY_S, LineFormat, curve, page
from p2pswarm.progress.view import RunView

BEGUN = Begun("a run", "trainer", "attic", "0.1.0", steps=100, stages=2)


def stepped(step: int, seconds: float = 0.0, loss: float = 3.0) -> Stepped:
    return Stepped(
        step, loss, 1000.0, 1e-3, 0.5, MicrobatchCounts(8 * step, 8 * step, 0), seconds=seconds
    )


def peer(name: str, stage: int, *, ready: bool = True, share: float = 1.0) -> PeerLine:
    return PeerLine(name, stage, ready, 0, 1.0, weights_share=share)


class Play:
    """A view, and the wall clock of its events."""

    def __init__(self, *events: Event) -> None:
        self.view = RunView()
        self.now_s = 1_000.0
        self._numbers = EventNumbers("5f0c", "k7f2", lambda: self.now_s)
        self.tell(BEGUN, *events)

    def tell(self, *events: Event) -> None:
        for event in events:
            self.view.on_event(self._numbers.stamp(event))

    def shown(self, width: int = 120) -> str:
        console = Console(width=width, record=True, force_terminal=False)
        with console.capture() as captured:
            drawn = page(self.view.to_json(self.now_s), "a run", lambda at: f"{at:.0f}")
            console.print(drawn)
        return captured.get()


def test_the_page_shows_what_is_waited_for_then_the_figures():
    play = Play()
    assert "waiting for the first step" in play.shown()

    play.tell(Waiting((1,)))
    assert "waiting for a server of stage 1" in play.shown()

    play.tell(
        Started(10),
        stepped(1, loss=5.5),
        HeldOut(1, 4.25),
        MachineFacts("abcdefgh", "attic"),
        Peers((peer("abcdefgh", 0), peer("ijklmnop", 1, ready=False))),
        Note("ijklmnop joined", seconds=1.0),
    )
    text = play.shown()

    assert "waiting" not in text
    for part in ("1 of 100", "5.500", "4.250", "1,000", "abcdefgh", "attic", "joining"):
        assert part in text
    assert "ijklmnop joined" in text


def test_a_stage_that_nobody_serves_is_a_row_and_a_lost_server_stays_for_a_while():
    play = Play(Peers((peer("abcdefgh", 0), peer("ijklmnop", 1))))
    play.now_s += 5.0
    play.tell(Left("ijklmnop", 1, Departure.LOST, "no answer", 0))
    play.now_s += 40.0

    text = play.shown()

    assert "nobody, for 40 s" in text
    assert "lost 40 s ago" in text


def test_a_server_that_fetches_its_weights_says_how_much_is_here():
    play = Play(Peers((peer("abcdefgh", 0), peer("ijklmnop", 1, ready=False, share=0.639))))

    assert "joining 63 %" in play.shown()


def test_a_run_that_stands_still_has_no_rate():
    play = Play(Started(10))
    for step in range(1, 6):
        play.now_s += 2.0
        play.tell(stepped(step))
    assert "1,000" in play.shown()

    play.now_s += 7.0
    text = play.shown()

    assert "no step for 7 s, usually 2 s" in text
    assert "1,000" not in text


def test_the_page_bears_a_note_with_markup_in_it():
    assert "[/red] [bold]" in Play(Note("peer said [/red] [bold]")).shown()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_newest_values_are_seen_however_narrow_the_terminal(width):
    play = Play()
    for step in range(1, 301):
        play.now_s += 1.0
        play.tell(stepped(step, loss=9.0 if step == 300 else 5.0))

    lines = play.shown(width).splitlines()

    curve_line = next(line for line in lines if "train loss" in line)
    assert curve_line.rstrip(" │").endswith("█")
    assert {len(line) for line in lines} == {width}


@pytest.mark.parametrize(
    ("failed", "text"), [(True, "failed after 3 steps: bare"), (False, "done after 3 steps: bare")]
)
def test_the_page_tells_how_the_run_ended_beside_its_last_figures(failed, text):
    play = Play(stepped(3), Ended(3, "bare", failed, 1.0, MicrobatchCounts(1, 1, 0)))

    assert text in play.shown()
    assert "3 of 100" in play.shown()


def test_the_page_keeps_the_figures_while_the_run_waits():
    play = Play(stepped(3), Waiting((1,)))

    assert "waiting for a server of stage 1" in play.shown()
    assert "3 of 100" in play.shown()


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
    assert lines.line(MachineFacts("a", "attic"), 2.0, AT) is None


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
