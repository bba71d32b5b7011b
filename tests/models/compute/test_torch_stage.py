"""Forward and backward of one stage: graphs kept or made again, sums touched or not."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from p2pswarm.base.errors import BadMessage, NotServing, Refused, Unusable
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.torch_stage import TorchStage
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

CPU = torch.device("cpu")
ALL = BackwardSpec(counting=True, returning=True)
PLENTY = 1 << 30


def config(stages=3, dtype="float32"):
    model = ModelConfig(d_model=16, layers=2, heads=2, sequence_length=12, dtype=dtype)
    return RunConfig(stages=stages, model=model, batch=BatchConfig(microbatches=2, rows=3))


def stage_of(run, number, keep_bytes=PLENTY):
    flat = FlatParameters(run, stage_blocks(run, number), CPU)
    flat.draw()
    return TorchStage(run, number, flat, keep_bytes), flat


def tokens(seed=1, rows=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, 13), dtype=torch.uint8, generator=generator)


def activation(seed=2):
    return {"x": torch.randn(3, 12, 16, generator=torch.Generator().manual_seed(seed))}


def test_stages_in_a_row_sum_what_the_plain_loop_sums():
    run = config(dtype="float64")
    plain = ReferenceTrainer(run, rounded=False)
    stages, flats = zip(*(stage_of(run, s) for s in range(3)), strict=True)
    for number in range(2):
        loss = plain.add(tokens(number), number)
        key = (number, 0)
        x = stages[0].forward(key, tokens(number), {})
        y = stages[1].forward(key, tokens(number), x)
        finish = stages[2].finish(tokens(number), y, ALL)
        gradient = stages[1].backward(key, finish.gradient, ALL)
        rest = stages[0].backward(key, gradient, BackwardSpec(counting=True, returning=False))

        assert rest == {}
        assert finish.loss == pytest.approx(loss, rel=1e-12)
    sums = [total for flat in flats for total in flat.sums]
    for ours, theirs in zip(sums, plain.flat.sums, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-15)


class Asked(TorchDispatchMode):
    """Counts the tensors that are asked for their number: on a GPU each is a wait for all of it."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_no_call_asks_for_one_number_after_another():
    run = config()
    stages = [stage_of(run, s)[0] for s in range(3)]
    with Asked() as asked:
        x = stages[0].forward((0, 0), tokens(), {})
        y = stages[1].forward((0, 0), tokens(), x)
        finish = stages[2].finish(tokens(), y, ALL)
        stages[1].backward((0, 0), finish.gradient, ALL)
        assert asked.count == 0
        stages[2].evaluate(tokens(), y)
        assert asked.count == 1  # the counting works


def equal(one, other):
    return torch.equal(one["x"], other["x"])


def passes(keep_bytes, count=4):
    run = config()
    stage, flat = stage_of(run, 1, keep_bytes)
    keys = [(number, 0) for number in range(count)]
    for number, key in enumerate(keys):
        stage.forward(key, tokens(number), activation(number))
    kept_bytes = stage._graphs.budget.kept_bytes
    gradients = [stage.backward(k, activation(9 + n), ALL) for n, k in enumerate(keys)]
    return stage, flat, gradients, kept_bytes


def test_a_graph_made_again_gives_the_same_bits_as_one_kept():
    kept, kept_flat, kept_gradients, _ = passes(PLENTY)
    again, again_flat, again_gradients, _ = passes(0)

    assert (kept.recomputed, again.recomputed) == (0, 4)
    assert torch.equal(kept_flat.sum_N, again_flat.sum_N)
    assert all(map(equal, kept_gradients, again_gradients))


