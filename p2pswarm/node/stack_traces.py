"""Stacks of this process: what each task awaits and what each thread does, as text.

Nothing of it is a value: names of functions, files and lines, no arguments and no locals. So the
text can be attached to a report.
"""

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.files import write_text
from p2pswarm.base.standard_streams import STDERR
from p2pswarm.progress.printable import printable

STACKS_FILE = "stacks.txt"  # in the folder of `state`
TASKS_MAX = 2_000  # a server has some hundred; a leak has more, and its first ones tell enough
FRAMES_MAX = 40  # of one stack, the innermost
ROOTS = tuple(
    sorted({str(Path(place).resolve()) for place in sys.path if place}, key=len, reverse=True)
)
"""Folders of modules; a path below one is shown without it: it may name a user."""


def stacks_text(loop: asyncio.AbstractEventLoop | None = None) -> str:
    """The stacks of all threads, and of the tasks of `loop`; None: of the one that runs here."""
    lines = ["threads"]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sorted(sys._current_frames().items()):  # noqa: SLF001  the only way
        lines.append(f"  thread {printable(names.get(ident, 'of another library'))}")
        lines += _frames(traceback.extract_stack(frame, limit=-FRAMES_MAX))
    return "\n".join([*lines, *_tasks(loop)]) + "\n"


def _tasks(loop: asyncio.AbstractEventLoop | None) -> list[str]:
    with contextlib.suppress(RuntimeError):  # no loop runs here
        loop = loop or asyncio.get_running_loop()
    if loop is None:
        return ["tasks", "  no event loop runs in this thread"]
    try:
        tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    except RuntimeError as error:  # a task began or ended in the midst of it, in another thread
        return ["tasks", f"  not to be had now: {error}"]
    alike: dict[tuple[str, ...], int] = {}
    for task in tasks[:TASKS_MAX]:
        stack = tuple(_awaited(task))
        alike[stack] = alike.get(stack, 0) + 1
    lines = [f"tasks: {len(tasks)}, alike ones together"]
    for stack, count in sorted(alike.items(), key=lambda each: (-each[1], each[0])):
        lines += [f"  {count} of:", *stack]
    return lines


def _awaited(task: asyncio.Task[object]) -> list[str]:
    """The chain of coroutines of a task: what awaits what, the innermost last."""
    found: list[traceback.FrameSummary] = []
    awaited: object = task.get_coro()
    while awaited is not None and len(found) < FRAMES_MAX:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        found.append(traceback.FrameSummary(*_place(frame), lookup_line=False))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return _frames(found)


def _place(frame: FrameType) -> tuple[str, int, str]:
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def _frames(frames: list[traceback.FrameSummary] | traceback.StackSummary) -> list[str]:
    return [f"    {_file(one.filename)}:{one.lineno} {printable(one.name)}" for one in frames]


def _file(name: str) -> str:
    """A file as its module's folder has it."""
    for root in ROOTS:
        if name.startswith(root + os.sep):
            return printable(name[len(root) + 1 :])
    return printable(Path(name).name)


def watch_stacks_signal(folder: Path | None, say: Callable[[str], None]) -> None:
    """Write the stacks at each SIGUSR1, where the system has it: into `folder`, or to stderr.

    Threads are written by faulthandler first, to stderr: that works even while Python is stuck in
    a call that does not return.
    """
    if threading.current_thread() is threading.main_thread():
        _watch(folder, say)


def _watch(folder: Path | None, say: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()

    def write(_number: int, _frame: FrameType | None) -> None:
        text = stacks_text(loop)
        if folder is None:
            STDERR.write(text)
            return
        try:
            written = write_text(folder / STACKS_FILE, text)
        except SwarmError as error:
            say(str(error))
        else:
            say(f"stacks of this process: {written}")

    if sys.platform != "win32":
        signal.signal(signal.SIGUSR1, write)
        if sys.stderr is not None:
            with contextlib.suppress(ValueError, OSError):  # a stderr without a file has no number
                faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True, chain=True)
