"""Traces of machines that come and go: shipped, one's own, and what is wrong with them."""

import itertools
import json
import math
from random import Random

import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.sim.traces import (
    HOUR_S,
    MachineStay,
    Shortage,
    Trace,
    read_trace,
    shipped_traces,
    shortage,
    stays,
    trace_of,
)

traces = st.lists(st.tuples(st.integers(1, 900), st.integers(0, 9)), min_size=1, max_size=12).map(
    lambda steps: Trace(
        tuple(
            (float(sum(gap for gap, _ in steps[:place])), count + (place == 0))
            for place, (_, count) in enumerate(steps)
        ),
        float(sum(gap for gap, _ in steps)),
        30.0,
    )
)


def written(tmp_path, content: object):
    path = tmp_path / "trace.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def mean_of(trace: Trace) -> float:
    """The machines that it had on average."""
    spans = itertools.pairwise([*trace.counts, (trace.seconds, 0)])
    held = sum(count * (end_s - at_s) for (at_s, count), (end_s, _) in spans)
    return held / (trace.seconds - trace.counts[0][0])


def test_shipped_traces_are_the_clouds_of_the_manual():
    facts = {
        name: (trace_of(name).most, round(mean_of(trace_of(name)), 1)) for name in shipped_traces()
    }

    assert facts["aws_p3"] == (32, 24.0)
    assert facts["aws_g4dn"] == (24, 12.8)
    assert facts["gcp_v100"][0] == 80


@settings(max_examples=examples(60))
@given(traces, st.integers(1, 12), st.integers(0, 2**32))
def test_stays_are_as_many_machines_as_the_trace_says(trace: Trace, machines: int, seed: int):
    hours = 3 * trace.seconds / HOUR_S
    found = stays(trace, machines, hours, Random(seed))

    for at_s, count in trace.for_hours(hours):
        there = [stay.machine for stay in found if stay.begin_s <= at_s < stay.end_s]
        assert len(there) == len(set(there)) == min(machines, round(count * machines / trace.most))
    assert all(stay.begin_s < stay.end_s for stay in found)
    assert all(0 <= stay.machine < machines for stay in found)
    assert found == stays(trace, machines, hours, Random(seed)), "the same seed, the same day"


def test_events_and_counts_of_a_file_say_the_same(tmp_path):
    counts = {"counts": [[0, 2], [60, 1], [90, 3]], "seconds": 120}
    events = {"events": [[0, "+", 2], [60, "-", 1], [90, "+", "a"], [90, "+", "b"]], "seconds": 120}

    one = trace_of(str(written(tmp_path, counts)))
    assert one == read_trace(written(tmp_path, events))
    assert one.counts == ((0.0, 2), (60.0, 1), (90.0, 3))
    assert mean_of(one) == pytest.approx((2 * 60 + 30 + 3 * 30) / 120)


def test_a_file_without_a_length_ends_one_change_after_its_last(tmp_path):
    assert read_trace(written(tmp_path, {"counts": [[0, 2], [60, 1]]})).seconds == 120.0
    assert read_trace(written(tmp_path, {"counts": [[0, 2]]})).seconds > 0


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("no json", "is no JSON"),
        ([], "events"),
        ({}, "events"),
        ({"events": [], "counts": []}, "one alone"),
        ({"counts": []}, "no machine ever comes"),
        ({"counts": {"a": 1}}, "no machine ever comes"),
        ({"counts": [[0, 0], [60, 0]]}, "0 machines at the most"),
        ({"counts": [[0]]}, "no row of 2 values"),
        ({"counts": [[0, 1.5]]}, "no number of machines"),
        ({"counts": [[-1, 1]]}, "no time in seconds"),
        ({"counts": [[60, 1], [0, 2]]}, "the times go back"),
        ({"counts": [[0, 1], [60, 2]], "seconds": 30}, "not after the last change"),
        ({"counts": [[0, 100_000]]}, "no number of machines"),
        ({"events": [[0, "+", 1], [5, "-", 2]]}, "more go than came"),
        ({"events": [[0, "*", 1]]}, "neither '+' nor '-'"),
        ('{"counts": [[0, NaN]]}', "no number of machines"),
        ('{"counts": [[Infinity, 1]]}', "no time in seconds"),
        ("[" * 100_000, "is no JSON"),
        ('{"counts": [[1' + "0" * 400 + ", 1]]}", "no time in seconds"),
        ({"counts": [[0, 1]], "seconds": 1e-300}, "give one of a second at least"),
        ({"counts": [[n / 9, 1] for n in range(9)], "seconds": 2}, "9 changes in 2 s"),
    ],
)
def test_what_is_no_trace_is_one_line(tmp_path, content, part: str):
    with pytest.raises(Unusable) as caught:
        read_trace(written(tmp_path, content))

    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_trace_that_is_not_there_names_those_that_are():
    with pytest.raises(Unusable, match="name one of aws_g4dn, aws_p3, gcp_v100, or a file"):
        trace_of("azure")


def test_who_stays_to_the_end_has_no_end():
    found = stays(Trace(((0.0, 2),), 60.0, 0.0), 2, 1.0, Random(1))

    assert [stay.end_s for stay in found] == [math.inf] * 2


def test_too_few_machines_are_told_with_the_first_time_and_all_of_it():
    there = [
        MachineStay(0, 10.0, 100.0),
        MachineStay(1, 20.0, 60.0),
        MachineStay(0, 100.0, math.inf),
    ]

    assert shortage(there, 1, 200.0) == Shortage(0.0, 10.0)
    assert shortage(there, 2, 200.0) == Shortage(0.0, 20.0 + 140.0)
    assert shortage(there, 1, 5.0) == Shortage(0.0, 5.0)
    assert shortage(there[2:], 1, 50.0) == Shortage(0.0, 50.0)
    assert shortage([MachineStay(0, 0.0, math.inf)], 1, 9.0) is None
    assert shortage([MachineStay(0, 0.0, 4.0), MachineStay(1, 4.0, 9.0)], 1, 9.0) is None


@given(traces, st.integers(1, 9), st.integers(1, 4), st.integers(0, 99))
def test_the_time_without_enough_machines_is_what_the_trace_says(
    trace: Trace, machines: int, needed: int, seed: int
):
    there, seconds = stays(trace, machines, 1.0, Random(seed)), HOUR_S

    found = shortage(there, needed, seconds)

    moments = sorted({0.0, seconds} | {t for one in there for t in (one.begin_s, one.end_s)})
    moments = [at_s for at_s in moments if at_s <= seconds]
    few_s = sum(
        after - at_s
        for at_s, after in itertools.pairwise(moments)
        if sum(one.begin_s <= at_s < one.end_s for one in there) < needed
    )
    assert (found.seconds if found else 0.0) == pytest.approx(few_s)
