"""The fleet of `bench/preemptions.py`: a trace laid side by side, each zone at another hour."""

import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from sim.test_traces import traces

from p2pswarm.sim.traces import HOUR_S, Trace

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from preemptions import fleet_changes, turned


@given(traces, st.floats(0.0, 1.0))
def test_a_turned_trace_has_the_same_machines_at_another_hour(trace: Trace, part: float):
    later = turned(trace, part * trace.seconds)

    assert later.seconds == trace.seconds
    assert max(at_s for at_s, _ in later.counts) <= trace.seconds
    assert {count for _, count in later.counts} <= {count for _, count in trace.counts}


@given(traces, st.integers(1, 40))
def test_changes_of_a_fleet_never_take_more_than_there_are(trace: Trace, servers: int):
    there: dict[int, int] = {}
    for change in fleet_changes(trace, servers, 2 * trace.seconds / HOUR_S):
        there[change.zone] = there.get(change.zone, 0) + change.machines
        assert there[change.zone] >= 0
