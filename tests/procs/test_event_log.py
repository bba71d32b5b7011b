"""Real nodes that log their events: the logs agree, and a disk that is full costs them alone."""

import json

import pytest
from procs.test_full_disk import HERE, RUN

from p2pswarm.command_line import main
from p2pswarm.progress.event_lines import from_line
from p2pswarm.progress.events import Begun, Ended, Serving, Stepped

pytestmark = pytest.mark.timeout(300)  # several processes each, and machines may be busy
STEPS = 20


def write_run(path, *, steps: int, log: str):
    text = RUN.format(state='name = "attic"', target='""', steps=steps, standby="false")
    path.write_text(text.replace('data = "text"', f'data = "text"\nlog = "{log}"'))
    return path


def test_the_logs_of_a_trainer_and_of_its_server_are_one_run(
    start, seed_node, text_folder, tmp_path, capsys
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    serve = tmp_path / "serve.toml"
    serve.write_text('region = "Berlin"\n[serve]\nlog = "server.jsonl"\n')
    server = start(*join, "--config", serve, "--name", "cellar")
    trainer = start(
        "train",
        write_run(tmp_path / "run.toml", steps=STEPS, log="run.jsonl"),
        *join,
        module="p2pswarm",
    )

    assert trainer.end() == 0, trainer.errors
    server.interrupt()
    server.end()

    logs = [tmp_path / "run.jsonl", tmp_path / "server.jsonl"]
    ours, theirs = ([from_line(line) for line in log.read_text().splitlines()] for log in logs)
    first, last = ours[0].event, [one.event for one in ours if isinstance(one.event, Stepped)][-1]
    assert isinstance(first, Begun)
    assert (first.name, first.steps, first.stages, first.microbatches) == ("attic", STEPS, 1, 2)
    assert (last.step, last.equal, last.compared) == (STEPS, 1, 1)
    assert last.height >= STEPS
    assert any(isinstance(one.event, Ended) for one in ours)
    assert [one.event.name for one in theirs if isinstance(one.event, Serving)] == ["cellar"]
    assert {one.run for one in theirs} == {"", ours[0].run}
    capsys.readouterr()
    assert main(["watch", *map(str, logs), "--json"]) == 0
    said, beside = capsys.readouterr()
    found = json.loads(said)
    assert beside == ""
    assert (found["steps"], found["stages"], found["state"]) == (STEPS, 1, "ended")
    assert found["servers"]["cellar"]["region"] == "Berlin"


@pytest.mark.full
def test_a_log_on_a_full_disk_costs_events_and_the_run_ends_with_its_weights(
    start, seed_node, text_folder, small_disk, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    start(*join)
    run = write_run(tmp_path / "run.toml", steps=60, log="disk/run.jsonl")
    trainer = start("train", run, *join, module="p2pswarm", inside=small_disk.inside)
    assert trainer.line_with("training begins")

    small_disk.fill()

    assert trainer.end() == 0, trainer.errors
    assert (tmp_path / "weights-full-step-60.safetensors").is_file()
    assert trainer.errors.count("no events are written until it can be") == 1
