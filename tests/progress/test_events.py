"""What a trainer reports: it survives its line of JSON, and nothing else is taken for it."""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from p2pswarm.progress.events import (
    KINDS,
    Checkpointed,
    Ended,
    Event,
    HeldOut,
    MicrobatchCounts,
    Note,
    PeerLine,
    Peers,
    Relocated,
    Started,
    Stepped,
    Waiting,
    from_line,
    to_line,
)

COUNTS = MicrobatchCounts(asked=32, counted=16, replayed=3)
EVENTS = [
    Waiting((0, 1)),
    Waiting(()),
    Started(12345),
    Stepped(2, 3.25, 1000.0, 1e-3, 0.5, COUNTS, seconds=1.5),
    Stepped(2, math.nan, 1000.0, 1e-3, math.inf, COUNTS, seconds=1.5),
    HeldOut(2, 3.5, seconds=1.5),
    Checkpointed(2, "/there", 0.25, seconds=1.5),
    Peers((PeerLine("abcdefgh", 1, True, 3, 2.5, relayed=1),), seconds=2.0),
    Relocated("abcdefgh", 1, 2, 0.114, 40.2, 3, seconds=2.0),
    Relocated("abcdefgh", 1, 2, 0.114, 0.02, 1, seconds=2.0),
    Note("something\nhappened", seconds=2.0),
    Ended(4, "all steps are done", False, 900.0, COUNTS, seconds=9.0),
    Ended(4, "stage 1 is bare", True, 900.0, COUNTS, seconds=9.0),
]


def test_the_lines_and_the_texts_of_events(golden_lines):
    assert {type(event) for event in EVENTS} == set(KINDS.values())
    golden_lines("event_lines.txt", [to_line(event) for event in EVENTS])
    golden_lines("event_texts.txt", [repr(event.text) for event in EVENTS])


@st.composite
def events(draw) -> Event:
    """An event of any kind, with any values of the types of its fields."""
    kind = draw(st.sampled_from(list(KINDS.values())))
    return draw(st.builds(kind, seconds=st.floats()))


@given(events())
def test_an_event_of_any_kind_survives_its_line_and_has_a_text(event: Event):
    line = to_line(event)

    assert "\n" not in line
    # NaN differs from itself, and its repr does not
    assert repr(from_line(line)) == repr(event)
    assert isinstance(event.text, str)


@pytest.mark.parametrize(
    "line",
    [
        *("", "[]", "{}", '{"event":"party"}', '{"event":"note"}', '{"event":"note","x":1}', "x"),
        '{"event":"note","text":1}',
        '{"event":"started","parameters":"many"}',
        '{"event":"started","parameters":1,"seconds":1' + "0" * 400 + "}",
        '{"event":"waiting","stages":[true]}',
        "[" * 100_000,
    ],
)
def test_another_line_is_no_event(line):
    with pytest.raises(ValueError, match="not an event of a run"):
        from_line(line)
