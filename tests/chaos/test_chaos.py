"""Random faults in the simulated world: what must always hold holds. `make chaos` plays more."""

import json
from argparse import ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.__main__ import kinds_in, seeds_in, summary
from chaos.chaos_run import Outcome, Shape, in_short, in_words, options_of, play, play_plan
from chaos.fault_draw import DRAWN, draw_plan
from chaos.known_failures import KNOWN_FAILURES
from chaos.scenes import ONE_EACH, SCENES, Scene
from core import core_of

from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan

SEEDS = (*range(10), 498)  # 498: a session ends just as it has counted a microbatch
SHORT = (4, 9, 498)  # every kind of fault is in these
CALM = Shape(3, 1.0, Cost(state_bytes=1 << 14, forward_s=0.03), steps=2)


def marked() -> Iterator:
    """The seeds, of which `make test` plays the short form; known failures must fail."""
    for seed in SEEDS:
        marks = [] if seed in SHORT else [pytest.mark.full]
        if seed in KNOWN_FAILURES:
            marks.append(pytest.mark.xfail(reason=KNOWN_FAILURES[seed], strict=True))
        yield pytest.param(seed, marks=marks)


@pytest.mark.parametrize("seed", list(marked()))
def test_nothing_is_lost_or_counted_twice_and_the_run_goes_on(seed: int) -> None:
    outcome = play(seed)

    assert outcome.what is None, f"python -m tests.chaos --seeds {seed}: {outcome.happened}"


@pytest.mark.parametrize("seed", core_of(range(4), [0]))
def test_of_a_tied_model_nothing_is_lost_or_counted_twice_at_either_end(seed: int) -> None:
    outcome = play(seed, tied=True)

    assert outcome.what is None, f"python -m tests.chaos --seeds {seed} --tied: {outcome.happened}"


@pytest.mark.parametrize("seed", core_of(range(4, 10), [4]))
def test_with_a_delay_nothing_is_lost_or_counted_twice_in_either_step(seed: int) -> None:
    outcome = play(seed, delay=1)

    assert outcome.what is None, f"python -m tests.chaos --seeds {seed} --delay 1"


def test_a_cut_between_the_ends_of_a_tied_model_costs_a_server_and_the_run_goes_on() -> None:
    """They average with each other, though nothing else passes between them."""
    shape = Shape(6, 1.0, Cost(state_bytes=1 << 14, forward_s=0.1), steps=8, tied=True)
    first, last = 1, 3
    cut = FaultPlan(1, (Fault(FaultKind.CUT, 3.0, 40.0, (first, last)),))

    outcome = play_plan(1, shape, cut)

    assert outcome.what is None
    assert outcome.longest_stall_s < 20.0


@pytest.mark.parametrize("at_s", core_of([4.0, 9.0, 14.0], [9.0]))
def test_a_link_that_is_reset_costs_no_sum(at_s: float) -> None:
    """A stage's only server is back in a moment, with its sum; it cost up to a whole step."""
    shape = Shape(3, 1.0, Cost(state_bytes=1 << 14, forward_s=0.3), steps=2)
    trainer, server = 0, 2
    reset = FaultPlan(1, (Fault(FaultKind.RESET, at_s, 0.0, (trainer, server)),))

    outcome, calm = play_plan(1, shape, reset), play_plan(1, shape, FaultPlan(1, ()))

    assert outcome.what is None
    assert calm.longest_stall_s > at_s
    assert outcome.longest_stall_s < calm.longest_stall_s + 3.5  # what was in flight, and no more


def test_the_seeds_of_the_short_form_hold_every_kind_of_fault() -> None:
    plans = [draw_plan(seed, options_of(Shape.drawn(seed))) for seed in SHORT]

    assert {fault.kind for plan in plans for fault in plan.faults} == set(DRAWN)


def scenes_in_thirds() -> Iterator:
    """Every third offset of a scene; `make test` plays the first of these thirds."""
    for scene in SCENES:
        for first in range(min(3, len(scene.at_s))):
            marks = [pytest.mark.full] if first else []
            if scene.cause:
                marks.append(pytest.mark.xfail(reason=scene.cause, strict=True))
            name = f"{scene.name.replace(' ', '-')}-{first}"
            yield pytest.param(scene, slice(first, None, 3), id=name, marks=marks)


