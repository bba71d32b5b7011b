"""What each block takes by itself, by a clock that the blocks move."""

from dataclasses import replace

import pytest
import torch
from models.harness import RUN, Between, End, Start, run_of

from p2pswarm.commands.weights.model_checks import cut_text, told_times
from p2pswarm.models.check.block_times import block_times_s
from p2pswarm.settings.config import ModelConfig, RunConfig

COSTS_S = (0.001, 0.004, 0.002, 0.002, 0.001)
CPU = torch.device("cpu")


class Moved:
    """A clock that stands still but for what blocks take."""

    def __init__(self):
        self.now_s = 0.0

    def block(self, kind, cost_s):
        """A block that takes a time, whatever it is called for."""
        moved = self

        class Timed(kind):
            def forward(self, value):
                moved.now_s += cost_s
                return super().forward(value)

        return lambda: Timed(RUN.model)


def timed(stages):
    clock = Moved()
    kinds = (Start, Between, Between, Between, End)
    makes = [clock.block(*each) for each in zip(kinds, COSTS_S, strict=True)]
    return run_of(makes, stages), clock


def test_each_block_is_measured_by_itself_on_what_the_one_before_gave():
    run, clock = timed(stages=2)

    times_s = block_times_s(run, CPU, lambda: clock.now_s)

    assert times_s == pytest.approx(COSTS_S)


def test_a_delay_and_an_averaging_for_each_stage_do_not_matter_to_a_block():
    run, clock = timed(stages=2)
    run = replace(run, delay=1, codecs=replace(run.codecs, averaging=("raw", "int-grid")))

    assert block_times_s(run, CPU, lambda: clock.now_s) == pytest.approx(COSTS_S)


def test_a_better_cut_is_said_and_a_good_one_is_left_alone():
    run, _ = timed(stages=2)  # cut after the second block, by parameters

    *_, worse = told_times(run, (0.001, 0.001, 0.001, 0.001, 0.004))
    *_, good = told_times(run, COSTS_S)

    assert worse == "the slowest stage takes 6.0 ms; with run.cut = [4, 1] it would take 4.0 ms"
    assert good == "the cut is right: the slowest stage takes 5.0 ms"


def test_a_model_with_modules_says_what_holds_its_cut() -> None:
    model = ModelConfig(layers=3, boundary="projector", boundary_width=16)

    one = cut_text(RunConfig(stages=2, cut=(2, 3), model=model))
    two = cut_text(RunConfig(stages=3, cut=(2, 1, 2), model=model))

    assert one == (
        "projector modules below block 2, 16 values of a token cross: a checkpoint goes on with "
        "this cut alone"
    )
    assert two.startswith("projector modules below blocks 2, 3, 16 values")
