"""Tests of `models/check/model_check.py`."""

from dataclasses import replace

import pytest
import torch
from models.families import family_run
from models.harness import RUN, Between, End, Start, run_of
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from p2pswarm.base.errors import Unusable
from p2pswarm.models.check.model_check import check_blocks, check_once, check_rows, check_stages
from p2pswarm.models.registry import trust
from p2pswarm.settings.config import CodecConfig, ModelConfig, RunConfig

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


def test_sums_on_a_grid_are_checked_without_it():
    model = ModelConfig(family="skipping", d_model=16, sequence_length=40)
    run = RunConfig(stages=2, model=model, codecs=CodecConfig(averaging="int-grid"))

    found = check_stages(run)

    assert (found.problem, found.apart) == ("", 0.0)


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


def too_wide():
    return nn.Sequential(*(nn.Linear(20_000, 20_000) for _ in range(2)))


def test_a_model_that_stays_too_large_is_refused():
    with pytest.raises(Unusable, match="can be checked"):
        check_stages(run_of([lambda: Start(MODEL), too_wide, lambda: End(MODEL)]))


def test_one_that_is_too_large_is_trained_and_the_log_says_that_it_was_not_checked(caplog):
    check_once(run_of([lambda: Start(MODEL), too_wide, lambda: End(MODEL)]))

    assert "is not checked in stages: the model's small copy has" in caplog.text


def test_a_model_that_a_program_registers_is_checked_before_it_is_trained_or_served():
    run = odd_run(kept)

    with pytest.raises(Unusable, match=r"the model test \d+ computes wrong in stages: .*call"):
        check_once(run)
    assert check_blocks(run).problem


def test_a_registered_model_that_is_well_passes():
    check_once(replace(RUN, stages=2, model=replace(MODEL, family="skipping")))


def test_the_built_in_model_is_checked_by_its_tests():
    before = check_blocks.cache_info()

    check_once(RunConfig())

    assert check_blocks.cache_info() == before


def noisy(_, x):
    return x * torch.rand(())


def silent_registered(tmp_path, monkeypatch):
    del tmp_path, monkeypatch
    return odd_run(noisy)


def silent_package(tmp_path, monkeypatch):
    (tmp_path / "silent_models.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    trust(["silent_models"])
    return replace(RUN, stages=2, model=replace(MODEL, family="silent_models:make"))


def silent_library(tmp_path, monkeypatch):
    del tmp_path, monkeypatch
    pytest.importorskip("transformers")
    return family_run("llama", rms_norm_eps=3e-6)


PACKAGE = """
import torch
from torch import nn
from torch.nn import functional as F

class Dropping(nn.Linear):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.1)

def make(config):
    last = nn.Linear(8, config.vocabulary)
    return [nn.Embedding(config.vocabulary, 8), Dropping(8, 8), last]
"""


@pytest.mark.parametrize("of", [silent_registered, silent_package, silent_library])
def test_what_draws_in_silence_is_found_before_it_is_trained(of, tmp_path, monkeypatch):
    """The library's models say in their configs what they draw, so a hook draws here."""
    run = of(tmp_path, monkeypatch)

    def draws(module, _given, made):
        return noisy(module, made) if type(module).__name__ == "LlamaMLP" else None

    with (
        register_module_forward_hook(draws),
        pytest.raises(Unusable, match=r"the gradient of .* differs .* by chance of its own"),
    ):
        check_once(run)
