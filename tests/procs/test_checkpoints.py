"""Checkpoints of real processes: killed in the middle of a step, and resumed with another cut."""

import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from procs.harness import plain_loop, tensors

from p2pswarm.checkpoint.names import parse_folder

HERE = ("--listen", "127.0.0.1:0")
SAVES = ("--checkpoint-target", "checkpoints")
"""For a server whose owner lets it write where the runs of these tests say."""
RUN = """
[train]
data = "text"
weights = "weights.safetensors"

[checkpoint]
target = "checkpoints"
every_steps = {every}

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


def manifests(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoints/*/manifest.json"))


def step_of(folder: Path) -> int:
    return int(folder.name.partition(".step-")[2][:9])


@pytest.fixture
def run_file(tmp_path, text_folder):
    def write(low="full", **values) -> Path:
        values = {
            "stages": 2,
            "steps": 1_000_000,
            "replicas": 1,
            "every": 3,
            "dtype": "float64",
        } | values
        path = tmp_path / "run.toml"
        kept = f'[run]\nprecision = "{low}"\nweight_storage = "{low}"\n'
        path.write_text(RUN.format(**values).replace("[run]\n", kept))
        return path

    return write


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "low",
    [
        pytest.param("full", id="float32"),
        pytest.param("bf16", id="weights in bfloat16", marks=pytest.mark.full),
    ],
)
def test_a_run_that_was_killed_goes_on_with_another_cut_and_has_the_weights_of_a_plain_loop(
    start, seed_node, run_file, tmp_path, low
):
    """With a newcomer that downloaded its stage; tests/checkpoint/test_cuts.py has float64."""
    kinds = {"dtype": "float32", "low": low}
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    first = [start("train", run_file(**kinds, replicas=2), *join, module="p2pswarm")]
    first += [start(*join, *SAVES) for _ in range(4)]
    assert first[0].line_with("checkpoint of step ")
    first.append(start(*join))
    assert first[-1].line_with("serving stage ")
    assert first[0].line_with("checkpoint of step ")

    for node in first:
        os.killpg(node.process.pid, signal.SIGKILL)
    step = max(parse_folder(path.parent.name).step for path in manifests(tmp_path))
    again = run_file(**kinds, stages=3, steps=step + 7)
    trainer = start("train", again, "--resume", *join, module="p2pswarm")
    assert trainer.line_with(f"going on from step {step} ")
    servers = [start(*join, *SAVES), *(start(*join) for _ in range(2))]

    assert trainer.line_with(f"done after {step + 7} steps")
    assert trainer.end() == 0, trainer.errors
    assert servers[0].line_with("loaded from")
    for plain in servers[1:]:  # the trainer sends what they may not read
        assert plain.line_with("its trainer or another server is asked for the weights")
    ours = tensors(tmp_path / f"weights-saved-step-{step + 7}.safetensors")
    theirs = plain_loop(again)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_ctrl_c_ends_in_a_checkpoint(start, seed_node, run_file, tmp_path):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    servers = [start(*join) for _ in range(2)]
    trainer = start("train", run_file(every=1_000_000), *join, module="p2pswarm")
    assert trainer.line_with("loss")

    trainer.interrupt()

    assert trainer.line_with("saving a checkpoint; Ctrl-C leaves without it")
    assert trainer.line_with("stages saved")  # how far it is
    assert trainer.end() == 130, trainer.errors
    assert "Traceback" not in trainer.errors
    newest = manifests(tmp_path)[-1]  # a step that was being decided meanwhile makes a second one
    assert start("verify", newest.parent, module="p2pswarm").end() == 0
    assert not list(tmp_path.glob("**/*.part"))
    for server in servers:
        assert server.line_with(": the trainer leaves; looking for a run")


def test_a_text_that_changes_under_a_run_ends_in_a_checkpoint_and_weights(
    start, seed_node, run_file, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    text = tmp_path / "rows.jsonl"
    rows = [f'{{"text": "some text to learn from, {number}"}}\n' for number in range(50)]
    text.write_text("".join(rows))
    settings = run_file(stages=1, every=1_000_000)
    said = settings.read_text().replace('data = "text"', 'data = "rows.jsonl"')
    settings.write_text(said.replace("[run.batch]\n", '[run.batch]\nsamples = "streamed"\n'))
    start(*join)
    trainer = start("train", settings, *join, module="p2pswarm")
    assert trainer.line_with("loss")

    with text.open("a") as file:
        file.write('{"text": "and more"}\n')

    assert trainer.line_with("saving a checkpoint")
    assert trainer.line_with("weights: ")
    assert trainer.end() == 2
    assert "rows.jsonl: changed while the run reads it: put it back as it was" in trainer.errors
    assert "Traceback" not in trainer.errors
    assert manifests(tmp_path)


@pytest.mark.full
def test_a_second_ctrl_c_leaves_without_a_checkpoint(start, seed_node, run_file, tmp_path):
    """A server that stands still can save nothing, and the trainer waits for it."""
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    server = start(*join, *SAVES)
    trainer = start("train", run_file(stages=1, every=1_000_000), *join, module="p2pswarm")
    assert trainer.line_with("loss")
    server.process.send_signal(signal.SIGSTOP)

    trainer.interrupt()
    assert trainer.line_with("saving a checkpoint; Ctrl-C leaves without it")
    trainer.interrupt()

    assert trainer.end() == 130
    assert not manifests(tmp_path)


def test_a_target_that_cannot_be_written_is_one_line_before_the_run_begins(
    start, seed_node, run_file, tmp_path
):
    _, address = seed_node
    run = run_file()
    (tmp_path / "checkpoints").write_text("a file")

    trainer = start("train", run, "--bootstrap", address, *HERE, module="p2pswarm")

    assert trainer.end() == 2
    assert trainer.errors.startswith("error: checkpoint.target: checkpoints cannot be written: ")
    assert trainer.errors.count("\n") == 1


@pytest.mark.full
def test_a_disk_that_is_full_costs_checkpoints_and_the_next_one_is_written_when_it_is_not(
    start, seed_node, run_file, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    server = start(*join, *SAVES)
    full = 1_000  # bytes that a file of the server may have
    before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    assert server.line_with("no run yet")
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (full, before[1]))
    trainer = start("train", run_file(stages=1), *join, module="p2pswarm")

    line = trainer.line_with("no checkpoint of step ")
    assert "training goes on without this checkpoint: free some space" in line
    assert not manifests(tmp_path)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)

    while "no checkpoint of step " in trainer.line_with("checkpoint of step "):
        pass  # another that was begun while the disk was full
    assert trainer.process.poll() is None
    newest = max(manifests(tmp_path))  # a later one may be on its way: folders are named by steps
    parts = tmp_path.glob("checkpoints/*/*.part")
    assert not [part for part in parts if part.parent <= newest.parent]


@pytest.mark.full
def test_a_checkpoint_that_is_torn_is_named_and_the_one_before_is_used(
    start, seed_node, run_file, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    server = start(*join, *SAVES, "--set", "serve.leave='never'")
    trainer = start("train", run_file(stages=1, steps=9), *join, module="p2pswarm")
    assert trainer.line_with("done after 9 steps")
    assert trainer.end() == 0
    *_, before, last = (manifest.parent for manifest in manifests(tmp_path))
    (stage_file,) = last.glob("stage-*")
    data = bytearray(stage_file.read_bytes())
    data[-1] ^= 1
    stage_file.write_bytes(data)

    again = run_file(stages=1, steps=12)
    resumed = start("train", again, "--resume", "checkpoints", *join, module="p2pswarm")

    assert resumed.line_with(last.name)  # why it cannot be used
    assert resumed.line_with(f"going on from step {step_of(before)} of ")
    assert resumed.line_with("done after 12 steps")
    assert server.line_with("loaded from")


def test_a_resume_without_a_checkpoint_is_one_line(start, seed_node, run_file, tmp_path):
    _, address = seed_node
    (tmp_path / "empty").mkdir()
    join = ("--bootstrap", address, *HERE)

    trainer = start("train", run_file(), "--resume", "empty", *join, module="p2pswarm")

    assert trainer.end() == 2
    assert trainer.errors == (
        "error: there is no checkpoint to go on from in empty: name another target\n"
    )


def test_a_plain_server_writes_nowhere_that_a_run_names_and_the_trainer_writes_instead(
    start, seed_node, run_file, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    servers = [start(*join) for _ in range(2)]
    trainer = start("train", run_file(steps=7), *join, module="p2pswarm")

    assert trainer.line_with("no server of stage ")
    assert trainer.line_with("done after 7 steps")
    assert trainer.end() == 0, trainer.errors
    written = list(tmp_path.glob("checkpoints/*/stage-*"))
    assert len({path.name.split(".")[1] for path in written}) == 1  # by one peer, the trainer
    assert all(
        "a server opens no target but" in server.line_with("no checkpoint of step")
        for server in servers
    )
    assert start("verify", "checkpoints", module="p2pswarm").end() == 0
