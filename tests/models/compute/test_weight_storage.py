"""Weights that are kept in bfloat16: the same bits whatever the cut, and nothing small is lost."""
# ruff: noqa: N806  shapes are written at the end of names

from dataclasses import replace

import pytest
import torch

from p2pswarm.checkpoint.compatibility import differences
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.check.model_check import check_stages
from p2pswarm.models.compute.base import BackwardSpec, Update
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.optimizer import optimizer_of
from p2pswarm.models.compute.precision import precision_of
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.torch_sums import TorchSums
from p2pswarm.models.compute.torch_weights import TorchState, first_state, torch_engine
from p2pswarm.settings.config import BatchConfig, ModelConfig, OptimizerConfig, RunConfig

CPU = torch.device("cpu")
ALL = BackwardSpec(counting=True, returning=True)
MODEL = ModelConfig(d_model=32, layers=2, heads=2, sequence_length=12)
RUN = RunConfig(
    stages=2,
    precision="bf16",
    weight_storage="bf16",
    model=MODEL,
    batch=BatchConfig(microbatches=1, rows=3),
)
WIDE = replace(RUN, weight_storage="full")
OPTIMIZERS = [
    OptimizerConfig(),
    OptimizerConfig(average_decay=0.9),
    OptimizerConfig(name="muon", average_decay=0.9),
]


def tokens(step: int) -> torch.Tensor:
    return torch.randint(0, 256, (3, 13), generator=torch.Generator().manual_seed(step))


def flat_of(run: RunConfig, blocks=range(4)) -> FlatParameters:
    flat = FlatParameters(run, blocks, CPU)
    flat.draw()
    return flat


def gradient_of(flat: FlatParameters, step: int) -> torch.Tensor:
    """Of each parameter by its name and the step, whatever stage it is in; zero between them."""
    gradient_N = torch.zeros(flat.length)
    for t in flat.layout.tensors:
        seed = 1000 * step + sum(t.name.encode())
        drawn = torch.randn(t.stop - t.start, generator=torch.Generator().manual_seed(seed))
        gradient_N[t.start : t.stop] = drawn
    return gradient_N


def stepped(flat: FlatParameters, run: RunConfig, steps=range(1, 4)) -> FlatParameters:
    optimizer = optimizer_of(run.optimizer, flat)
    for step in steps:
        optimizer.step(gradient_of(flat, step), Update(step, 0.5, 1e-3))
    return flat


def named(*flats: FlatParameters) -> dict[str, tuple[torch.Tensor, ...]]:
    """The state of each parameter, by its name."""
    return {
        t.name: tuple(x_N[t.start : t.stop] for x_N in flat.state)
        for flat in flats
        for t in flat.layout.tensors
    }


def assert_alike(one, other) -> None:
    assert one.keys() == other.keys()
    for name, state in one.items():
        assert all(torch.equal(a, b) for a, b in zip(state, other[name], strict=True)), name


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_weights_take_two_bytes_and_all_else_what_it_took(decay):
    flat = flat_of(replace(RUN, optimizer=OptimizerConfig(average_decay=decay)))

    kept, *others = flat.state
    assert kept.dtype == torch.bfloat16
    assert {x_N.dtype for x_N in (*others, flat.sum_N)} == {torch.float32}
    assert all(p.dtype == torch.bfloat16 for block in flat.blocks for p in block.parameters())
    assert len(others) == (3 if decay else 2)


def test_first_weights_are_those_of_float32_rounded_once_to_the_nearest():
    kept, wide = flat_of(RUN), flat_of(WIDE)

    assert torch.equal(kept.params_N, wide.params_N.to(torch.bfloat16))
    assert not any(x_N.any() for x_N in (kept.exp_avg_N, kept.exp_avg_sq_N, kept.sum_N))


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_a_trainer_knows_the_digest_of_first_weights(decay, stage):
    run = replace(RUN, optimizer=OptimizerConfig(average_decay=decay))

    *_, digest = first_state(run, stage)

    assert digest == flat_of(run, stage_blocks(run, stage)).digest()


