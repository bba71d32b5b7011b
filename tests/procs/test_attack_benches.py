"""The benches of attacks, mutated inputs and deaths run, find nothing, and notice what is wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="one process has many addresses on Linux"
)


def bench(name: str, *arguments: str, json_file: Path) -> tuple[int, Any]:
    """Its exit status and its JSON."""
    command = [sys.executable, str(BENCH / name), *arguments, "--json", str(json_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert json_file.exists(), done.stdout + done.stderr
    return done.returncode, json.loads(json_file.read_text())


@LINUX
@pytest.mark.parametrize(
    "attacks",
    [
        pytest.param("tensors", id="one"),
        pytest.param("store-large,tensors", id="two attacks", marks=pytest.mark.full),
        pytest.param("garbage,store-large,tensors", id="three", marks=pytest.mark.full),
    ],
)
def test_honest_peers_get_in_beside_garbage_and_keep_their_records(tmp_path, attacks):
    """tests/procs/test_node.py has the core of garbage."""
    flags = ("--only", attacks, "--seconds", "1", "--dials", "5", "--rtt", "0.02")

    _, rows = bench("attack.py", *flags, "--listen", "0.0.0.0", json_file=tmp_path / "rows")

    assert [row["attack"] for row in rows] == attacks.split(",")
    assert {row["dials_through"] for row in rows} == {5}
    assert all(row["complaints"] == [] for row in rows)
    did = {row["attack"]: row for row in rows}
    if "store-large" in did:
        assert did["store-large"]["survivors"] == 1.0
    if "tensors" in did:
        assert did["tensors"]["did"]["refused"] == did["tensors"]["did"]["announced"]


@pytest.mark.full
@LINUX
def test_nothing_is_left_of_peers_that_were_killed(tmp_path):
    flags = ("--minutes", "1", "--cycles", "4", "--peers", "2")

    _, report = bench("soak.py", *flags, json_file=tmp_path / "report")

    assert report["kills"] + report["stops"] == 4
    assert report["left_over"] == {}


@pytest.mark.full  # tests/fuzzing has the core of it
def test_mutated_addresses_are_read_or_refused(tmp_path):
    flags = ("--parser", "address", "--inputs", "2000", "--blind")

    status, [report] = bench("fuzz.py", *flags, json_file=tmp_path / "reports")

    assert status == 0
    assert report["inputs"] == 2000
    assert report["findings"] == {}
