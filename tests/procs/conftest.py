"""Real nodes, each a process that a test starts by its command line and that never outlives it."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from procs.fork_server import Forked, ForkServer, environment

SMALL_DISK_BYTES = 4 << 20
COMMANDS = {"p2pswarm.node": ["node"], "p2pswarm": [], "p2pswarm.cli": []}
"""The first words of `p2pswarm`, by the module that begins with them."""
Process = subprocess.Popen[str] | Forked


class Node:
    """A process and what it said."""

    def __init__(self, process: Process, log: IO[bytes]) -> None:
        self.said = ""
        """What it wrote to stdout from when its end was waited for."""
        self.process = process
        self._log = log

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
        read = threading.Thread(target=self._read_rest, daemon=True)
        read.start()
        code = self.process.wait()
        read.join()
        return code

    def _read_rest(self) -> None:
        assert self.process.stdout is not None
        self.said = self.process.stdout.read()

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


def interpreter(command: list[str], folder: Path, errors: IO[bytes]) -> subprocess.Popen[str]:
    """A process with imports of its own."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        cwd=folder,
        start_new_session=True,
        env=environment(),
    )


@pytest.fixture
def start(tmp_path: Path, fork_server: ForkServer) -> Iterator:
    """Starts `python -m p2pswarm.node` with flags; `module="p2pswarm"` starts any of its commands.

    It is a fork of a process that has the imports, unless it shall be `fresh`.
    `inside`: files of the namespaces that it enters, so that it sees a disk that others do not.
    """
    nodes: list[Node] = []

    def starter(
        *flags: object,
        module: str = "p2pswarm.node",
        inside: tuple[str, ...] = (),
        fresh: bool = False,
    ) -> Node:
        texts = [str(flag) for flag in flags]
        log = (tmp_path / f"node-{len(nodes)}.err").open("w+b")
        process: Process
        if fresh:
            process = interpreter([sys.executable, "-m", module, *texts], tmp_path, log)
        else:
            process = fork_server.command([*COMMANDS[module], *texts], tmp_path, log, inside)
        node = Node(process, log)
        nodes.append(node)
        return node

    yield starter
    for node in nodes:
        node.kill()


class SmallDisk:
    """A disk of our own, seen by the nodes that `inside` starts, and gone with this object."""

    def __init__(self, place: Path, size_bytes: int) -> None:
        place.mkdir()
        self._place = place
        rootless = ("--user", "--map-root-user") if os.geteuid() else ()
        mount = f"mount -t tmpfs -o size={size_bytes} disk {place} && echo there && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", *rootless, "sh", "-c", mount],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != "there\n":
            reason = self._holder.stderr.read().strip()
            self.close()
            pytest.skip(f"a small disk cannot be mounted here: {reason}")
        names = ("user", "mnt") if rootless else ("mnt",)
        self.inside = tuple(f"/proc/{self._holder.pid}/ns/{name}" for name in names)
        """What a process enters that shall see the disk."""
        self.path = Path(f"/proc/{self._holder.pid}/root{place}")
        """Where the test finds it."""

    def fill(self) -> None:
        """Leave not a byte."""
        with contextlib.suppress(OSError), (self.path / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        """Give the space back."""
        (self.path / "ballast").unlink()

    def close(self) -> None:
        """The disk is gone when nobody is left who sees it."""
        self._holder.kill()
        self._holder.communicate()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator:
    """A disk of 4 MB at `disk` in the folder that nodes are started in; skips where none may be."""
    if shutil.which("unshare") is None:
        pytest.skip("a small disk needs unshare (util-linux)")
    disk = SmallDisk(tmp_path / "disk", SMALL_DISK_BYTES)
    yield disk
    disk.close()


@pytest.fixture
def seed_node(start):
    """A bootstrap node that is up, and its address."""
    node = start("--role", "bootstrap", "--listen", "127.0.0.1:0")
    return node, node.address


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """`text` in the folder that nodes are started in: enough to hold out blocks of it."""
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(12):
        (folder / f"{i}.txt").write_text(f"file {i} of some text to learn\n" * 100)
    return folder
