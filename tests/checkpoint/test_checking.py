"""A file is checked against the manifest, and the state in it against what the stage agreed on."""

import dataclasses
import hashlib
import itertools

import pytest
import torch
from checkpoint.harness import DTYPES, WRITER, layout, save, state_of
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadCheckpoint
from p2pswarm.checkpoint.checking import block_of, check_stage
from p2pswarm.checkpoint.digests import StateHasher
from p2pswarm.checkpoint.folder import LocalFolder
from p2pswarm.models.compute import digest
from p2pswarm.tensors.state_tree import piece_spans

ALL = layout(range(4))


@given(st.sampled_from(DTYPES), st.integers(1, 400), st.lists(st.integers(0, 10_000), max_size=5))
def test_the_state_has_one_digest_however_its_bytes_come(dtypes, piece_values, cuts):
    """Written out from the definition: the parts of a piece lie in all buffers."""
    of = layout(range(4), dtypes)
    spans = piece_spans(of.length, piece_values, of.row_blocks())
    state = state_of(of)
    edges = sorted({0, len(state), *(min(cut, len(state)) for cut in cuts)})
    hasher = StateHasher(of, piece_values)

    for start, stop in itertools.pairwise(edges):
        hasher.update(state[start:stop])

    starts = [of.length * sum(of.item_bytes[:k]) for k in range(len(dtypes))]
    pieces = [
        b"".join(
            state[at + start * item : at + stop * item]
            for at, item in zip(starts, of.item_bytes, strict=True)
        )
        for start, stop in spans
    ]
    hashes = b"".join(sha256(piece) for piece in pieces)
    assert hasher.digest() == sha256(hashes)


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@pytest.mark.skipif(not hasattr(digest, "piece_hashes"), reason="the digest is still of weights")
def test_the_digest_is_the_one_that_replicas_report():
    values = torch.frombuffer(bytearray(state_of(ALL)), dtype=torch.float32).chunk(3)
    hasher = StateHasher(ALL)
    hasher.update(state_of(ALL))

    spans = piece_spans(ALL.length, whole=ALL.row_blocks())
    assert hasher.digest() == digest.digest_of(values, spans)


async def test_a_state_that_nobody_agreed_on_is_refused(tmp_path):
    checkpoint = await save(LocalFolder(tmp_path, WRITER))
    stage = dataclasses.replace(checkpoint.manifest.stages[0], state_digest=b"x" * 32)

    with pytest.raises(BadCheckpoint, match="not the one that its servers agreed on"):
        check_stage(checkpoint.reader(stage), stage)


async def test_a_tensor_of_another_stage_is_refused(tmp_path):
    checkpoint = await save(LocalFolder(tmp_path, WRITER))
    stage = dataclasses.replace(checkpoint.manifest.stages[1], first_block=3)

    with pytest.raises(BadCheckpoint, match=r"stage 1 has a tensor 'blocks\.2\.p0'"):
        check_stage(checkpoint.reader(stage), stage)


@pytest.mark.parametrize("name", ["", "x.0.y", "blocks", "blocks.x.y", "blocks.-1.y", "blocks.¹.y"])
def test_the_names_of_other_models_tell_no_block(name):
    assert block_of("blocks.12.qkv") == 12
    assert block_of(name) is None
