"""Tests of `checkpoint/stage_file.py`."""

import dataclasses
import hashlib
import itertools
import json

import pytest
import torch
from checkpoint.harness import CUT, DTYPES, FLOAT32, WRITER, layout, save, state_of
from hypothesis import given
from hypothesis import strategies as st
from safetensors import deserialize, safe_open

from p2pswarm.base.errors import BadCheckpoint
from p2pswarm.checkpoint.digests import StateHasher
from p2pswarm.checkpoint.stage_file import (
    StageFileDecoder,
    StageFileEncoder,
    block_of,
    check_stage,
    file_bytes,
    header_length,
    header_of,
    layout_in,
    tensors_in,
)
from p2pswarm.checkpoint.targets import LocalFolder
from p2pswarm.models.compute import flat_parameters as digest
from p2pswarm.settings.config import STATE_KINDS
from p2pswarm.tensors.flat_layout import flat_layout
from p2pswarm.tensors.state_tree import piece_spans

ALL = layout(range(4))
ABOUT = {"run": "x"}
SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), max_size=6)


def file_of(of, state: bytes, piece_bytes: int = 100) -> bytes:
    encoder = StageFileEncoder(of)
    parts = [header_of(of, ABOUT)]
    for offset in range(0, len(state), piece_bytes):
        parts += encoder.encode(memoryview(state)[offset : offset + piece_bytes])
    encoder.finish()
    return b"".join(parts)


def read_back(of, data: bytes) -> bytes:
    """The state, from a file's tensors alone."""
    tensors = tensors_in(data[: header_length(data[:8], len(data))], len(data))
    out, base = bytearray(of.state_bytes), 0
    for kind, item in zip(of.kinds, of.item_bytes, strict=True):
        for t in of.tensors:
            place = tensors[kind + t.name]
            at = base + t.start * item
            out[at : at + place.nbytes] = data[place.offset : place.offset + place.nbytes]
        base += of.length * item
    return bytes(out)


@given(SHAPES, st.sampled_from(DTYPES), st.integers(1, 999))
def test_what_goes_in_comes_out_for_any_shapes_and_pieces(shapes, dtypes, piece_bytes):
    of = flat_layout(dtypes, [(f"blocks.0.p{i}", shape) for i, shape in enumerate(shapes)])
    state = state_of(of)

    data = file_of(of, state, piece_bytes)

    assert len(data) == file_bytes(of, len(header_of(of, ABOUT)))
    assert read_back(of, data) == state


def test_other_programs_read_it(tmp_path):
    state = state_of(ALL)
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(ALL, state))

    with safe_open(path, "np") as file:
        tensor = file.get_tensor("exp_avg.blocks.0.p1")
        assert file.metadata() == ABOUT

    place = ALL.tensors[1]
    begin = (ALL.length + place.start) * 4
    assert tensor.tobytes() == state[begin : begin + 3 * 7 * 4]
    assert len(deserialize(path.read_bytes())) == 3 * len(ALL.tensors)


def test_a_gap_that_is_not_zero_is_refused():
    state = bytearray(state_of(ALL))
    state[5 * 4] = 1  # after the first parameter's five elements

    with pytest.raises(ValueError, match="gap between two parameters"):
        file_of(ALL, bytes(state))


def test_a_gap_at_the_end_that_is_not_zero_is_refused():
    state = bytearray(state_of(ALL))
    state[-1] = 1

    with pytest.raises(ValueError, match="gap between two parameters"):
        file_of(ALL, bytes(state), piece_bytes=7)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_state_of_another_size_is_refused(change):
    state = (state_of(ALL) + b"\0")[: ALL.state_bytes + change]

    with pytest.raises(ValueError, match="its layout has"):
        file_of(ALL, state)


def hostile(change) -> bytes:
    """A file whose header somebody has changed."""
    data = file_of(ALL, state_of(ALL))
    length = header_length(data[:8], len(data))
    entries = json.loads(data[8:length])
    text = change(entries)
    text = (json.dumps(entries) if text is None else text).encode()
    return len(text).to_bytes(8, "little") + text + data[length:]


def first(entries):
    return entries["blocks.0.p0"]


