"""A stage on two devices of a host against the same stage on one: processes, gloo, the CPU."""

import gc
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from p2pswarm.base.errors import BadMessage, NotServing, Unusable
from p2pswarm.base.transient_errors import DeviceLost
from p2pswarm.models.compute.base import BackwardSpec, CountPermit, NotFiniteHere, Update
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.registry import trust
from p2pswarm.server.devices import rank_processes
from p2pswarm.server.devices.group_stage import group_engine
from p2pswarm.server.devices.rank_processes import DeviceGroup
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig, RunConfig
from p2pswarm.settings.node_config import CONTEXT, TENSOR

CPU = torch.device("cpu")
TWO = DeviceGroup(("cpu", "cpu"), threads=1)
SHARED = replace(TWO, parallel=TENSOR)
BY_TOKENS = replace(TWO, parallel=CONTEXT)
WAYS = pytest.mark.parametrize(
    "way",
    [pytest.param(TWO, id="rows", marks=pytest.mark.full), pytest.param(SHARED, id="tensors")],
)
AS_A_NODE_DOES = rank_processes._started
pytestmark = pytest.mark.usefixtures("forked_ranks")
BY_ROWS = pytest.mark.parametrize("shared_group", [TWO], ids=["rows"], indirect=True)
TESTS = Path(__file__).parents[2]
ALL = BackwardSpec(counting=True, returning=True)
PLENTY = 1 << 30
ROWS, LENGTH = 3, 12


def config(dtype="float64", rows=ROWS, **more):
    model = ModelConfig(d_model=16, layers=2, heads=2, sequence_length=LENGTH, dtype=dtype)
    return RunConfig(stages=3, model=model, batch=BatchConfig(microbatches=2, rows=rows), **more)


def both(stage, run=None, group=TWO):
    """The same stage on two devices, and on one."""
    run = run or config()
    engines = group_engine(run, stage, group), torch_engine(run, stage, CPU, PLENTY)
    for engine in engines:
        engine.weights.reset(draw=True)
    return engines


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(TWO, id="rows"),
        pytest.param(SHARED, id="tensors"),
        pytest.param(BY_TOKENS, id="tokens", marks=pytest.mark.full),
    ],
)
def shared_group(request, forked_ranks):
    """The middle stage on two devices."""
    return group_engine(config(), 1, request.param)


@pytest.fixture
def group(shared_group):
    shared_group.weights.reset(draw=True)
    shared_group.stage.gradient_norm = 0.0  # of the last backward, of another test
    return shared_group


def tokens(seed, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, LENGTH + 1), dtype=torch.uint8, generator=generator)


def bundle(seed, rows=ROWS, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(rows, LENGTH, 16, generator=generator, dtype=dtype)}


def sums(engine):
    return engine.weights.reduction()._sum_N.clone()


def close(one, other):
    return torch.allclose(one, other, rtol=1e-10, atol=1e-14)


def steps_of(engine, stage, rows=ROWS):
    """Two steps of three microbatches, their forwards before their backwards."""
    found = []
    for step in range(2):
        keys = [(number, step) for number in range(3)]
        for number, key in enumerate(keys):
            given = {} if stage == 0 else bundle(10 + number, rows)
            if stage == 2:
                result = engine.stage.finish(tokens(number, rows), given, ALL)
                found += [torch.tensor(result.loss), result.gradient["x"]]
            else:
                found.append(engine.stage.forward(key, tokens(number, rows), given)["x"])
            found.append(torch.tensor(engine.stage.gradient_norm))
        for number, key in enumerate(keys if stage < 2 else []):
            found += engine.stage.backward(key, bundle(20 + number, rows), ALL).values()
            found.append(torch.tensor(engine.stage.gradient_norm))
        found.append(sums(engine))
        reduced = engine.weights.reduction()
        reduced.reduced_N.copy_(found[-1])
        engine.weights.apply(reduced, Update(step + 1, 1.0, 1e-2))
        found.append(engine.stage.evaluate(tokens(9, rows), {} if stage == 0 else bundle(9, rows)))
        found[-1] = torch.tensor(found[-1]) if stage == 2 else found[-1]["x"]
    return found


@BY_ROWS
def test_two_devices_compute_what_one_does_in_the_middle(group):
    one = torch_engine(config(), 1, CPU, PLENTY)
    one.weights.reset(draw=True)

    ours, theirs = steps_of(group, 1), steps_of(one, 1)

    assert len(ours) == len(theirs)
    assert all(map(close, ours, theirs))


