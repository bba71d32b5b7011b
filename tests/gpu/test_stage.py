"""A stage on a GPU: the same losses as on the CPU, and weights that never drift apart."""

import warnings
from dataclasses import replace

import pytest
import torch

from p2pswarm.models.compute.autograd_graphs import GraphLimits
from p2pswarm.models.compute.base import BackwardSpec, Update
from p2pswarm.models.compute.flat_parameters import FlatParameters, piece_hashes
from p2pswarm.models.compute.low_rank import low_rank_of
from p2pswarm.models.compute.optimizer import AdamW
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.rounding.gradient_grid import GradientGrid, Leaf
from p2pswarm.models.rounding.stochastic_round import chances, rounded
from p2pswarm.run.averaging.shards import Span
from p2pswarm.settings.config import (
    BatchConfig,
    CodecConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from p2pswarm.tensors.state_tree import piece_spans

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RUN = RunConfig(
    stages=3,
    model=ModelConfig(d_model=64, layers=3, heads=2, sequence_length=32),
    batch=BatchConfig(microbatches=2),
)
ALL = BackwardSpec(counting=True, returning=True)
DEVICES = (torch.device("cpu"), torch.device("cuda"))


def gradient(length, step):
    return torch.randn(length, generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize("average_decay", [0.0, 0.99])
@pytest.mark.parametrize("storage", ["full", "bf16"])
def test_the_optimizer_gives_the_same_bits_on_every_device(storage, average_decay):
    optimizer = OptimizerConfig(average_decay=average_decay)
    run = replace(RUN, optimizer=optimizer, precision="bf16", weight_storage=storage)
    digests = []
    for device in DEVICES:
        flat = FlatParameters(run, range(1, 3), device)
        flat.params_N.copy_(gradient(flat.length, 0))
        optimizer = AdamW(run.optimizer, flat)
        for step in range(1, 30):
            optimizer.step(gradient(flat.length, step).to(device), Update(step, 0.7, 1e-3))
        digests.append(flat.digest())

    assert digests[0] == digests[1]


def test_gradients_are_rounded_to_the_same_grid_on_every_device():
    run = replace(RUN, codecs=CodecConfig(averaging="int-grid"))
    sums = []
    for device in DEVICES:
        flat = FlatParameters(run, range(1, 3), device)
        flat.exp_avg_sq_N.copy_(gradient(flat.length, 0).square() * 1e-6)
        grid = GradientGrid(run, flat.layout, flat.exp_avg_sq_N)
        for microbatch in range(4):
            part = (gradient(flat.length, microbatch + 1) * 1e-3).to(device)
            parts = [part[t.start : t.stop].view(t.shape) for t in flat.layout.tensors]
            leaves = [Leaf(1, place) for place in range(len(parts))]
            squares = [x.square().sum().item() for x in parts]
            grid.add(leaves, parts, flat.sums, squares, (3, microbatch))
        sums.append(flat.sum_N.cpu())

    assert torch.equal(sums[0].view(torch.int32), sums[1].view(torch.int32))


def test_factors_make_the_same_gradient_on_every_device():
    run = replace(RUN, codecs=CodecConfig(averaging="powersgd"))
    found = []
    for device in DEVICES:
        flat = FlatParameters(run, range(5), device)
        flat.draw()
        rules = low_rank_of(run, flat.layout, flat.exp_avg_N)
        first, second = (
            gradient(length, length).to(device)
            for length in (rules.first_length, rules.second_length)
        )
        rules.restore(first, rules.left(first), second, flat.sum_N)
        found.append(flat.sum_N.cpu())

    assert torch.equal(found[0].view(torch.int32), found[1].view(torch.int32))


@pytest.mark.parametrize("storage", ["full", "bf16"])
def test_first_weights_are_the_same_on_every_device(storage):
    run = replace(RUN, precision="bf16", weight_storage=storage)
    flats = [FlatParameters(run, range(5), device) for device in DEVICES]
    for flat in flats:
        flat.draw()

    assert flats[0].digest() == flats[1].digest()


def test_a_microbatch_gives_nearly_the_same_loss_and_gradient_on_every_device():
    tokens = torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(1))
    sums, losses = [], []
    for device in DEVICES:
        engines = [torch_engine(RUN, s, device, 1 << 30) for s in range(3)]
        for engine in engines:
            engine.weights.reset(draw=True)
        first, middle, last = (engine.stage for engine in engines)
        x = first.forward((0, 0), tokens, {})
        y = middle.forward((0, 0), tokens, x)
        finish = last.finish(tokens, y, ALL)
        middle.backward((0, 0), finish.gradient, ALL)
        reduced = engines[1].weights.reduction()
        reduced.reduce(Span(0, reduced.length), [None])
        sums.append(reduced.reduced_N.cpu())
        losses.append(finish.loss)

    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert (sums[0] - sums[1]).norm() <= 1e-4 * sums[0].norm()


@pytest.mark.filterwarnings("default")
def test_a_call_waits_for_the_gpu_once_at_its_end():
    """torch warns of a copy to the host that is waited for, and of a stream that is."""
    tokens = torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(1))
    _, middle, last = (torch_engine(RUN, s, DEVICES[1], 1 << 30).stage for s in range(3))
    x = {"x": torch.randn(4, 32, 64, device="cuda")}

    def calls(key):
        yield lambda: middle.forward(key, tokens, x)
        yield lambda: last.finish(tokens, x, ALL)
        yield lambda: middle.backward(key, x, ALL)

    for call in calls((0, 0)):  # the first measures, and makes what torch makes once
        call()
    for call in calls((1, 0)):
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.cuda.current_stream().query()  # all that was launched is done
        assert sum("synchroniz" in str(each.message) for each in told) == 1


