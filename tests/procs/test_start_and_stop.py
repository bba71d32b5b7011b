"""Exit codes, ends without a request, pauses, and one machine alone: real processes."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from core import core_of
from procs.harness import plain_loop, tensors

from p2pswarm.command_line import main

HERE = ("--listen", "127.0.0.1:0")
RUN = """
[train]
data = "text"
weights = "{weights}"

[run]
name = "ends"
stages = {stages}
steps = {steps}

[run.model]
d_model = 16
layers = 2
heads = 2
sequence_length = 32
dtype = "float64"

[run.batch]
microbatches = 2
rows = 2
"""
ASKED = [signal.SIGTERM, signal.SIGINT]
LATE = """
import asyncio
from p2pswarm.node import shutdown
from p2pswarm.settings.node_config import NodeConfig

shutdown.LEAVE_S = 0.05

async def never_done():
    ending = shutdown.Shutdown(asyncio.get_running_loop(), NodeConfig(), print)
    ending.watch_signals()
    print("there", flush=True)
    await asyncio.Event().wait()

asyncio.run(never_done())
"""
IN_ITS_TERMINAL = """
import fcntl, sys, termios

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from p2pswarm.cli import main

sys.exit(main(["node", *sys.argv[1:]]))
"""


@pytest.fixture
def run_of(tmp_path, text_folder):
    """Writes the settings of a run of so many steps."""

    def path(steps: int = 1_000_000, stages: int = 1, weights: str = "") -> Path:
        file = tmp_path / "run.toml"
        file.write_text(RUN.format(steps=steps, stages=stages, weights=weights))
        return file

    return path


def serve(tmp_path: Path, text: str, name: str = "serve") -> tuple[str, Path]:
    """The flags of a server with these settings of `[serve]`."""
    file = tmp_path / f"{name}.toml"
    file.write_text(f"[serve]\n{text}\n")
    return "--config", file


@pytest.mark.parametrize("number", ASKED)
def test_a_server_that_waits_for_a_run_says_by_which_signal_it_left(start, seed_node, number):
    node = start("--bootstrap", seed_node[1], *HERE)
    assert node.line_with("no run yet")

    node.process.send_signal(number)

    assert node.end() == 128 + number
    assert node.errors == ""


@pytest.mark.parametrize("number", ASKED)
def test_members_of_a_run_say_by_which_signal_they_left(start, seed_node, run_of, number):
    join = ("--bootstrap", seed_node[1], *HERE)
    servers = [start(*join), start(*join)]
    trainer = start("train", run_of(), *join, module="p2pswarm")
    for one in servers:
        assert one.line_with("serving stage 0")
    assert trainer.line_with("step     1")

    servers[0].process.send_signal(number)
    assert servers[0].end() == 128 + number
    trainer.process.send_signal(number)

    assert trainer.end() == 128 + number
    assert servers[0].errors == trainer.errors == ""
    assert servers[1].line_with("the trainer leaves; looking for a run")  # it may come back
    assert servers[1].process.poll() is None


@pytest.mark.parametrize("number", ASKED)
@pytest.mark.parametrize("library", core_of(["_socket", "_ssl", "libtorch_cpu"], ["_ssl"]))
def test_a_node_that_still_starts_says_so_too(start, tmp_path, run_of, number, library):
    run = run_of()
    node = start("train", run, *HERE, module="p2pswarm", fresh=True)
    while library not in Path(f"/proc/{node.process.pid}/maps").read_text():
        assert node.process.poll() is None

    node.process.send_signal(number)

    assert node.end() == 128 + number
    assert node.errors == ""


@pytest.mark.parametrize("number", [*ASKED, signal.SIGHUP])
def test_a_process_that_is_not_done_in_time_says_by_which_signal_it_was_asked(number):
    with subprocess.Popen(
        [sys.executable, "-c", LATE], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"

        process.send_signal(number)

        assert process.wait() == 128 + number


def test_only_a_persons_second_request_ends_a_node_at_once(start, seed_node, run_of, tmp_path):
    """Launchers send SIGTERM to a script and to its children, which may pass it on."""
    join = ("--bootstrap", seed_node[1], *HERE)
    last = start(*serve(tmp_path, "grace_s = 1000.0"), *join)
    trainer = start("train", run_of(), *join, module="p2pswarm")
    assert trainer.line_with("step     1")
    last.process.terminate()
    assert last.line_with("no other server has the weights of this stage")

    for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGHUP, signal.SIGTERM):
        last.process.send_signal(number)
    new = start(*join)
    assert new.line_with("serving stage 0")

    assert last.end() == 143  # it has handed over
    new.process.send_signal(signal.SIGCONT)
    assert trainer.line_with("step ")
    new.process.terminate()
    assert new.line_with("no other server")
    new.interrupt()
    assert new.end() == 130


def test_a_terminal_that_is_closed_ends_its_node_in_order(tmp_path):
    """The kernel sends SIGHUP to the session's leader, and each line fails with EIO then."""
    ours, theirs = pty.openpty()
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", IN_ITS_TERMINAL, *HERE],
            stdin=theirs,
            stdout=theirs,
            stderr=stderr,
            start_new_session=True,
        ) as node,
    ):
        os.close(theirs)
        said = b""
        while b"--bootstrap" not in said:
            said += os.read(ours, 4096)

        os.close(ours)

        assert node.wait() == 129, errors.read_text()
    assert errors.read_text() == ""


