"""Seam 3: what a server may rely on, whoever computes: torch, an emulation, or a simulation."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from p2pswarm.base.errors import NotServing
from p2pswarm.models.compute.base import BackwardSpec, CountPermit, Engine, Update
from p2pswarm.models.compute.stage_emulator import emulated_engine
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.run.averaging.shards import Span
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig, RunConfig
from p2pswarm.sim.compute import Cost, Processor, sim_engine
from p2pswarm.tensors.codecs.base import DTYPES, TORCH

RUN = RunConfig(
    stages=3,
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=12),
    batch=BatchConfig(microbatches=2, rows=3),
    codecs=CodecConfig(averaging="raw"),
)
KEY = (0, 0)
BOTH = BackwardSpec(counting=True, returning=True)
PIECE_VALUES = 512


def torch_made(stage: int) -> Engine:
    return torch_engine(RUN, stage, torch.device("cpu"), 1 << 30, PIECE_VALUES)


def bf16_made(stage: int) -> Engine:
    run = dataclasses.replace(RUN, precision="bf16", weight_storage="bf16")
    return torch_engine(run, stage, torch.device("cpu"), 1 << 30, PIECE_VALUES)


def emulated_made(stage: int) -> Engine:
    return emulated_engine(RUN, stage, 0.0, lambda _seconds: None, PIECE_VALUES)


def sim_made(stage: int) -> Engine:
    return sim_engine(RUN, stage, Cost(), Processor(1.0))


MADE = {"torch": torch_made, "bf16": bf16_made, "emulated": emulated_made, "sim": sim_made}


@pytest.fixture(params=MADE.values(), ids=MADE)
def engines(request):
    made = [request.param(stage) for stage in range(RUN.stages)]
    for engine in made:
        engine.weights.reset(draw=True)
    return made


def tokens(number: int) -> torch.Tensor:
    """Microbatch `number`; its first bytes are its number, which a simulation counts by."""
    drawn = np.random.default_rng(number).integers(0, 256, (3, 13), dtype=np.uint8)
    drawn[0, :8] = np.frombuffer(number.to_bytes(8), np.uint8)
    return torch.from_numpy(drawn)


def through(engines, number: int, specs=(BOTH, BOTH, BOTH)) -> float:
    """One microbatch up and down; its loss."""
    first, middle, last = (engine.stage for engine in engines)
    key = number, 0
    onward = middle.forward(key, tokens(number), first.forward(key, tokens(number), {}))
    finished = last.finish(tokens(number), onward, specs[2])
    back = middle.backward(key, finished.gradient, specs[1])
    first.backward(key, back, specs[0])
    return finished.loss


def committed(engine: Engine, version: int) -> None:
    """Make a version of the sum as it is, as the only member of a stage does."""
    sums = engine.weights.reduction()
    sums.reduce(Span(0, sums.length), [None])
    engine.weights.apply(sums, Update(version, 1.0, 1e-3))


def test_bundles_are_what_the_engine_says(engines):
    first, middle, last = engines
    given = first.stage.forward(KEY, tokens(0), {})
    onward = middle.stage.forward(KEY, tokens(0), given)
    finished = last.stage.finish(tokens(0), onward, BOTH)
    back = middle.stage.backward(KEY, finished.gradient, BOTH)

    assert first.takes.keys == last.gives.keys == ()
    for bundle, spec in (
        (given, first.gives),
        (onward, middle.gives),
        (finished.gradient, last.takes.gradient()),
        (back, middle.takes.gradient()),
    ):
        assert tuple(bundle) == spec.names
        layouts = [(DTYPES[x.dtype], tuple(x.shape)) for x in bundle.values()]
        assert layouts == [(key.layout.dtype, tuple(key.layout.shape)) for key in spec.keys]
        assert all(x.isfinite().all() for x in bundle.values())
    assert math.isfinite(finished.loss)


def test_what_was_kept_is_given_once_and_never_after_it_was_dropped(engines):
    _, middle, last = engines
    given = last.stage.finish(tokens(0), zeros(last.takes), BOTH).gradient
    for number in range(3):
        middle.stage.forward((number, 0), tokens(number), zeros(middle.takes))

    middle.stage.backward((0, 0), given, BOTH)
    middle.stage.drop([(1, 0), (7, 7)])

    for number in (0, 1, 7):
        with pytest.raises(NotServing):
            middle.stage.backward((number, 0), given, BOTH)
    middle.stage.drop(None)
    with pytest.raises(NotServing):
        middle.stage.backward((2, 0), given, BOTH)


def test_a_permit_that_was_withdrawn_leaves_the_sum_as_it_was(engines):
    through(engines, 0)
    before = [sums_of(engine) for engine in engines]
    specs = []
    for _ in engines:
        permit = CountPermit()
        assert permit.withdraw()
        specs.append(BackwardSpec(counting=True, returning=True, permit=permit))

    through(engines, 1, specs)

    assert all(torch.equal(a, sums_of(b)) for a, b in zip(before, engines, strict=True))
    assert not any(spec.added for spec in specs)


def test_who_counts_takes_the_permit_and_who_does_not_adds_nothing(engines):
    permits = [CountPermit() for _ in engines]
    before = [sums_of(engine) for engine in engines]
    plain = BackwardSpec(counting=False, returning=True)

    through(engines, 0, [plain] * 3)
    assert all(torch.equal(a, sums_of(b)) for a, b in zip(before, engines, strict=True))

    through(engines, 0, [BackwardSpec(counting=True, returning=True, permit=p) for p in permits])
    assert all(permit.taken for permit in permits)
    assert not any(torch.equal(a, sums_of(b)) for a, b in zip(before, engines, strict=True))
    assert all(engine.stage.gradient_norm > 0 for engine in engines)


def test_the_order_in_which_microbatches_come_leaves_no_trace_in_a_commit(engines):
    """Up to rounding, of which torch's sums have some: the others' have none."""
    sums = []
    for order in ((0, 1), (1, 0)):
        for engine in engines:
            engine.weights.reset(draw=True)
        for number in order:
            through(engines, number)
        sums.append([sums_of(engine) for engine in engines])

    for one, other in zip(*sums, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-7)


def test_replicas_that_apply_the_same_update_have_the_same_hashes(engines):
    hashes = []
    for _ in range(2):
        for engine in engines:
            engine.weights.reset(draw=True)
        hashes.append([engine.weights.hashes() for engine in engines])
        for number in range(2):
            through(engines, number)
        for engine in engines:
            committed(engine, 1)
        hashes.append([engine.weights.hashes() for engine in engines])

    assert hashes[:2] == hashes[2:]
    assert all(a != b for a, b in itertools.pairwise(hashes))
    assert not any(sums_of(engine).any() for engine in engines), "a commit empties the sum"


def test_a_state_that_was_written_piece_by_piece_is_the_one_that_was_read(engines):
    source = engines[1]
    through(engines, 0)
    through(engines, 1)
    committed(source, 1)
    version_1 = source.weights.hashes()
    state = source.state
    pieces = [
        [bytearray(state.read(tensor, piece)) for tensor in range(state.tensors)]
        for piece in range(state.pieces)
    ]

    source.weights.reset(draw=True)
    assert source.weights.hashes() != version_1
    for number, parts in enumerate(pieces):
        state.write(number, [memoryview(part) for part in parts])

    assert source.weights.hashes() == version_1


def test_an_evaluation_keeps_nothing_and_counts_nothing(engines):
    first, middle, last = engines
    before = [sums_of(engine) for engine in engines]

    given = first.stage.evaluate(tokens(0), {})
    loss = last.stage.evaluate(tokens(0), middle.stage.evaluate(tokens(0), given))

    assert isinstance(loss, float)
    assert all(torch.equal(a, sums_of(b)) for a, b in zip(before, engines, strict=True))
    with pytest.raises(NotServing):
        first.stage.backward(KEY, zeros(first.gives), BOTH)


def zeros(spec):
    return {
        key.name: torch.zeros(key.layout.shape, dtype=TORCH[key.layout.dtype]) for key in spec.keys
    }


def sums_of(engine: Engine) -> torch.Tensor:
    """A copy of the sum, as its average would be if nobody else had one."""
    sums = engine.weights.reduction()
    sums.reduce(Span(0, sums.length), [None])
    return sums.reduced_N.clone()
