"""The examples run as they stand, in a process each, and say what a person understands."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from core import core_of

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "answers": [
        "nats a target: 5.",
        "1+2=3",
    ],
    "chat_adapter": [
        "training begins: 25,088 parameters",
        "held-out loss 5.",
        "\n 3 x fork\n",
        "adapter: 1",
    ],
    "closed_run": [
        "anna gets p2pswarm-invite-...",
        "all steps are done; the uninvited served None",
        "anna's run is over: all steps are done",
    ],
    "fine_tune": [
        "step=0, nats_per_token=5.",
        "step=20, nats_per_token=",
    ],
    "hf_model": [
        "step=0, nats_per_token=5.",
        "step=20, nats_per_token=3.",
        "transformers takes them: <All keys matched successfully>",
    ],
    "own_model": [
        "step=0, nats_per_token=",
        "step=20, nats_per_token=2.",
    ],
    "server_and_trainer": [
        "step 0: held-out loss 6.",
        "step 20: held-out loss 3.",
        "all steps are done: ",
        "the server's run is over: all steps are done",
    ],
    "simulated_swarm": [
        "all steps are done: 10 steps in ",
        "machines lost: ",
        "microbatches a second, each counted once in every stage",
        "the same seed gives the same digest: ",
    ],
    "three_node_dht": [
        "listens at 127.0.0.1:",
        "the second node published 42; ",
        "the third node found 42, signed by ",
    ],
    "typed_messages": [
        "40 + 2: the server answers Sum(value=42)",
        "40 + 2000 is not sent: Add.b: expected an int in -1000..1000",
    ],
}
LINES_MAX = 50
MODEL_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")
EACH = pytest.mark.parametrize("name", sorted(SAID))
CORE = {"server_and_trainer", "three_node_dht", "typed_messages"}
"""Of what the others show, other tests have the core."""


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAID)


@pytest.mark.parametrize("name", core_of(sorted(SAID), CORE))
def test_example_runs_and_says_what_it_did(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=100,
    )

    assert (done.returncode, done.stderr) == (0, "")
    missing = [line for line in SAID[name] if line not in done.stdout]
    assert missing == [], done.stdout
    assert list(tmp_path.iterdir()) == []


@EACH
def test_example_is_short_and_needs_the_package_alone(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    tree = ast.parse(text)

    modules = {a.name for node in tree.body if isinstance(node, ast.Import) for a in node.names}
    modules |= {n.module.split(".")[0] for n in tree.body if isinstance(n, ast.ImportFrom)}

    assert "p2pswarm" in modules
    assert modules <= sys.stdlib_module_names | {"p2pswarm", *MODEL_LIBRARIES}
    assert len(text.splitlines()) <= LINES_MAX
