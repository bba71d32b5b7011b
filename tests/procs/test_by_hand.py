"""A run by hand, as across machines: a bootstrap node, servers, and a trainer on one's own text."""

import json

import pytest

from p2pswarm.commands.status.texts import nobody_knows

HERE = ("--listen", "127.0.0.1:0")
RUN = """
[train]
data = "text"
weights = "out/weights.safetensors"

[run]
name = "by hand"
stages = 2
steps = 2

[run.model]
d_model = 16
layers = 2
heads = 2
sequence_length = 32

[run.batch]
microbatches = 2
rows = 2
"""


@pytest.fixture
def run_file(tmp_path, text_folder):
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


def test_servers_find_the_run_train_it_and_end_with_it(start, seed_node, run_file, tmp_path):
    """The servers come first and wait; the trainer's weights lie where its settings say."""
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    servers = [start(*join) for _ in range(2)]
    assert servers[0].line_with("no run yet")

    trainer = start("--role", "trainer", "--config", run_file, *join)

    assert trainer.line_with("done after 2 steps")
    assert trainer.line_with("weights: ")
    assert trainer.end() == 0
    weights = tmp_path / "out" / "weights-by-hand-step-2.safetensors"
    assert weights.stat().st_size > 16 * 256 * 4
    for server in servers:
        assert server.line_with("serving stage")
        assert server.line_with("run 'by hand' is over: all steps are done")
        assert server.end() == 0
        assert server.errors == ""


def test_a_trainer_that_is_interrupted_says_goodbye(start, seed_node, run_file):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    run_file.write_text(RUN.replace("steps = 2", "steps = 1000000"))
    servers = [start(*join) for _ in range(2)]
    trainer = start("--role", "trainer", "--config", run_file, *join)
    assert trainer.line_with("step     1")

    trainer.interrupt()

    assert trainer.end() == 130
    assert "Traceback" not in trainer.errors
    for server in servers:
        assert server.line_with("out of run 'by hand': the trainer leaves; looking for a run")


@pytest.mark.timeout(300)
def test_a_run_that_fails_says_why_with_its_figures_and_ends(start, seed_node, run_file):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    run = RUN.replace("steps = 2", "steps = 1000")
    run_file.write_text(run + "[run.optimizer]\nlearning_rate = 1e3\nweight_decay = 100\n")
    trainer = start("--role", "trainer", "--config", run_file, *join)
    assert trainer.line_with("run 'by hand' needs 2 servers or more; on each such machine run")
    assert trainer.line_with("python -m p2pswarm.node --bootstrap").endswith(address)
    assert trainer.line_with("waiting for a server of stage 0, 1")
    for _ in range(2):
        start(*join)

    assert "tokens/s  counted" in trainer.line_with("failed after")

    assert trainer.end() == 1
    assert "lower the learning rate" in trainer.errors
    assert trainer.errors.count("error: ") == 1
    assert "Traceback" not in trainer.errors


def test_a_server_serves_the_stage_that_it_was_told_or_says_that_there_is_none(
    start, seed_node, run_file, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    start("--role", "trainer", "--config", run_file, *join).line_with("bytes to train on")
    (tmp_path / "second.toml").write_text("[serve]\nstage = 1")
    (tmp_path / "sixth.toml").write_text("[serve]\nstage = 5")

    sixth = start("--config", tmp_path / "sixth.toml", *join)
    second = start("--config", tmp_path / "second.toml", *join)

    assert sixth.line_with("run 'by hand' has no stage 5 (serve.stage), its stages are 0 to 1")
    assert second.line_with("serving stage 1 of 2")


def test_status_tells_how_a_run_stands(start, seed_node, run_file):
    _, address = seed_node
    ask = ("status", "--bootstrap", address)
    nothing = start(*ask, module="p2pswarm")
    assert nothing.end() == 1
    assert nothing.errors == f"error: {nobody_knows((address,))}\n"
    join = ("--bootstrap", address, *HERE)
    start("--role", "trainer", "--config", run_file, *join).line_with("waiting for a server")

    asked = start(*ask, module="p2pswarm")
    for_scripts = start(*ask, "--run", "by hand", "--json", module="p2pswarm")
    another = start(*ask, "--run", "another", module="p2pswarm")

    assert asked.line_with("run 'by hand', id ")
    assert asked.line_with("step 0 of 2, waiting for a server of stage 0, 1")
    assert asked.line_with("servers: stage 0: 0 ready, stage 1: 0 ready")
    (run,) = json.loads(for_scripts.line_with("{"))["runs"]
    assert (run["name"], run["status"]["done"]) == ("by hand", 0)
    assert another.end() == 2
    assert another.errors == "error: no run is named 'another'; there is 'by hand'\n"


def test_a_server_may_ask_for_a_run_by_name(start, seed_node, run_file, tmp_path):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    start("--role", "trainer", "--config", run_file, *join).line_with("bytes to train on")
    settings = tmp_path / "server.toml"
    settings.write_text("[serve]\nrun = 'another'")

    server = start("--config", settings, *join)

    assert server.line_with("no run is named 'another'; there is 'by hand'")


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda folder: folder.mkdir(), "there is no text"),
        (lambda _: None, "no such file or folder"),
        (
            lambda folder: folder.write_bytes(b"\0" * 100_000),
            "there is no text; passed over: 1 binary",
        ),
        (lambda folder: folder.write_text("short"), "name a larger text file"),
    ],
)
def test_data_without_text_is_one_line(start, tmp_path, make, part):
    make(tmp_path / "data")
    path = tmp_path / "run.toml"
    path.write_text("[train]\ndata = 'data'")

    trainer = start("--role", "trainer", "--config", path, *HERE)

    assert trainer.end() == 2
    assert trainer.errors.startswith("error: ")
    assert trainer.errors.count("\n") == 1
    assert part in trainer.errors
    assert str(tmp_path / "data") in trainer.errors
