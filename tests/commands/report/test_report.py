"""`p2pswarm report` as a user runs it: what it reads, what it says, and that no secret gets out."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from node.report.markers import found_in

from p2pswarm.command_line import main

ROOT = Path(__file__).parents[3]
NODE_LINE = "W p2pswarm.net.link: link to k7f2abcd lost"
CAN_NAME = (
    shutil.which("unshare")
    and not subprocess.run(
        ["unshare", "--uts", "true"], check=False, capture_output=True
    ).returncode
)


def opened(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as zipped:
        return {name: zipped.read(name).decode() for name in zipped.namelist()}


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A folder of a node: settings, a log, events."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text('role = "trainer"\n[train]\ndata = "text"\n')
    (tmp_path / "node.log").write_text(f"{NODE_LINE}\n")
    (tmp_path / "events").write_text('{"event":"note","text":"waiting for a server"}\ntorn {"ev')
    return tmp_path


def test_report_is_written_and_says_what_is_in_it(node, capsys):
    files = ["--config", "run.toml", "--events", "events", "--log", "node.log"]

    code = main(["report", "--no-doctor", *files, "--out", "mine.zip"])

    made = opened(node / "mine.zip")
    assert code == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  more of the node is in it with --stacks"]
    assert json.loads(made["settings.json"])["train.data"] == "(set)"
    assert json.loads(made["settings.json"])["role"] == "trainer"
    assert json.loads(made["events.jsonl"])["text"] == "waiting for a server"
    assert "link to … lost" in made["log.txt"]
    assert json.loads(made["machine.json"])["python"] in sys.version


def test_a_report_that_is_there_stays(node, capsys):
    main(["report", "--no-doctor"])
    first = (node / "p2pswarm-report.zip").read_bytes()

    main(["report", "--no-doctor", "--log", "node.log"])

    assert (node / "p2pswarm-report.zip").read_bytes() == first
    assert len(list(node.glob("p2pswarm-report*.zip"))) == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--log", "nowhere"], "nowhere cannot be read: No such file or directory; name another"),
        (["--events", "."], "cannot be read: Is a directory; name another file"),
        (["--log", "/dev/zero"], "/dev/zero is a pipe or a device: write what it gives to a file"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["--out", "/proc/x.zip"], "/proc/x.zip"),
    ],
)
def test_what_cannot_be_read_or_written_is_one_line(node, flags, said, capsys):
    try:
        code = main(["report", "--no-doctor", *flags])
    except SystemExit as error:
        code = error.code

    written = capsys.readouterr()
    assert code == 2
    assert said in written.err
    assert len(written.err.splitlines()) == 1
    assert not list(node.glob("*.zip"))


def test_the_end_of_a_long_log_is_in_the_report(node, capsys):
    (node / "node.log").write_text("an old line\n" * 2_000_000 + "the newest line\n")

    main(["report", "--no-doctor", "--log", "node.log"])

    lines = opened(node / "p2pswarm-report.zip")["log.txt"].splitlines()
    assert (len(lines), lines[-1]) == (1_000, "the newest line")


@pytest.mark.skipif(not CAN_NAME, reason="no namespace for another name of the machine")
@pytest.mark.parametrize(
    "doctor", [False, pytest.param(True, marks=pytest.mark.full)], ids=["alone", "doctor"]
)
def test_no_secret_of_a_real_process_is_in_its_report(node, doctor):
    """A machine, a user's folder, an environment and files that are all called by a marker."""
    marker = "qxzvkwjbqhgtwz"
    home = node / f"home-{marker}"
    home.mkdir()
    text = (
        f'role = "stage"\nlisten = "127.0.0.1:0"\nidentity = "{home}/{marker}.key"\n'
        f'invite = "p2pswarm-invite-{marker}"\nstate = "{home}/state"\n'
        f'[serve]\nrun = "{marker}"\n'
    )
    (home / f"{marker}.toml").write_text(text)
    (home / f"{marker}.log").write_text(f"error in {home}/x of run '{marker}' at {marker}:4000\n")
    said = f"p2pswarm report --config {home}/{marker}.toml --log {home}/{marker}.log --out out.zip"
    said += "" if doctor else " --no-doctor"

    done = subprocess.run(
        ["unshare", "--uts", "sh", "-c", f"hostname {marker}; exec {sys.executable} -m {said}"],
        check=False,
        capture_output=True,
        text=True,
        cwd=node,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(home),
            "WANDB_API_KEY": marker,
            "OMP_NUM_THREADS": "1",
            "USER": marker,
        },
    )

    assert done.returncode == 0, done.stderr
    assert found_in((node / "out.zip").read_bytes(), [marker]) == []
    made = opened(node / "out.zip")
    assert ("open_files" in made["doctor.json"]) is doctor
    assert json.loads(made["settings.json"])["identity"] == "(set)"
    assert "error in" in made["log.txt"]
