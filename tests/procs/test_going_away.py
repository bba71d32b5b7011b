"""Processes that are killed, come back, and are told that their machine ends."""

import os
import pty
import signal
import subprocess
import sys

import pytest

HERE = ("--listen", "127.0.0.1:0")
RUN = """
[train]
data = "text"
weights = ""

[run]
name = "going away"
stages = 1
steps = {steps}

[run.model]
d_model = 16
layers = 1
heads = 2
sequence_length = 32

[run.batch]
microbatches = 2
rows = 2
"""


@pytest.fixture
def run_of(tmp_path, text_folder):
    """Writes the settings of a run of so many steps; returns the flags of its trainer."""

    def flags(steps: int) -> tuple[object, ...]:
        path = tmp_path / "run.toml"
        path.write_text(RUN.format(steps=steps))
        return ("--role", "trainer", "--config", path)

    return flags


@pytest.fixture
def patient(tmp_path):
    """Flags of a server that may take long to leave: on a busy machine the next starts slowly."""
    path = tmp_path / "serve.toml"
    path.write_text("[serve]\ngrace_s = 100.0\n")
    return ("--config", path)


@pytest.mark.full
def test_a_trainer_that_was_killed_comes_back_as_another_peer_and_has_its_server(
    start, seed_node, run_of
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    server = start(*join)
    first = start(*run_of(10), *join)
    assert server.line_with("serving stage 0")

    first.process.send_signal(signal.SIGKILL)
    again = start(*run_of(10), *join)

    assert again.line_with("done after 10 steps")
    assert server.line_with("out of the run, joining again")
    assert server.line_with("serving stage 0")  # its last word is not that it is out
    assert server.line_with("is over: all steps are done")
    assert server.end() == 0


def test_the_last_server_of_a_stage_hands_over_when_its_machine_is_about_to_end(
    start, seed_node, run_of, patient
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    old = start(*patient, *join)
    trainer = start(*run_of(1_000_000), *join)
    assert trainer.line_with("counted")

    old.process.send_signal(signal.SIGTERM)
    assert old.line_with("no other server has the weights of this stage")
    new = start(*join)

    assert new.line_with("serving stage 0")
    assert old.end() == 143
    assert trainer.process.poll() is None
    assert old.errors == ""


@pytest.mark.full
def test_when_the_last_two_servers_of_a_stage_must_leave_at_once_one_hands_over(
    start, seed_node, run_of, patient
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    last = [start(*patient, *join), start(*patient, *join)]
    trainer = start(*run_of(1_000_000), *join)
    for one in last:
        assert one.line_with("serving stage 0")
    assert trainer.line_with("counted")

    for one in last:
        one.process.send_signal(signal.SIGTERM)
    assert trainer.line_with("the last server of stage 0")
    new = start(*join)

    assert new.line_with("serving stage 0")
    assert [one.end() for one in last] == [143, 143]
    assert trainer.process.poll() is None


@pytest.mark.full
def test_when_all_servers_must_leave_and_nobody_can_take_over_a_checkpoint_is_written(
    start, seed_node, run_of, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    servers = [start(*join), start(*join)]
    flags = run_of(1_000_000)
    with flags[-1].open("a") as settings:
        settings.write(f'\n[checkpoint]\ntarget = "{tmp_path / "saved"}"\nevery_steps = 900000\n')
    trainer = start(*flags, *join)
    for one in servers:
        assert one.line_with("serving stage 0")
    assert trainer.line_with("counted")

    for one in servers:
        one.process.send_signal(signal.SIGTERM)

    assert trainer.line_with("a checkpoint of step")
    assert " s: " in trainer.line_with("saved/")
    assert [one.end() for one in servers] == [143, 143]
    assert any((tmp_path / "saved").iterdir())


def test_a_trainer_whose_terminal_is_closed_trains_on_and_writes_its_weights(
    start, seed_node, run_of, tmp_path
):
    """Each line fails with EIO from then on, as after a broken ssh under nohup."""
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    start(*join)
    ours, theirs = pty.openpty()
    flags = [*map(str, run_of(40)), *join]
    settings = tmp_path / "run.toml"
    settings.write_text(settings.read_text().replace('weights = ""', 'weights = "out.safetensors"'))
    with subprocess.Popen(
        [sys.executable, "-m", "p2pswarm.node", *flags],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as trainer:
        os.close(theirs)
        said = b""
        while b"step" not in said:
            said += os.read(ours, 4096)
        os.close(ours)

        assert trainer.wait(100) == 0

    assert list(tmp_path.glob("*.safetensors"))
