"""Plans of faults: values that a seed determines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.sim.faults import (
    AIM_S,
    DEADLY,
    FIRST_S,
    KINDS,
    PAIRED,
    FaultKind,
    FaultOptions,
    draw_plan,
    kinds_named,
)

OPTIONS = FaultOptions(faults=(0, 30))


@given(seed=st.integers(0, 2**63), servers=st.integers(1, 12), trainers=st.integers(1, 3))
def test_plan_is_in_order_and_hits_seats_that_exist(seed: int, servers: int, trainers: int):
    options = FaultOptions(servers=servers, trainers=trainers)

    plan = draw_plan(seed, options)

    assert plan == draw_plan(seed, options)
    assert plan.trainers == trainers
    times = [fault.at_s for fault in plan.faults if fault.step is None]
    assert times == sorted(times)
    assert all(at_s >= FIRST_S for at_s in times)
    for fault in plan.faults:
        assert len(set(fault.seats)) == len(fault.seats) >= 1
        assert all(0 <= seat < options.seats for seat in fault.seats)
        assert len(fault.seats) == 2 or fault.kind not in PAIRED


@given(seed=st.integers(0, 2**32))
def test_trainers_die_only_where_that_is_asked(seed: int):
    kill = FaultOptions(kinds=DEADLY, trainers=2, servers=2, faults=(20, 20))
    also_trainers = FaultOptions(
        kinds=DEADLY, trainers=2, servers=2, faults=(200, 200), mortal_trainers=True
    )

    assert {seat for fault in draw_plan(seed, kill).faults for seat in fault.seats} <= {2, 3}
    hit = {seat for fault in draw_plan(seed, also_trainers).faults for seat in fault.seats}
    assert hit == {0, 1, 2, 3}


def test_every_kind_is_drawn_and_only_the_kinds_that_are_asked_for():
    kinds = {fault.kind for seed in range(40) for fault in draw_plan(seed, OPTIONS).faults}
    assert kinds == set(FaultKind)

    only = FaultOptions(kinds=(FaultKind.RESET, FaultKind.FREEZE))
    kinds = {fault.kind for seed in range(9) for fault in draw_plan(seed, only).faults}
    assert kinds == {FaultKind.RESET, FaultKind.FREEZE}


@pytest.mark.parametrize(("aimed", "share"), [(0.0, {False}), (0.5, {False, True}), (1.0, {True})])
def test_a_share_of_the_faults_is_aimed_at_the_end_of_a_step(aimed, share):
    options = FaultOptions(aimed=aimed, steps=4, faults=(60, 60))

    faults = draw_plan(1, options).faults

    assert {fault.step is not None for fault in faults} == share
    hit = [fault for fault in faults if fault.step is not None]
    assert all(0.0 <= fault.at_s <= AIM_S for fault in hit)
    assert {fault.step for fault in hit} <= set(range(4))


def test_kinds_have_names_and_a_wrong_one_is_told_which_there_are():
    assert kinds_named(["kill", "one-way"]) == (FaultKind.KILL, FaultKind.ONE_WAY)
    assert len(KINDS) == len(FaultKind)

    with pytest.raises(ValueError, match="no fault is called kil, x: choose from kill, restart"):
        kinds_named(["kil", "freeze", "x"])


@pytest.mark.parametrize("wrong", [{"servers": 0}, {"trainers": 0}, {"kinds": ()}, {"aimed": 2.0}])
def test_impossible_options_are_refused(wrong):
    with pytest.raises(ValueError, match=r"swarm of|no kind|share of"):
        FaultOptions(**wrong)
