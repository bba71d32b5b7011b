"""An event loop whose clock jumps: a simulated hour costs only its events.

asyncio asks a poller to wait for the next timer. This poller does not wait: it moves the clock to
the timer. So `asyncio.sleep`, timeouts, task groups and futures work unchanged, and nothing depends
on the machine's speed. A deadlock raises an error.

We know three traps from experiments. `asyncio.TaskGroup` keeps its tasks in a set and cancels them
in the set's order, so tasks have hashes that the run determines. Sets of other objects and of
strings iterate in another order in each process. A clock that starts at wall time loses small steps
to rounding, so this clock starts at 0.

Units:   seconds of virtual time.
Errors:  RuntimeError when every task waits and no timer is set.
Source:  looptime, aiotools #69; CPython issue #116342. The loop uses private names of
         `asyncio.BaseEventLoop` and `asyncio.Handle`; tests/sim/test_loop.py pins them.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from p2pswarm.sim.suspension import PROCESS

T = TypeVar("T")
CLOCK_STEP_S = 1e-6  # timers closer than this run together; far below any latency


class _Jump:
    """Takes the place of the OS poller: to wait is to move the clock."""

    def __init__(self, loop: "SimLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise RuntimeError("stuck: no task is ready and no timer is set")
        self._loop.now_s += timeout
        return []


class _Soon(asyncio.Handle):
    """A callback that waits while its process is stopped."""

    __slots__ = ()
    _args: tuple[Any, ...]
    _callback: Callable[..., object]
    _context: Context
    _loop: "SimLoop"

    def _run(self) -> None:
        process = self._context.get(PROCESS)
        if process is not None and process.stopped:
            process.wait(self)
        else:
            super()._run()

    def resume(self) -> None:
        """Run it in the next turn of the loop."""
        self._loop.resume(self)


class _Timer(_Soon, asyncio.TimerHandle):
    """A timer that waits while its process is stopped, and fires late."""

    __slots__ = ()


class _NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number: a set of tasks has the same order in each run."""

    def __init__(self, *args: Any, loop: "SimLoop", **options: Any) -> None:
        loop.tasks += 1
        self._number = loop.tasks
        super().__init__(*args, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class SimLoop(asyncio.BaseEventLoop):
    """asyncio on virtual time, in one thread."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0  # never wall time: at 1e8 s a 1e-9 step vanishes and the loop spins
        self._clock_resolution = CLOCK_STEP_S
        self._selector = _Jump(self)
        self.tasks = 0  # so many were made
        self.set_task_factory(_numbered)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now_s

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at that time, or when the process goes on that asked for it."""
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001  as asyncio does
        return timer

    def _call_soon(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.Handle:
        handle = _Soon(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def resume(self, handle: asyncio.Handle) -> None:
        """Run what waited for its process, in the next turn."""
        self._ready.append(handle)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call `func` now: a simulation has no threads."""
        del executor
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  the caller gets it
            future.set_exception(error)
        return future

    def _process_events(self, event_list: list[object]) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps."""


def _numbered(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Future[Any]:
    assert isinstance(loop, SimLoop), "it makes the tasks of a simulation"
    return _NumberedTask(work, loop=loop, **options)


def run(main: Coroutine[Any, Any, T], seed: int) -> T:
    """Run `main` to its end in virtual time; a failure is marked with the seed that replays it."""
    try:
        with asyncio.Runner(loop_factory=SimLoop) as runner:
            return runner.run(main)
    except BaseException as error:
        error.add_note(f"in a simulated run: replay it with seed {seed}")
        raise
