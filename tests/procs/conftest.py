"""Real nodes, each a process that a test starts by its command line and that never outlives it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


class Node:
    """A process and what it said."""

    def __init__(self, module: str, flags: tuple[str, ...], folder: Path, name: str) -> None:
        self._log = (folder / f"{name}.err").open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=folder,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )

    def line_with(self, mark: str) -> str:
        """The next line on stdout that contains `mark`."""
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if mark in line:
                return line.rstrip("\n")
        raise AssertionError(f"no line with {mark!r} in {seen}; stderr: {self.errors}")

    @property
    def address(self) -> str:
        """Where it listens; it is up then."""
        return self.line_with("peer ").split(" at ")[1].split(",")[0]

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Wait until it is over; its exit code."""
        assert self.process.stdout is not None
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        return self.process.wait()

    @property
    def errors(self) -> str:
        """What it wrote to stderr so far."""
        self._log.seek(0)
        return self._log.read().decode()

    def kill(self) -> None:
        """Make sure that it is over, its children too."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self._log.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    """Starts `python -m p2pswarm.node` with flags; `module=` starts another program."""
    nodes: list[Node] = []

    def starter(*flags: object, module: str = "p2pswarm.node") -> Node:
        texts = tuple(str(flag) for flag in flags)
        node = Node(module, texts, tmp_path, f"node-{len(nodes)}")
        nodes.append(node)
        return node

    yield starter
    for node in nodes:
        node.kill()


@pytest.fixture
def seed_node(start):
    """A bootstrap node that is up, and its address."""
    node = start("--role", "bootstrap", "--listen", "127.0.0.1:0")
    return node, node.address


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """`text` in the folder that nodes are started in: a few KB to learn."""
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(12):
        (folder / f"{i}.txt").write_text(f"file {i} of some text to learn\n" * 20)
    return folder
