"""One step of delay: two versions of the weights, in a plain loop and in the memory of a stage."""

# ruff: noqa: N803  shapes are written at the end of names

import dataclasses

import pytest
import torch

from p2pswarm.models.compute.base import BackwardSpec, Engine, Update
from p2pswarm.models.compute.flat_parameters import CORRECTION, FlatParameters
from p2pswarm.models.compute.optimizer import optimizer_of
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.torch_weights import first_state, torch_engine
from p2pswarm.settings.config import (
    BatchConfig,
    CodecConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from p2pswarm.tensors.state_tree import root_of

MODEL = ModelConfig(d_model=8, layers=1, heads=2, sequence_length=6, dtype="float64")
PLAIN = RunConfig(
    model=MODEL,
    stages=1,
    batch=BatchConfig(microbatches=2, rows=2),
    codecs=CodecConfig(activation="raw", gradient="raw"),
)
DELAYED = dataclasses.replace(PLAIN, delay=1, delay_correction=False)
CORRECTED = dataclasses.replace(PLAIN, delay=1)
LOW = {"precision": "bf16", "weight_storage": "bf16"}
MUON = OptimizerConfig(name="muon", average_decay=0.9)
GRID = dataclasses.replace(PLAIN.codecs, averaging="int-grid")
RUNS = [
    DELAYED,
    CORRECTED,
    dataclasses.replace(CORRECTED, optimizer=MUON),
    dataclasses.replace(CORRECTED, model=dataclasses.replace(MODEL, dtype="float32"), **LOW),
    dataclasses.replace(CORRECTED, codecs=GRID),
    dataclasses.replace(DELAYED, codecs=GRID, optimizer=MUON),
]
every_run = pytest.mark.parametrize(
    "run", RUNS, ids=["plain", "corrected", "muon", "bf16", "grid", "grid_muon"]
)
CPU = torch.device("cpu")
COUNTS = BackwardSpec(counting=True, returning=False)
RATE = 1e-2
PIECE = 64


def tokens(number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 256, (2, 7), generator=generator)


def batch(step: int) -> list[torch.Tensor]:
    return [tokens(2 * step), tokens(2 * step + 1)]


def trained(run: RunConfig, steps: int) -> ReferenceTrainer:
    loop = ReferenceTrainer(run)
    for step in range(steps):
        loop.add_all(batch(step))
        loop.apply(1.0, RATE)
    return loop


def one_step(of: Engine, number: int, update: Update) -> None:
    of.of_step(number).finish(tokens(number), {}, dataclasses.replace(COUNTS, step=number))
    reduced = of.weights.reduction(number)
    reduced.reduced_N.copy_(reduced._sum_N)
    of.weights.apply(reduced, update)


def gradient(run: RunConfig, weights_N: torch.Tensor, step: int) -> torch.Tensor:
    """That of a step at given weights, by a loop that knows of no delay."""
    loop = ReferenceTrainer(dataclasses.replace(run, delay=0))
    loop.flat.params_N.detach().copy_(weights_N)
    for x in batch(step):
        loop.add(x, 0)
    return loop.flat.sum_N.clone()


@pytest.mark.parametrize("run", [DELAYED, CORRECTED], ids=["plain", "corrected"])
def test_a_step_is_computed_with_the_weights_of_one_step_before(run):
    plain = dataclasses.replace(run, delay=0)
    flat = FlatParameters(plain, range(3), CPU)
    flat.draw()
    optimizer = optimizer_of(plain.optimizer, flat)
    versions, last = [flat.params_N.clone()], None

    for step in range(5):
        reduced = gradient(plain, versions[max(step - 1, 0)], step)
        before = flat.params_N.clone()
        optimizer.step(reduced, Update(step + 1, 1.0, RATE))
        update = flat.params_N - before
        if run.delay_correction and last is not None:
            with torch.no_grad():
                flat.params_N += CORRECTION * (update - last)
        last = update
        versions.append(flat.params_N.clone())

    assert torch.equal(trained(run, 5).flat.params_N, versions[-1])


def test_the_correction_and_the_delay_each_change_the_weights():
    found = [trained(run, 3).flat.params_N for run in (PLAIN, DELAYED, CORRECTED)]

    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])
    assert torch.equal(*(trained(run, 1).flat.params_N for run in (PLAIN, CORRECTED)))


@every_run
def test_a_stage_makes_the_weights_of_the_loop_whatever_overlaps(run):
    engine = torch_engine(run, 0, CPU, 1 << 30, PIECE)
    engine.weights.reset(draw=True)
    steps = 5

    def compute(step: int, which: int) -> None:
        spec = dataclasses.replace(COUNTS, step=step, microbatch=2 * step + which)
        engine.of_step(step).finish(batch(step)[which], {}, spec)

    compute(0, 0)
    for step in range(steps):
        compute(step + 1, 0)  # beside the end of the step before
        compute(step, 1)
        reduced = engine.weights.reduction(step)
        reduced.reduced_N.copy_(reduced._sum_N)
        engine.weights.apply(reduced, Update(step + 1, 1.0, RATE))

    loop = trained(run, steps)
    within = 0.0 if run.codecs == GRID else 1e-6
    for found, wanted in zip(
        engine.weights._flat.newest(steps).state, loop.flat.state, strict=True
    ):
        assert (found.double() - wanted.double()).abs().max() <= within


