"""An event loop whose clock jumps: a simulated hour costs only its events.

Where asyncio polls and waits for the next timer, this loop moves the clock to it. So
`asyncio.sleep`, timeouts, task groups and futures work unchanged, and nothing depends on the
machine's speed. A turn of this loop and its handles do only what a simulation needs: a fifth of a
run of 80 servers would else pass in asyncio's own.

We know three traps from experiments. `asyncio.TaskGroup` keeps its tasks in a set and cancels them
in the set's order, so tasks have hashes that the run determines. Sets of other objects and of
strings iterate in another order in each process. A clock that starts at wall time loses small steps
to rounding, so this clock starts at 0.

Errors:  RuntimeError when every task waits and no timer is set.
Source:  looptime, aiotools #69; CPython issue #116342. The loop uses private names of
         `asyncio.BaseEventLoop` and `asyncio.Handle`; tests/sim/test_loop.py pins them.
"""

import asyncio
import gc
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, TypeVar

from p2pswarm.net.os.event_loop import apart
from p2pswarm.sim.link import PROCESS

T = TypeVar("T")
CLOCK_STEP_S = 1e-6  # timers closer than this run together; far below any latency
NEW_OBJECTS = 200_000  # between two searches for garbage; Python's own default is 700
CANCELLED_LEAST = 50  # cancelled timers that are not worth a look at all others


class _Soon(asyncio.Handle):
    """A callback that waits while its process is stopped."""

    __slots__ = ()
    _args: tuple[Any, ...]
    _callback: Callable[..., object]
    _context: Context
    _loop: "SimLoop"

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "SimLoop",
        context: Context | None,
    ) -> None:
        """As asyncio's, without its debug mode: a simulated day makes 200 million of these."""
        self._callback, self._args, self._loop = callback, args, loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._repr = self._source_traceback = None

    def run(self) -> None:
        """Call back, unless the process is stopped; an error ends up in the loop's handler."""
        if self._cancelled:
            return
        context = self._context
        process = context.get(PROCESS)
        if process is not None and process.stopped:
            process.wait(self._resume)
            return
        try:
            context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  as asyncio does
            text = f"error in the callback {self._callback!r}"
            self._loop.call_exception_handler({"message": text, "exception": error, "handle": self})

    def _resume(self) -> None:
        self._loop.resume(self)


class _Timer(_Soon, asyncio.TimerHandle):
    """A timer that waits while its process is stopped, and fires late."""

    __slots__ = ("in_heap",)
    _when: float

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "SimLoop",
        context: Context | None,
    ) -> None:
        _Soon.__init__(self, callback, args, loop, context)
        self._when = when
        self.in_heap = True
        """True if it is still to become ready."""

    def cancel(self) -> None:
        """Call nobody back."""
        if not self._cancelled:
            self._cancelled = True
            self._callback, self._args = _nothing, ()
            if self.in_heap:
                self._loop.timer_cancelled()


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

    _ready: deque[_Soon]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0  # never wall time: at 1e8 s a 1e-9 step vanishes and the loop spins
        self._timers: list[tuple[float, int, _Timer]] = []
        """A heap: when, so many timers were set before it, the timer."""
        self._timers_set = 0
        self._timers_cancelled = 0  # that are still in the heap
        self.tasks = 0  # so many were made
        self.set_task_factory(_numbered)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now_s

    def _call_soon(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.Handle:
        handle = _Soon(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at that time, or when the process goes on that asked for it.

        Timers of one time fire in the order in which they were set, whatever else is in the heap.
        """
        timer = _Timer(when, callback, args, self, context)
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, timer))
        return timer

    @property
    def timers(self) -> int:
        """The timers in memory; some of them were cancelled."""
        return len(self._timers)

    def timer_cancelled(self) -> None:
        """A timer in the heap will not fire; when most will not, they are taken out.

        Else the deadlines of calls that were answered long ago would fill it.
        """
        self._timers_cancelled += 1
        if self._timers_cancelled > max(CANCELLED_LEAST, len(self._timers) // 2):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def resume(self, handle: _Soon) -> None:
        """Run what waited for its process, in the next turn."""
        self._ready.append(handle)

    def _run_once(self) -> None:
        """One turn: jump to the next timer if nothing is ready, then run all that is.

        No timer fires before its time: who then finds that nothing is due would wait again at once,
        and two of them, in turns, would never let the clock go on.
        """
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self._timers_cancelled -= 1
        if timers:
            if not ready and not self._stopping:
                self.now_s = max(self.now_s, timers[0][0])
            end_s = self.now_s + CLOCK_STEP_S
            while timers and timers[0][0] < end_s:
                when_s, _, timer = heapq.heappop(timers)
                self.now_s = max(self.now_s, when_s)
                timer.in_heap = False
                ready.append(timer)
        elif not ready and not self._stopping:
            raise RuntimeError("stuck: no task is ready and no timer is set")
        for _ in range(len(ready)):  # what these make ready runs in the next turn
            ready.popleft().run()

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

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps."""


def _nothing() -> None:
    """The callback of a timer that was cancelled."""


def _numbered(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Future[Any]:
    assert isinstance(loop, SimLoop), "it makes the tasks of a simulation"
    return _NumberedTask(work, loop=loop, **options)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let Python look for garbage in cycles less often, and only among what the block makes.

    A simulation makes few cycles and keeps many objects: of torch, and of all machines.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def run(main: Coroutine[Any, Any, T], seed: int) -> T:
    """Run `main` to its end in virtual time; a failure is marked with the seed that replays it.

    Where a loop runs already, as in a notebook, it has a thread of its own.
    """
    return apart(lambda: _run(main, seed))


def _run(main: Coroutine[Any, Any, T], seed: int) -> T:
    try:
        with _seldom_collected(), asyncio.Runner(loop_factory=SimLoop) as runner:
            return runner.run(main)
    except BaseException as error:
        error.add_note(f"in a simulated run: replay it with seed {seed}")
        raise
