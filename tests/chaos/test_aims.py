"""Tests of `aims.py` and `aimed_draw.py`: which message fires which fault, and what is drawn."""

import pytest
from chaos.aimed_draw import AFTER_A_FAULT, EVERY_STEP, SCHEDULES, AimedOptions, draw_aimed
from chaos.aims import Aim, AimedFault, Phase, Role, Triggers, Whom
from chaos.fault_draw import PAIRED
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.chain.messages import Accepted, Propose
from p2pswarm.sim.faults import FaultKind
from p2pswarm.sim.message_watch import Moment

LEAVES, ARRIVES = Moment.LEAVES, Moment.ARRIVES
COORDINATOR, SERVER = Role.COORDINATOR, Role.SERVER


def freeze(**aim) -> AimedFault:
    defaults = {"message": Propose, "moment": LEAVES, "role": COORDINATOR}
    return AimedFault(Aim(**(defaults | aim)), FaultKind.FREEZE, (Whom.HERE,), 1.0)


def triggers(*chains) -> Triggers:
    made = Triggers(chains)
    made.on_phase(0, Phase.WORK)
    return made


def test_only_the_nth_message_of_its_kind_moment_and_role_fires_a_fault():
    third = freeze(number=3)
    told = triggers((third,))

    others = [
        (Accepted, LEAVES, COORDINATOR),
        (Propose, ARRIVES, COORDINATOR),
        (Propose, LEAVES, SERVER),
    ]
    assert [told.on_message(*other) for other in others] == [[], [], []]
    fired = [told.on_message(Propose, LEAVES, COORDINATOR) for _ in range(6)]

    assert fired == [[], [], [third], [], [], []]
    assert told.messages == set()


def test_a_step_and_a_phase_are_waited_for_and_each_phase_counts_anew():
    aimed = freeze(number=2, phase=Phase.END, step=1)
    told = triggers((aimed,))
    fired = []
    for step, phase in [(0, Phase.END), (1, Phase.WORK), (1, Phase.END), (2, Phase.END)]:
        told.on_phase(step, phase)
        count = 1 if (step, phase) == (1, Phase.END) else 2
        fired.append([told.on_message(Propose, LEAVES, COORDINATOR) for _ in range(count)])

    assert fired[:3] == [[[], []], [[], []], [[]]]
    assert fired[3] == [[], [aimed]]


def test_a_fault_of_a_chain_is_aimed_once_the_one_before_is_fired():
    first, second = freeze(), freeze(message=Accepted, moment=ARRIVES)
    told = triggers((first, second))

    assert told.messages == {Propose}
    assert told.on_message(Accepted, ARRIVES, COORDINATOR) == []
    assert told.on_message(Propose, LEAVES, COORDINATOR) == [first]
    assert told.messages == {Accepted}
    assert told.on_message(Accepted, ARRIVES, COORDINATOR) == [second]


def test_chains_do_not_know_of_each_other():
    one, other = freeze(), freeze(number=2)
    told = triggers((one,), (other,))

    assert told.on_message(Propose, LEAVES, COORDINATOR) == [one]
    assert told.on_message(Propose, LEAVES, COORDINATOR) == [other]


def test_nothing_is_fired_before_the_first_step():
    told = Triggers([(freeze(),)])

    assert told.on_message(Propose, LEAVES, COORDINATOR) == []


def test_an_aim_is_told_in_a_few_words():
    aim = freeze(number=2, phase=Phase.END, step=3).aim

    assert str(aim) == "Propose 2 leaves the coordinator in the end from step 3"


@given(
    seed=st.integers(0, 2**63),
    servers=st.integers(1, 9),
    trainers=st.integers(1, 3),
    steps=st.integers(1, 20),
)
def test_a_schedule_is_the_seeds_and_hits_seats_that_exist(seed, servers, trainers, steps):
    options = AimedOptions(servers, trainers, steps)

    drawn = draw_aimed(seed, options)

    assert drawn == draw_aimed(seed, options)
    assert drawn.plan.faults or drawn.chains
    seats = range(trainers + servers)
    assert all(seat in seats for fault in drawn.plan.faults for seat in fault.seats)
    for chain in drawn.chains:
        assert chain
        assert 0 <= chain[0].aim.step < steps
        for one in chain:
            assert one.aim.number >= 1
            assert len(set(one.whom)) == len(one.whom) == (2 if one.kind in PAIRED else 1)
            assert trainers > 1 or one.aim.role is not Role.STANDBY


@pytest.mark.parametrize("traffic", [EVERY_STEP, AFTER_A_FAULT], ids=["every step", "after"])
def test_every_message_is_aimed_at_when_it_leaves_and_when_it_arrives(traffic):
    aims = {
        (one.aim.message, one.aim.moment, one.aim.role)
        for seed in range(2000)
        for chain in draw_aimed(seed, AimedOptions(6, 2, 10)).chains
        for one in chain
    }

    for one in traffic:
        assert (one.message, LEAVES, one.sender) in aims
        assert (one.message, ARRIVES, one.receiver) in aims


def test_every_kind_of_schedule_and_of_fault_is_drawn():
    drawn = [draw_aimed(seed, AimedOptions(6, 2, 10)) for seed in range(300)]

    kinds = {one.kind for each in drawn for chain in each.chains for one in chain}
    kinds |= {fault.kind for each in drawn for fault in each.plan.faults}
    assert kinds == set(FaultKind) - {FaultKind.ISLAND}
    assert len(set(SCHEDULES)) == 5