def test_servers_end_with_their_run_or_as_their_settings_say(start, seed_node, run_of, tmp_path):
    join = ("--bootstrap", seed_node[1], *HERE)
    ends = start(*join)
    idles = start(*serve(tmp_path, "leave = 'idle:1'", "idles"), *join)
    stays = start(*serve(tmp_path, "leave = 'never'", "stays"), *join)
    assert idles.line_with("no run for 1 s: this server ends")
    assert idles.end() == 0
    idles = start(*serve(tmp_path, "leave = 'idle:100'", "idles"), *join)
    for one in (ends, idles, stays):  # a short run may be over before all of them serve
        assert one.line_with("no run yet")

    trainer = start("train", run_of(20), *join, module="p2pswarm")

    assert trainer.end() == 0, trainer.errors
    assert ends.line_with("run 'ends' is over: all steps are done; this server ends")
    assert ends.end() == 0
    assert ends.errors == ""
    for one in (idles, stays):
        assert one.line_with("is over: all steps are done; looking for another")
        assert one.process.poll() is None


@pytest.mark.timeout(240)
def test_a_server_that_was_away_while_the_run_ended_learns_of_it(start, seed_node, run_of):
    """It is frozen meanwhile. The trainer is gone then, and its word in the DHT is signed."""
    join = ("--bootstrap", seed_node[1], *HERE)
    away = start(*join)
    assert away.line_with("no run yet")
    away.process.send_signal(signal.SIGSTOP)
    stays = start(*join)
    trainer = start("train", run_of(4), *join, module="p2pswarm")
    assert trainer.end() == 0, trainer.errors
    assert stays.end() == 0

    away.process.send_signal(signal.SIGCONT)

    assert away.line_with("run 'ends' is over: all steps are done; this server ends")
    assert away.end() == 0
    assert away.errors == ""


def test_an_owner_pauses_resumes_and_drains_a_server(start, seed_node, run_of, tmp_path):
    join = ("--bootstrap", seed_node[1], *HERE)
    state = tmp_path / "state"
    mine = start(*join, "--set", f'state="{state}"')
    others = start(*join)
    trainer = start("train", run_of(), *join, module="p2pswarm")
    for one in (mine, others):
        assert one.line_with("serving stage 0")
    entry = next(state.glob("*.node.json"))
    assert entry.stat().st_mode & 0o777 == 0o600
    assert main(["health", str(state)]) == 0

    paused = start("pause", state, module="p2pswarm")
    assert paused.line_with("paused: p2pswarm resume goes on")
    assert mine.line_with("paused: p2pswarm resume goes on")
    assert main(["health", str(state)]) == 1
    assert main(["health", "--live", str(state)]) == 0
    assert paused.end() == 0
    resumed = start("resume", state, module="p2pswarm")
    assert resumed.end() == 0
    assert mine.line_with("serving stage 0")
    drained = start("drain", state, module="p2pswarm")

    assert drained.line_with("leaving")
    assert mine.end() == 0
    assert mine.errors == ""
    assert not list(state.glob("*.node.json"))
    assert trainer.process.poll() is None
    gone = start("pause", state, module="p2pswarm")
    assert gone.end() == 2
    assert gone.errors.startswith("error: no node runs with ")


def test_a_trainer_that_still_reads_its_text_lives_for_probes(start, run_of, tmp_path, capsys):
    """Some texts take hours. A launcher that heard nothing would begin the trainer again."""
    run, state = run_of(), tmp_path / "state"
    trainer = start("train", run, "--set", "state='state'", *HERE, module="p2pswarm", fresh=True)
    while not list(state.glob("*.node.json")):
        assert trainer.process.poll() is None

    assert main(["health", "--live", str(state)]) == 0
    assert main(["health", str(state)]) == 1

    assert capsys.readouterr().out.endswith("not ready: a trainer that joins the swarm\n")
    assert start("drain", state, module="p2pswarm").end() == 0
    assert trainer.end() == 0


def test_a_node_that_serves_nothing_is_drained_but_not_paused(start, tmp_path):
    state = tmp_path / "state"
    node = start("--set", f'state="{state}"', *HERE)
    assert node.line_with("--bootstrap")

    paused = start("pause", state, module="p2pswarm")
    assert paused.end() == 2
    assert "only a server can be paused" in paused.errors
    assert start("drain", state, module="p2pswarm").end() == 0

    assert node.end() == 0


