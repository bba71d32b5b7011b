"""The weights as a file: what went in comes out, under names that another program can read."""

import json

import pytest
import torch

from p2pswarm.compute.torch_weights import torch_engine
from p2pswarm.config import ModelConfig, RunConfig
from p2pswarm.errors import BadMessage, Unusable
from p2pswarm.models.blocks import block_count, make_blocks
from p2pswarm.roles.weights_file import named_weights, state_sizes, write_weights
from p2pswarm.state.snapshot import Snapshot

RUN = RunConfig(
    stages=2,
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=8, dtype="float64"),
)


def snapshots() -> list[Snapshot]:
    """Version 0 of each stage, as its servers would send it."""
    found = []
    for stage in range(RUN.stages):
        engine = torch_engine(RUN, stage, torch.device("cpu"), 0)
        digest = engine.weights.reset(draw=True)
        found.append(Snapshot(0, digest, engine.weights.snapshot()))
    return found


def test_the_sizes_are_those_of_the_snapshots():
    assert state_sizes(RUN) == [snapshot.data.nbytes for snapshot in snapshots()]


def test_every_parameter_of_the_model_is_named_once():
    named = dict(named_weights(RUN, snapshots()))

    with torch.device("meta"):
        blocks = make_blocks(RUN, range(block_count(RUN.model)))
    shapes = {
        f"blocks.{number}.{name}": parameter.shape
        for number, block in enumerate(blocks)
        for name, parameter in block.named_parameters()
    }
    assert {name: tensor.shape for name, tensor in named.items()} == shapes


def test_weights_that_nobody_agreed_on_are_refused():
    first, second = snapshots()
    second.data[3] ^= 1

    with pytest.raises(BadMessage, match="stage 1"):
        list(named_weights(RUN, [first, second]))


def test_the_file_holds_the_numbers_where_its_header_says(tmp_path):
    path = tmp_path / "out" / "weights.safetensors"
    named = dict(named_weights(RUN, snapshots()))

    size = write_weights(path, named.items(), "a run")

    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert len(raw) == size
    assert length % 8 == 0
    assert header.pop("__metadata__") == {"run": "a run"}
    assert header.keys() == named.keys()
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        body = bytearray(raw[8 + length + start : 8 + length + end])
        values = torch.frombuffer(body, dtype=torch.float64).view(entry["shape"])
        assert entry["dtype"] == "F64"
        assert torch.equal(values, named[name])


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(Unusable, match="cannot be written"):
        write_weights(tmp_path / "file" / "weights", [("x", torch.zeros(1))], "")
