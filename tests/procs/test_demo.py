"""The demo, whole: real processes that train, one killed on the way, and none left behind."""

import json
import os
import select
import signal
from pathlib import Path

import pytest
from core import core_of


@pytest.fixture
def text(tmp_path) -> Path:
    """A folder of some text."""
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(12):
        line = f"the quick brown fox number {i} jumps over the lazy dog\n"
        (folder / f"{i}.txt").write_text(line * 200)
    return folder


def children_of(pid: int) -> list[int]:
    """The processes that this one started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def wait_until_gone(pids: list[int]) -> None:
    """Returns when none of them lives; the test's time limit is the deadline."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        select.select([descriptor], [], [])  # readable once its process is over
        os.close(descriptor)


@pytest.mark.timeout(300)
def test_a_run_survives_its_kills_and_counts_every_microbatch_once(start, text, tmp_path):
    demo = start(
        *("demo", "--stages", 1, "--steps", 6, "--kill-every", 3, "--data", text),
        *("--json", tmp_path / "out.json", "--plot", tmp_path / "loss.png"),
        module="p2pswarm.cli",
    )

    assert demo.end() == 0, demo.errors

    told = json.loads((tmp_path / "out.json").read_text())
    assert told["steps"] == 6
    assert told["microbatches"]["asked"] == told["microbatches"]["counted"] > 0
    assert told["kills"] >= 1
    assert told["held_out"][0][2] > told["held_out"][-1][2] > 0
    assert told["tokens_per_s"] > 0
    assert told["seconds_to_ready"] > 0
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_demo_says_at_once_that_it_begins_and_may_be_interrupted_then(start):
    demo = start("demo", module="p2pswarm", fresh=True)
    assert demo.line_with("p2pswarm demo: starting")

    demo.interrupt()  # while the library that draws is imported

    assert demo.end() == 130
    assert "Traceback" not in demo.errors


@pytest.mark.parametrize(
    "way",
    core_of(
        [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL],
        [signal.SIGKILL, signal.SIGTERM],
    ),
)
def test_no_process_outlives_the_demo(start, text, way):
    demo = start("demo", "--stages", 1, "--replicas", 1, "--data", text, module="p2pswarm.cli")
    assert demo.line_with("waiting for a server")
    started = children_of(demo.process.pid)
    assert len(started) == 3  # the bootstrap node, a server, the trainer

    demo.process.send_signal(way)

    assert demo.end() == (-way if way == signal.SIGKILL else 128 + way)

    wait_until_gone(started)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("--stages", 0), "'0' is not a whole number from 1 to 8"),
        (("--steps", "many"), "'many' is not a whole number"),
        (("--data", "nowhere"), "nowhere"),
        (("--data", "empty"), "empty"),
        (("--json", "no/such/folder/x.json"), "no/such/folder"),
        (("--json", "empty"), "empty cannot be written: it is a folder"),
        (("--json", "/dev/full"), "/dev/full cannot be written: it is a device"),
        (("--plot", "/proc/x.png"), "/proc/x.png cannot be written"),
        (("--plot", "loss.xyz"), ".xyz is no format for a picture: use .avif"),
    ],
)
def test_wrong_input_is_one_line(start, tmp_path, flags, part):
    (tmp_path / "empty").mkdir()

    demo = start("demo", *flags, module="p2pswarm.cli")

    assert demo.end() == 2
    assert part in demo.errors
    assert demo.errors.startswith("error: ")
    assert demo.errors.count("\n") == 1
