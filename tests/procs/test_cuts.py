"""Real processes that are cut off or stopped for a while; skipped where no lab may be opened."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from wanlab.lab import Lab, LabUnavailable
from wanlab.link import Link

BENCH = Path(__file__).parents[2] / "bench" / "cut_in_two.py"
STEPS = 42


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(("--cut", "halves", "--apart-s", "10"), id="in two halves"),
        pytest.param(
            ("--cut", "alone", "--one-way", "--apart-s", "10"),
            id="the coordinator is not heard",
            marks=pytest.mark.full,
        ),
        pytest.param(
            ("--cut", "stage", "--apart-s", "30"),  # longer than a link lives
            id="the coordinator misses a stage",
            marks=pytest.mark.full,
        ),
        pytest.param(
            ("--cut", "stage", "--one-way", "--apart-s", "30"),
            id="a stage does not hear the coordinator",
            marks=pytest.mark.full,
        ),
        pytest.param(
            ("--cut", "stopped", "--apart-s", "20"),  # longer than a link lives
            id="coordinator and server are stopped",
            marks=pytest.mark.full,
        ),
    ],
)
def test_the_side_with_most_voters_goes_on_and_nothing_leaves_a_trace_in_the_weights(tmp_path, how):
    try:
        with Lab(1, Link()):
            pass
    except LabUnavailable as reason:
        pytest.skip(str(reason))
    text = tmp_path / "text"
    text.write_bytes(random.Random(1).randbytes(20_000).replace(b"\0", b" "))
    told = tmp_path / "told.json"
    files = ("--steps", str(STEPS), "--data", text, "--json", told)

    made = subprocess.run(
        [sys.executable, BENCH, *how, *files], capture_output=True, text=True, check=False
    )

    assert made.returncode == 0, made.stdout + made.stderr
    figures = json.loads(told.read_text())
    assert figures["relative_difference"] <= 1e-9
    assert figures["chain"]["steps"] == STEPS
    assert figures["cut_after"] < figures["healed_after"] < STEPS
