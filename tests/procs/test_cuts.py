"""Real processes that are cut off or stopped for a while; skipped where no lab may be opened."""

import functools
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from procs.fork_server import Forked, ForkServer
from wanlab.lab import Lab, LabUnavailable
from wanlab.link import Link

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import cut_in_two
from swarm_processes import NODE, ROOT, Nodes, Site

BENCH = ROOT / "bench" / "cut_in_two.py"
STEPS = 42


class ForkedNodes(Nodes):
    """Nodes that are forks of a process with all imports, each on a host of the lab."""

    def __init__(
        self, fork_server: ForkServer, site: Site, folder: Path, patience_s: float
    ) -> None:
        super().__init__(site, folder, patience_s)
        self._fork_server = fork_server

    def start_program(self, name: str, host: int, command: Sequence[str]) -> Forked:
        module, flags = command[: len(NODE)], command[len(NODE) :]
        assert (*module,) == NODE
        flags_of_nsenter = dict(f.split("=") for f in self._site.enter(host) if "=" in f)
        inside = [flags_of_nsenter[f] for f in ("--user", "--net") if f in flags_of_nsenter]
        with self._log(name).open("wb") as errors:
            self._all[name] = self._fork_server.command(["node", *flags], ROOT, errors, inside)
        return self._all[name]


@pytest.fixture
def lab_allowed():
    """Skips the test where no lab may be opened."""
    try:
        with Lab(1, Link()):
            pass
    except LabUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def files(tmp_path):
    """The flags for a text and for the figures, and where these are then."""
    text, told = tmp_path / "text", tmp_path / "told.json"
    text.write_bytes(random.Random(1).randbytes(20_000).replace(b"\0", b" "))
    return ("--steps", str(STEPS), "--data", str(text), "--json", str(told)), told


def assert_nothing_is_left(told: Path) -> None:
    figures = json.loads(told.read_text())
    assert figures["relative_difference"] <= 1e-9
    assert figures["chain"]["steps"] == STEPS
    assert figures["cut_after"] < figures["healed_after"] < STEPS


@pytest.mark.full  # tests/chaos/test_stalls.py has the core of it
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("lab_allowed")
def test_the_half_with_most_voters_goes_on_and_the_weights_are_those_of_a_plain_loop(
    fork_server, files, capsys
):
    flags, told = files
    how = ("--cut", "halves", "--apart-s", "10", "--microbatches", "4")

    code = cut_in_two.main((*how, *flags), functools.partial(ForkedNodes, fork_server))

    assert code == 0, capsys.readouterr().out
    assert_nothing_is_left(told)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("lab_allowed")
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(("--cut", "halves", "--apart-s", "10"), id="in two halves"),
        pytest.param(
            ("--cut", "alone", "--one-way", "--apart-s", "10"), id="the coordinator is not heard"
        ),
        pytest.param(
            ("--cut", "stage", "--apart-s", "30"),  # longer than a link lives
            id="the coordinator misses a stage",
        ),
        pytest.param(
            ("--cut", "stage", "--one-way", "--apart-s", "30"),
            id="a stage does not hear the coordinator",
        ),
        pytest.param(
            ("--cut", "stopped", "--apart-s", "20"),  # longer than a link lives
            id="coordinator and server are stopped",
        ),
    ],
)
def test_the_side_with_most_voters_goes_on_and_nothing_leaves_a_trace_in_the_weights(files, how):
    flags, told = files

    made = subprocess.run(
        [sys.executable, BENCH, *how, *flags], capture_output=True, text=True, check=False
    )

    assert made.returncode == 0, made.stdout + made.stderr
    assert_nothing_is_left(told)
