"""A server with two devices beside one with a single device: one run, the weights of one loop."""

import json
import os
import re
import signal
import subprocess

import pytest
import torch
from core import core_of
from procs.harness import plain_loop, tensors
from procs.test_checkpoints import HERE, RUN

STEPS = 12
QWEN = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
TWO_DEVICES = '[serve]\ndevice = "cpu,cpu"\nthreads = 1\n'


def children_of(pid: int) -> list[int]:
    """The processes that this one has started."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


@pytest.fixture
def run_file(tmp_path, text_folder):
    path = tmp_path / "run.toml"
    values = {"stages": 2, "steps": STEPS, "replicas": 2, "every": 1_000, "dtype": "float64"}
    path.write_text(RUN.format(**values).replace("rows = 2", "rows = 3"))
    return path


@pytest.fixture(params=core_of(["rows", "tensor"], ["rows"]))
def two_devices(tmp_path, request):
    path = tmp_path / "two.toml"
    path.write_text(f'{TWO_DEVICES}parallel = "{request.param}"\n')
    return path


@pytest.mark.timeout(120)
def test_a_server_with_two_devices_and_one_with_one_train_what_a_plain_loop_does(
    start, seed_node, run_file, two_devices
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    trains_what_a_plain_loop_does(start, join, run_file, two_devices)


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_family_of_transformers_trains_by_tensors_beside_servers_of_one_device(
    start, seed_node, run_file, tmp_path
):
    _, address = seed_node
    folder = tmp_path / "qwen"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN))
    family = 'family = "hf:./qwen"\ntie = true\nsequence_length = 32\ndtype = "float64"\n\n'
    text = run_file.read_text().replace("rows = 3", "rows = 1")
    run_file.write_text(re.sub(r"d_model(.|\n)*?\n\n", family, text, count=1))
    file = tmp_path / "shared.toml"
    file.write_text(f'{TWO_DEVICES}parallel = "tensor"\n')

    join = ("--bootstrap", address, *HERE)
    trains_what_a_plain_loop_does(start, join, run_file, file, groups=2)


@pytest.mark.full
@pytest.mark.timeout(240)
@pytest.mark.parametrize("parallel", ["context", "tensor"])
def test_adapters_train_on_two_devices_beside_servers_of_one(
    start, seed_node, run_file, tmp_path, parallel
):
    _, address = seed_node
    frozen = '[run]\nbase = "int8"\nadapter = { rank = 2 }\n'
    run_file.write_text(run_file.read_text().replace("[run]\n", frozen))
    file = tmp_path / "shared.toml"
    file.write_text(f'{TWO_DEVICES}parallel = "{parallel}"\n')

    join = ("--bootstrap", address, *HERE)
    trains_what_a_plain_loop_does(start, join, run_file, file, groups=2)


def trains_what_a_plain_loop_does(start, join, run_file, two_devices, groups=1):
    """So many of the two stages have a server on two devices; another server is on a single one."""
    trainer = start("train", run_file, *join, module="p2pswarm")
    stages = [served(start("--config", two_devices, *join)) for _ in range(groups)]
    assert len(set(stages)) == groups
    stages += [served(start(*join)) for _ in range(4 - groups)]
    assert sorted(stages) == ["0", "0", "1", "1"]

    assert trainer.line_with(f"done after {STEPS} steps")
    assert trainer.end() == 0, trainer.errors
    ours = tensors(run_file.parent / f"weights-saved-step-{STEPS}.safetensors")
    theirs = plain_loop(run_file)
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[n], theirs[n], rtol=1e-9, atol=1e-12) for n in ours)


def served(server):
    """The stage that a server says it serves."""
    return re.search(r"stage (\d)", server.line_with("serving stage"))[1]


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_device_that_dies_ends_its_server_in_one_line_and_the_run_goes_on(
    start, seed_node, run_file, two_devices
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    run_file.write_text(run_file.read_text().replace(f"steps = {STEPS}", "steps = 99999"))
    trainer = start("train", run_file, *join, module="p2pswarm")
    group = start("--config", two_devices, *join)
    for _ in range(3):
        start(*join)
    trainer.line_with("step     1")

    os.kill(children_of(group.process.pid)[-1], signal.SIGKILL)

    assert group.end() == 1  # a launcher starts it again
    assert group.errors.count("\n") == 1
    assert "device cpu failed, start this node again: its process is gone" in group.errors
    trainer.line_with("is lost")
    trainer.line_with("step ")


@pytest.mark.timeout(120)
def test_a_model_that_devices_cannot_share_is_passed_over_in_one_line(
    start, seed_node, run_file, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    run_file.write_text(run_file.read_text().replace("heads = 2", "heads = 1"))
    file = tmp_path / "shared.toml"
    file.write_text(f'{TWO_DEVICES}parallel = "tensor"\n')
    start("train", run_file, *join, module="p2pswarm")
    group = start("--config", file, *join)

    assert group.line_with("which 2 devices cannot share equally: set serve.parallel to")
    assert group.process.poll() is None