@pytest.mark.parametrize(("scene", "third"), list(scenes_in_thirds()))
def test_run_goes_on_through_the_scene(scene: Scene, third: slice) -> None:
    for plan in list(scene.plans())[third]:
        outcome = play_plan(1, ONE_EACH, plan)
        assert outcome.what is None, outcome.happened


def test_same_seed_gives_the_same_run() -> None:
    plan = FaultPlan(1, (Fault(FaultKind.FREEZE, 1.0, 17.0, (1,)),))

    first, again = (play_plan(5, CALM, plan) for _ in range(2))
    other = play_plan(6, CALM, plan)

    assert first == again
    assert first.digest != other.digest


def test_time_in_which_no_path_leads_through_the_stages_is_no_stall() -> None:
    """The only servers of two stages cannot reach each other: nobody could do the step."""
    plan = FaultPlan(1, (Fault(FaultKind.CUT, 1.0, 30.0, (1, 2)),))

    outcome = play_plan(1, CALM, plan)

    assert outcome.what is None
    assert outcome.longest_stall_s < 30.0


def test_results_for_scripts_have_exactly_these_keys() -> None:
    outcomes = [
        Outcome(3, None, 1.0, (), "a", calm_step_s=1.5),
        Outcome(4, "stuck at 70 s", 9.0, ("x",), "", calm_step_s=5.0),
        Outcome(5, None, 2.0, (), "b", calm_step_s=1.0),
    ]

    assert summary(outcomes) == {
        "seeds": 3,
        "ok": 2,
        "failures": [{"seed": 4, "what": "stuck at 70 s"}],
        "longest_stall_s": {"median": 2.0, "p99.5": 9.0, "max": 9.0},
        "calm_step_s": {"median": 1.5, "p99.5": 5.0, "max": 5.0},
        "stall_less_step_s": {"median": 1.0, "p99.5": 4.0, "max": 4.0},
    }


def test_the_upper_figure_leaves_out_a_half_of_a_hundredth_of_the_seeds() -> None:
    outcomes = [Outcome(seed, None, float(seed), (), "") for seed in range(1, 401)]

    stalls = summary(outcomes)["longest_stall_s"]

    assert stalls == {"median": 200.5, "p99.5": 398.0, "max": 400.0}


def test_the_command_plays_seeds_and_writes_its_results(tmp_path: Path, command) -> None:
    file = tmp_path / "chaos.json"
    file.touch()  # as `mktemp` leaves it

    code, said, _ = command("--seeds", "2", "--faults", "reset", "--json", str(file))

    assert code == 0, said
    assert "1 of 1 seeds held every invariant" in said
    assert json.loads(file.read_text())["ok"] == 1
    assert list(tmp_path.iterdir()) == [file]
    assert "longest step without faults" in said


def test_a_file_that_cannot_be_written_is_refused_before_the_first_seed(
    tmp_path: Path, command
) -> None:
    code, _, complaint = command("--seeds", "0:2000", "--json", str(tmp_path))

    assert code == 2
    assert "name another file" in complaint.splitlines()[-1]


@pytest.mark.parametrize("text", ["x", "3:", "5:5", "9:2"])
def test_seeds_that_are_none_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="A:B"):
        seeds_in(text)


def test_seeds_and_faults_are_read_from_the_command_line() -> None:
    assert seeds_in("3:7") == range(3, 7)
    assert seeds_in("3") == range(3, 4)
    assert kinds_in("kill,one-way") == (FaultKind.KILL, FaultKind.ONE_WAY)
    with pytest.raises(ArgumentTypeError, match="no fault is called thunder"):
        kinds_in("kill,thunder")


def test_faults_and_errors_are_told_in_short() -> None:
    aimed = Fault(FaultKind.KILL, 0.1, 2.0, (3,), silent=True, step=4)
    assert in_short(aimed) == "0.10 s after step 4 is counted: kill 3 without a word, 2.0 s"
    assert in_short(Fault(FaultKind.CUT, 1.0, 2.0, (0, 1))) == "1.00 s: cut 0,1, 2.0 s"

    group = ExceptionGroup("", [ValueError("a\nb"), ExceptionGroup("", [KeyError(1)])])
    assert in_words(group) == "ValueError: a; KeyError: 1"
