"""What a forward may not do is found by the check, and named."""

import pytest
import torch
from models.harness import RUN, run_of
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.compute.model_check import check_rows, check_stages

WIDTH, VOCABULARY = 8, RUN.model.vocabulary


def checked(middle, first=lambda: nn.Embedding(VOCABULARY, WIDTH)):
    return check_stages(run_with(middle, first))


def run_with(middle, first=lambda: nn.Embedding(VOCABULARY, WIDTH)):
    return run_of([first, middle, Head], stages=3)


class Head(nn.Linear):
    """Scores of the first tokens."""

    def __init__(self):
        super().__init__(WIDTH, VOCABULARY)

    def forward(self, x):
        return super().forward(x[:, : RUN.model.sequence_length])


class Layer(nn.Linear):
    """A layer that changes its input by what a test says."""

    def __init__(self, change=lambda x: x):
        super().__init__(WIDTH, WIDTH)
        self.change = change

    def forward(self, x):
        return self.change(super().forward(x))


def test_weights_that_a_forward_changes_are_named():
    with pytest.raises(Unusable, match=r"changes the weights blocks\.0\.weight.*max_norm"):
        checked(Layer, lambda: nn.Embedding(VOCABULARY, WIDTH, max_norm=1.0))


def test_a_buffer_that_is_drawn_is_named():
    class Drawn(Layer):
        def __init__(self):
            super().__init__()
            self.register_buffer("noise", torch.randn(WIDTH), persistent=False)

    with pytest.raises(Unusable, match=r"block 1 \(Drawn\): noise is a buffer that is drawn"):
        checked(Drawn)


def test_a_shape_that_depends_on_numbers_is_found():
    found = checked(lambda: Layer(lambda x: x if x.is_meta else torch.cat((x, x), 1)))

    assert "stage 1 gives x as torch.float64 (2, 24, 8)" in found.problem
    assert "its shape may not depend on numbers" in found.problem


def test_a_forward_that_looks_whether_gradients_are_wanted_is_found():
    found = checked(lambda: Layer(lambda x: x * (2.0 if torch.is_grad_enabled() else 1.0)))

    assert "a graph that is made again gives other results" in found.problem


def test_tokens_that_a_forward_changes_are_not_those_of_the_next_stage():
    class Shifting(nn.Embedding):
        def __init__(self):
            super().__init__(VOCABULARY, WIDTH)

        def forward(self, tokens):
            return super().forward(tokens.add_(1).remainder_(VOCABULARY).clone())

    assert checked(Layer, Shifting).problem


def test_what_autograd_grad_cannot_do_is_told_with_the_remedy():
    found = checked(Layer, lambda: nn.Embedding(VOCABULARY, WIDTH, sparse=True))

    assert "no sparse gradients" in found.problem


def test_a_model_that_ends_in_float32_is_checked_in_it():
    run = run_of([lambda: nn.Embedding(VOCABULARY, WIDTH), Layer, InFloat32], stages=3)

    assert (check_stages(run).problem, check_stages(run).apart) == ("", 0.0)


class InFloat32(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, VOCABULARY)

    def forward(self, x):
        return super().forward(x).float()


def test_rows_that_see_each_other_are_not_split():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)

        def forward(self, x):
            return self.norm(x.mT).mT

    assert checked(Norm).problem == ""
    with pytest.raises(Unusable, match=r"several rows of a microbatch at once.*serve\.device"):
        check_rows(run_with(Norm))


def test_rows_that_do_not_are():
    check_rows(run_with(Layer))
    check_rows(run_with(lambda: nn.Dropout(0.5)))  # refused for another reason
    check_rows(RUN)
