"""Processes that are killed, come back, and are told that their machine ends."""

import signal

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
    assert server.line_with("is over: all steps are done")
    assert server.line_with("there is no run yet")


def test_the_last_server_of_a_stage_hands_over_when_its_machine_is_about_to_end(
    start, seed_node, run_of
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    old = start(*join)
    trainer = start(*run_of(1_000_000), *join)
    assert trainer.line_with("counted")

    old.process.send_signal(signal.SIGTERM)
    assert old.line_with("no other server has the weights of this stage")
    new = start(*join)

    assert new.line_with("serving stage 0")
    assert old.end() == 0
    assert trainer.process.poll() is None
    assert old.errors == ""
