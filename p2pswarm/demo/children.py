"""The demo's processes: each a node as a user would start it, and none left behind.

A child's stdin is a pipe that we hold: if we die, however, it ends and the child leaves. Each
child has a session of its own, so that Ctrl-C in the terminal reaches us alone.

Units:   seconds.
Errors:  Unusable when a child ends before it has said what it must.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.errors import Unusable

LEAVE_S = 5.0  # what a node promises; afterwards it is killed
LINE_BYTES_MAX = 1 << 20  # a view of hundreds of servers in one line of JSON


@dataclass(slots=True)
class Child:
    """One node."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    async def line(self) -> str | None:
        """Its next line on stdout; None once it has closed it."""
        assert self.process.stdout is not None
        raw = await self.process.stdout.readline()
        return raw.decode(errors="replace").rstrip("\n") if raw else None

    async def line_with(self, mark: str) -> str:
        """The first line that contains `mark`; raises Unusable if it ends before."""
        while (line := await self.line()) is not None:
            if mark in line:
                return line
        raise Unusable(f"{self.name} ended early: {self.last_words()}")

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it left no message"

    def kill(self) -> None:
        """SIGKILL: it has no chance to say goodbye."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class Children:
    """Every process that the demo started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[Child] = []

    @property
    def running(self) -> list[Child]:
        """Those that have not ended."""
        return [child for child in self._all if child.process.returncode is None]

    async def start(self, name: str, settings: str) -> Child:
        """A node with these settings, a TOML text."""
        config = self._folder / f"{name}.toml"
        config.write_text(settings)
        log = self._folder / f"{name}.log"
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "p2pswarm.node", "--config", str(config)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                limit=LINE_BYTES_MAX,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )
        child = Child(name, process, log)
        self._all.append(child)
        return child

    async def leave(self) -> None:
        """Ask all to leave; who has not within `LEAVE_S` is killed."""
        for child in self.running:
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                for child in self._all:
                    await child.process.wait()
        self.kill()

    def kill(self) -> None:
        """End all at once."""
        for child in self.running:
            child.kill()


@contextlib.asynccontextmanager
async def children(folder: Path) -> AsyncIterator[Children]:
    """Processes that end with this block; cancelled once more, at once."""
    family = Children(folder)
    try:
        yield family
    finally:
        try:
            await family.leave()
        finally:
            family.kill()
