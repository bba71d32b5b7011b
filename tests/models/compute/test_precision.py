"""Computing in bfloat16: the same bits whatever the cut, from the weights as they are."""
# ruff: noqa: N806  shapes are written at the end of names

from dataclasses import replace

import pytest
import torch

from p2pswarm.checkpoint.compatibility import differences
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.check.model_check import check_stages
from p2pswarm.models.compute.base import BackwardSpec, Update, part_sizes
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.precision import Bfloat16, FullPrecision, precision_of
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.torch_stage import TorchStage
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.registry import register
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

CPU = torch.device("cpu")
ALL = BackwardSpec(counting=True, returning=True)
MODEL = ModelConfig(d_model=32, layers=2, heads=2, sequence_length=12)
RUN = RunConfig(stages=3, precision="bf16", model=MODEL, batch=BatchConfig(microbatches=1, rows=3))
TOKENS_BS = torch.randint(0, 256, (3, 13), generator=torch.Generator().manual_seed(1))


def staged(run: RunConfig, keep_bytes: int) -> tuple[float, torch.Tensor]:
    """Loss and gradient sum of one microbatch through all stages."""
    flats = [FlatParameters(run, stage_blocks(run, n), CPU) for n in range(run.stages)]
    for flat in flats:
        flat.draw()
    stages = [TorchStage(run, n, flat, keep_bytes) for n, flat in enumerate(flats)]
    bundle: dict[str, torch.Tensor] = {}
    for stage in stages[:-1]:
        bundle = stage.forward((0, 0), TOKENS_BS, bundle)
        assert bundle["x"].dtype == torch.float32
    result = stages[-1].finish(TOKENS_BS, bundle, ALL)
    gradient = result.gradient
    for stage in reversed(stages[:-1]):
        gradient = stage.backward((0, 0), gradient, ALL)
    return result.loss, torch.cat([total.reshape(-1) for flat in flats for total in flat.sums])


def plain(run: RunConfig) -> tuple[float, torch.Tensor]:
    trainer = ReferenceTrainer(run, rounded=False)
    loss = trainer.add(TOKENS_BS, 0)
    return loss, torch.cat([total.reshape(-1) for total in trainer.flat.sums])


@pytest.mark.parametrize("keep_bytes", [1 << 30, 0])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_stages_compute_the_bits_of_the_plain_loop(stages, keep_bytes):
    run = replace(RUN, stages=stages)
    loss, total_N = staged(run, keep_bytes)
    expected_loss, expected_N = plain(run)

    assert loss == expected_loss
    assert torch.equal(total_N, expected_N)


def test_it_is_close_to_float32_and_is_not_it():
    loss, total_N = plain(RUN)
    full_loss, full_N = plain(replace(RUN, precision="full"))

    assert total_N.dtype == torch.float32
    assert loss != full_loss
    assert loss == pytest.approx(full_loss, rel=5e-3)
    assert torch.nn.functional.cosine_similarity(total_N, full_N, dim=0) > 0.999


def changed_by(run: RunConfig, change) -> None:
    """A stage that has computed computes with other weights after `change`, as a new one does."""
    engine = torch_engine(run, 0, CPU, 0, piece_values=256)
    engine.weights.reset(draw=True)
    stage = engine.stage
    before = stage.evaluate(TOKENS_BS, {})["x"]
    change(engine)
    after = stage.evaluate(TOKENS_BS, {})["x"]
    flat = stage._flat
    fresh = TorchStage(run, 0, flat, 0).evaluate(TOKENS_BS, {})["x"]

    assert not torch.equal(before, after)
    assert torch.equal(after, fresh)


def updated(engine) -> None:
    reduced = engine.weights.reduction()
    reduced.reduced_N.fill_(1.0)
    engine.weights.apply(reduced, Update(1, 1.0, 0.1))


def written(engine) -> None:
    state = engine.weights.state
    for piece in range(state.pieces):
        parts = [memoryview(bytearray(b"\x3f" * size)) for size in part_sizes(state, piece)]
        state.write(piece, parts)


def followed(engine) -> None:
    state, reduced = engine.weights.state, engine.weights.reduction()
    reduced.reduced_N.fill_(1.0)
    for piece in range(state.pieces):
        state.follow(piece, state.gradient(reduced, piece), Update(1, 1.0, 0.1))


def drawn(engine) -> None:
    engine.stage._flat._run = replace(engine.stage._flat._run, seed=7)
    engine.weights.reset(draw=True)


@pytest.mark.parametrize("storage", ["full", "bf16"])
@pytest.mark.parametrize("change", [updated, written, followed, drawn])
def test_it_computes_with_the_weights_as_they_are(change, storage):
    changed_by(replace(RUN, weight_storage=storage), change)


