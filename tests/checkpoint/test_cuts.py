"""A checkpoint of any cut is read in any cut with the same bits, and trains on to the same bits."""

import asyncio
import dataclasses
import itertools

import pytest
import torch
from checkpoint.harness import (
    DTYPES,
    FLOAT32,
    RUN,
    SHAPES,
    TRAINER,
    WRITER,
    agreed_on,
    in_pieces,
    layout,
    loaded,
    manifest_of,
    save,
    state_of,
)
from core import core_of, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from models.families import family_run, tied_run

from p2pswarm.base.errors import OtherCheckpoint
from p2pswarm.checkpoint.catalogue import Checkpoint, open_checkpoint
from p2pswarm.checkpoint.checkpoint_io import save_stage
from p2pswarm.checkpoint.names import CheckpointId
from p2pswarm.checkpoint.restore import state_pieces
from p2pswarm.checkpoint.stage_file import check_stage
from p2pswarm.checkpoint.targets import FsspecStore, LocalFolder
from p2pswarm.checkpoint.writer import StageToSave, write_manifest
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.flat_parameters import FlatParameters, layout_of
from p2pswarm.models.compute.flat_parameters import state_of as tensors_of
from p2pswarm.models.compute.torch_sums import TorchSums
from p2pswarm.models.compute.torch_weights import TorchWeights
from p2pswarm.settings.config import BatchConfig, ModelConfig, OptimizerConfig, RunConfig
from p2pswarm.settings.parser import run_id, run_to_json
from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.state_tree import PIECE_VALUES

NUMBERS = itertools.count()
CPU = torch.device("cpu")


@st.composite
def cuts(draw, blocks: int):
    """A partition of the blocks into contiguous stages."""
    borders = sorted(draw(st.sets(st.integers(1, blocks - 1))))
    return tuple(itertools.starmap(range, itertools.pairwise([0, *borders, blocks])))


SHAPE = st.lists(st.integers(1, 5), max_size=3).map(tuple)
BLOCKS = st.lists(st.lists(SHAPE, min_size=1, max_size=4), min_size=1, max_size=6)


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), BLOCKS, st.sampled_from(DTYPES), st.integers(1, 300))
def test_any_partition_in_any_partition_out_the_same_bits(data, shapes, dtypes, piece_bytes):
    here = data.draw(cuts(len(shapes))) if len(shapes) > 1 else (range(1),)
    there = data.draw(cuts(len(shapes))) if len(shapes) > 1 else (range(1),)
    store = FsspecStore(f"memory://cuts-{next(NUMBERS)}")

    checkpoint = asyncio.run(save(store, step=7, cut=here, dtypes=dtypes, shapes=shapes))

    for blocks in there:
        wanted = layout(blocks, dtypes, shapes)
        pieces = list(state_pieces(checkpoint, wanted, piece_bytes))
        assert b"".join(pieces) == state_of(wanted, seed=7)
        assert len(pieces) <= 2 * len(b"".join(pieces)) // piece_bytes + 1


async def test_a_model_with_other_tensors_is_refused_by_name(tmp_path):
    checkpoint = await save(LocalFolder(tmp_path, WRITER))

    def refused(shapes, blocks=range(1), dtypes=FLOAT32) -> str:
        with pytest.raises(OtherCheckpoint, match="it is of another model") as caught:
            list(state_pieces(checkpoint, layout(blocks, dtypes, shapes)))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "has no tensor blocks.0.p2" in refused([[*SHAPES[0], (1,)]])
    assert "has blocks.0.p0 as float32 [5], the run as float32 [6]" in refused([[(6,)]])
    assert "the run as float64 [5]" in refused(SHAPES, dtypes=("float64",) * 3)
    assert "the run as bfloat16 [5]" in refused(SHAPES, dtypes=("bfloat16", *FLOAT32[1:]))
    assert "has no tensor blocks.4.p0" in refused([*SHAPES, [(1,)]], range(4, 5))
    assert loaded(checkpoint, range(1)) == state_of(layout(range(1)), seed=7)


# Real weights


def run_of(stages: int, kept: str) -> RunConfig:
    """`kept`: what weights are kept in."""
    bf16 = kept == "bfloat16"
    dtype, low = ("float32", "bf16") if bf16 else (kept, "full")
    model = ModelConfig(d_model=8, layers=3, heads=2, sequence_length=8, dtype=dtype)
    return RunConfig(
        name="real",
        stages=stages,
        model=model,
        batch=BatchConfig(microbatches=2),
        precision=low,
        weight_storage=low,
    )


