"""A run of real processes that stands still says who is waited for, to its user and to others."""

import json
import signal

import pytest

HERE = ("--listen", "127.0.0.1:0")
RUN = """
[train]
data = "text"
weights = ""

[run]
name = "stalls"
stages = 2
steps = 1_000_000

[run.model]
d_model = 16
layers = 2
heads = 2
sequence_length = 32

[run.batch]
microbatches = 2
rows = 2
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system stops no process")
def test_a_server_that_is_stopped_is_named_with_its_stage_until_it_goes_on(
    start, seed_node, text_folder, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    servers = [start(*join), start(*join)]
    (tmp_path / "run.toml").write_text(RUN)
    trainer = start("--role", "trainer", "--config", tmp_path / "run.toml", *join)
    line = servers[0].line_with("serving stage")
    stage = line.split("serving stage ")[1][0]
    for _ in range(3):
        assert trainer.line_with("counted")

    servers[0].process.send_signal(signal.SIGSTOP)
    told = trainer.line_with("does not answer")
    asking = start("explain", "--bootstrap", address, "--json", module="p2pswarm")
    assert asking.end() == 0
    servers[0].process.send_signal(signal.SIGCONT)

    assert f"of stage {stage}" in told
    (run,) = json.loads(asking.said)["runs"]
    assert f"of stage {stage} does not answer" in run["why"]["stalled"]
    assert run["why"]["usual_s"] > 0
    assert trainer.line_with("the run goes on")
    assert trainer.line_with("counted")


def test_explain_tells_where_the_seconds_of_a_living_run_go(
    start, seed_node, text_folder, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    for _ in range(2):
        start(*join)
    (tmp_path / "run.toml").write_text(RUN)
    trainer = start("--role", "trainer", "--config", tmp_path / "run.toml", *join)
    for _ in range(3):
        assert trainer.line_with("counted")

    asking = start("explain", "--bootstrap", address, module="p2pswarm")

    assert asking.end() == 0
    assert "forward  backward  transfer   waiting averaging    commit" in asking.said
    assert asking.said.count("waited least") == 2
    assert "the slowest chain took" in asking.said