@pytest.mark.parametrize(
    ("rows", "way", "stage"),
    [
        pytest.param(1, SHARED, 2, id="1-tensors-2"),
        *(
            pytest.param(*each, id=f"{each[0]}-{name}-{each[2]}", marks=pytest.mark.full)
            for name, each in (
                *(("rows", (1, TWO, stage)) for stage in range(3)),
                *(("rows", (3, TWO, stage)) for stage in (0, 2)),
                *(("tensors", (1, SHARED, stage)) for stage in (0, 1)),
            )
        ),
    ],
)
def test_two_devices_compute_what_one_does_and_end_with_their_engine(monkeypatch, stage, rows, way):
    monkeypatch.setattr(rank_processes, "_started", AS_A_NODE_DOES)
    group, one = both(stage, config(rows=rows), way)
    ranks = processes(group)

    ours, theirs = steps_of(group, stage, rows), steps_of(one, stage, rows)
    alive = [rank.poll() for rank in ranks]
    del group
    gc.collect()

    assert len(ours) == len(theirs)
    assert all(map(close, ours, theirs))
    assert alive == [None, None]
    assert None not in [rank.poll() for rank in ranks]


@pytest.mark.full
@pytest.mark.parametrize(
    ("stage", "way"),
    [(0, TWO), (2, TWO), (2, SHARED)],
    ids=["0-rows", "2-rows", "2-tensors"],
)
def test_two_devices_serve_an_end_of_a_tied_model(stage, way):
    untied = config()
    run = replace(untied, model=replace(untied.model, tie=True))
    group, one = both(stage, run, way)

    assert group.weights.tied_digest() == one.weights.tied_digest() != b""
    assert all(map(close, steps_of(group, stage), steps_of(one, stage)))
    assert group.weights.reduction().apart() is not None


@pytest.mark.full
@WAYS
@pytest.mark.parametrize(
    ("stage", "precision"), [(1, "full"), pytest.param(2, "bf16", marks=pytest.mark.full)]
)
def test_two_devices_give_the_same_bits_block_by_block_and_keep_less(stage, precision, way):
    dtype = "float64" if precision == "full" else "float32"
    run = config(dtype, precision=precision, cut=(1, 2, 1))
    whole, _ = both(stage, run, way)
    by_block, _ = both(stage, run, replace(way, by_block=True))

    expected = steps_of(whole, stage)
    assert all(map(torch.equal, steps_of(by_block, stage), expected))
    if stage == 1:
        assert 0 < by_block.stage._graphs.measured_bytes < whole.stage._graphs.measured_bytes / 4
        by_block.weights.reset(draw=True)
        by_block.stage._keep_bytes, by_block.stage.gradient_norm = 0, 0.0
        assert all(map(torch.equal, steps_of(by_block, stage), expected))


@BY_ROWS
def test_graphs_that_have_no_room_are_made_again(group, monkeypatch):
    one = torch_engine(config(), 1, CPU, PLENTY)
    one.weights.reset(draw=True)
    monkeypatch.setattr(group.stage, "_keep_bytes", 0)
    before = group.stage.recomputed

    assert all(map(close, steps_of(group, 1), steps_of(one, 1)))
    assert group.stage.recomputed == before + 6


@pytest.mark.full
@pytest.mark.parametrize(
    ("storage", "way"),
    [("full", TWO), ("bf16", TWO), ("bf16", SHARED)],
    ids=["full-rows", "bf16-rows", "bf16-tensors"],
)
def test_bf16_is_as_on_one_device(storage, way):
    run = config("float32", precision="bf16", weight_storage=storage)
    group, one = both(1, run, way)
    results = []
    for engine in (group, one):
        made = engine.stage.forward((0, 0), tokens(0), bundle(1, dtype=torch.float32))
        gradient = engine.stage.backward((0, 0), bundle(2, dtype=torch.float32), ALL)
        results.append((made["x"], gradient["x"], sums(engine)))

    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype == torch.float32
        assert (ours - theirs).abs().max() <= 2e-2 * theirs.abs().max()


def overlapped(engine):
    """Three steps, each of which begins before the commit of the one before."""
    found = []
    engine.of_step(0).forward((0, 0), tokens(0), bundle(10))
    for step in range(3):
        ahead = engine.of_step(step + 1)
        found += ahead.forward((step + 1, 0), tokens(step + 1), bundle(11 + step)).values()
        found += engine.of_step(step).backward((step, 0), bundle(20 + step), ALL).values()
        reduced = engine.weights.reduction(step)
        found.append(reduced._sum_N.clone())
        reduced.reduced_N.copy_(reduced._sum_N)
        engine.weights.apply(reduced, Update(step + 1, 1.0, 1e-2))
    return [*found, engine.weights._flat.newest(3).params_N.detach().clone()]


@WAYS
def test_with_a_delay_two_devices_compute_two_versions_as_one_does(way):
    group, one = both(1, config(delay=1), way)

    ours, theirs = overlapped(group), overlapped(one)

    assert len(ours) == len(theirs)
    assert all(map(close, ours, theirs))
    group.stage.drop(None)
    with pytest.raises(NotServing):  # of the half that computes odd steps
        group.of_step(3).backward((3, 0), bundle(2), ALL)


