"""Tests of `models/compute/autograd_graphs.py`."""

import itertools
import math
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from core import core_of
from models.compute.test_torch_stage import without_memory
from models.families import family_run
from models.harness import Between, End, Start, run_of
from torch import nn
from torch.utils.checkpoint import CheckpointError

from p2pswarm.base.errors import Refused
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.autograd_graphs import (
    GraphBudget,
    GraphKind,
    GraphLimits,
    block_made_again,
)
from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.models.compute.compiler import compiled_precision
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.torch_stage import TorchStage
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

SHAPE, OTHER = (4, 33), (2, 33)


def budget(keep_bytes=100, room_bytes=50.0, recompute="auto"):
    return GraphBudget(GraphLimits(keep_bytes, room_bytes, recompute))


def kinds(of, shape=SHAPE):
    return of.kind(shape, of.keep_bytes), of.kind(shape, of.room_bytes)


def test_a_graph_of_unknown_size_is_made_whole_up_to_the_limits():
    rules = budget()

    assert kinds(rules) == (GraphKind.WHOLE, GraphKind.WHOLE)
    assert rules.most_bytes(GraphKind.WHOLE, 100) == 100


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (50, (GraphKind.WHOLE, GraphKind.WHOLE)),
        (51, (GraphKind.WHOLE, GraphKind.BLOCKS)),
        (101, (GraphKind.BLOCKS, GraphKind.BLOCKS)),
    ],
)
def test_a_graph_that_was_measured_is_whole_where_it_fits(size_bytes, expected):
    rules = budget()
    rules.measured(SHAPE, GraphKind.WHOLE, size_bytes)

    assert kinds(rules) == expected
    assert kinds(rules, OTHER) == (GraphKind.WHOLE, GraphKind.WHOLE)


def test_a_graph_that_was_broken_off_is_made_block_by_block_up_to_that_limit():
    rules = budget(keep_bytes=50, room_bytes=100)
    rules.broken_off(SHAPE, 50)
    assert kinds(rules) == (GraphKind.BLOCKS, GraphKind.WHOLE)

    rules.broken_off(SHAPE, 100)
    assert kinds(rules) == (GraphKind.BLOCKS, GraphKind.BLOCKS)


def test_what_is_made_block_by_block_is_never_broken_off():
    rules = budget()

    assert rules.most_bytes(GraphKind.BLOCKS, 100) == math.inf


@pytest.mark.parametrize(
    ("recompute", "kind"), [("stage", GraphKind.WHOLE), ("block", GraphKind.BLOCKS)]
)
def test_what_was_set_is_done_whatever_fits(recompute, kind):
    rules = budget(0, 0.0, recompute)
    rules.measured(SHAPE, GraphKind.WHOLE, 1)

    assert kinds(rules) == (kind, kind)
    assert rules.most_bytes(kind, 100) == math.inf
    assert not rules.make_smaller()
    assert rules.always_by_block == (recompute == "block")


def test_each_way_has_a_size_of_its_own():
    rules = budget()
    rules.measured(SHAPE, GraphKind.BLOCKS, 7)

    assert rules.size_bytes(SHAPE, GraphKind.BLOCKS) == 7
    assert rules.size_bytes(SHAPE, GraphKind.WHOLE) is None


def test_graphs_are_kept_up_to_the_limit():
    rules = budget()
    rules.kept_bytes = 60

    assert rules.fits(40)
    assert not rules.fits(41)


def test_without_memory_half_of_what_was_held_is_kept_from_then_on():
    rules = budget()
    rules.kept_bytes = 60
    rules.given_up(60)
    assert (rules.keep_bytes, rules.kept_bytes) == (30, 0)

    rules.given_up(1_000)
    assert rules.keep_bytes == 30


def test_without_memory_for_a_whole_graph_none_is_made_any_more():
    rules = budget()
    rules.measured(SHAPE, GraphKind.WHOLE, 1)

    assert rules.make_smaller()
    assert kinds(rules) == kinds(rules, OTHER) == (GraphKind.BLOCKS, GraphKind.BLOCKS)
    assert not rules.make_smaller()


CPU = torch.device("cpu")
ALL = BackwardSpec(counting=True, returning=True)
PASSING = BackwardSpec(counting=False, returning=True)
PLENTY = 1 << 40
WHOLE = GraphLimits(PLENTY, recompute="stage")
BY_BLOCK = {
    "kept": GraphLimits(PLENTY, recompute="block"),
    "made of the input": GraphLimits(0, recompute="block"),
    "because it does not fit": GraphLimits(0, room_bytes=0.0),
}
GPT = RunConfig(
    stages=2,
    model=ModelConfig(d_model=16, layers=5, heads=2, sequence_length=12),
    batch=BatchConfig(microbatches=2, rows=3),
)


