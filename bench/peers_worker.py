"""A process that is measured: it reads one JSON command a line and answers with one.

Both sides of bench/peers.py run on it, each under its own interpreter, so nothing
but the standard library is imported here.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

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
