"""Aimed schedules in the simulated world: what must always hold holds."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.aims import Aim, AimedFault, Phase, Role, Whom
from chaos.chaos_run import Shape, play_aimed, play_plan
from chaos.known_failures import KNOWN_AIMED_FAILURES
from core import core_of

from p2pswarm.run.chain.messages import Accepted, Propose
from p2pswarm.run.messages.membership import Join
from p2pswarm.run.messages.step import Reduced
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.message_watch import Moment

SEEDS, SHORT = range(60), range(3)
SMALL = Shape(3, 1.0, Cost(state_bytes=1 << 14, forward_s=0.03), steps=4, trainers=3)
LEAVES, ARRIVES = Moment.LEAVES, Moment.ARRIVES
COORDINATOR = Role.COORDINATOR


def marked() -> Iterator:
    """The seeds, of which `make test` plays the short form; known failures must fail."""
    for seed in sorted({*SEEDS, *KNOWN_AIMED_FAILURES}):
        marks = [] if seed in SHORT else [pytest.mark.full]
        if seed in KNOWN_AIMED_FAILURES:
            marks.append(pytest.mark.xfail(reason=KNOWN_AIMED_FAILURES[seed], strict=True))
        yield pytest.param(seed, marks=marks)


@pytest.mark.parametrize("seed", list(marked()))
def test_the_run_goes_on_through_an_aimed_schedule(seed: int) -> None:
    outcome = play_aimed(seed)

    assert outcome.what is None, f"python -m tests.chaos --aimed --seeds {seed}"


def aimed(kind: FaultKind, seconds: float, *, whom: Whom = Whom.HERE, **aim) -> AimedFault:
    return AimedFault(Aim(**aim), kind, (whom,), seconds)


def test_a_coordinator_is_frozen_at_the_very_message_that_is_aimed_at() -> None:
    """Seat 0 founds the run; it is stopped as it would propose step 1, and another proposes it."""
    freeze = aimed(FaultKind.FREEZE, 30.0, message=Propose, moment=LEAVES, role=COORDINATOR, step=1)

    outcome = play_plan(1, SMALL, FaultPlan(3, ()), ((freeze,),))

    assert outcome.what is None
    (happened,) = outcome.happened
    assert "freeze 0, 30.0 s (Propose 1 leaves the coordinator from step 1)" in happened


def test_a_chain_hits_the_coordinator_and_then_its_successor() -> None:
    """The successor averages what the first one had averaged, and dies as it would propose it."""
    freeze = aimed(
        FaultKind.FREEZE, 7.0, message=Reduced, moment=ARRIVES, role=COORDINATOR, number=3, step=1
    )
    kill = aimed(FaultKind.KILL, 5.0, message=Propose, moment=LEAVES, role=COORDINATOR)

    outcome = play_plan(1, SMALL, FaultPlan(3, ()), ((freeze, kill),))

    assert outcome.what is None
    first, second = outcome.happened
    assert "freeze 0" in first
    assert "kill 1" in second or "kill 2" in second


def test_a_phase_of_search_begins_when_the_coordinator_is_hit() -> None:
    freeze = aimed(FaultKind.FREEZE, 30.0, message=Accepted, moment=ARRIVES, role=COORDINATOR)
    join = aimed(
        FaultKind.RESTART,
        1.0,
        whom=Whom.THERE,
        message=Join,
        moment=ARRIVES,
        role=Role.STANDBY,
        phase=Phase.SEARCH,
    )

    outcome = play_plan(1, SMALL, FaultPlan(3, ()), ((freeze, join),))

    assert outcome.what is None
    assert "freeze" in outcome.happened[0]


@pytest.mark.parametrize("seat", core_of([0, 1, 5], [0]), ids=["founder", "standby", "server"])
def test_a_machine_that_lost_its_disk_takes_part_again(seat: int) -> None:
    shape = Shape(6, 1.0, Cost(state_bytes=1 << 14, forward_s=0.1), steps=8, trainers=3)
    wipe = FaultPlan(3, (Fault(FaultKind.WIPE, 3.0, 2.0, (seat,)),))

    outcome = play_plan(1, shape, wipe)

    assert outcome.what is None
    assert len(outcome.happened) == 1


def test_guests_come_and_go() -> None:
    shape = Shape(6, 1.0, Cost(state_bytes=1 << 14, forward_s=0.1), steps=6, trainers=1)
    guests = [Fault(FaultKind.VISIT, 1.0 + at_s, 2.5, (), silent=True) for at_s in range(4)]
    guests += [Fault(FaultKind.STANDBY, 1.5 + at_s, 2.0, ()) for at_s in range(4)]

    outcome = play_plan(1, shape, FaultPlan(1, tuple(guests)))

    assert outcome.what is None
    assert len(outcome.happened) == len(guests)


def test_the_command_plays_aimed_seeds_and_writes_its_results(tmp_path: Path, command) -> None:
    file = tmp_path / "aimed.json"

    code, said, _ = command("--aimed", "--seeds", "0", "--json", str(file))

    assert code == 0, said
    assert set(json.loads(file.read_text())["stall_less_step_s"]) == {"median", "p99.5", "max"}


@pytest.mark.parametrize("flag", ["--tied", "--faults=kill"])
def test_what_an_aimed_schedule_draws_itself_is_not_chosen(flag: str, command) -> None:
    code, _, complaint = command("--aimed", "--seeds", "0", flag)

    assert code == 2
    assert "leave --faults and --tied out" in complaint.splitlines()[-1]