def test_bfloat16_gives_nearly_the_loss_of_float32():
    run = replace(RUN, stages=1, precision="bf16")
    tokens = torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(1))
    losses = []
    for each in (run, replace(run, precision="full")):
        engine = torch_engine(each, 0, DEVICES[1], 1 << 30)
        engine.weights.reset(draw=True)
        losses.append(engine.stage.finish(tokens, {}, ALL).loss)

    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)


@pytest.mark.parametrize("precision", ["full", "bf16"])
def test_a_graph_made_again_gives_the_same_gradient(precision):
    tokens = torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(1))
    x = torch.randn(4, 32, 64, generator=torch.Generator().manual_seed(2))
    gradients = []
    for keep_bytes in (1 << 30, 0):
        engine = torch_engine(replace(RUN, precision=precision), 1, DEVICES[1], keep_bytes)
        engine.weights.reset(draw=True)
        engine.stage.forward((0, 0), tokens, {"x": x})
        gradients.append(engine.stage.backward((0, 0), {"x": x}, ALL)["x"].cpu())

    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-6)


def test_rounding_by_chance_gives_the_same_bits_on_every_device():
    """Also of what is near infinity, or is none."""
    x = torch.randn(1 << 16, generator=torch.Generator().manual_seed(1)) * 1e38
    x[:4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 3.4e38])
    found = [rounded(x.to(device), chances(7, (5, 5 + len(x)), device)).cpu() for device in DEVICES]

    assert torch.equal(found[0].view(torch.int16), found[1].view(torch.int16))


@pytest.mark.parametrize("precision", ["full", "bf16"])
def test_block_by_block_gives_the_same_gradient_in_less_memory(precision):
    model = replace(RUN.model, layers=8, sequence_length=256)
    run = replace(RUN, cut=(1, 8, 1), model=model, precision=precision)
    tokens = torch.randint(0, 256, (4, 257), generator=torch.Generator().manual_seed(1))
    x = {"x": torch.randn(4, 256, 64, generator=torch.Generator().manual_seed(2))}
    gradients, peaks = [], []
    for recompute in ("stage", "block"):
        graphs = GraphLimits(1 << 34, recompute=recompute)
        engine = torch_engine(run, 1, DEVICES[1], graphs)
        engine.weights.reset(draw=True)
        for number in range(2):  # the first measures, and makes what torch makes once
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            engine.stage.forward((number, 0), tokens, x)
            gradients.append(engine.stage.backward((number, 0), x, ALL)["x"].cpu())
            peaks.append(torch.cuda.max_memory_allocated() - before)

    assert torch.allclose(gradients[1], gradients[3], rtol=1e-4, atol=1e-6)
    assert peaks[3] < peaks[1] / 2


def test_a_gpu_without_memory_goes_block_by_block_and_serves_on():
    model = replace(RUN.model, layers=8, sequence_length=256)
    run = replace(RUN, cut=(1, 8, 1), model=model)
    tokens = torch.randint(0, 256, (4, 257), generator=torch.Generator().manual_seed(1))
    x = {"x": torch.randn(4, 256, 64, generator=torch.Generator().manual_seed(2))}
    engine = torch_engine(run, 1, DEVICES[1], 1 << 34)
    engine.weights.reset(draw=True)
    stage = engine.stage
    stage.forward((0, 0), tokens, x)
    whole_bytes = stage._graphs.budget.kept_bytes
    expected = stage.backward((0, 0), x, ALL)["x"].cpu()
    torch.cuda.empty_cache()

    total_bytes = torch.cuda.get_device_properties(0).total_memory
    room_bytes = torch.cuda.memory_reserved() + whole_bytes // 2
    torch.cuda.set_per_process_memory_fraction(room_bytes / total_bytes)
    try:
        stage.forward((1, 0), tokens, x)
        found = stage.backward((1, 0), x, ALL)["x"].cpu()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert stage._graphs.budget.keep_bytes > 0


def test_a_digest_is_that_of_the_cpu_and_is_taken_after_the_update():
    """Page-locked memory, streams aside, and an update that is only launched when it begins."""
    digests = []
    for device in DEVICES:
        flat = FlatParameters(replace(RUN, cut=(1, 2, 2)), range(1, 3), device)
        flat.params_N.copy_(gradient(flat.length, 0))
        if device.type == "cuda":
            torch.cuda._sleep(500_000_000)
        flat.params_N.mul_(0.5)
        digests.append(piece_hashes(flat.state, piece_spans(flat.length, 1 << 10)))

    assert digests[0] == digests[1]
