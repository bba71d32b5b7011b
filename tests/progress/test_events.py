"""What a node tells: each event has a sentence, and a line of JSON that it survives."""

import json
import math
import re

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from p2pswarm.progress.event_lines import (
    LINE_CHARS_MAX,
    OWN,
    VERSION,
    EventLine,
    EventNumbers,
    EventReader,
    UnknownEvent,
    from_line,
    to_line,
)
from p2pswarm.progress.events import (
    KINDS,
    Begun,
    Checkpointed,
    CheckpointFailed,
    Departure,
    Ended,
    Event,
    HeldOut,
    Joined,
    LeadershipTaken,
    Left,
    MachineFacts,
    MicrobatchCounts,
    MicrobatchesAgain,
    Note,
    PeerLine,
    Peers,
    Relocated,
    RolledBack,
    Serving,
    Started,
    Stepped,
    StoodBy,
    Waiting,
    Why,
    name_of,
)

COUNTS = MicrobatchCounts(asked=32, counted=16, replayed=3)
MEASURED = PeerLine(
    *("abcdefgh", 1, True, 3, 2.5),
    relayed=1,
    counted=40,
    forward_s=0.25,
    backward_s=0.5,
    free_bytes=2**34,
)
EVENTS = [
    Begun("my run", "trainer", "attic", "0.1.0"),
    Begun(
        *("my run", "trainer", "attic", "0.1.0", 100, 2, (3, 2), 4, 8, 128, 12345),
        *("gpt", "adamw", ("bf16", "int8", "raw"), 20),
    ),
    Waiting((0, 1)),
    Waiting(()),
    Started(12345),
    Stepped(2, 3.25, 1000.0, 1e-3, 0.5, COUNTS, 0.75, 4, 4, 9, "9f3a00112233", seconds=1.5),
    Stepped(2, math.nan, 1000.0, 1e-3, math.inf, COUNTS, seconds=1.5),
    HeldOut(2, 3.5, seconds=1.5),
    Checkpointed(2, "/there", 0.25, seconds=1.5),
    CheckpointFailed(2, "the disk is full", seconds=1.5),
    MicrobatchesAgain(2, 1, "it was late", seconds=2.0),
    MicrobatchesAgain(2, 5, "it was late", seconds=2.0),
    RolledBack(2, 5, seconds=2.0),
    RolledBack(2, 2, seconds=2.0),
    Peers((MEASURED,), seconds=2.0),
    MachineFacts("abcdefgh", "attic", "NVIDIA A100", 8, "Berlin", "0.1.0", seconds=2.0),
    MachineFacts("abcdefgh", "attic", seconds=2.0),
    Joined("abcdefgh", 1, seconds=2.0),
    Serving("abcdefgh", 1, "attic", seconds=2.0),
    *(Left("abcdefgh", 1, why, "so it is", 0, "attic", seconds=2.0) for why in Departure),
    Left("abcdefgh", 1, Departure.MOVED, "it moves to stage 2: it helps", 3, seconds=2.0),
    Relocated("abcdefgh", 1, 2, 0.114, 40.2, 3, seconds=2.0),
    Relocated("abcdefgh", 1, 2, 0.114, 0.02, 1, seconds=2.0),
    Why("all queues are as long", (4.0, 3.5), 1, seconds=2.0),
    LeadershipTaken(3, 2, seconds=2.0),
    StoodBy("ijklmnop", "trainer ijklmnop at a:1 stands by", seconds=2.0),
    Note("something\nhappened", seconds=2.0),
    Note("look at that machine", "wrongresult", ("abcdefgh",), seconds=2.0),
    Ended(4, "all steps are done", False, 900.0, COUNTS, seconds=9.0),
    Ended(4, "stage 1 is bare", True, 900.0, COUNTS, seconds=9.0),
]
AT = 1_764_105_600.123
LONG = re.compile(r"[0-9]{19}")  # a count that no run has


def told(event: Event, n: int = 7) -> EventLine:
    return EventLine(AT, "5f0c00112233", "k7f2abcd", n, event)


def test_the_lines_and_the_texts_of_events(golden_lines):
    assert {type(event) for event in EVENTS} == set(KINDS.values())
    golden_lines("event_lines.txt", [told(event).line for event in EVENTS])
    golden_lines("event_texts.txt", [repr(event.text) for event in EVENTS])


@pytest.mark.parametrize("kind", KINDS.values(), ids=name_of)
def test_no_field_of_an_event_has_a_name_that_each_line_has(kind):
    names = {name for name in kind.__dataclass_fields__ if name != "text"}

    assert not names & set(OWN)


@st.composite
def events(draw) -> Event:
    """An event of any kind, with any values of the types of its fields."""
    kind = draw(st.sampled_from(list(KINDS.values())))
    return draw(st.builds(kind, seconds=st.floats()))


@given(events())
def test_an_event_of_any_kind_survives_its_line_and_has_a_text(event: Event):
    line = told(event).line
    assume(not LONG.search(line))

    assert "\n" not in line
    # NaN differs from itself, and its repr does not
    assert repr(from_line(line)) == repr(told(event))
    assert isinstance(event.text, str)


@given(events())
def test_a_line_is_json_that_a_browser_reads(event: Event):
    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    fields = json.loads(told(event).line, parse_constant=refuse)

    assert (fields["v"], fields["at"], fields["n"]) == (VERSION, AT, 7)
    assert fields["text"] == event.text


