"""What a run has cost, as an event, in the view of a run, and on the page of a terminal."""

import io
import json
import math
from datetime import UTC, datetime

import hypothesis.strategies as st
import pytest
from hypothesis import given
from rich.console import Console

from p2pswarm.progress.cost_events import BudgetReached, CostSoFar
from p2pswarm.progress.event_lines import EventLine
from p2pswarm.progress.events import (
    Begun,
    Departure,
    Ended,
    Left,
    MicrobatchCounts,
    RolledBack,
    Started,
    Stepped,
)
from p2pswarm.progress.page import LineFormat, page
from p2pswarm.progress.view import RunView

COST = CostSoFar("USD", 5.1, 24.1, 2.0, 7.0, 0.96, 1.24, 0.12, 0.0, 70e6, 1.83, 150.0)
COUNTS = MicrobatchCounts(8, 8, 0)


def begun(steps: int = 1_000) -> Begun:
    return Begun("my run", "trainer", "here", "0.1.0", steps, 2, (3, 3), 8, 4, 128, 1_000)


def stepped(step: int) -> Stepped:
    return Stepped(step, 2.0, 1_000.0, 1e-3, 1.0, COUNTS, took_s=10.0)


class Watched:
    """A view that is told events, each at its time."""

    def __init__(self) -> None:
        self.view, self._n = RunView(), 0

    def tell(self, event, at: float) -> None:
        self._n += 1
        self.view.on_event(EventLine(at, "ab", "me", self._n, event))


def halfway() -> Watched:
    """A run that has done 500 of its 1,000 steps, 10 s each."""
    run = Watched()
    run.tell(begun(), 0.0)
    run.tell(Started(1_000), 0.0)
    for step in range(1, 501):
        run.tell(stepped(step), 10.0 * step)
    return run


def test_a_cost_is_told_with_what_is_wasted_of_it():
    assert COST.text == (
        "cost: $31.20 so far of $150.00, $1.83 an hour, $0.45 a million tokens, $0.41 without what "
        "is wasted, wasted: joining 3.1%, idle 4.0%, computed again 0.4%"
    )


def test_a_cost_without_tokens_or_waste_is_short():
    assert CostSoFar("CHF", 1.0, *[0.0] * 8, 2.0).text == "cost: 1.00 CHF so far, 2.00 CHF an hour"


def test_a_budget_that_is_near_says_how_long_it_lasts():
    near = BudgetReached(120.0, 150.0, "USD", 2.0, over=False)

    assert near.text == (
        "$120.00 of the budget of $150.00 are spent; at $2.00 an hour it lasts 15.0 h"
    )
    assert BudgetReached(148.0, 150.0, "USD", 40.0, over=False).text.endswith("it lasts 3.0 min")
    assert BudgetReached(120.0, 150.0, "USD", 0.0, over=False).text == (
        "$120.00 of the budget of $150.00 are spent"
    )


@given(st.one_of(st.builds(CostSoFar, seconds=st.floats()), st.builds(BudgetReached)))
def test_whatever_a_log_says_of_money_has_a_text_and_plain_values(event):
    assert isinstance(event.text, str)
    run = Watched()
    run.tell(begun(), 0.0)

    run.tell(event, 1.0)

    json.dumps(run.view.to_json(2.0), allow_nan=False)


def test_a_view_has_what_was_spent_and_what_a_million_tokens_cost():
    run = halfway()
    assert run.view.to_json(5_000.0)["spent"] is None
    assert run.view.to_json(5_000.0)["cost"] is None

    run.tell(COST, 5_000.0)

    found = run.view.to_json(5_000.0)
    assert found["spent"] == pytest.approx(31.2)
    assert found["cost"]["useful_per_mtoken"] == pytest.approx((31.2 - 2.32) / 70)
    assert (found["cost"]["currency"], found["cost"]["budget"]) == ("USD", 150.0)
    assert all(event["event"] != "cost" for event in found["events"])


def test_a_view_says_when_the_run_is_done():
    run = halfway()

    eta = run.view.to_json(5_000.0)["eta"]

    assert eta["at"] == pytest.approx(10_000.0, abs=100.0)
    assert eta["earliest"] < eta["at"] < eta["latest"]


def test_a_lost_server_widens_the_spread_and_one_that_moves_does_not():
    calm, moved, lost = halfway(), halfway(), halfway()
    moved.tell(Left("abc", 0, Departure.MOVED, "it moves to stage 1", 0), 5_000.0)
    lost.tell(Left("abc", 0, Departure.LOST, "its link broke", 0), 5_000.0)

    spreads = [run.view.to_json(5_000.0)["eta"]["spread_s"] for run in (calm, moved, lost)]

    assert spreads[0] == spreads[1] < spreads[2]


def test_after_a_return_to_a_checkpoint_the_end_is_later():
    run = halfway()
    before = run.view.to_json(5_000.0)["eta"]["at"]

    run.tell(RolledBack(100, 500), 5_001.0)

    assert run.view.to_json(5_001.0)["eta"]["at"] > before + 1_000.0


def test_a_run_that_is_over_has_no_end_to_come():
    run = halfway()

    run.tell(Ended(500, "the budget is spent", False, 1.0, COUNTS), 5_001.0)

    assert run.view.to_json(5_002.0)["eta"] is None


def shown(run: Watched, now_s: float) -> str:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as capture:
        console.print(
            page(
                run.view.to_json(now_s),
                "run",
                lambda at: datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            )
        )
    return capture.get()


def test_the_page_of_a_terminal_says_when_and_for_how_much():
    run = halfway()
    run.tell(COST, 5_000.0)

    lines = shown(run, 5_000.0)

    assert "done 1970-01-01 02:4" in lines
    assert "$31.20 so far of $150.00   $1.83/h   $0.41/Mtoken useful" in lines


def test_an_end_that_no_calendar_has_is_said_without_a_date():
    """A run of steps without end that stands still in its first ones."""
    run = Watched()
    run.tell(begun(10**9), 0.0)
    run.tell(Started(1_000), 0.0)
    for step in range(1, 5):
        run.tell(stepped(step), 10.0 * step)

    assert "not done within a century at this speed" in shown(run, 3_600.0)


def test_the_page_of_a_run_without_prices_has_no_word_of_money():
    assert "$" not in shown(halfway(), 5_000.0)


def test_lines_of_a_log_have_budgets_and_no_sums():
    lines = LineFormat(0.0)

    assert lines.line(COST, 1.0, "now") is None
    near = BudgetReached(120.0, 150.0, "USD", 2.0, over=False)
    assert lines.line(near, 1.0, "now") == f"now  {near.text}"


def test_a_figure_that_is_no_number_is_left_out():
    run = halfway()

    run.tell(CostSoFar("USD", math.nan, *[0.0] * 9), 5_000.0)

    assert run.view.to_json(5_000.0)["spent"] is None
