"""Programs as this system runs them; on Linux, as Windows would: tests/procs has Linux."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRETENDED = Path(__file__).parent / "pretend_windows"
PRETENDS = sys.platform == "linux"


class Program:
    """A process that a test starts, and what it said."""

    def __init__(self, arguments: list[str], folder: Path, errors: Path, environment) -> None:
        self._errors = errors
        with errors.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                cwd=folder,
                env=environment,
            )

    def line_with(self, mark: str) -> str:
        """The next line on stdout that contains `mark`."""
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if mark in line:
                return line.rstrip()
        raise AssertionError(f"no line with {mark!r} in {seen}; stderr: {self.errors}")

    @property
    def address(self) -> str:
        """Where it listens; it is up then."""
        return self.line_with("peer ").split(" at ")[1].split(",")[0]

    def end(self) -> int:
        """Wait until it is over; its exit code. The test's time limit is the deadline."""
        read = threading.Thread(target=self.process.stdout.read, daemon=True)
        read.start()
        code = self.process.wait()
        read.join()
        return code

    @property
    def errors(self) -> str:
        """What it wrote to stderr so far."""
        return self._errors.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """Make sure that it is over."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def run_python(tmp_path) -> Iterator:
    """Starts a Python with these arguments."""
    programs: list[Program] = []
    path = [str(PRETENDED), str(ROOT)] if PRETENDS else [str(ROOT)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",
        "OMP_NUM_THREADS": "1",
        "LOCALAPPDATA": str(tmp_path / "local"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    def start(*arguments: object) -> Program:
        errors = tmp_path / f"program-{len(programs)}.err"
        programs.append(Program([str(each) for each in arguments], tmp_path, errors, environment))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
