"""One step of delay in virtual time: steps overlap, and all counts once whoever dies."""

import pytest
from core import core_of
from sim.seed import SEED

from p2pswarm.progress.events import HeldOut
from p2pswarm.settings.config import BatchConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, SwarmResult, small_run
from p2pswarm.trainer.reports.leadership import Leads
from p2pswarm.trainer.reports.reports import (
    MemberLost,
    MemberReady,
    RunFinished,
    StepDone,
    SumKept,
)

ALL_DONE = RunFinished("all steps are done", failed=False)
STEPS = 6
BATCH = BatchConfig(microbatches=24, rows=1, evaluate_every=2, evaluate_microbatches=2)
COST = Cost(forward_s=0.05, gradient_bytes=4_000_000)  # averaging takes a part of a step


def play(*faults: Fault, delay: int = 1, **changes) -> tuple[SwarmResult, SimSwarm]:
    config = SwarmConfig(
        seed=SEED,
        run=small_run(steps=STEPS, batch=BATCH, delay=delay),
        faults=FaultPlan(changes.get("trainers", 1), faults),
        cost=COST,
        **changes,
    )
    swarm = SimSwarm(config)
    return run(swarm.play(), config.seed), swarm


def steps_done(swarm: SimSwarm) -> list[int]:
    return [report.step for report in swarm.reports if isinstance(report, StepDone)]


def test_steps_overlap_and_nothing_is_computed_twice():
    plain, _ = play(delay=0)

    late, swarm = play()

    assert late.ended == plain.ended == ALL_DONE
    assert late.replayed == 0
    assert steps_done(swarm) == list(range(STEPS))
    assert late.seconds < 0.9 * plain.seconds
    measured = [report.step for report in swarm.reports if isinstance(report, HeldOut)]
    assert measured == [0, 2, 4, 6]


@pytest.mark.parametrize("step", core_of([0, 1, 3], [1]))
@pytest.mark.parametrize("seat", [1, 4])
def test_a_server_that_dies_in_the_overlap_costs_no_step(step, seat):
    """The worlds of `sim/compute.py` assert that each commit has each microbatch once."""
    result, swarm = play(Fault(FaultKind.KILL, 0.0, 1e4, (seat,), step=step))

    assert result.ended == ALL_DONE
    assert steps_done(swarm) == list(range(STEPS))
    assert sum(isinstance(report, MemberLost) for report in swarm.reports) >= 1


@pytest.mark.parametrize("death_every_s", core_of([2.0, 5.0], [2.0]))
@pytest.mark.full
def test_a_run_under_churn_ends_with_every_step(death_every_s):
    result, swarm = play(death_every_s=death_every_s, rebirth_s=1.0)

    assert result.ended == ALL_DONE
    assert steps_done(swarm) == list(range(STEPS))


@pytest.mark.parametrize(
    "kind",
    core_of([FaultKind.KILL, FaultKind.RESTART, FaultKind.FREEZE], [FaultKind.KILL]),
)
@pytest.mark.parametrize("at_s", core_of([4.0, 6.5], [6.5]))
def test_another_trainer_goes_on_in_the_middle_of_an_overlap(kind, at_s):
    fault = Fault(kind, at_s, 9.0, (0,), silent=True)

    result, swarm = play(fault, trainers=3, patience_s=120.0)

    assert result.ended == ALL_DONE
    assert steps_done(swarm) == list(range(STEPS))
    assert any(isinstance(report, Leads) and report.term > 1 for report in swarm.reports)


@pytest.mark.full
def test_a_newcomer_gets_its_weights_and_work_though_averaging_never_pauses():
    """It lasts longer than the microbatches of a step, so the one follows the other."""
    config = SwarmConfig(
        seed=SEED,
        run=small_run(steps=18, batch=BATCH, delay=1),
        cost=Cost(forward_s=0.01, gradient_bytes=16_000_000, state_bytes=64_000_000),
        latecomers_s=(3.0,),
    )
    swarm = SimSwarm(config)

    result = run(swarm.play(), config.seed)

    assert result.ended == ALL_DONE
    ready = [report for report in swarm.reports if isinstance(report, MemberReady)]
    assert len(ready) == config.servers + 1


def test_a_server_whose_link_ends_comes_back_with_its_weights():
    result, swarm = play(Fault(FaultKind.REJOIN, 0.0, 3.0, (2,), step=2))

    assert result.ended == ALL_DONE
    assert steps_done(swarm) == list(range(STEPS))


@pytest.mark.full
def test_a_server_that_is_back_at_once_keeps_its_sums():
    result, swarm = play(Fault(FaultKind.REJOIN, 0.3, 0.2, (2,), step=2))

    assert result.ended == ALL_DONE
    assert steps_done(swarm) == list(range(STEPS))
    assert sum(isinstance(report, SumKept) for report in swarm.reports) == 1
