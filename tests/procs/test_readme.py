"""README's and the tutorial's commands run, word for word or with a change that is listed here.

Each line of a fenced block without a language is a command. A command that is on no list below
fails the first test, and so does one that is listed and no longer there.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from p2pswarm.command_line import make_parser
from p2pswarm.settings.parser import load

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = BLOCK.findall(README)
COMMANDS = [line for language, text in BLOCKS if not language for line in text.splitlines() if line]
IN_A_LINE = re.compile(r"`((?:p2pswarm|python|make|pip) [^`]+)`")
"""A command in a sentence."""
BEHIND = re.compile(r"  #| > | \\?\| ")
"""What ends a command of a line: a comment, a file for its output, another command.

A table's cell writes a pipe as `\\|`.
"""
FIRST_RUN = "examples/first_run.toml"
ELSEWHERE = "203.0.113.7:4000"
"""README's address of the first node; the test's first node has another."""

AS_INSTALLED = ("python3 -m venv .venv", ". .venv/bin/activate", "pip install -c constraints.txt .")
"""Held beside the Makefile: to run them would fetch torch."""
TRAIN_HERE = f"python nodes/local_swarm.py --servers 2 --run {FIRST_RUN}"
TRAIN_HERE_SHORTER = {
    "\nsteps = 200\n": "\nsteps = 4\n",
    "\nd_model = 128\n": "\nd_model = 32\n",
    "\nrows = 8\n": "\nrows = 2\n",
}
"""What is replaced in the file that it trains: minutes become seconds."""
GENERATE = 'p2pswarm generate out "The trainer" --temperature 0.5'
DATA = "p2pswarm data run.toml"
CHECK = "p2pswarm train run.toml --check"
FIRST_NODE = "p2pswarm node --identity first.key"
OTHER_NODE = f"p2pswarm node --bootstrap {ELSEWHERE}"
TRAIN = f"p2pswarm train run.toml --bootstrap {ELSEWHERE}"
TRAIN_SHORTER = {"\nsteps = 2000\n": "\nsteps = 2\n", "d_model = 512": "d_model = 32"}
ASK = tuple(f"p2pswarm {name} --bootstrap {ELSEWHERE}" for name in ("status", "explain", "doctor"))
AT_A_PORT = f"p2pswarm train {FIRST_RUN} --listen 127.0.0.1:4000"
JOIN_THERE = "p2pswarm node --bootstrap 127.0.0.1:4000 --listen 127.0.0.1:0"
USES = (GENERATE, f"p2pswarm evaluate out {FIRST_RUN}", "p2pswarm export out my-model")
REHEARSAL = "make demo"
"""Its command is `p2pswarm demo`, which tests/procs/test_demo.py runs."""
TRAIN_FIRST = f"p2pswarm train {FIRST_RUN}"
"""As `AT_A_PORT`, at every address of the machine."""
OF_THE_TUTORIAL = [AT_A_PORT, JOIN_THERE, *USES, REHEARSAL, TRAIN_FIRST, OTHER_NODE]
CHECK_FIRST = f"p2pswarm train {FIRST_RUN} --check"
IN_SENTENCES = {
    CHECK_FIRST,
    TRAIN_HERE,
    (
        "p2pswarm demo --stages 3 --replicas 2 --steps 200 --kill-every 20 --data ~/texts "
        "--json figures.json --plot loss.svg"
    ),
    "p2pswarm check-model run.toml",
    "p2pswarm node --config",
    "p2pswarm revoke",
    *(f"pip install '.[{extra}]'" for extra in ("hf", "data")),
}
"""The tutorial's, of which the first two are run; of the others the flags are read below."""
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
    (text,) = (text for language, text in BLOCKS if text.startswith("# run.toml"))
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
    listed = [*AS_INSTALLED, TRAIN_HERE, GENERATE, FIRST_NODE, OTHER_NODE, DATA, CHECK, TRAIN, *ASK]

    assert listed == COMMANDS


def test_every_command_of_the_tutorial_is_tried_below():
    blocks = [text for language, text in BLOCK.findall(TUTORIAL) if not language]

    assert [line for text in blocks for line in text.splitlines()] == OF_THE_TUTORIAL
    assert set(IN_A_LINE.findall(TUTORIAL)) == IN_SENTENCES


def commands_on(page: str) -> list[str]:
    """The commands of p2pswarm that a page shows, in blocks and in sentences, alone."""
    text = (ROOT / page).read_text()
    lines = [line for language, block in BLOCK.findall(text) if not language
             for line in block.splitlines()]  # fmt: skip
    shown = [line.removeprefix("$ ") for line in lines]
    told = [" ".join(one.split()) for one in IN_A_LINE.findall(text)]
    alone = [BEHIND.split(line)[0] for line in (*shown, *told)]
    return [line for line in alone if line.startswith("p2pswarm ")]


