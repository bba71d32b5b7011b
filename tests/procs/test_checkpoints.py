"""Checkpoints of real processes: killed in the middle of a step, and resumed with another cut."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from p2pswarm.compute.parameter_names import named_parameters
from p2pswarm.compute.reference import ReferenceTrainer
from p2pswarm.roles.trainer import read_corpus
from p2pswarm.settings import load
from p2pswarm.swarm.schedule import learning_rate

HERE = ("--listen", "127.0.0.1:0")
RUN = """
[train]
data = "text"
weights = "weights.safetensors"

[checkpoint]
target = "checkpoints"
every_steps = 3

[run]
name = "saved"
stages = {stages}
steps = {steps}
min_replicas = {replicas}

[run.model]
d_model = 16
layers = 2
heads = 2
sequence_length = 32
dtype = "{dtype}"

[run.optimizer]
decay_steps = 100
clip_norm = 1e6       # the norm is a sum whose rounding depends on the cut

[run.batch]
microbatches = 2      # the sum of two has one order only
rows = 2

[run.codecs]
activation = "raw"
gradient = "raw"
averaging = "raw"
"""
KINDS = {"F32": torch.float32, "F64": torch.float64}


def tensors(path: Path) -> dict[str, torch.Tensor]:
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, about in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            start, end = (begin + offset for offset in about["data_offsets"])
            values = torch.frombuffer(memoryview(data)[start:end], dtype=KINDS[about["dtype"]])
            found[name] = values.view(about["shape"])
    return found


def plain_loop(run_file: Path) -> dict[str, torch.Tensor]:
    """The weights that one loop in one process makes."""
    config = load(run_file)
    corpus, run = read_corpus(config), config.run
    plain = ReferenceTrainer(run)
    size = run.batch.microbatches
    for step in range(run.steps):
        for number in range(step * size, (step + 1) * size):
            plain.add(torch.from_numpy(corpus.microbatch(number)))
        plain.commit(learning_rate(run, step))
    return {
        name: parameter.detach()
        for name, parameter in named_parameters(plain.flat.numbers, plain.flat.blocks)
    }


def manifests(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoints/*/manifest.json"))


@pytest.fixture
def run_file(tmp_path, text_folder):
    def write(**values) -> Path:
        values = {"stages": 2, "steps": 1_000_000, "replicas": 1, "dtype": "float64"} | values
        path = tmp_path / "run.toml"
        path.write_text(RUN.format(**values))
        return path

    return write


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_run_that_was_killed_goes_on_with_another_cut_and_has_the_weights_of_a_plain_loop(
    start, seed_node, run_file, tmp_path, dtype
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    first = [start("train", run_file(dtype=dtype, replicas=2), *join, module="p2pswarm")]
    first += [start(*join) for _ in range(4)]
    assert first[0].line_with("checkpoint of step ")

    for node in first:
        os.killpg(node.process.pid, signal.SIGKILL)
    step = max(int(path.parent.name.split("step-")[1]) for path in manifests(tmp_path))
    again = run_file(dtype=dtype, stages=3, steps=step + 7)
    trainer = start("train", again, "--resume", *join, module="p2pswarm")
    assert trainer.line_with(f"going on from step {step} ")
    servers = [start(*join) for _ in range(3)]

    assert trainer.line_with(f"done after {step + 7} steps")
    assert trainer.end() == 0, trainer.errors
    assert servers[0].line_with("loaded from")
    ours = tensors(tmp_path / f"weights-saved-step-{step + 7}.safetensors")
    theirs = plain_loop(again)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