def test_graphs_are_kept_within_the_budget():
    _, _, _, all_bytes = passes(PLENTY)
    stage, _, _, held_bytes = passes(all_bytes // 2)

    assert stage.recomputed == 2
    assert held_bytes == all_bytes // 2
    assert stage._graphs.budget.kept_bytes == 0


def test_a_graph_is_charged_without_the_weights():
    stage, flat = stage_of(config(), 1)
    stage.forward((0, 0), tokens()[:1, :2], {"x": activation()["x"][:1, :1]})

    assert 0 < stage._graphs.budget.kept_bytes < flat.params_N.nbytes


def test_what_is_dropped_gives_its_memory_back():
    stage, _ = stage_of(config(), 1)
    for number in range(3):
        stage.forward((number, 0), tokens(), activation())
    stage.drop([(0, 0), (7, 0)])

    with pytest.raises(NotServing, match="microbatch 0"):
        stage.backward((0, 0), activation(), ALL)
    stage.drop(None)
    assert stage._graphs.budget.kept_bytes == 0


def test_passing_on_leaves_the_sum_alone_and_gives_the_same_gradient():
    stage, flat = stage_of(config(), 1)
    gradients = []
    for counting in (True, False):
        flat.sum_N.zero_()
        stage.forward((0, 0), tokens(), activation())
        gradients.append(
            stage.backward((0, 0), activation(5), BackwardSpec(counting, returning=True))
        )

    assert equal(*gradients)
    assert not flat.sum_N.any()


def test_the_last_stage_may_be_asked_for_the_loss_alone():
    stage, flat = stage_of(config(), 2)
    finish = stage.finish(tokens(), activation(), BackwardSpec(counting=False, returning=False))

    assert finish.gradient == {}
    assert finish.loss == stage.evaluate(tokens(), activation())
    assert not flat.sum_N.any()


def test_evaluating_keeps_nothing():
    stage, _ = stage_of(config(), 1)
    y = stage.evaluate(tokens(), activation())

    assert equal(y, stage.forward((0, 0), tokens(), activation()))
    assert len(stage._graphs._kept) == 1


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_never_touches_the_sum(poison):
    stage, flat = stage_of(config(), 1)
    stage.forward((0, 0), tokens(), activation())
    stage.backward((0, 0), activation(5), ALL)
    before = flat.sum_N.clone()
    stage.forward((1, 0), tokens(), activation())
    gradient = activation(5)
    gradient["x"][1, 2, 3] = poison

    with pytest.raises(Refused, match="the gradient that came is not finite"):
        stage.backward((1, 0), gradient, ALL)
    assert torch.equal(flat.sum_N, before)


def test_an_overflow_within_the_stage_never_touches_the_sum():
    stage, flat = stage_of(config(), 1)
    stage.forward((0, 0), tokens(), activation())

    with pytest.raises(Refused, match="a gradient is not finite"):
        stage.backward((0, 0), {"x": torch.full((3, 12, 16), 2e17)}, ALL)
    assert not flat.sum_N.any()


def test_a_loss_that_is_not_finite_never_touches_the_sum():
    stage, flat = stage_of(config(), 2)
    x = activation()
    x["x"][0, 0, 0] = math.nan

    with pytest.raises(Refused, match="loss is nan"):
        stage.finish(tokens(), x, ALL)
    assert not flat.sum_N.any()


@pytest.mark.parametrize(
    "came", [torch.full((3, 13), 256), torch.full((3, 13), -1, dtype=torch.int32)]
)
def test_tokens_outside_the_vocabulary_are_the_senders_fault(came):
    stage, _ = stage_of(config(), 0)

    with pytest.raises(BadMessage, match="vocabulary"):
        stage.forward((0, 0), came, {})


def test_a_run_of_one_stage_needs_no_activation():
    run = config(stages=1)
    stage, flat = stage_of(run, 0)
    plain = ReferenceTrainer(run, rounded=False)
    finish = stage.finish(tokens(), {}, BackwardSpec(counting=True, returning=False))

    assert finish.loss == plain.add(tokens(), 0)
    assert torch.equal(flat.sum_N, plain.flat.sum_N)


def without_memory(block, times=1):
    """The next so many forwards of a block find no memory."""
    forward, left = block.forward, [times]

    def fails(value):
        if left[0]:
            left[0] -= 1
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return forward(value)

    block.forward = fails


def test_without_memory_graphs_are_given_up_and_the_bits_stay():
    stage, flat = stage_of(config(), 1)
    calm, calm_flat = stage_of(config(), 1)
    for each in (stage, calm):
        each.forward((0, 0), tokens(0), activation(0))
    held = stage._graphs.budget.kept_bytes

    without_memory(flat.blocks[0])
    given = stage.forward((1, 0), tokens(1), activation(1))

    assert equal(given, calm.forward((1, 0), tokens(1), activation(1)))
    assert stage._graphs.budget.keep_bytes == held // 2
    assert stage._graphs.budget.kept_bytes <= held // 2
    for key in ((0, 0), (1, 0)):
        ours, theirs = (each.backward(key, activation(9), ALL) for each in (stage, calm))
        assert equal(ours, theirs)
    assert stage.recomputed == 1  # of the other one what passes between blocks was kept
    assert torch.equal(flat.sum_N, calm_flat.sum_N)


def test_a_backward_without_memory_goes_on_without_its_graph():
    stage, flat = stage_of(config(), 1)
    calm, calm_flat = stage_of(config(), 1)
    for each in (stage, calm):
        each.forward((0, 0), tokens(), activation())
    found = torch.autograd.grad
    fails = [torch.OutOfMemoryError("CUDA out of memory")]

    def grad(*args, **kwargs):
        if fails:
            raise fails.pop()
        return found(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "grad", grad)
        ours = stage.backward((0, 0), activation(9), ALL)

    assert equal(ours, calm.backward((0, 0), activation(9), ALL))
    assert torch.equal(flat.sum_N, calm_flat.sum_N)


def test_without_memory_and_graphs_it_is_refused():
    stage, flat = stage_of(config(), 1)
    without_memory(flat.blocks[0], times=2)

    with pytest.raises(Refused, match="out of memory"):
        stage.forward((0, 0), tokens(), activation())


def test_a_sum_that_got_a_part_of_a_gradient_is_never_used():
    stage, flat = stage_of(config(), 1)
    stage.forward((0, 0), tokens(), activation())

    class Full:
        def add_(self, part):
            raise torch.OutOfMemoryError("CUDA out of memory")

    flat.sums[-1] = Full()
    with pytest.raises(Unusable, match="the gradient's sum is spoilt, start this node again: CUDA"):
        stage.backward((0, 0), activation(9), ALL)
