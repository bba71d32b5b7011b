"""The event loop of a node: asyncio's own, which polls without sleeping while answers come fast.

An idle processor takes tens of microseconds to wake. On a virtual machine that is longer than all
the rest of a small call. So while waits are short, the selector polls for up to LOOK_S before it
sleeps. When nothing came in that time, it sleeps at once until waits are short again. A node whose
waits are long never polls this way. Nor does one that has a single processor: polling would keep
that from the peer that is to answer.

Signals wake the loop also where they reach another thread, as Ctrl-C does on Windows.
"""

import asyncio
import contextlib
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import FrameType
from typing import Any, TypeVar

from p2pswarm.net.os.system_limits import usable_processors

LOOK_S = 100e-6  # twice the time in which a peer answers a small call, without its wake-up
SHORT_S = 250e-6  # a sleep this short would have ended within LOOK_S without the wake-ups
INTERRUPT_LOOK_S = 0.5  # between two looks of a thread that waits for another, for an interrupt
SIGNALS_MAX = 4096  # bytes, one for each signal
SHORT_WAITS = 3  # so many short waits in a row make polling worth while

T = TypeVar("T")


class EagerSelector(selectors.DefaultSelector):
    """The system's selector, which polls before it sleeps while that saves time."""

    def __init__(self, short_s: float = SHORT_S, processors: int | None = None) -> None:
        """`short_s`: the longest wait that counts as short.

        `processors`: how many this process may use; None: as the system says.
        """
        super().__init__()
        self._short_s = short_s
        self._polls = (usable_processors() if processors is None else processors) > 1
        self._short_waits = 0  # in a row

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events as the base class does."""
        if not self._polls or (timeout is not None and timeout <= LOOK_S):
            return super().select(timeout)
        begin_s = time.perf_counter()
        if self._short_waits >= SHORT_WAITS:
            while time.perf_counter() - begin_s < LOOK_S:
                if ready := super().select(0):
                    return ready
            self._short_waits = 0
            return super().select(timeout)
        ready = super().select(timeout)
        is_short = time.perf_counter() - begin_s <= self._short_s
        self._short_waits = self._short_waits + 1 if is_short else 0
        return ready


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` as `asyncio.run` does, on a loop with the eager selector.

    Where a loop runs here already, as in a notebook, `main` gets a thread of its own, and the
    caller waits for its end.
    """
    if _runs_here():
        return _run_beside(main)
    with asyncio.Runner(loop_factory=new_loop) as runner, signals_wake(runner.get_loop()):
        return runner.run(main)


@contextlib.contextmanager
def signals_wake(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have signals end a loop's sleep within this block, so that their handlers run at once.

    A handler runs in the main thread, and only there can it be set which socket a signal writes to.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    woken, waker = socket.socketpair()
    with woken, waker:
        woken.setblocking(False)
        waker.setblocking(False)
        loop.add_reader(woken, woken.recv, SIGNALS_MAX)
        before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(woken)


@contextlib.contextmanager
def signals_handled(
    loop: asyncio.AbstractEventLoop, numbers: Iterable[int], on_signal: Callable[[int], object]
) -> Iterator[None]:
    """Have a loop of any kind call `on_signal` with each of these signals within this block."""

    def handle(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(on_signal, number)

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, signal.SIG_DFL if former is None else former)


def apart(work: Callable[[], T]) -> T:
    """Call what runs a loop of its own; in another thread where a loop runs here already."""
    if not _runs_here():
        return work()
    with ThreadPoolExecutor(1, thread_name_prefix="run") as pool:
        return pool.submit(work).result()


def _runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_beside(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in a thread; an interrupt of the caller cancels it, and is raised then."""
    begun: Future[Callable[[], object]] = Future()

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None, "a coroutine that runs is in a task"
        loop = asyncio.get_running_loop()
        begun.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await main

    go: Future[bool] = Future()
    """What runs may interrupt us itself: it does not begin before we can hear it."""

    def begin() -> T:
        if go.result():
            return run(cancellable())
        main.close()
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1, thread_name_prefix="run") as pool:
        try:
            work = pool.submit(begin)
            go.set_result(True)
            while not work.done():  # an interrupt just before a wait without end would not end it
                wait((work,), INTERRUPT_LOOK_S)
            return work.result()
        except KeyboardInterrupt:
            if not go.done():
                go.set_result(False)
            else:
                either: list[Future[Any]] = [work, begun]
                wait(either, return_when=FIRST_COMPLETED)
                if not work.done():
                    begun.result()()
            raise


class FineLoop(asyncio.SelectorEventLoop):
    """A selector loop whose clock is a fine one on every system.

    On Windows that of asyncio steps by 16 ms before Python 3.13, and a local answer takes no time.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        super().__init__(selector)
        # asyncio fires timers early by the step of its own clock
        self._clock_resolution = time.get_clock_info("perf_counter").resolution

    def time(self) -> float:
        """Return the time of the system's finest clock."""
        return time.perf_counter()


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """The clock of a loop, for other threads: that of uvloop stands still while it sleeps."""
    return time.perf_counter if isinstance(loop, FineLoop) else time.monotonic


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop with the eager selector."""
    return FineLoop(EagerSelector())
