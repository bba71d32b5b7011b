"""Real processes whose disk is full: a small tmpfs of their own, skipped where none may be mounted.

Training goes on where it may; each disk costs what it keeps, in one line, and nothing that is
finished is touched.
"""

from pathlib import Path

import pytest

HERE = ("--listen", "127.0.0.1:0")
STEPS = 40
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
    assert trainer.line_with("checkpoint of step ")

    small_disk.fill()
    assert trainer.line_with("loss")  # a checkpoint that was being written is over by now
    before = files(small_disk.path / "saved")
    line = trainer.line_with("no checkpoint of step ")
    assert "free some space" in line
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


def test_a_server_whose_disk_is_full_votes_no_more_and_the_run_goes_on(
    start, seed_node, settings, small_disk, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    serve = tmp_path / "serve.toml"
    serve.write_text('state = "disk/server"\n')
    server = start(*join, "--config", serve, inside=small_disk.inside)
    first = start("train", settings("first", state="first"), *join, module="p2pswarm")
    assert first.line_with("loss")
    start("train", settings("second", state="second", standby=True), *join, module="p2pswarm")
    assert first.line_with("stands by")
    assert first.line_with("loss")

    small_disk.fill()

    line = server.line_with("votes no more on what is decided")
    assert "free some space" in line
    for _ in range(3):
        assert first.line_with("loss")
    assert server.process.poll() is None