def test_what_is_not_to_count_changes_no_sum(group):
    withdrawn = CountPermit()
    withdrawn.withdraw()
    for spec in (
        BackwardSpec(counting=False, returning=True),
        BackwardSpec(counting=True, returning=True, permit=withdrawn),
    ):
        group.stage.forward((0, 0), tokens(0), bundle(1))
        assert group.stage.backward((0, 0), bundle(2), spec)["x"].abs().sum() > 0

    assert not sums(group).any()


def test_a_gradient_that_is_not_finite_is_told_and_not_added(group):
    group.stage.forward((0, 0), tokens(0), bundle(1))
    group.stage.forward((1, 0), tokens(0), bundle(1))

    with pytest.raises(NotFiniteHere, match="the gradient that came"):
        group.stage.backward((0, 0), {"x": bundle(2)["x"] * float("nan")}, ALL)
    with pytest.raises(NotFiniteHere, match="a gradient is not finite"):
        group.stage.backward((1, 0), {"x": bundle(2)["x"] * 1e152}, ALL)

    assert not sums(group).any()
    group.stage.forward((2, 0), tokens(0), bundle(1))
    group.stage.backward((2, 0), bundle(2), ALL)
    assert sums(group).any()


def test_what_is_dropped_is_gone_and_tokens_are_checked(group):
    group.stage.forward((0, 0), tokens(0), bundle(1))
    group.stage.forward((1, 0), tokens(1), bundle(1))
    group.stage.drop([(0, 0), (7, 7)])
    with pytest.raises(NotServing):
        group.stage.backward((0, 0), bundle(2), ALL)
    group.stage.drop(None)
    with pytest.raises(NotServing):
        group.stage.backward((1, 0), bundle(2), ALL)
    with pytest.raises(BadMessage, match="vocabulary"):
        group.stage.forward((0, 0), torch.full((ROWS, LENGTH + 1), 999), bundle(1))


def processes(engine):
    return [rank.process for rank in engine.stage._ranks._ranks]


@WAYS
def test_a_device_that_dies_ends_the_stage_with_one_line(way):
    group, _ = both(1, group=way)
    first, second = processes(group)
    os.kill(second.pid, signal.SIGKILL)

    for _ in range(2):
        with pytest.raises(DeviceLost, match="device cpu failed, start this node again"):
            group.stage.forward((0, 0), tokens(0), bundle(1))
    assert first.poll() is not None


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(Unusable, match="device cuda:7 failed"):
        group_engine(config(), 0, DeviceGroup(("cpu", "cuda:7"), threads=1))


def test_a_packages_blocks_are_shared_by_their_plan_and_a_wrong_plan_is_named(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    trust(["server"])
    group = replace(SHARED, packages=("server",))
    model = ModelConfig(family="server.devices.planned_models:right", sequence_length=LENGTH)
    run = RunConfig(stages=2, model=replace(model, dtype="float64"), batch=BatchConfig(rows=1))
    shared, alone = group_engine(run, 0, group), torch_engine(run, 0, CPU, PLENTY)
    found = []
    for engine in (shared, alone):
        engine.weights.reset(draw=True)
        found.append(engine.stage.evaluate(tokens(0, 1), {})["x"])
    assert close(*found)

    wrong = replace(run, model=replace(run.model, family="server.devices.planned_models:wrong"))
    with pytest.raises(
        Unusable, match=r"planned_models:wrong by tensors is wrong: the gradient of"
    ):
        group_engine(wrong, 1, group)


def test_what_devices_cannot_share_is_refused_before_they_start():
    with pytest.raises(Unusable, match="qkv has 2 heads, which 3 devices cannot share"):
        group_engine(config(), 1, replace(SHARED, devices=("cpu",) * 3))


@pytest.mark.parametrize("group", [SHARED, TWO, BY_TOKENS])
def test_sums_on_a_grid_are_refused_because_no_device_has_a_whole_gradient(group):
    run = replace(config(), codecs=CodecConfig(averaging="int-grid"))

    with pytest.raises(Unusable, match=r"int-grid rounds the gradient of a whole microbatch.*raw"):
        group_engine(run, 1, group)


@pytest.mark.full
@WAYS
def test_two_devices_average_in_low_rank_what_one_does(way):
    run = replace(config(), codecs=CodecConfig(averaging="powersgd", averaging_rank=4))
    group, one = both(1, run, way)

    assert all(map(close, steps_of(group, 1), steps_of(one, 1)))
    ours, theirs = (engine.weights.reduction().rounds() for engine in (group, one))
    assert ours.first.length == theirs.first.length > 0
    assert ours.second().length == theirs.second().length > 0


@pytest.mark.full
@pytest.mark.parametrize("stage", [0, 1])
def test_each_of_two_devices_has_half_of_the_weights(stage):
    run = config()
    group = group_engine(run, stage, SHARED)

    whole = sum(p.nbytes for p in torch_engine(run, stage, CPU, PLENTY).weights._flat.parameters)
    assert all(0.5 <= here / whole < 0.51 for here in group.stage._ranks.weight_bytes)
