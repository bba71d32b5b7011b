"""Real processes, one killed on the way: the weights are those of one loop in one process."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "exactness.py"
MINIATURE = (
    *("--steps", "6", "--microbatches", "6", "--rows", "2"),
    *("--d-model", "16", "--layers", "2", "--sequence-length", "16"),
)


@pytest.mark.full  # a server and a trainer are killed below
@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", [(), ("--tied",)], ids=["untied", "tied"])
def test_a_killed_server_leaves_no_trace_in_the_weights(tmp_path, model):
    text = tmp_path / "text"
    text.write_bytes(random.Random(1).randbytes(20_000).replace(b"\0", b" "))
    told = tmp_path / "told.json"
    files = ("--data", text, "--json", told)

    made = subprocess.run(
        [sys.executable, BENCH, *MINIATURE, *files, *model],
        capture_output=True,
        text=True,
        check=False,
    )

    assert made.returncode == 0, made.stdout + made.stderr
    figures = json.loads(told.read_text())
    assert figures["kills"] == 1
    assert figures["relative"] <= 1e-9
    assert figures["microbatches"]["counted"] == 36


@pytest.mark.full  # test_cuts.py has the weights of a run that is taken over
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "trainers", [pytest.param(1, id="started again"), pytest.param(2, id="taken over")]
)
def test_a_killed_trainer_leaves_no_trace_in_the_weights_and_the_chain_is_whole(tmp_path, trainers):
    text = tmp_path / "text"
    text.write_bytes(random.Random(1).randbytes(20_000).replace(b"\0", b" "))
    told = tmp_path / "told.json"
    size = ("--steps", "30", "--microbatches", "12", "--rows", "2", "--d-model", "16")
    kills = ("--trainers", str(trainers), "--kill-trainer-every", "20", "--kill-every", "28")
    files = ("--sequence-length", "16", "--data", text, "--json", told)

    made = subprocess.run(
        [sys.executable, BENCH, *size, *kills, *files], capture_output=True, text=True, check=False
    )

    assert made.returncode == 0, made.stdout + made.stderr
    figures = json.loads(told.read_text())
    assert figures["trainer_kills"] == 1
    assert figures["takeovers"] >= 1  # a coordinator that is held up for seconds is replaced, too
    assert figures["relative_difference"] <= 1e-9


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_rehearsal_with_a_killed_server_makes_the_same_bits_as_one_process(tmp_path):
    """Servers that compute nothing: their sums are exact, so not one bit may differ."""
    text = tmp_path / "text"
    text.write_bytes(random.Random(1).randbytes(20_000).replace(b"\0", b" "))
    told = tmp_path / "told.json"
    files = ("--data", text, "--json", told, "--emulated")

    made = subprocess.run(
        [sys.executable, BENCH, *MINIATURE, *files], capture_output=True, text=True, check=False
    )

    assert made.returncode == 0, made.stdout + made.stderr
    figures = json.loads(told.read_text())
    assert figures["kills"] == 1
    assert figures["relative"] == 0.0
    assert figures["microbatches"]["counted"] == 36
