"""Processes that are measured: each reads one JSON command a line and answers with one.

`obey` is the process's side and `Worker` its starter's. A process may run under another
interpreter, so nothing but the standard library is imported here.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

LEAVE_S = 20.0
SETTINGS = {"OMP_NUM_THREADS": "1", "HIVEMIND_LOGLEVEL": "ERROR"}

Verb = Callable[..., Awaitable[Any]]


async def obey(verbs: dict[str, Verb]) -> None:
    """Answer commands `{"do": verb, ...}` until stdin ends."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints belongs to stderr
    print(json.dumps({"ok": "ready"}), file=out)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        try:
            answer = {"ok": await verbs[command.pop("do")](**command)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out)


class Worker:
    """A process that obeys; it leaves at the end of the block."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `__exit__` closes it
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, **SETTINGS},
        )
        self.pid = self._process.pid
        self._name = next((Path(part).name for part in command if str(part).endswith(".py")), "")

    def __enter__(self) -> Self:
        self._answer()  # it is ready
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._said.close()

    def do(self, verb: str, **arguments: Any) -> Any:
        """Have it do something, and wait for the result."""
        assert self._process.stdin is not None
        print(json.dumps({"do": verb, **arguments}), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._said.seek(0)
            last = self._said.read().strip().rpartition("\n")[2]
            raise SystemExit(f"{self._name} ended with code {code}: {last}")
        answer = json.loads(line)
        if "error" in answer:
            raise SystemExit(f"{self._name}: {answer['error']}")
        return answer["ok"]