class Recurrent(nn.Module):
    """A block with a state that goes through the row, and dropout."""

    def __init__(self, dropout):
        super().__init__()
        self.cost = 1.0
        self.inner, self.drop = nn.GRU(16, 16, batch_first=True), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.drop(self.inner(x)[0])


def recurrent(dropout):
    head = lambda: nn.Linear(16, 256)  # noqa: E731
    layers = [lambda: Recurrent(dropout)] * 4
    return run_of([lambda: nn.Embedding(256, 16), *layers, head], stages=2)


def skipping():
    """Bundles of three tensors, two of which pass through blocks."""
    model = GPT.model
    between = [lambda: Between(model)] * 4
    return run_of([lambda: Start(model), *between, lambda: End(model)], stages=2)


class UsesAll(Between):
    """Reads what others only pass on, twice."""

    def __init__(self, model):
        super().__init__(model)
        self.more = nn.Linear(8, 16)

    def forward(self, bundle):
        x = bundle["x"] + self.more(bundle["memory"]) + self.more(bundle["memory"].sin())
        return super().forward({**bundle, "x": x})


def reading():
    """A tensor that passes through all blocks, and is used in each: its gradient has nine parts."""
    model = GPT.model
    blocks = [lambda: UsesAll(model)] * 4
    return run_of([lambda: Start(model), *blocks, lambda: End(model)], stages=1)


def typed(run, dtype):
    return replace(run, model=replace(run.model, dtype=dtype))


MODELS = {
    "gpt": lambda: GPT,
    "gpt in float64": lambda: typed(GPT, "float64"),
    "gpt in bf16": lambda: replace(GPT, precision="bf16"),
    "gpt kept in bf16": lambda: replace(GPT, precision="bf16", weight_storage="bf16"),
    "gpt, tied in one stage": lambda: replace(GPT, stages=1, model=replace(GPT.model, tie=True)),
    "gpt, tied in one stage, bf16": lambda: replace(
        GPT, stages=1, precision="bf16", model=replace(GPT.model, tie=True)
    ),
    "recurrent": lambda: recurrent(0.0),
    "dropout": lambda: recurrent(0.3),
    "dropout in bf16": lambda: replace(recurrent(0.3), precision="bf16"),
    "tensors that pass": skipping,
    "tensors that pass, float64": lambda: typed(skipping(), "float64"),
    "tensors that pass and are read": reading,
    "llama": lambda: replace(family_run("llama"), stages=2),
    "llama in float32": lambda: typed(replace(family_run("llama"), stages=2), "float32"),
    "mixtral": lambda: replace(family_run("mixtral"), stages=2),
}


VARIANTS = {
    "gpt in float64",
    "gpt, tied in one stage, bf16",
    "dropout in bf16",
    "tensors that pass, float64",
    "llama in float32",
}
"""The same ways through the blocks as of another model, with other numbers."""


def tokens(run, number=1):
    generator = torch.Generator().manual_seed(number)
    shape = run.batch.rows, run.model.sequence_length + 1
    return torch.randint(0, run.model.vocabulary, shape, generator=generator)


def stages_of(run, graphs, compiles=False):
    made = []
    for number in range(run.stages):
        flat = FlatParameters(run, stage_blocks(run, number), CPU)
        precision = compiled_precision(run, number, flat) if compiles else None
        flat.draw()
        made.append(TorchStage(run, number, flat, graphs, precision))
    return made


def computed(run, graphs, spec=ALL, *, compiles=False):
    """All that three microbatches give, all forwards before the backwards; their stages."""
    stages, found, back = stages_of(run, graphs, compiles), [], {}
    for number in range(3):
        bundle = {}
        for stage in stages[:-1]:
            bundle = stage.forward((number, 0), tokens(run, number), bundle)
            found += bundle.values()
        result = stages[-1].finish(tokens(run, number), bundle, spec)
        back[number] = result.gradient
        found += [torch.tensor(result.loss), *result.gradient.values()]
    for number, stage in itertools.product(range(3), reversed(stages[:-1])):
        back[number] = stage.backward((number, 0), back[number], spec)
        found += back[number].values()
    return found + [stage._flat.sum_N for stage in stages], stages