def test_a_commit_moves_no_grid_of_a_step_that_has_begun():
    engine = torch_engine(RUNS[-1], 0, CPU, 1 << 30, PIECE)
    engine.weights.reset(draw=True)
    one_step(engine, 0, Update(1, 1.0, RATE))
    ahead = engine.weights._flat.of_step(2).exp_avg_sq_N
    before = ahead.clone()

    one_step(engine, 1, Update(2, 1.0, RATE))

    assert before.any()
    assert torch.equal(ahead, before)
    assert not torch.equal(engine.weights._flat.of_step(3).exp_avg_sq_N, before)


def test_a_commit_that_is_scaled_to_nothing_makes_the_next_grid_of_the_same_moments():
    engine = torch_engine(RUNS[-1], 0, CPU, 1 << 30, PIECE)
    engine.weights.reset(draw=True)
    one_step(engine, 0, Update(1, 1.0, RATE))

    one_step(engine, 1, Update(2, 0.0, RATE))

    even, odd = (engine.weights._flat.of_step(step).exp_avg_sq_N for step in (2, 3))
    assert even.any()
    assert torch.equal(even, odd)


def test_the_sums_of_two_steps_and_the_graphs_of_the_next_survive_a_commit():
    run = dataclasses.replace(CORRECTED, stages=2)
    engine = torch_engine(run, 0, CPU, 1 << 30, PIECE)
    engine.weights.reset(draw=True)
    first, ahead = engine.of_step(0), engine.of_step(1)
    spec = dataclasses.replace(COUNTS, step=1)
    given = ahead.forward((2, 0), tokens(2), {})

    first.forward((0, 0), tokens(0), {})
    first.backward((0, 0), {"x": torch.ones_like(given["x"])}, COUNTS)
    reduced = engine.weights.reduction(0)
    reduced.reduced_N.copy_(reduced._sum_N)
    engine.weights.apply(reduced, Update(1, 1.0, RATE))
    ahead.backward((2, 0), {"x": torch.ones_like(given["x"])}, spec)

    fresh = torch_engine(run, 0, CPU, 1 << 30, PIECE)
    fresh.weights.reset(draw=True)
    fresh.of_step(1).forward((2, 0), tokens(2), {})
    fresh.of_step(1).backward((2, 0), {"x": torch.ones_like(given["x"])}, spec)
    assert not engine.weights.reduction(0)._sum_N.any()
    assert torch.equal(engine.weights.reduction(1)._sum_N, fresh.weights.reduction(1)._sum_N)


@every_run
@pytest.mark.parametrize("version", [1, 2])
def test_a_state_piece_by_piece_goes_on_with_the_same_bits(run, version):
    def engine():
        return torch_engine(run, 0, CPU, 1 << 30, PIECE)

    def step(of, number):
        of.of_step(number).finish(tokens(number), {}, dataclasses.replace(COUNTS, step=number))
        reduced = of.weights.reduction(number)
        reduced.reduced_N.copy_(reduced._sum_N)
        return reduced

    source, copy = engine(), engine()
    source.weights.reset(draw=True)
    for number in range(version):
        source.weights.apply(step(source, number), Update(number + 1, 1.0, RATE))
    late = range(0, source.state.pieces, 2)
    for piece in late:  # these follow the next commit by themselves
        parts = [source.state.read(t, piece) for t in range(source.state.tensors)]
        copy.state.write(piece, parts, version)
    reduced, update = step(source, version), Update(version + 1, 1.0, RATE)
    gradients = {piece: source.state.gradient(reduced, piece) for piece in late}
    source.weights.apply(reduced, update)
    for piece in range(source.state.pieces):
        if piece in gradients:
            copy.state.follow(piece, gradients[piece], update)
        else:
            parts = [source.state.read(t, piece) for t in range(source.state.tensors)]
            copy.state.write(piece, parts, version + 1)

    assert copy.weights.hashes() == source.weights.hashes()
    for of in (source, copy):
        of.weights.apply(step(of, version + 1), Update(version + 2, 1.0, RATE))
    assert copy.weights.hashes() == source.weights.hashes()


@every_run
def test_the_first_state_is_known_without_a_stage(run):
    engine = torch_engine(run, 0, CPU, 1 << 30)
    engine.weights.reset(draw=True)

    *_, digest = first_state(run, 0)

    assert digest == root_of(engine.weights.hashes())


def test_a_held_out_batch_is_for_the_newest_weights():
    loop = trained(CORRECTED, 3)
    weights = loop.flat.params_N.clone()

    alone = ReferenceTrainer(PLAIN)
    alone.flat.params_N.detach().copy_(weights)

    assert loop.evaluate(tokens(9)) == alone.evaluate(tokens(9))


def test_a_gradient_that_is_scaled_to_nothing_leaves_the_weights():
    loop = trained(CORRECTED, 2)
    before = loop.flat.params_N.clone()

    loop.add_all(batch(2))
    loop.apply(0.0, RATE)

    assert torch.equal(loop.flat.params_N, before)


def test_a_delay_of_steps_that_have_one_microbatch_is_refused_in_one_line():
    with pytest.raises(ValueError, match="microbatches is 1"):
        RunConfig(delay=1, batch=BatchConfig(microbatches=1))
