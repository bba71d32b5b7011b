"""What a trainer tells: it survives its line of JSON, and nothing else is taken for it."""

import pytest

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
    from_line,
    to_line,
)

TALLY = MicrobatchCounts(asked=32, counted=16, replayed=3)
EVENTS = [
    Waiting(0.0, (0, 1)),
    Started(0.0, 1234),
    Stepped(1.5, 2, 3.25, 1000.0, 1e-3, 0.5, TALLY),
    HeldOut(1.5, 2, 3.5),
    Checkpointed(1.5, 2, "/there", 0.5),
    Peers(2.0, (PeerLine("abcdefgh", 1, True, 3, 2.5),)),
    Note(2.0, "something\nhappened"),
    Ended(9.0, 4, "all steps are done", False, 900.0, TALLY),
]


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_survives_its_line(event):
    line = to_line(event)

    assert "\n" not in line
    assert from_line(line) == event


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", '{"event":"party"}', '{"event":"note"}', '{"event":"note","x":1}', "x"]
)
def test_another_line_is_no_event(line):
    with pytest.raises(ValueError, match="not an event of a run"):
        from_line(line)
