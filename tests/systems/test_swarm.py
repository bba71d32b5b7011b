"""A swarm of real processes, and the demo, on each system: they train, end well, and leave nobody.

On Linux they run as if they were on Windows (`pretend_windows`).
"""

import json
import signal
import sys
from pathlib import Path

import pytest

from p2pswarm.net.crypto.identity import Identity

ROOT = Path(__file__).parents[2]
RUN = """
listen = "127.0.0.1:0"
leave_at_eof = true

[train]
data = "text"
weights = "out/weights.safetensors"
progress = "json"

[run]
name = "systems"
stages = 2
steps = 3

[run.model]
d_model = 16
layers = 2
heads = 2
sequence_length = 32

[run.batch]
microbatches = 4
rows = 2

[network]
map_ports = false
"""
NODE = """
listen = "127.0.0.1:0"
leave_at_eof = true
state = "state-{name}"

[network]
map_ports = false
"""
CLOSED = 12  # the stand-in's "the window was closed": SIGUSR2


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(12):
        (folder / f"{i}.txt").write_text(f"file {i} of some text to learn\n" * 100)
    return folder


@pytest.fixture
def node(run_python, tmp_path):
    """Starts a node with a `state` folder of that name."""

    def start(name, *flags):
        config = tmp_path / f"{name}.toml"
        config.write_text(NODE.format(name=name))
        return run_python("-m", "p2pswarm", "node", "--config", config, *flags)

    return start


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("text")
def test_a_swarm_trains_and_each_of_its_processes_ends(run_python, node, tmp_path):
    """A bulk pipe that is not released would keep the trainer for ever."""
    first = node("first", "--role", "bootstrap")
    join = ("--bootstrap", first.address)
    servers = [node(f"server-{i}", *join) for i in range(2)]
    (tmp_path / "run.toml").write_text(RUN)

    trainer = run_python("-m", "p2pswarm", "train", "run.toml", *join)

    assert trainer.end() == 0, trainer.errors
    assert list((tmp_path / "out").glob("*.safetensors"))
    for program in (*servers, first):
        program.process.stdin.close()
        program.end()
    for program in (trainer, *servers, first):
        assert "Traceback" not in program.errors


@pytest.mark.timeout(300)
def test_the_demo_trains_and_leaves_nobody(run_python, text, tmp_path):
    """A short one: two servers, one of which is killed."""
    demo = run_python(
        *("-m", "p2pswarm", "demo", "--stages", 1, "--replicas", 2, "--steps", 3, "--data", text),
        *("--json", tmp_path / "out.json", "--plot", tmp_path / "loss.png"),
    )

    assert demo.end() == 0, demo.errors

    told = json.loads((tmp_path / "out.json").read_text())
    assert told["microbatches"]["asked"] == told["microbatches"]["counted"] > 0
    assert "Traceback" not in demo.errors


def test_an_identity_may_have_any_bytes_and_belongs_to_one_node(node, tmp_path):
    """In text mode, some bytes of a key would be ends of lines, and one the end of the file."""
    key = b"\x1a\r\n\n" + bytes(range(1, 29))
    first = node("one", "--role", "bootstrap", "--identity", "key")
    first.kill()
    (tmp_path / "key").write_bytes(key)
    first = node("one", "--role", "bootstrap", "--identity", "key")

    assert f"peer {Identity.from_bytes(key).peer_id}"[:12] in first.line_with("peer ")

    second = node("two", "--role", "bootstrap", "--identity", "key")
    assert second.end() == 2
    assert "is in use by another node" in second.errors


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in has signals for it")
def test_a_node_leaves_when_its_console_ends_or_breaks(node):
    for number in (signal.SIGUSR1, CLOSED):  # Ctrl-Break, and a window that is closed
        asked = node("asked", "--role", "bootstrap")
        asked.line_with("--bootstrap")

        asked.process.send_signal(number)

        assert asked.line_with("leaving")
        asked.end()
        assert asked.errors == ""


def test_a_second_node_at_a_port_is_told(node):
    """Under Windows, SO_REUSEADDR would take the port away from the first."""
    first = node("one", "--role", "bootstrap")
    address = first.address

    second = node("two", "--role", "bootstrap", "--listen", address)

    assert second.end() == 2
    assert "choose another port with --listen" in second.errors


OWN_LOOP = """with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
    runner.run(main())
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="every loop of a Mac watches sockets")
def test_a_program_with_a_loop_that_watches_no_sockets_is_told_how_to_have_one(
    run_python, tmp_path
):
    program = (ROOT / "examples" / "three_node_dht.py").read_text(encoding="utf-8")
    (tmp_path / "usual.py").write_text(program)
    (tmp_path / "own.py").write_text(program.replace("asyncio.run(main())\n", OWN_LOOP))

    usual, own = run_python("usual.py"), run_python("own.py")

    assert usual.end() == 1
    assert "asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)" in usual.errors
    assert own.end() == 0, own.errors
