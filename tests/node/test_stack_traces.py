"""Stacks on demand: tasks and threads as text, without values, paths of users or secrets."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from p2pswarm.node.stack_traces import STACKS_FILE, stacks_text

SECRET = "correct horse battery staple"
PROBE = """
import asyncio, sys
from pathlib import Path
from p2pswarm.node.stack_traces import watch_stacks_signal

async def waits_for_partner(secret):
    await asyncio.Event().wait()

async def main():
    said = asyncio.Event()
    watch_stacks_signal(Path(sys.argv[1]) if len(sys.argv) > 1 else None, lambda line: said.set())
    task = asyncio.create_task(waits_for_partner("{secret}"))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
""".replace("{secret}", SECRET)


async def innermost(password: str) -> None:
    await asyncio.Event().wait()


async def outer(password: str) -> None:
    await innermost(password)


def test_a_task_is_shown_with_all_that_it_awaits_and_alike_ones_together():
    async def main() -> str:
        tasks = [asyncio.create_task(outer(SECRET)) for _ in range(3)]
        await asyncio.sleep(0)
        text = stacks_text()
        for task in tasks:
            task.cancel()
        return text

    text = asyncio.run(main())

    assert "  3 of:" in text
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.endswith(" outer"))
    assert lines[at + 1].endswith(" innermost")


def test_threads_are_named_and_no_value_of_theirs_is_shown():
    entered, leave = threading.Event(), threading.Event()

    def holds(password: str) -> None:
        entered.set()
        leave.wait()

    thread = threading.Thread(target=holds, args=(SECRET,), name="seals\x1b[2J")
    thread.start()
    entered.wait()
    text = stacks_text()
    leave.set()
    thread.join()

    assert "thread seals?[2J" in text
    assert " holds" in text
    assert SECRET not in text
    assert str(Path.home()) not in text
    assert all(line.isprintable() for line in text.splitlines())


def test_without_a_loop_there_are_threads_alone():
    assert "no event loop runs in this thread" in stacks_text()


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no such signal")
@pytest.mark.parametrize("with_folder", [True, False])
def test_the_signal_writes_them_into_the_folder_or_to_stderr_and_the_process_goes_on(
    tmp_path, with_folder
):
    command = [sys.executable, "-c", PROBE, *([str(tmp_path)] if with_folder else [])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGUSR1)
        text = ""
        while "waits_for_partner" not in text:  # until the harness's own time limit
            if with_folder and (tmp_path / STACKS_FILE).exists():
                text = (tmp_path / STACKS_FILE).read_text()
            elif not with_folder:
                text += process.stderr.readline()
        assert process.poll() is None
        _, rest = process.communicate("\n")

    assert process.returncode == 0
    assert SECRET not in text + rest