@pytest.mark.parametrize(
    "change",
    [
        lambda e: first(e).update(dtype="BF16"),
        lambda e: first(e).update(shape=[6]),
        lambda e: first(e).update(shape=[-5]),
        lambda e: first(e).update(shape=[1] * 9 + [5]),
        lambda e: first(e).update(shape=[5.0]),
        lambda e: first(e).update(shape=None),
        lambda e: first(e).update(data_offsets=[4, 24]),
        lambda e: first(e).update(data_offsets=[-20, 0]),
        lambda e: first(e).update(data_offsets=[0]),
        lambda e: first(e).update(data_offsets=["0", 20]),
        lambda e: e.pop("blocks.0.p0") and None,
        lambda e: e.update(more={"dtype": "F32", "shape": [1], "data_offsets": [10**9, 10**9 + 4]}),
        lambda _: "[]",
        lambda _: "{",
        lambda _: '{"a": 1, "a": 2}',
        lambda _: "[" * 100_000,
        lambda _: '{"a": 1}',
    ],
)
def test_a_header_that_we_did_not_write_is_refused(change):
    data = hostile(change)

    with pytest.raises(BadCheckpoint, match="a stage's file"):
        tensors_in(data[: header_length(data[:8], len(data))], len(data))


@given(SHAPES, st.sampled_from(DTYPES))
def test_a_file_tells_the_layout_that_it_was_made_of(shapes, dtypes):
    of = flat_layout(dtypes, [(f"blocks.0.p{i}", shape) for i, shape in enumerate(shapes)])
    header = header_of(of, ABOUT)

    found = layout_in(tensors_in(header, file_bytes(of, len(header))))

    least = dataclasses.replace(of, dtypes=FLOAT32, kinds=STATE_KINDS[:3])
    assert found == (of if shapes else least)


@pytest.mark.parametrize("kinds", [STATE_KINDS, STATE_KINDS[:3] + STATE_KINDS[4:5]])
def test_a_file_tells_which_tensors_a_delay_has_added(kinds):
    shapes = [("blocks.0.a", (3, 5)), ("blocks.0.b", (7,))]
    of = flat_layout(("float32",) * len(kinds), shapes, kinds)
    header = header_of(of, ABOUT)

    found = layout_in(tensors_in(header, file_bytes(of, len(header))))

    assert found == of


@pytest.mark.parametrize(
    "change", [{"dtype": "float64"}, {"shape": (16, 1)}, {"dtype": "float64", "shape": (1,)}]
)
def test_moments_that_are_not_those_of_the_weights_are_refused(change):
    header = header_of(ALL, ABOUT)
    tensors = tensors_in(header, file_bytes(ALL, len(header)))
    tensors["exp_avg.blocks.1.p0"] = dataclasses.replace(tensors["exp_avg.blocks.1.p0"], **change)

    with pytest.raises(BadCheckpoint, match="do not belong together"):
        layout_in(tensors)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_than_its_tensors_is_refused(change):
    header = header_of(ALL, ABOUT)

    with pytest.raises(BadCheckpoint, match="with tensors up to byte"):
        tensors_in(header, file_bytes(ALL, len(header)) + change)


@pytest.mark.parametrize("first", [b"", b"1234567", (2**63).to_bytes(8, "little")])
def test_a_header_that_does_not_fit_the_file_is_refused(first):
    with pytest.raises(BadCheckpoint, match="a stage's file of 1000 bytes"):
        header_length(first, 1000)


@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
def test_a_file_gives_back_the_state_with_its_gaps(step):
    of = layout(CUT[0])
    before = state_of(of, seed=7)
    encoder, decoder = StageFileEncoder(of), StageFileDecoder(of)
    file = b"".join(bytes(part) for part in encoder.encode(memoryview(before)))

    state = b"".join(
        bytes(part)
        for at in range(0, len(file), step)
        for part in decoder.decode(memoryview(file)[at : at + step])
    )

    assert state == before
    assert len(file) < len(state)


CHECKING_ALL = layout(range(4))


@given(st.sampled_from(DTYPES), st.integers(1, 400), st.lists(st.integers(0, 10_000), max_size=5))
def test_the_state_has_one_digest_however_its_bytes_come(dtypes, piece_values, cuts):
    """Written out from the definition: the parts of a piece lie in all buffers."""
    of = layout(range(4), dtypes)
    spans = piece_spans(of.length, piece_values, of.row_blocks())
    state = state_of(of)
    edges = sorted({0, len(state), *(min(cut, len(state)) for cut in cuts)})
    hasher = StateHasher(of, piece_values=piece_values)

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
    values = torch.frombuffer(bytearray(state_of(CHECKING_ALL)), dtype=torch.float32).chunk(3)
    hasher = StateHasher(CHECKING_ALL)
    hasher.update(state_of(CHECKING_ALL))

    spans = piece_spans(CHECKING_ALL.length, whole=CHECKING_ALL.row_blocks())
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