def test_blocks_compute_what_they_compute_from_float32_weights_of_these_values():
    kept, wide = ReferenceTrainer(RUN), ReferenceTrainer(WIDE)
    with torch.no_grad():
        wide.flat.params_N.copy_(kept.flat.params_N)

    for step in range(2):
        assert kept.add(tokens(step), step) == wide.add(tokens(step), step)
    assert torch.equal(kept.flat.sum_N, wide.flat.sum_N)


def test_graphs_begin_at_the_weights_themselves_and_vectors_have_a_copy_in_float32():
    flat = flat_of(RUN)
    precision = precision_of(RUN, flat)

    for ours, leaf in zip(flat.parameters, precision.parameters, strict=True):
        assert leaf.is_leaf
        assert leaf.requires_grad
        if ours.dim() == 1:
            assert leaf.dtype == torch.float32
            assert torch.equal(leaf, ours.float())
        else:
            assert leaf.data_ptr() == ours.data_ptr()


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stages_train_the_bits_of_the_plain_loop(stages):
    run = replace(RUN, stages=stages)
    plain = ReferenceTrainer(run, rounded=False)
    engines = [torch_engine(run, n, CPU, 1 << 30) for n in range(stages)]
    for engine in engines:
        engine.weights.reset(draw=True)
    for step in range(3):
        plain.add(tokens(step), step)
        plain.apply(0.5, 1e-3)
        bundle = {}
        for engine in engines[:-1]:
            bundle = engine.stage.forward((step, 0), tokens(step), bundle)
        back = engines[-1].stage.finish(tokens(step), bundle, ALL).gradient
        for engine in reversed(engines[:-1]):
            back = engine.stage.backward((step, 0), back, ALL)
        for engine in engines:
            reduced = engine.weights.reduction()
            reduced.reduced_N.copy_(reduced._sum_N)
            engine.weights.apply(reduced, Update(step + 1, 0.5, 1e-3))

    assert_alike(named(*(engine.weights._flat for engine in engines)), named(plain.flat))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("cut", [(2, 4), (1, 2, 3, 4)])
def test_a_cut_into_stages_changes_no_bit(cut, optimizer):
    run = replace(RUN, optimizer=optimizer)

    parts = [stepped(flat_of(run, range(a, b)), run) for a, b in zip((0, *cut), cut, strict=False)]

    assert_alike(named(*parts), named(stepped(flat_of(run), run)))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pieces_of_different_versions_become_what_commits_make_of_the_whole(optimizer):
    run = replace(RUN, optimizer=optimizer)
    flat, other = flat_of(run), flat_of(run)
    rule = optimizer_of(run.optimizer, flat)
    state, copy = (TorchState(x, [optimizer_of(run.optimizer, x)], 1000) for x in (flat, other))
    updates = [Update(n, 0.5, 1e-3) for n in (1, 2, 3)]
    sums = [TorchSums(flat.sum_N, "raw") for _ in updates]
    came = {}
    for version, update in enumerate(updates):
        for piece in range(version, state.pieces, 3):
            came[piece] = version, [state.read(t, piece) for t in range(state.tensors)]
        sums[version].reduced_N.copy_(gradient_of(flat, update.number))
        rule.step(sums[version].reduced_N, update)
    for piece, (version, parts) in came.items():
        copy.write(piece, parts)
        for step in range(version, 3):
            copy.follow(piece, copy.gradient(sums[step], piece), updates[step])

    assert state.pieces > 3
    assert other.digest() == flat.digest()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_that_is_done_again_gives_the_same_bits(optimizer):
    """As after a void, by another replica, or from a checkpoint."""
    run = replace(RUN, optimizer=optimizer)
    flat, replica = stepped(flat_of(run), run), flat_of(run)
    for place, value in zip(replica.state, stepped(flat_of(run), run).state, strict=True):
        place.copy_(value)

    for each in (flat, replica):
        stepped(each, run, range(4, 6))

    assert flat.digest() == replica.digest()