HEAD = '{"v":2,"at":1.5,"run":"r","by":"b","n":1,'


@pytest.mark.parametrize(
    "line",
    [
        *("", "[]", "{}", "x", "null", "[" * 100_000, "9" * 5_000),
        *(f"{HEAD}{rest}" for rest in ('"event":"note"}', '"event":"note","text":1}')),
        '{"event":"note","text":"of the first version"}',
        HEAD + '"event":"started","parameters":"many"}',
        HEAD + '"event":"started","parameters":1,"seconds":1' + "0" * 400 + "}",
        HEAD + f'"event":"started","parameters":{2**63}}}',
        HEAD + '"event":"started","parameters":1,"seconds":NaN}',
        HEAD + '"event":"started","parameters":1,"seconds":"many"}',
        HEAD + '"event":"waiting","stages":[true]}',
        HEAD + '"event":"waiting","stages":1}',
        HEAD + '"event":"left","server":"a","stage":1,"why":"bored","reason":"","again":0}',
        HEAD + '"event":["note"]}',
        HEAD + '"event":"no te"}',
        '{"v":2,"at":-1,"run":"r","by":"b","n":1,"event":"note","text":""}',
        '{"v":2,"at":"NaN","run":"r","by":"b","n":1,"event":"note","text":""}',
        '{"v":2,"at":1,"run":"r","by":"b","n":0,"event":"note","text":""}',
        '{"v":2,"at":1,"run":"r","by":"' + 65 * "b" + '","n":1,"event":"note","text":""}',
        '{"v":true,"at":1,"run":"r","by":"b","n":1,"event":"note","text":""}',
        " " * (LINE_CHARS_MAX + 1),
    ],
)
def test_another_line_is_no_event(line):
    with pytest.raises(ValueError, match="not an event of a run") as caught:
        from_line(line)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"v":3,"event":"note"}', "an event of version 3, this program reads 2: install"),
        (f'{HEAD}"event":"party"}}', "an event 'party', which a newer release has"),
    ],
)
def test_an_event_of_a_newer_release_is_told_apart(line, says):
    with pytest.raises(UnknownEvent, match=says):
        from_line(line)


def test_a_field_that_is_not_known_is_passed_over_and_one_that_lacks_has_its_default():
    line = HEAD + '"event":"joined","server":"a","stage":1,"colour":"red"}'

    assert from_line(line).event == Joined("a", 1)


def test_events_are_numbered_but_figures_of_servers_have_the_number_before():
    numbers = EventNumbers("r", "b", lambda: 1.23456)

    told = [numbers.stamp(event) for event in (Started(1), Peers(()), Peers(()), Note("a"))]

    assert [one.n for one in told] == [1, 1, 1, 2]
    assert {one.at for one in told} == {1.235}


def read(*lines: str, run: str = "") -> tuple[list[int], list[str]]:
    """The numbers of the events that a reader takes, and its remarks."""
    reader = EventReader(run)
    told = [reader.on_line(line, "run.jsonl", place) for place, line in enumerate(lines, 1)]
    return [one.n for one in told if one is not None], reader.drain()


def line(n: int, *, run: str = "r", by: str = "b", event: Event | None = None) -> str:
    return to_line(EventLine(AT, run, by, n, event or Note("")))


NEWER = (
    "an event of version 7, this program reads 2: install the newest release; such events are "
    "passed over"
)
OTHER = "of run q, and not of r: it is passed over; --run q shows that run"
FIRST = Begun("r", "trainer", "attic", "0.1.0")


@pytest.mark.parametrize(
    ("lines", "taken", "says"),
    [
        ([line(1), line(2), line(2), line(3)], [1, 2, 2, 3], []),
        ([line(5), line(6)], [5, 6], []),
        ([line(8), line(1, event=FIRST), line(2)], [8, 1, 2], []),
        ([line(1), line(1, by="c"), line(2)], [1, 1, 2], []),
        ([line(1, run=""), line(2)], [1, 2], []),
        ([line(1), line(5)], [1, 5], ["run.jsonl: before line 2, 3 events of b lack"]),
        (
            [line(1), line(2)[:-30], line(2), "x"],
            [1, 2],
            ["run.jsonl: line 2 is torn, or no event: such lines are passed over"],
        ),
        (
            [line(1), '{"v":7,"event":"x"}', '{"v":7,"event":"y"}'],
            [1],
            [
                "run.jsonl: line 2: " + NEWER,
            ],
        ),
        (
            [line(1), line(2, run="q"), line(3, run="q"), line(2)],
            [1, 2],
            [
                "run.jsonl: line 2 is " + OTHER,
            ],
        ),
        (
            [line(5), line(6), line(5)],
            [5, 6, 5],
            ["run.jsonl: line 3 is an older event of b than the one before: name each file once"],
        ),
    ],
)
def test_what_is_wrong_with_a_log_is_said_once_and_the_rest_is_read(lines, taken, says):
    assert read(*lines) == (taken, says)


def test_a_reader_of_one_run_passes_over_all_others():
    assert read(line(1), line(1, run="q", by="c"), run="q")[0] == [1]


@given(st.lists(st.text(max_size=40) | st.builds(line, st.integers(1, 9)), max_size=20))
def test_a_reader_bears_any_lines(lines):
    taken, says = read(*lines)

    assert len(taken) <= len(lines)
    assert len(says) <= len(lines)
