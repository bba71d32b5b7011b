"""Events of phases and stalls in lines, and what pages show of them."""

import json
import math

import pytest

from p2pswarm.progress.event_lines import EventNumbers, from_line, to_line
from p2pswarm.progress.events import (
    Begun,
    Ended,
    LeadershipTaken,
    MachineFacts,
    MicrobatchCounts,
    Phases,
    Stalled,
    StallEnded,
    Started,
    Stepped,
)
from p2pswarm.progress.step_seconds import ChainPart, StageTimes
from p2pswarm.progress.step_view import StepView
from p2pswarm.progress.view import RunView

PHASES = Phases(
    12,
    2.9,
    (StageTimes(2, 1.0, 0.5, 0.04, 1.15, 0.2, 0.01, "k7f2"),),
    (ChainPart("filling", 0, "k7f2", 2.9),),
)
STALLED = Stalled(
    13, 6.2, 2.9, "link", ("m3k6", "k7f2"), (0, 1), "nothing passes between m3k6 and k7f2"
)
ENDED = StallEnded(13, 8.0)


def lines(*events):
    numbers = EventNumbers("5f0c", "k7f2", lambda: 100.0)
    return [numbers.stamp(event) for event in events]


def test_the_lines_are_read_as_they_were_written():
    for told in lines(PHASES, STALLED, ENDED):
        assert from_line(to_line(told)) == told


def test_the_names_in_json_are_those_of_the_docs():
    found = [json.loads(to_line(told)) for told in lines(PHASES, STALLED, ENDED)]

    assert [one["event"] for one in found] == ["phases", "stalled", "stallended"]
    assert found[1]["text"] == "step 13 takes 6.2 s, usually 2.9 s: " + STALLED.why
    assert found[0]["text"] == ""


def test_the_view_has_the_newest_step_and_who_waits_now():
    view = RunView()
    for told in lines(Begun("r", "trainer", "n", "0.1", stages=1), PHASES, STALLED):
        view.on_event(told)

    shown = view.to_json(100.0)
    assert shown["phases"]["stages"][0]["waiting_s"] == 1.15
    assert shown["phases"]["text"].startswith("2.9 s: 2.9 s until the last microbatch sets out")
    assert shown["waits"]["now"]["servers"] == ["m3k6", "k7f2"]
    assert shown["waits"]["now"]["why"] == "nothing passes between m3k6 and k7f2"
    assert [one["event"] for one in shown["events"]][-1] == "stalled"

    view.on_event(lines(ENDED)[0])
    shown = view.to_json(101.0)
    assert shown["waits"]["now"] is None
    assert len(shown["waits"]["stalls"]) == 1
    json.dumps(shown, allow_nan=False)


@pytest.mark.parametrize(
    "event",
    [
        Ended(12, "left", True, 0.0, MicrobatchCounts(0, 0, 0)),
        Started(1),
        LeadershipTaken(2, 12),
        Stepped(13, 1.0, 1.0, 1e-3, 1.0, MicrobatchCounts(0, 0, 0)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_stall_whose_end_nobody_told_is_over_all_the_same(event):
    """Its trainer was killed, or the run has ended in it."""
    view = StepView()
    view.on_event(STALLED, 100.0)

    view.on_event(event, 200.0)

    assert view.waits()["now"] is None


def test_what_peers_may_have_written_is_printable_and_short():
    view = StepView()
    bad = "\x1b]0;x\x07" * 1000
    view.on_event(Stalled(1, 1.0, None, bad, (bad,) * 100, (0,) * 1000, bad), 5.0)
    view.on_event(Phases(1, 1.0, (), (ChainPart(bad, None, bad, 1.0),)), 5.0)

    shown = json.dumps([view.waits(), view.phases()])

    assert "\\u001b" not in shown
    assert len(json.dumps(view.waits())) < 5_000


def test_numbers_of_a_hostile_log_are_plain_and_its_lists_bounded():
    """Else one line of a log ends every stream of its page."""
    for number in (math.nan, math.inf, 1e300):
        view = RunView()
        stage = StageTimes(1, *[number] * 6, busiest="\x1b" * 10_000)
        chain = (ChainPart("\x1b" * 10_000, 2**62, "\x1b" * 10_000, number),) * 5_000
        for told in lines(
            Phases(12, number, (stage,) * 5_000, chain),
            Stalled(13, number, number, "link", (), (), "why"),
        ):
            view.on_event(told)

        text = json.dumps(view.to_json(100.0, events=0), allow_nan=False)

        assert "\\u001b" not in text
        assert len(text) < 1_000_000


def test_the_parts_of_the_slowest_chain_name_their_machines():
    view = RunView()
    for told in lines(MachineFacts("k7f2", "attic"), PHASES):
        view.on_event(told)

    phases = view.to_json(100.0)["phases"]

    assert phases["chain"][0]["text"] == (
        "2.9 s until the last microbatch sets out, k7f2 (attic) of stage 0 is busiest"
    )
    assert "k7f2 (attic)" in phases["text"]
