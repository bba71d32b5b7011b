"""What is found in models whose stages compute otherwise than the whole, and in good ones."""

import pytest
import torch
from models.harness import RUN, Between, End, Start, run_of
from torch import nn

from p2pswarm.compute.model_check import check_once, check_stages
from p2pswarm.config import ModelConfig, RunConfig
from p2pswarm.errors import Unusable

MODEL = RUN.model


class Odd(Between):
    """A block in the middle that does what a test says with its activation."""

    def __init__(self, change):
        super().__init__(MODEL)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.change = change

    def forward(self, bundle):
        return super().forward(bundle | {"x": self.change(self, bundle["x"])})


def odd_run(change):
    return run_of([lambda: Start(MODEL), lambda: Odd(change), lambda: End(MODEL)], stages=3)


def counted(block, x):
    block.calls += 1
    return x


def kept(block, x):
    block.again = getattr(block, "again", 0) + 1
    return x * block.again


@pytest.mark.parametrize("family", ["gpt", "skipping"])
def test_a_good_model_is_identical_in_stages(family):
    run = RunConfig(stages=2, model=ModelConfig(family=family, d_model=16, sequence_length=40))

    found = check_stages(run)

    assert (found.problem, found.apart) == ("", 0.0)
    assert found.parameters > 5


def test_a_buffer_that_a_forward_changes_is_named():
    with pytest.raises(Unusable, match=r"block 1 \(Odd\): calls is a buffer"):
        check_stages(odd_run(counted))


@pytest.mark.parametrize(
    "change", [kept, lambda _, x: x * torch.rand(())], ids=["kept from call to call", "chance"]
)
def test_a_forward_that_gives_two_results_is_found(change):
    found = check_stages(odd_run(change))

    assert found.problem.startswith("the gradient of blocks.0.")
    assert "chance of its own, or keeps something" in found.problem
    assert "\n" not in found.problem


def test_a_block_that_says_that_it_draws_is_given_its_chance():
    def drawing(block, x):
        block.random = True
        return x * torch.rand(())

    run = run_of(
        [lambda: Start(MODEL), lambda: _saying(Odd(drawing)), lambda: End(MODEL)], stages=3
    )

    assert check_stages(run).problem == ""


def _saying(block):
    block.random = True
    return block


def test_what_is_passed_beside_the_bundle_is_found():
    """The first block leaves something for the last, as they can in one process alone."""
    beside = {}

    def leaves(_, x):
        beside["x"] = x
        return x

    class Taking(End):
        def forward(self, bundle):
            return super().forward(bundle | {"x": bundle["x"] + beside["x"]})

    run = run_of([lambda: Start(MODEL), lambda: Odd(leaves), lambda: Taking(MODEL)], stages=3)
    found = check_stages(run)

    assert "reads something that is not in its bundle" in found.problem


def test_numbers_that_are_not_finite_are_told():
    found = check_stages(odd_run(lambda _, x: x / 0.0))

    assert "not finite with first weights, already as a whole" in found.problem


def test_code_that_fails_on_real_tensors_is_told_with_its_line():
    def fails(_, x):
        return x if x.is_meta else x.half() @ torch.eye(x.shape[-1])

    with pytest.raises(Unusable, match=r"cannot be computed: RuntimeError: .* \(test_model_check"):
        check_stages(odd_run(fails))


def test_a_tensor_that_is_changed_where_it_lies_is_told():
    class InPlace(nn.Linear):
        def forward(self, x):
            x += 1
            return super().forward(x)

    def first():
        return nn.Embedding(MODEL.vocabulary, 8)

    run = run_of([first, lambda: InPlace(8, 8), lambda: nn.Linear(8, MODEL.vocabulary)], stages=3)

    found = check_stages(run)

    assert "in-place operation; one stage after another" in found.problem
    assert "changes a tensor that it was given" in found.problem


def test_a_model_that_stays_too_large_is_refused():
    def wide():
        return nn.Sequential(*(nn.Linear(20_000, 20_000) for _ in range(2)))

    with pytest.raises(Unusable, match="can be checked"):
        check_stages(run_of([lambda: Start(MODEL), wide, lambda: End(MODEL)]))


def test_a_server_checks_every_model_but_the_built_in_one():
    with pytest.raises(Unusable, match="computes wrong in stages"):
        check_once(odd_run(kept))
    check_once(RUN)