@pytest.mark.parametrize("spec", [ALL, PASSING], ids=["counting", "passing"])
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, id=name, marks=pytest.mark.full if name in VARIANTS else ())
        for name, model in MODELS.items()
    ],
)
def test_block_by_block_gives_the_bits_of_whole_graphs(model, spec):
    run = model()
    if "hf:" in run.model.family:
        pytest.importorskip("transformers")

    expected, _ = computed(run, WHOLE, spec)
    by_block = {name: computed(run, graphs, spec)[0] for name, graphs in BY_BLOCK.items()}

    for name, found in by_block.items():
        assert len(found) == len(expected), name
        assert all(map(torch.equal, found, expected)), name


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: apt install g++")
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # torch warns of its own code
@pytest.mark.parametrize(
    ("precision", "backend"),
    core_of(
        [("bf16", "aot_eager"), ("bf16", "inductor"), ("full", "inductor")], [("bf16", "aot_eager")]
    ),
)
def test_compiled_blocks_give_the_same_bits_and_are_compiled_once(monkeypatch, precision, backend):
    """The same graphs are made whether C++ comes of them, which takes minutes, or not."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    run = replace(GPT, stages=2, precision=precision, model=replace(GPT.model, layers=3))
    expected, _ = computed(run, WHOLE, compiles=True)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]

    found, _ = computed(run, BY_BLOCK["kept"], compiles=True)

    assert all(map(torch.equal, found, expected))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


def live_bytes(work):
    """The bytes that torch has taken and not given back, after each time that it takes some."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as told:
        work()
    events = [e for e in told.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return list(itertools.accumulate(event.nbytes() for event in events))


def deep(layers, graphs):
    """The middle stage of a deep model, whose tokens take more than its weights."""
    model = ModelConfig(d_model=32, layers=layers, heads=2, sequence_length=64)
    run = RunConfig(
        stages=3, cut=(1, layers, 1), model=model, batch=BatchConfig(microbatches=1, rows=8)
    )
    return stages_of(run, graphs)[1], run


def held_and_peak(layers, graphs):
    """Bytes between forward and backward, and the most in the backward, the former included."""
    stage, run = deep(layers, graphs)
    x = {"x": torch.randn(8, 64, 32)}
    for number in range(2):  # the first measures
        stage.forward((number, 0), tokens(run), x)
        held = stage._graphs.budget.kept_bytes
        if number == 0:
            stage.backward((number, 0), x, ALL)
    return held, held + max(live_bytes(lambda: stage.backward((1, 0), x, ALL)))


def test_the_peak_is_one_blocks_graph_and_what_passes_between_blocks():
    boundary = 8 * 64 * 32 * 4
    one_held, _ = held_and_peak(1, WHOLE)
    whole_held, whole_peak = held_and_peak(8, WHOLE)
    _, again_peak = held_and_peak(8, GraphLimits(0, recompute="stage"))
    held, peak = held_and_peak(8, BY_BLOCK["kept"])
    none_held, none_peak = held_and_peak(8, BY_BLOCK["made of the input"])
    _, small_peak = held_and_peak(1, WHOLE)
    weights = deep(8, WHOLE)[0]._flat.params_N.nbytes

    assert whole_held > 7 * one_held
    assert held == 8 * boundary
    assert none_held == 0
    # a backward of one block, what passes between the eight, and the gradients of the weights
    assert max(peak, none_peak) <= small_peak + 10 * boundary + weights
    assert max(peak, none_peak) < min(whole_peak, again_peak) / 2


def test_only_a_forward_of_which_the_input_was_kept_counts_as_computed_again():
    counts = [computed(GPT, graphs)[1][0].recomputed for graphs in BY_BLOCK.values()]

    assert counts == [0, 3, 3]


def test_a_graph_that_passes_the_limit_is_broken_off_and_made_block_by_block():
    stage, run = deep(8, GraphLimits(3_000_000))
    x = {"x": torch.randn(8, 64, 32)}

    taken = live_bytes(lambda: stage.forward((0, 0), tokens(run), x))

    assert stage._graphs.budget.kept_bytes == 8 * 8 * 64 * 32 * 4
    assert max(taken) < 5_000_000  # the whole graph has 14 MB


class FailingGrad:
    """torch.autograd.grad without memory, so many times."""

    def __init__(self, times):
        self.left, self.grad = times, torch.autograd.grad

    def __call__(self, *args, **kwargs):
        if self.left:
            self.left -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried\nadvice")
        return self.grad(*args, **kwargs)


@pytest.mark.parametrize("failing", [1, 2])
def test_without_memory_graphs_are_given_up_then_it_goes_block_by_block(
    monkeypatch, caplog, failing
):
    expected, _ = computed(GPT, WHOLE)
    stage, run = stages_of(GPT, GraphLimits(PLENTY))[0], GPT
    for number in range(3):
        bundle = stage.forward((number, 0), tokens(run, number), {})
    held = stage._graphs.budget.kept_bytes
    gradient = {"x": torch.randn(3, 12, 16)}

    monkeypatch.setattr(torch.autograd, "grad", FailingGrad(failing))
    for number in range(3):
        stage.backward((number, 0), gradient, ALL)

    assert bundle["x"].shape == expected[0].shape
    assert stage._graphs.budget.keep_bytes == held // 2
    assert stage.recomputed == 3
    told = [record.getMessage() for record in caplog.records]
    assert ["block by block" in line for line in told] == [False, True][:failing]
    calm = stages_of(GPT, WHOLE)[0]
    for number in range(3):
        calm.forward((number, 0), tokens(run, number), {})
        calm.backward((number, 0), gradient, ALL)
    assert torch.equal(stage._flat.sum_N, calm._flat.sum_N)


@pytest.mark.parametrize(
    ("recompute", "failing", "remedy"),
    [
        ("auto", 3, r'set serve\.recompute = "block" here, or lower run\.batch\.rows, or raise'),
        ("block", 2, r"lower serve\.graph_mib here, or run\.batch\.rows, or raise run\.stages"),
        ("stage", 2, r'set serve\.recompute = "block" here, or lower run\.batch\.rows'),
    ],
)
def test_what_still_finds_no_memory_is_refused_with_a_remedy_and_the_stage_lives(
    monkeypatch, recompute, failing, remedy
):
    stage = stages_of(GPT, GraphLimits(PLENTY, recompute=recompute))[0]
    gradient = {"x": torch.randn(3, 12, 16)}
    stage.forward((0, 0), tokens(GPT), {})

    monkeypatch.setattr(torch.autograd, "grad", FailingGrad(failing))
    with pytest.raises(Refused, match=rf"out of memory: {remedy}.*\(CUDA out of memory") as caught:
        stage.backward((0, 0), gradient, ALL)

    assert "advice" not in str(caught.value)
    assert not stage._flat.sum_N.any()
    stage.forward((1, 0), tokens(GPT), {})
    stage.backward((1, 0), gradient, ALL)
    assert stage._flat.sum_N.any()


def test_in_the_last_stage_a_loss_without_memory_goes_block_by_block(monkeypatch):
    run = replace(GPT, stages=1)
    calm, stage = stages_of(run, WHOLE)[0], stages_of(run, GraphLimits(PLENTY))[0]
    expected = calm.finish(tokens(run), {}, ALL).loss

    monkeypatch.setattr(torch.autograd, "grad", FailingGrad(1))

    assert stage.finish(tokens(run), {}, ALL).loss == expected
    assert torch.equal(stage._flat.sum_N, calm._flat.sum_N)


def test_memory_that_fails_while_a_block_is_made_again_gives_up_the_boundaries():
    stage, calm = stages_of(GPT, BY_BLOCK["kept"])[0], stages_of(GPT, WHOLE)[0]
    gradient = {"x": torch.randn(3, 12, 16)}
    for each in (stage, calm):
        each.forward((0, 0), tokens(GPT), {})
    without_memory(stage._flat.blocks[1])
    for each in (stage, calm):
        each.backward((0, 0), gradient, ALL)

    assert stage.recomputed == 1
    assert torch.equal(stage._flat.sum_N, calm._flat.sum_N)


def test_a_block_that_does_something_else_the_second_time_is_refused():
    calls = []

    def changing(x):
        calls.append(x)
        return x.exp() if len(calls) == 1 else x[:1].exp().expand_as(x)

    made = block_made_again(changing, torch.ones(3, requires_grad=True))
    with pytest.raises(CheckpointError):
        torch.autograd.grad([made], [calls[0]], [torch.ones(3)])

    run = replace(GPT, stages=2)
    stage = stages_of(run, BY_BLOCK["kept"])[0]
    block, forward, left = stage._flat.blocks[1], stage._flat.blocks[1].forward, [1]

    def once(value):
        left[0] -= 1
        return forward(value) if left[0] >= 0 else forward(value[:1]).expand_as(value)

    block.forward = once
    stage.forward((0, 0), tokens(run), {})
    with pytest.raises(Refused, match="does something else when it is computed again"):
        stage.backward((0, 0), {"x": torch.randn(3, 12, 16)}, ALL)
    assert not stage._flat.sum_N.any()
