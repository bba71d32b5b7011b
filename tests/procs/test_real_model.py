"""A published model learns chats in real processes, one killed, and ends where TRL ends.

`tests/node/run/test_learnt_chats.py` has the core of it with a tiny model.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench" / "real_model.py"


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_a_real_model_learns_a_rule_as_well_as_in_one_process(tmp_path):
    if not (ROOT / ".venv-real").is_dir():
        pytest.skip("the model and TRL are not here: python bench/real_model.py fetches them once")
    told = tmp_path / "told.json"

    made = subprocess.run(
        [sys.executable, BENCH, "--json", told], capture_output=True, text=True, check=False
    )

    assert made.returncode == 0, made.stdout + made.stderr
    figures = json.loads(told.read_text())
    assert figures["accuracy_before"] < 0.05
    assert figures["accuracy"] >= 0.95
    assert figures["loss_off_most"] <= 1e-3
    assert len(figures["killed_in_step"]) == 1