@pytest.mark.parametrize("storage", ["full", "bf16"])
def test_a_graph_holds_no_copy_of_the_weights(storage):
    """Of wide layers and few tokens, activations are small beside the weights."""
    run = RunConfig(
        stages=2,
        precision="bf16",
        weight_storage=storage,
        model=ModelConfig(d_model=128, layers=2, heads=2, sequence_length=2),
        batch=BatchConfig(microbatches=1, rows=1),
    )
    flat = FlatParameters(run, stage_blocks(run, 0), CPU)
    flat.draw()
    stage = TorchStage(run, 0, flat, 1 << 30)
    stage.forward((0, 0), TOKENS_BS[:1, :3], {})

    assert 0 < stage._graphs.budget.kept_bytes < flat.length  # half of a copy in bfloat16


def test_other_leaves_stay_float32():
    flat = FlatParameters(RUN, range(4), CPU)
    precision = precision_of(RUN, flat)

    assert isinstance(precision, Bfloat16)
    for ours, leaf in zip(flat.parameters, precision.parameters, strict=True):
        if ours.dim() == 1:
            assert leaf is ours
        else:
            assert leaf.dtype == torch.bfloat16
            assert leaf.is_leaf
    assert isinstance(precision_of(replace(RUN, precision="full"), flat), FullPrecision)


class Pair(torch.nn.Linear):
    """Gives scores and what it was given, without and with a bundle."""

    def forward(self, x):
        tokens_BT = x["n"] if isinstance(x, dict) else x
        one_hot_BTV = torch.nn.functional.one_hot(tokens_BT, 256)
        return {"x": super().forward(one_hot_BTV.to(self.bias.dtype)), "n": tokens_BT}


@register("pairs-of-tests")
def pairs(model):
    del model
    return [Pair(256, 256), Pair(256, 256)]


def test_bundles_keep_the_dtypes_that_they_have_without_it():
    run = replace(RUN, stages=2, model=replace(MODEL, family="pairs-of-tests"))
    flat = FlatParameters(run, range(2), CPU)
    flat.draw()

    given = precision_of(run, flat).run(TOKENS_BS, None)

    assert {key: x.dtype for key, x in given.items()} == {"x": torch.float32, "n": torch.int64}
    assert staged(run, 0)[0] == plain(run)[0]


def test_what_does_not_fit_bf16_is_refused():
    with pytest.raises(ValueError, match=r"for model\.dtype float32"):
        replace(RUN, model=replace(MODEL, dtype="float64"))
    with pytest.raises(ValueError, match="spot_check_share to 0"):
        replace(RUN, spot_check_share=0.1)


def test_a_model_is_checked_in_its_precision():
    assert check_stages(RUN).problem == ""


@register("refusing-tests")
def refusing(model):
    blocks = pairs(model)

    class Refusing(Pair):
        def forward(self, x):
            if self.weight.dtype == torch.bfloat16:
                raise RuntimeError("expected scalar type Float but found BFloat16\nand more")
            return super().forward(x)

    return [blocks[0], Refusing(256, 256)]


def test_a_model_that_cannot_be_computed_so_is_named():
    run = replace(RUN, stages=2, model=replace(MODEL, family="refusing-tests"))

    assert check_stages(run).problem == (
        "it cannot be computed in bf16: RuntimeError: expected scalar type Float but found "
        "BFloat16 (test_precision.py, line 194); set run.precision to full"
    )
    assert check_stages(replace(run, precision="full")).problem == ""


def test_a_checkpoint_goes_on_in_its_own_precision():
    assert list(differences(RUN, replace(RUN, precision="full"))) == [
        "run.precision is bf16 in the checkpoint and full here"
    ]


def test_a_gradient_that_is_not_finite_adds_nothing():
    trainer = ReferenceTrainer(RUN)
    with torch.no_grad():
        trainer.flat.parameters[0].fill_(float("inf"))

    assert trainer.add_all([TOKENS_BS]) == []
    assert not trainer.flat.sum_N.any()


class Twice(torch.nn.Module):
    """A layer that uses what it is given in two products, and adds."""

    def __init__(self, width):
        super().__init__()
        self.one, self.other = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def forward(self, x):
        return x + self.one(x) * self.other(x)


@register("twice in bf16")
def twice(config):
    width = config.d_model
    ends = torch.nn.Embedding(config.vocabulary, width), torch.nn.Linear(width, config.vocabulary)
    return [ends[0], Twice(width), Twice(width), ends[1]]


def test_what_a_stage_is_given_is_rounded_for_each_of_its_uses():
    """Also at a stage's start, where it is a leaf: torch's autocast shares what leaves become."""
    run = replace(RUN, stages=4, model=replace(MODEL, family="twice in bf16"))

    assert torch.equal(staged(run, 1 << 30)[1], plain(run)[1])