def test_an_update_of_scale_zero_rounds_nothing():
    flat = flat_of(RUN)
    before = flat.digest()

    optimizer_of(RUN.optimizer, flat).step(gradient_of(flat, 1), Update(1, 0.0, 1e-3))

    assert flat.digest() == before


def test_updates_that_are_smaller_than_a_bfloat16_can_tell_are_not_lost():
    """400 steps of a 2,500th each: to the nearest, none of them would change a weight."""
    run = replace(RUN, optimizer=OptimizerConfig(weight_decay=0.0))
    flat, wide = flat_of(run), flat_of(replace(run, weight_storage="full"))
    for each in (flat, wide):
        each.params_N.fill_(1.0)
    rules = [optimizer_of(run.optimizer, each) for each in (flat, wide)]
    one_N = torch.ones(flat.length)
    for step in range(1, 401):
        for rule in rules:
            rule.step(one_N, Update(step, 1.0, 4e-4))

    moved, expected = (1.0 - each.params_N.double().mean().item() for each in (flat, wide))
    assert expected == pytest.approx(0.16, rel=1e-3)
    assert moved == pytest.approx(expected, rel=0.01)
    assert torch.tensor(1.0 - 4e-4).to(torch.bfloat16) == 1.0


def test_the_average_of_the_weights_is_float32_and_of_those_that_were_kept():
    run = replace(RUN, optimizer=OptimizerConfig(average_decay=0.75))
    versions = [stepped(flat_of(run), run, range(1, n)).params_N.double() for n in (1, 2, 3)]

    average_N = stepped(flat_of(run), run, range(1, 3)).average_N

    zero_N, one_N, two_N = versions
    expected_N = 0.75 * (0.75 * zero_N + 0.25 * one_N) + 0.25 * two_N
    assert torch.allclose(average_N.double(), expected_N, rtol=1e-6, atol=1e-9)
    assert not torch.equal(average_N, average_N.to(torch.bfloat16).float())


def test_it_needs_blocks_that_compute_in_bfloat16():
    with pytest.raises(ValueError, match="saves nothing where blocks compute from a float32 copy"):
        replace(RUN, precision="full")


def test_a_checkpoint_goes_on_as_it_was_kept():
    assert list(differences(RUN, WIDE)) == [
        "run.weight_storage is bf16 in the checkpoint and full here"
    ]


def test_a_model_is_checked_as_it_is_kept():
    assert check_stages(RUN).problem == ""


def test_a_gradient_that_is_not_finite_adds_nothing():
    trainer = ReferenceTrainer(RUN)
    with torch.no_grad():
        trainer.flat.parameters[0].fill_(float("inf"))

    assert trainer.add_all([tokens(0)]) == []
    assert not trainer.flat.sum_N.any()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_tied_tensor_is_rounded_alike_at_both_ends_and_where_one_stage_has_both(optimizer):
    """One name, so one chance; and the first weights of one stage have it once."""
    run = replace(RUN, model=replace(MODEL, tie=True, vocabulary=257), optimizer=optimizer)
    whole = stepped(flat_of(run), run)
    ends = [stepped(flat_of(run, blocks), run) for blocks in (range(2), range(2, 4))]

    assert whole.tied is None
    tied = [flat.layout.tensors[at].name for flat, at in zip(ends, (0, -1), strict=True)]
    assert len(set(tied)) == 1
    assert_alike(named(ends[0]) | named(ends[1]), named(whole))
    assert_alike(named(ends[1]) | named(ends[0]), named(whole))


def test_the_first_digest_of_a_tied_stage_is_that_of_its_weights():
    run = replace(RUN, model=replace(MODEL, tie=True, vocabulary=257))
    for stages in (1, 2):
        cut = replace(run, stages=stages)
        for stage in range(stages):
            *_, digest = first_state(cut, stage)
            assert digest == flat_of(cut, stage_blocks(cut, stage)).digest()