def trained(run: RunConfig, stage: int, steps: range, state: bytes | None = None) -> bytes:
    """The state of a stage after some steps, from version 0 or from a state."""
    flat = FlatParameters(run, stage_blocks(run, stage), CPU)
    weights = TorchWeights(run, flat, PIECE_VALUES)
    weights.reset(draw=True)
    if state is not None:
        parts = tensors_of(memoryview(bytearray(state)), run)
        for place, part in zip(flat.state, parts, strict=True):
            place.copy_(part)
    for step in steps:
        sums = TorchSums(flat.sum_N, "raw")
        for name, segment in zip(layout_of(run, flat.numbers).tensors, flat.segments, strict=True):
            # as a gradient would be: of each parameter, whatever stage it is in
            seed = step * 1000 + sum(name.name.encode())
            count = segment.stop - segment.start
            drawn = torch.randn(count, generator=torch.Generator().manual_seed(seed))
            sums.reduced_N[segment.start : segment.stop] = drawn.to(flat.sum_N.dtype)
            gap_end = -(-segment.stop // 16) * 16
            sums.reduced_N[segment.stop : gap_end] = 0
        weights.apply(sums, Update(step + 1, 0.5, 1e-2))
    return b"".join(bytes(bytes_of(part)) for part in flat.state)


async def saved(store, run: RunConfig, states: list[bytes]) -> Checkpoint:
    identity = CheckpointId(run.name, run_id(run_to_json(run)), 3)
    reports = []
    for stage, state in enumerate(states):
        blocks = stage_blocks(run, stage)
        there = layout_of(run, blocks)
        what = StageToSave(
            id=identity,
            stage=stage,
            stages=run.stages,
            blocks=blocks,
            layout=there,
            agreed=agreed_on(state, there),
        )
        reports.append(await save_stage(store, what, in_pieces(state, 4096), WRITER))
    manifest = manifest_of(reports, identity, run=run, chain=None)
    write_manifest(store, manifest, TRAINER, None)
    return open_checkpoint(store, identity.folder)


@pytest.mark.parametrize("kept", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("decay", [0.0, 0.9])
@pytest.mark.parametrize("stages", [1, 2, 5])
async def test_training_that_goes_on_in_another_cut_ends_with_the_same_bits(
    kept, decay, stages, tmp_path
):
    optimizer = OptimizerConfig(average_decay=decay)
    before, after = (
        dataclasses.replace(run_of(count, kept), optimizer=optimizer) for count in (3, stages)
    )
    at_3 = [trained(before, stage, range(3)) for stage in range(before.stages)]

    checkpoint = await saved(LocalFolder(tmp_path, WRITER), before, at_3)

    for stage in checkpoint.manifest.stages:
        check_stage(checkpoint.reader(stage), stage)
    for stage in range(after.stages):
        state = b"".join(state_pieces(checkpoint, layout_of(after, stage_blocks(after, stage))))
        resumed = trained(after, stage, range(3, 6), state)
        assert resumed == trained(after, stage, range(6))


async def test_a_model_with_names_of_its_own_goes_on_in_another_cut(tmp_path):
    small = family_run("llama", vocab_size=256)
    before = dataclasses.replace(small, model=dataclasses.replace(small.model, vocabulary=256))
    at_1 = [trained(before, stage, range(1)) for stage in range(before.stages)]

    checkpoint = await saved(LocalFolder(tmp_path, WRITER), before, at_1)

    assert layout_of(before, range(1)).tensors[0].name == "model.embed_tokens.weight"
    for stage in checkpoint.manifest.stages:
        check_stage(checkpoint.reader(stage), stage)
    for stages in (1, 2, 3):
        after = dataclasses.replace(before, stages=stages)
        for stage in range(stages):
            wanted = layout_of(after, stage_blocks(after, stage))
            state = b"".join(state_pieces(checkpoint, wanted))
            assert state == trained(after, stage, range(1))


@pytest.mark.parametrize("stages", core_of([1, 2, 4], [1, 4]))
@pytest.mark.parametrize("kind", core_of(["gpt", "llama"], ["gpt"]))
async def test_a_tied_model_goes_on_in_another_cut_with_the_tensor_at_both_ends(
    kind, stages, tmp_path
):
    before = run_of(3, "float64") if kind == "gpt" else tied_run("llama", vocab_size=256)
    before = dataclasses.replace(
        before, model=dataclasses.replace(before.model, tie=True, vocabulary=256)
    )
    after = dataclasses.replace(before, stages=stages)
    at_2 = [trained(before, stage, range(2)) for stage in range(before.stages)]

    checkpoint = await saved(LocalFolder(tmp_path, WRITER), before, at_2)

    for stage in range(stages):
        wanted = layout_of(after, stage_blocks(after, stage))
        state = b"".join(state_pieces(checkpoint, wanted))
        assert state == trained(after, stage, range(2))
        assert trained(after, stage, range(2, 4), state) == trained(after, stage, range(4))
    for one in checkpoint.manifest.stages:
        check_stage(checkpoint.reader(one), one)


def test_the_layout_of_a_file_is_that_of_memory():
    run = run_of(2, "float32")

    flat = FlatParameters(run, stage_blocks(run, 0), CPU)
    found = layout_of(run, stage_blocks(run, 0))

    assert [(s.start, s.stop) for s in flat.segments] == [(t.start, t.stop) for t in found.tensors]
    assert found.length == flat.length
    assert found.tensors[0].name == "blocks.0.token_VD"
    assert found.dtypes == (RUN.model.dtype,) * 3
