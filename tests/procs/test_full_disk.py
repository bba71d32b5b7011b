"""Real processes whose disk is full: a small tmpfs of their own, skipped where none may be mounted.

Training goes on where it may; each disk costs what it keeps, in one line, and nothing that is
finished is touched.
"""

from pathlib import Path

import pytest
import torch
from procs.harness import plain_loop, tensors

from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.node.run.weights_file import write_weights
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.settings.parser import run_to_json

pytestmark = pytest.mark.timeout(300)  # several processes each, and machines may be busy
HERE = ("--listen", "127.0.0.1:0")
STEPS = 40
MANY_STEPS = 200  # so that two trainers are there before they are done
RUN = """
{state}
[train]
data = "text"
weights = "weights.safetensors"
standby = {standby}

[checkpoint]
target = {target}
every_steps = 2

[run]
name = "full"
strangers = "lead"
stages = 1
steps = {steps}

[run.model]
d_model = 16
layers = 2
heads = 2
sequence_length = 32
dtype = "float64"

[run.batch]
microbatches = 2
rows = 2

[run.codecs]
activation = "raw"
gradient = "raw"
"""


@pytest.fixture
def settings(tmp_path, text_folder):
    """Writes the settings of a trainer."""

    def write(name: str, *, state: str = "", target: str = "", steps=10**6, standby=False) -> Path:
        path = tmp_path / f"{name}.toml"
        path.write_text(
            RUN.format(
                state=f'state = "{state}"' if state else "",
                target=f'"{target}"',
                steps=steps,
                standby=str(standby).lower(),
            )
        )
        return path

    return write


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_full_target_costs_checkpoints_and_the_next_one_is_written_when_there_is_space(
    start, seed_node, settings, small_disk
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    start(*join, inside=small_disk.inside)
    run = settings("run", target="disk/saved")
    trainer = start("train", run, *join, module="p2pswarm", inside=small_disk.inside)
    assert trainer.line_with(" s: disk/saved/")

    small_disk.fill()
    line = trainer.line_with("no checkpoint of step ")
    assert "free some space" in line
    assert trainer.line_with("no checkpoint of step ")  # one that was being written may have come
    before = files(small_disk.path / "saved")
    assert trainer.line_with("no checkpoint of step ")  # and training goes on
    after = files(small_disk.path / "saved")
    whole = {name: data for name, data in before.items() if name in after}
    assert all(after[name] == data for name, data in whole.items())
    assert any("manifest.json" in name for name in whole)
    small_disk.free()

    assert trainer.line_with(" s: disk/saved/full")
    trainer.interrupt()
    assert trainer.end() == 130, trainer.errors
    verify = start("verify", "disk/saved", module="p2pswarm", inside=small_disk.inside)
    assert verify.end() == 0, verify.errors


@pytest.mark.full
def test_a_server_whose_disk_is_full_votes_from_memory_so_that_a_trainer_may_still_die(
    start, seed_node, settings, small_disk, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    serve = tmp_path / "serve.toml"
    serve.write_text('state = "disk/server"\n')
    server = start(*join, "--config", serve, inside=small_disk.inside)
    first = start("train", settings("first", state="first"), *join, module="p2pswarm")
    assert first.line_with("loss")
    second = settings("second", state="second", standby=True)
    standby = start("train", second, *join, module="p2pswarm")
    assert first.line_with("stands by")
    assert first.line_with("held-out loss")  # every tenth step: the server votes by the next
    assert first.line_with("held-out loss")

    small_disk.fill()

    line = server.line_with("votes no more with its file")
    assert "free some space" in line
    for _ in range(3):
        assert first.line_with("held-out loss")
    first.kill()
    assert standby.line_with("this trainer coordinates the run")
    assert standby.line_with("held-out loss")
    assert server.process.poll() is None


@pytest.mark.full
def test_a_lone_trainer_whose_disk_is_full_ends_with_one_line_and_goes_on_when_there_is_space(
    start, seed_node, settings, small_disk, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    server = start(*join)
    run = settings("run", state="disk/state", steps=STEPS)
    trainer = start("train", run, *join, module="p2pswarm", inside=small_disk.inside)
    assert trainer.line_with("loss")

    small_disk.fill()
    assert trainer.end() == 1
    small_disk.free()
    again = start("train", run, *join, module="p2pswarm", inside=small_disk.inside)

    assert ".chain cannot be used: " in trainer.errors
    assert "free some space or name another file" in trainer.errors
    assert trainer.errors.count("\n") == 1
    assert again.line_with("going on with run 'full'")
    assert again.line_with(f"done after {STEPS} steps")
    assert again.end() == 0, again.errors
    assert server.line_with("is over: all steps are done")
    ours = tensors(tmp_path / f"weights-full-step-{STEPS}.safetensors")
    theirs = plain_loop(run)
    assert all(torch.allclose(ours[n], theirs[n], rtol=0, atol=1e-12) for n in theirs)


@pytest.mark.full
def test_a_coordinator_whose_disk_is_full_says_so_and_another_trainer_leads(
    start, seed_node, settings, small_disk
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    first = settings("first", state="disk/state", steps=MANY_STEPS)
    coordinator = start("train", first, *join, module="p2pswarm", inside=small_disk.inside)
    assert coordinator.line_with("needs 1 server")
    second = settings("second", state="second", steps=MANY_STEPS, standby=True)
    standby = start("train", second, *join, module="p2pswarm")
    assert coordinator.line_with("stands by")
    start(*join)
    assert coordinator.line_with("held-out loss")  # of step 10: both and the server vote by then

    small_disk.fill()

    assert standby.line_with("this trainer coordinates the run")
    assert coordinator.end() == 1
    assert "free some space" in coordinator.errors
    assert coordinator.errors.count("\n") == 1
    small_disk.free()
    again = start("train", first, *join, module="p2pswarm", inside=small_disk.inside)
    assert again.line_with("going on with run 'full'")
    assert standby.line_with(f"done after {MANY_STEPS} steps")
    assert standby.end() == 0, standby.errors
    assert again.end() == 0, again.errors


@pytest.mark.full
def test_weights_are_told_of_even_if_the_folder_cannot_say_that_the_run_is_over(
    start, seed_node, settings, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    start(*join)
    run = settings("run", state="state", steps=STEPS)
    trainer = start("train", run, *join, module="p2pswarm")
    assert trainer.line_with("loss")

    (tmp_path / "state" / "run.json.new").mkdir()  # nothing can be written under this name now

    assert trainer.line_with(f"weights-full-step-{STEPS}.safetensors")
    assert trainer.end() == 2
    assert "free some space or name another folder" in trainer.errors


def test_an_export_to_a_full_disk_is_one_line_and_leaves_nothing(start, small_disk, tmp_path):
    run = RunConfig(model=ModelConfig(d_model=16, layers=1, heads=2, sequence_length=8))
    flat = ReferenceTrainer(run).flat
    named = ((name, x.detach()) for name, x in named_parameters(flat.numbers, flat.blocks))
    write_weights(tmp_path / "w.safetensors", named, run_to_json(run).decode())
    small_disk.fill()

    export = start(
        "export", "w.safetensors", "disk/out", module="p2pswarm", inside=small_disk.inside
    )

    assert export.end() == 2
    assert export.errors.startswith("error: disk/out cannot be written: ")
    assert export.errors.endswith("name a folder on another disk\n")
    assert export.errors.count("\n") == 1
    assert [each.name for each in small_disk.path.iterdir()] == ["ballast"]
