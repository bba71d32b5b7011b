"""How long one fault may hold a step up, beyond the time of a step without faults."""

import asyncio
from dataclasses import replace

import pytest
from chaos.chaos_run import (
    Shape,
    WatchedSwarm,
    chaos_config,
    longest_calm_step_s,
    options_of,
    play_plan,
)
from chaos.fault_draw import draw_plan
from core import core_of

from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.loop import run
from p2pswarm.trainer.reports.reports import MemberReady

SEED = 1
TWO_EACH = Shape(6, 1.0, Cost(state_bytes=1 << 14, forward_s=0.1), steps=6)
"""Two servers a stage. The seats 1 and 3 are the first stage's, 0 is the trainer's."""


def stall_s(*faults: Fault) -> float:
    """The longest stall less the longest step without faults; 0 if that is longer."""
    outcome = play_plan(SEED, TWO_EACH, FaultPlan(1, faults))
    assert outcome.what is None, outcome.what
    return max(0.0, outcome.longest_stall_s - longest_calm_step_s(TWO_EACH))


@pytest.mark.parametrize("kind", core_of([FaultKind.CUT, FaultKind.ONE_WAY], [FaultKind.CUT]))
def test_a_cut_inside_a_stage_at_the_end_of_a_step_costs_less_than_ten_seconds(kind):
    """It is found in 4 s, and what one of the two has counted is done again."""
    fault = Fault(kind, 0.02, 30.0, (1, 3), step=3)

    assert stall_s(fault) < 10.0


def test_a_server_that_does_not_hear_the_only_trainer_is_done_without_after_some_seconds():
    """There is no standby that it could ask who leads; it is heard itself, and says so."""
    fault = Fault(FaultKind.ONE_WAY, 0.02, 30.0, (0, 3), step=3)

    assert stall_s(fault) < 11.0


def test_a_server_behind_a_cut_finds_a_coordinator_that_it_was_never_told_of():
    """Its coordinator, which it does not hear, has handed the run over to a new one.

    These are two faults of seed 1012, of which another one kills the new coordinator as well.
    """
    shape = Shape.drawn(1012)
    plan = draw_plan(1012, options_of(shape))
    (kill,) = [each for each in plan.faults if each.kind is FaultKind.KILL and each.seats == (0,)]
    (cut,) = [each for each in plan.faults if each.kind is FaultKind.CUT]

    outcome = play_plan(1012, shape, replace(plan, faults=(kill, cut)))

    assert outcome.what is None
    stall_less_step_s = outcome.longest_stall_s - longest_calm_step_s(shape)
    assert stall_less_step_s < 15.0, outcome.happened


def test_a_newcomer_that_misses_a_reduction_behind_a_cut_fetches_the_weights_soon():
    """Two of a stage are cut apart, one has to join again, and its mate cannot send it anything.

    What will not come is not waited for: half a minute of that would leave the stage to its mate.
    """
    shape = replace(TWO_EACH, steps=12)
    fault = Fault(FaultKind.CUT, 0.02, 9.0, (1, 3), step=3)
    ready_s = []

    async def main():
        watched = WatchedSwarm(chaos_config(SEED, shape, FaultPlan(1, (fault,))))
        heard = watched.swarm.heard

        def hear(report):
            if isinstance(report, MemberReady):
                ready_s.append(asyncio.get_running_loop().time())
            heard(report)

        watched.swarm.heard = hear
        await watched.play()
        return watched.swarm.faults.quiet_from_s

    healed_s = run(main(), SEED)

    *_, last_s = ready_s
    assert len(ready_s) == shape.servers + 1
    assert healed_s < last_s < healed_s + 10.0


def test_a_coordinator_asks_a_voter_that_has_left_it_and_hears_who_leads():
    """Its standby leads with that voter's vote, and all other members still hear the old one.

    Nothing passes between the two trainers. For some seconds the voter, a server, does not hear the
    coordinator either; when it does again, its word ends a term in which nothing can be decided.
    """
    shape = Shape(4, 1.0, Cost(state_bytes=1 << 14, forward_s=0.03), steps=5, trainers=2)
    cut = Fault(FaultKind.CUT, 5.8, 30.0, (0, 1))
    deaf = Fault(FaultKind.ONE_WAY, 6.95, 3.9, (0, 2))

    outcome = play_plan(30, shape, FaultPlan(2, (cut, deaf)))

    assert outcome.what is None
    assert outcome.longest_stall_s < 8.0


@pytest.mark.parametrize("kind", core_of([FaultKind.CUT, FaultKind.ONE_WAY], [FaultKind.CUT]))
def test_members_leave_a_coordinator_that_no_majority_answers(kind):
    """Two of three voters are cut off from it, or only their answers are lost; it reaches all else.

    It falls quiet, so that its voters wait for it no more and its members look for another.
    """
    shape = Shape(4, 1.0, Cost(state_bytes=1 << 14, forward_s=0.03), steps=5, trainers=2)
    cuts = tuple(Fault(kind, 5.8, 40.0, (voter, 0)) for voter in (1, 2))

    outcome = play_plan(1, shape, FaultPlan(2, cuts))

    assert outcome.what is None
    assert outcome.longest_stall_s < 16.0
