"""A fine-tune from the hub, by real processes that ask a hub on this host."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from local_hub import local_hub

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_three_servers_download_their_own_stages_and_train():
    small = ("--d-model", "256", "--layers", "4", "--steps", "1", "--parts", "2")
    command = [sys.executable, str(ROOT / "bench" / "hub_download.py"), *small]

    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)

    shares = re.findall(r"stage (\d): own .* (1\.0[01]\d+)\n", done.stdout)
    assert [stage for stage, _ in shares] == ["0", "1", "2"], done.stdout + done.stderr
    assert "step 1," in done.stdout
    assert done.returncode == 0


def test_a_name_that_nobody_has_ends_a_trainer_with_one_line(tmp_path, monkeypatch):
    (tmp_path / "text").write_text("some text " * 1_000)
    (tmp_path / "run.toml").write_text(
        'listen = "127.0.0.1:0"\n[train]\ndata = "text"\n'
        '[run]\nmodel = "hf:owner/nothing"\nstart = "pretrained"\n'
    )
    command = [sys.executable, "-m", "p2pswarm", "train", str(tmp_path / "run.toml")]
    with local_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.at("trainer"))

        done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)

    (line,) = done.stderr.splitlines()
    assert line.startswith("error: run.model: there is no folder ")
    assert "has no such model" in line
    assert "put its config.json, and its safetensors files to start from them, into a" in line
    assert done.returncode == 2