def test_a_server_rests_outside_of_its_hours(start, seed_node, tmp_path):
    """Of the two halves of a day it is in one, whatever the hour of the test."""
    join = ("--bootstrap", seed_node[1], *HERE)
    halves = [
        start(*serve(tmp_path, f"hours = '{hours}'", f"half{number}"), *join)
        for number, hours in enumerate(("00:00-12:00", "12:00-00:00"))
    ]

    said = [one.line_with("  ") for one in halves]

    resting = [re.search("resting until its hours", each) is not None for each in said]
    assert sorted(resting) == [False, True]
    for one in halves:
        one.process.terminate()
        assert one.end() == 143


@pytest.mark.parametrize("abstract", [True, False])
def test_a_service_manager_hears_that_a_node_is_ready_and_that_it_stops(
    tmp_path, abstract, text_folder
):
    place = f"\0p2pswarm-{os.getpid()}-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(place)
        environment = {**os.environ, "NOTIFY_SOCKET": place.replace("\0", "@")}
        with subprocess.Popen(
            [sys.executable, "-m", "p2pswarm.node", *HERE],
            env=environment,
            stdout=subprocess.DEVNULL,
        ) as node:
            ready = manager.recv(4096).decode().split("\n")
            node.terminate()
            said = manager.recv(4096)
            while said != b"STOPPING=1":
                said = manager.recv(4096)
            assert node.wait() == 143

    assert ready[0] == "READY=1"
    assert ready[1].startswith("STATUS=bootstrap ")


def test_one_machine_trains_alone_what_a_plain_loop_trains(start, run_of, tmp_path):
    run = run_of(6, stages=2, weights="alone.safetensors")

    trainer = start("train", run, "--alone", *HERE, module="p2pswarm")

    assert trainer.line_with("done after 6 steps")
    assert trainer.end() == 0, trainer.errors
    assert trainer.errors == ""
    ours, theirs = tensors(tmp_path / "alone-ends-step-6.safetensors"), plain_loop(run)
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[n], theirs[n], rtol=1e-9, atol=1e-12) for n in ours)


@pytest.mark.timeout(240)
def test_a_run_goes_on_to_its_end_though_the_reader_of_its_output_has_stopped(
    start, run_of, tmp_path
):
    """As a pager does, or a terminal behind a connection that hangs."""
    run = run_of(300, weights="alone.safetensors")

    trainer = start(
        "train", run, "--alone", "--set", "train.progress=json", *HERE, module="p2pswarm"
    )

    assert trainer.process.wait() == 0, trainer.errors
    assert (tmp_path / "alone-ends-step-300.safetensors").exists()


@pytest.mark.timeout(240)
def test_a_server_that_comes_later_takes_part_in_a_run_of_one_machine(start, run_of, tmp_path):
    run = run_of(stages=2, weights="alone.safetensors")
    flags = ("--alone", "--set", "train.progress=json", *HERE)
    trainer = start("train", run, *flags, module="p2pswarm")
    address = trainer.address
    assert trainer.line_with('"stepped"')

    late = start("--bootstrap", address, *HERE)

    peer = late.line_with("peer ").split()[1]
    assert late.line_with("serving stage")
    rate_per_s = 0.0
    while not rate_per_s:
        peers = json.loads(trainer.line_with('"peers"'))["peers"]
        rate_per_s = next((one["rate_per_s"] for one in peers if one["peer"] == peer), 0.0)
    trainer.interrupt()
    assert trainer.end() == 130
    assert "weights: " in trainer.said
    assert trainer.errors == ""


def test_a_closed_run_is_served_by_its_owners_own_process(start, run_of, tmp_path):
    run = run_of(3, stages=2)
    run.write_text('state = "state"\n' + run.read_text())

    trainer = start("train", run, "--alone", "--closed", *HERE, module="p2pswarm")

    assert trainer.line_with("done after 3 steps")
    assert trainer.end() == 0, trainer.errors


def test_devices_stay_when_a_launcher_ends_all_processes_of_a_job(
    start, seed_node, run_of, tmp_path
):
    join = ("--bootstrap", seed_node[1], *HERE)
    trainer = start("train", run_of(), *join, module="p2pswarm")
    shared = start(*serve(tmp_path, "device = 'cpu,cpu'\nthreads = 1"), *join)
    start(*join)
    assert shared.line_with("serving stage 0")
    assert trainer.line_with("step     1")

    for process in (*children_of(shared.process.pid), shared.process.pid):
        os.kill(process, signal.SIGTERM)

    assert shared.end() == 143
    assert shared.errors == ""


def children_of(process: int) -> list[int]:
    """The processes that this one has started."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@pytest.mark.parametrize(
    ("table", "part"),
    [
        ("[serve]\ndevice = 'auto'\n", "[serve] is for a server"),
        ("[serve]\n", "p2pswarm node --config"),
        ("[run]\n", "[run] is for a trainer"),
    ],
)
def test_a_file_of_another_role_begins_no_swarm_of_its_own(start, tmp_path, table, part):
    file = tmp_path / "node.toml"
    file.write_text(table)

    node = start("--config", file, *HERE)

    assert node.end() == 2
    assert part in node.errors
    assert "this node's role is bootstrap" in node.errors
    assert node.errors.count("\n") == 1
