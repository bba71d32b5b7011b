"""The demo's processes: each is a node as a user would start it, and none outlives the demo.

A process's stdin is a pipe from us. However we die, the pipe then ends, and the process leaves. We
ask it to leave by closing the pipe, because Windows has no signal for that. Each process is in its
own session or group, so Ctrl-C in the terminal reaches only us.

Errors:  Unusable when a process ends before it has printed a line that we need.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.node.notify_socket import NOTIFY_SOCKET
from p2pswarm.settings.environment import VARIABLES

LEAVE_S = 5.0  # a node leaves within this time; afterwards it is killed
OF_OTHER_NODES = frozenset((*VARIABLES.values(), NOTIFY_SOCKET))
if sys.platform == "win32":
    GROUP = subprocess.CREATE_NEW_PROCESS_GROUP
else:
    GROUP = 0
LINE_BYTES_MAX = 1 << 20  # a line of JSON may name hundreds of servers
CHILD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUTF8": "1"}
"""Added to the environment of each."""


@dataclass(slots=True)
class DemoProcess:
    """One node."""

    name: str
    os_process: asyncio.subprocess.Process
    log: Path

    async def line(self) -> str | None:
        """The next line of its stdout; None at the end."""
        assert self.os_process.stdout is not None
        raw = await self.os_process.stdout.readline()
        return raw.decode(errors="replace").rstrip("\r\n") if raw else None

    async def line_with(self, mark: str) -> str:
        """The first line that contains `mark`; raises Unusable if the process ends first."""
        while (line := await self.line()) is not None:
            if mark in line:
                return line
        raise Unusable(f"{self.name} ended early: {self.last_words()}")

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it left no message"

    def kill(self) -> None:
        """End it with SIGKILL: it cannot leave in order."""
        with contextlib.suppress(ProcessLookupError):
            self.os_process.kill()


def _environment() -> dict[str, str]:
    """The environment of a node: one thread, and nothing that was meant for another swarm."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_OTHER_NODES}
    return {**kept, **CHILD}


class DemoProcesses:
    """Every process that the demo started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[DemoProcess] = []

    @property
    def running(self) -> list[DemoProcess]:
        """The processes that have not ended."""
        return [process for process in self._all if process.os_process.returncode is None]

    async def start(self, name: str, settings: str) -> DemoProcess:
        """Start a node with these settings, a TOML text."""
        config = self._folder / f"{name}.toml"
        config.write_text(settings, encoding="utf-8")
        log = self._folder / f"{name}.log"
        with log.open("wb") as stderr:
            os_process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "p2pswarm.node", "--config", str(config)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                limit=LINE_BYTES_MAX,
                start_new_session=True,
                creationflags=GROUP,
                env=_environment(),
            )
        process = DemoProcess(name, os_process, log)
        self._all.append(process)
        return process

    async def leave(self) -> None:
        """Ask all to leave, and kill those that have not left within `LEAVE_S`."""
        for process in self.running:
            assert process.os_process.stdin is not None
            process.os_process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                for process in self._all:
                    await process.os_process.wait()
        self.kill()

    def kill(self) -> None:
        """Kill all that are running."""
        for process in self.running:
            process.kill()


@contextlib.asynccontextmanager
async def demo_processes(folder: Path) -> AsyncIterator[DemoProcesses]:
    """Processes that leave at the end of this block; a cancellation then kills them."""
    processes = DemoProcesses(folder)
    try:
        yield processes
    finally:
        try:
            await processes.leave()
        finally:
            processes.kill()