@pytest.mark.parametrize("page", [page for page in PAGES if commands_on(page)])
def test_the_flags_of_every_command_on_a_page_are_there(page, capsys):
    """A command in a sentence may be shortened: `p2pswarm node --config`, or `[--json]`."""
    for line in commands_on(page):
        words = list(shlex.split(line.replace("[", "").replace("]", ""))[1:])
        try:
            make_parser().parse_args(words)
        except SystemExit:
            if words == ["--version"]:
                continue
            said = capsys.readouterr().err
            assert re.search(
                "arguments are required|expected one argument|expected at least", said
            ), f"{line}: {said}"


def test_nobody_is_told_to_install_by_a_name_that_a_stranger_may_take():
    """The name p2pswarm is on no index."""
    sources = [*(ROOT / "p2pswarm").rglob("*.py"), *(ROOT / page for page in PAGES)]

    told = [
        f"{source.relative_to(ROOT)}: {found[0]}"
        for source in sources
        for found in re.finditer(
            r"pip install [^`\n]*\bp2pswarm(\[|\b(?!:))[^`\n]*", source.read_text()
        )
        if "clone of p2pswarm" not in found[0]
    ]

    assert told == []


def test_every_extra_that_is_named_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sources = [*(ROOT / "p2pswarm").rglob("*.py"), *(ROOT / page for page in PAGES)]
    texts = [source.read_text() for source in sources]

    named = {name for text in texts for name in re.findall(r"'\.\[(\w+)\]'", text)}
    called = {
        name for text in texts for name in re.findall(r'missing_extra\([^"]*"[^"]*", "(\w+)"', text)
    }

    assert {"data", "hf", "plan"} <= named
    assert {"data", "hf", "plan"} == called
    assert named | called <= set(project["optional-dependencies"])


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
    assert generated.startswith("The trainer")
    assert len(generated) > len("The trainer") + 100


@pytest.mark.timeout(300)
def test_machines_join_train_and_tell(start_here, run_file, text_folder):
    assert text_folder.is_dir()
    said = [start_here(command) for command in (DATA, CHECK)]
    assert [each.end() for each in said] == [0, 0], [each.errors for each in said]
    assert "held out" in said[0].said
    assert said[1].said.startswith("run.toml: good\n")
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


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_tutorial_trains_at_a_port_and_uses_what_comes_out(clone, start):
    """The port is any free one here, and 4000 there."""
    assert run_in_shell(CHECK_FIRST, clone).startswith(f"{FIRST_RUN}: good\n")
    free = AT_A_PORT.replace("4000", "0")

    trainer = start(*shlex.split(free)[1:], module="p2pswarm")
    join = trainer.line_with("--bootstrap").split()[-1]
    servers = [
        start(*shlex.split(JOIN_THERE.replace("127.0.0.1:4000", join))[1:], module="p2pswarm")
        for _ in range(2)
    ]

    assert trainer.line_with("done after 4 steps")
    assert trainer.end() == 0, trainer.errors
    for server in servers:
        assert server.line_with("serving stage")
    written, measured, exported = (run_in_shell(command, clone) for command in USES)
    assert written.startswith("The trainer")
    assert re.search(r"loss [\d.]+ nats a byte, perplexity", measured)
    assert exported.startswith("my-model: ")
    assert (clone / "my-model" / "README.md").is_file()


def help_of(capsys, *command: str) -> str:
    """The help of a command, or of all."""
    with pytest.raises(SystemExit):
        make_parser().parse_args([*command, "--help"])
    said: str = capsys.readouterr().out
    return said


def flags_of(capsys, command: str) -> set[str]:
    """The flags that a command's help explains."""
    return set(re.findall(r"^  (--[a-z-]+)", help_of(capsys, command), re.MULTILINE))


def test_the_settings_of_a_fine_tune_are_read(tmp_path):
    (text,) = (text for language, text in BLOCKS if language == "toml" and "adapter" in text)
    (tmp_path / "run.toml").write_text(text)

    run = load(tmp_path / "run.toml").run

    assert (run.adapter.rank, run.base, run.start) == (16, "nf4", "pretrained")
    assert run.model.hub == "Qwen/Qwen3-32B"


def test_the_tables_have_every_flag_and_no_other(capsys):
    tables = [
        set(re.findall(r"^\| `(--[a-z-]+)", table, re.MULTILINE))
        for table in README.split("| flag | meaning |")[1:]
    ]

    node, train = flags_of(capsys, "node"), flags_of(capsys, "train")

    assert tables == [node & train, node - train, train - node]


def test_commands_that_sentences_and_other_pages_name_exist(capsys):
    pages = README + "".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    in_blocks = "\n".join(text for language, text in BLOCK.findall(pages) if not language)
    told = help_of(capsys)
    makefile = (ROOT / "Makefile").read_text()

    code = "".join(f"`{line}\n" for line in in_blocks.splitlines()) + pages
    named = set(re.findall(r"`(?:\$ )?p2pswarm ([a-z][a-z-]+)", code))
    targets = set(re.findall(r"`(?:\$ )?make ([a-z]+)", code))

    assert {"node", "train", "generate"} <= named
    assert named <= set(re.findall(r"^    ([a-z-]+)", told, re.MULTILINE))
    assert {"demo", "test", "map"} <= targets
    assert targets <= set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
