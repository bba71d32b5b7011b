"""A run of real processes whose budget is spent: saved, ended with code 0, and gone on with."""

import json
import shlex
import sys
from pathlib import Path

import pytest

HERE = ("--listen", "127.0.0.1:0")
RUN = """
{top}
[train]
data = "text"
weights = "weights.safetensors"
price_per_hour = 500
budget = {budget}
price_limit = {limit}
notify = {notify}

[checkpoint]
target = "checkpoints"
every_steps = 1_000_000

[run]
name = "dear"
stages = 1
steps = 1_000_000

[run.model]
d_model = 16
layers = 2
heads = 2
sequence_length = 32

[run.batch]
microbatches = 2
rows = 2
evaluate_every = 0
"""
SERVER = """
[serve]
price_per_hour = {price}
currency = "{currency}"
spot = true
checkpoint_targets = ["checkpoints"]
"""
RECORDER = """
import sys
with open({place!r}, "a") as file:
    file.write(sys.stdin.read())
"""


@pytest.fixture
def run_file(tmp_path, text_folder):
    """Writes the settings of a run that is dear enough to end within seconds."""
    recorder = tmp_path / "recorder.py"
    recorder.write_text(RECORDER.format(place=str(tmp_path / "alerts.jsonl")))
    notify = json.dumps(shlex.join([sys.executable, str(recorder)]))

    def write(budget: float, limit: float = 0.0, top: str = "") -> Path:
        path = tmp_path / "run.toml"
        path.write_text(RUN.format(budget=budget, limit=limit, notify=notify, top=top))
        return path

    return write


def server_file(folder: Path, price: float, currency: str = "USD") -> Path:
    path = folder / f"server-{price:g}.toml"
    path.write_text(SERVER.format(price=price, currency=currency))
    return path


def alerts(folder: Path) -> list[str]:
    lines = (folder / "alerts.jsonl").read_text().splitlines()
    return [json.loads(line)["event"] for line in lines]


def cost_line(node) -> str:
    return next(line for line in reversed(node.said.splitlines()) if "cost: " in line)


@pytest.mark.timeout(300)
def test_a_run_ends_with_its_budget_and_goes_on_with_a_larger_one(
    start, seed_node, run_file, tmp_path
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    server = start(*join, "--config", server_file(tmp_path, 400.0))
    trainer = start("train", run_file(1.0, limit=1_000.0), *join, module="p2pswarm")

    assert trainer.line_with("of the budget of $1.00 are spent; at $900.00 an hour it lasts ")
    assert trainer.line_with("the budget of $1.00 is spent ($1.")
    assert trainer.line_with("checkpoint of step ")
    assert trainer.end() == 0, trainer.errors
    assert "weights: " in trainer.said
    assert "cost: $1." in cost_line(trainer)
    assert server.line_with("is over: the budget of $1.00 is spent")
    assert alerts(tmp_path) == ["budget-near", "budget-spent", "end"]

    refused = start("train", run_file(1.0), "--resume", *join, module="p2pswarm")
    assert refused.end() == 2
    assert refused.errors.startswith("error: train.budget is $1.00, and the run has cost $1.")
    assert refused.errors.endswith("raise it to go on\n")
    assert refused.errors.count("\n") == 1
    assert "peer " not in refused.said, "a node has begun"

    again = start("train", run_file(2.5, limit=1_000.0), "--resume", *join, module="p2pswarm")
    assert again.line_with("going on from step ")
    assert again.line_with("the budget of $2.50 is spent ($2.")
    assert again.end() == 0, again.errors


@pytest.mark.timeout(300)
def test_a_stranger_with_a_high_price_ends_no_run(start, seed_node, run_file, tmp_path):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    start(*join, "--config", server_file(tmp_path, 1_000.0))
    trainer = start("train", run_file(3.0), *join, module="p2pswarm")

    said = trainer.line_with("servers that you have not invited cost $1,000.00 an hour")
    assert "of which $0.00 count" in said
    assert trainer.line_with("the budget of $3.00 is spent ($3.")
    assert trainer.end() == 0, trainer.errors
    assert "$500.00 an hour" in cost_line(trainer)


def test_prices_in_another_currency_are_told_and_not_counted(start, seed_node, run_file, tmp_path):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    start(*join, "--config", server_file(tmp_path, 900.0, "CHF"))
    trainer = start("train", run_file(1_000.0, limit=1_000.0), *join, module="p2pswarm")

    assert trainer.line_with("prices in CHF are not counted, because this run counts in USD")
    trainer.interrupt()

    assert trainer.end() == 130, trainer.errors


@pytest.mark.timeout(300)
def test_a_trainer_that_was_killed_remembers_what_the_run_has_cost(
    start, seed_node, run_file, tmp_path
):
    """Its `state` says so, though no checkpoint was written."""
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    start(*join, "--config", server_file(tmp_path, 0.0))
    settings = run_file(1_000.0, top='state = "state"')
    trainer = start("train", settings, *join, module="p2pswarm")
    assert trainer.line_with("loss")
    (kept,) = wait_for_cost(trainer, tmp_path)
    trainer.kill()

    refused = start("train", run_file(0.0001, top='state = "state"'), *join, module="p2pswarm")

    assert refused.end() == 2
    assert "train.budget is $0.0001, and the run has cost $" in refused.errors
    assert json.loads(kept.read_text())["trainer"] > 0


def wait_for_cost(trainer, folder: Path) -> list[Path]:
    """The file of sums; it is written some seconds after the first step."""
    while not (found := list(folder.glob("state/*.cost.json"))):
        trainer.line_with("loss")
    return found
