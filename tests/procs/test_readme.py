"""README's shell commands run, word for word or with a change that is listed here.

Each line of a fenced block without a language is a command. A command that is on no list below
fails the first test, and so does one that is listed and no longer there.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = BLOCK.findall(README)
COMMANDS = [line for language, text in BLOCKS if not language for line in text.splitlines() if line]
FIRST_RUN = "examples/first_run.toml"
ELSEWHERE = "203.0.113.7:4000"
"""README's address of the first node; the test's first node has another."""

AS_INSTALLED = ("python3 -m venv .venv", ". .venv/bin/activate", "pip install -c constraints.txt .")
"""Held beside the Makefile: to run them would fetch torch."""
TRAIN_HERE = f"python nodes/local_swarm.py --servers 2 --run {FIRST_RUN}"
TRAIN_HERE_SHORTER = {"\nsteps = 200\n": "\nsteps = 4\n"}
"""What is replaced in the file that it trains: minutes become seconds."""
GENERATE = 'p2pswarm generate out "The trainer" --temperature 0.5'
CHECK = "p2pswarm train run.toml --check"
FIRST_NODE = "p2pswarm node --identity first.key"
OTHER_NODE = f"p2pswarm node --bootstrap {ELSEWHERE}"
TRAIN = f"p2pswarm train run.toml --bootstrap {ELSEWHERE}"
TRAIN_SHORTER = {"\nsteps = 2000\n": "\nsteps = 2\n", "d_model = 512": "d_model = 32"}
ASK = tuple(f"p2pswarm {name} --bootstrap {ELSEWHERE}" for name in ("status", "explain", "doctor"))
ON_THIS_MACHINE = {FIRST_NODE, OTHER_NODE, TRAIN, ASK[2]}
"""They listen: on loopback alone here, with `--listen 127.0.0.1:0` added."""


def replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def shape(line: str) -> str:
    """A line of output without its numbers, ids and columns."""
    return " ".join(re.sub(r"\b[a-z2-7]{8} at|server [a-z2-7]{8}|[\d.,]+", "#", line).split())


def run_in_shell(line: str, folder: Path) -> str:
    """What a command says; it has to end with 0. `p2pswarm` is the one beside this Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        ["bash", "-c", f"exec {line}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        start_new_session=True,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    try:
        said, _ = process.communicate()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    assert process.returncode == 0, said
    return said


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the quick start uses of a clone, with fewer steps."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (tmp_path / "nodes").symlink_to(ROOT / "nodes")
    (tmp_path / "examples").mkdir()
    shorter = replaced((ROOT / FIRST_RUN).read_text(), TRAIN_HERE_SHORTER)
    (tmp_path / FIRST_RUN).write_text(shorter)
    return tmp_path


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """README's settings of a run."""
    (text,) = (text for language, text in BLOCKS if language == "toml")
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


@pytest.fixture
def start_here(start):
    """Starts a command of README on this machine; `joining`: the address of its first node."""

    def starter(command: str, joining: str = ""):
        words = shlex.split(command.replace(ELSEWHERE, joining))
        assert words[0] == "p2pswarm"
        here = ("--listen", "127.0.0.1:0") if command in ON_THIS_MACHINE else ()
        return start(*words[1:], *here, module="p2pswarm")

    return starter


def test_every_command_is_tried_below():
    listed = [*AS_INSTALLED, TRAIN_HERE, GENERATE, FIRST_NODE, OTHER_NODE, CHECK, TRAIN, *ASK]

    assert listed == COMMANDS


def test_it_is_installed_as_the_makefile_does_it():
    makefile = (ROOT / "Makefile").read_text()

    assert "VENV := .venv\n" in makefile
    assert "$(PYTHON) -m venv $(VENV)\n" in makefile
    assert re.search(r"pip install .*-c constraints\.txt -e '\.\[", makefile)
    assert (ROOT / "constraints.txt").read_text().count("torch==") == 1


@pytest.mark.timeout(300)
def test_the_quick_start_trains_and_generates_as_shown(clone):
    shown = [text for language, text in BLOCKS if language == "text"]

    trained = run_in_shell(TRAIN_HERE, clone)
    generated = run_in_shell(GENERATE, clone)

    shapes = {shape(line) for line in trained.splitlines()}
    assert [line for line in shown[0].splitlines() if shape(line) not in {*shapes, "#"}] == []
    (weights,) = (clone / "out").iterdir()
    assert weights.name == "weights-first-run-step-4.safetensors"
    assert shown[1].startswith("The trainer")
    assert generated.startswith("The trainer")
    assert len(generated) > len("The trainer") + 100


@pytest.mark.timeout(300)
def test_machines_join_train_and_tell(start_here, run_file, text_folder):
    assert text_folder.is_dir()
    assert run_in_shell(CHECK, run_file.parent).startswith("run.toml: good\n")
    run_file.write_text(replaced(run_file.read_text(), TRAIN_SHORTER))

    address = start_here(FIRST_NODE).line_with("--bootstrap").split()[-1]
    trainer = start_here(TRAIN, address)
    assert trainer.line_with("waiting for a server of stage 0, 1")
    told = [start_here(command, address) for command in ASK]
    assert [each.end() for each in told] == [0, 0, 0], [each.errors for each in told]
    servers = [start_here(OTHER_NODE, address) for _ in range(2)]

    assert trainer.line_with("done after 2 steps")
    assert trainer.end() == 0
    assert (run_file.parent / "weights-my-run-step-2.safetensors").is_file()
    for server in servers:
        assert server.line_with("serving stage")
    status, explained, found = (each.said for each in told)
    assert status.startswith("run 'my run', id ")
    assert explained.startswith("run 'my run', rebalancing 'priced'")
    assert "127.0.0.1" in found


def flags_of(command: str, folder: Path) -> set[str]:
    """The flags that a command's help explains."""
    told = run_in_shell(f"p2pswarm {command} --help", folder)
    return set(re.findall(r"^  (--[a-z-]+)", told, re.MULTILINE))


def test_the_tables_have_every_flag_and_no_other(tmp_path):
    tables = [
        set(re.findall(r"^\| `(--[a-z-]+)", table, re.MULTILINE))
        for table in README.split("| flag | meaning |")[1:]
    ]

    node, train = flags_of("node", tmp_path), flags_of("train", tmp_path)

    assert tables == [node & train, node - train, train - node]


def test_commands_that_sentences_and_other_pages_name_exist(tmp_path):
    pages = README + "".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    in_blocks = "\n".join(text for language, text in BLOCK.findall(pages) if not language)
    told = run_in_shell("p2pswarm --help", tmp_path)
    makefile = (ROOT / "Makefile").read_text()

    code = "".join(f"`{line}\n" for line in in_blocks.splitlines()) + pages
    named = set(re.findall(r"`(?:\$ )?p2pswarm ([a-z][a-z-]+)", code))
    targets = set(re.findall(r"`(?:\$ )?make ([a-z]+)", code))

    assert {"node", "train", "generate"} <= named
    assert named <= set(re.findall(r"^    ([a-z-]+)", told, re.MULTILINE))
    assert {"demo", "test", "map"} <= targets
    assert targets <= set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
