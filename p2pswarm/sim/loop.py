"""An event loop whose clock jumps: a simulated hour costs only its events.

asyncio asks a poller to wait for the next timer; this one does not wait, it
moves the clock there. So `asyncio.sleep`, timeouts, task groups and futures
work unchanged, nothing depends on the machine's speed, and a deadlock, which
in production is silence, is an exception.

Three traps (seen by experiment): `asyncio.TaskGroup` keeps its tasks in a set and
cancels them in its order, so no child may do I/O in `finally`; sets of objects
and strings iterate in an order of their own; a clock that starts at wall time
swallows small steps, so this one starts at 0.

Units:   seconds of virtual time.
Errors:  RuntimeError when every task waits and no timer is set.
Source:  looptime, aiotools #69; CPython issue #116342. Leans on four private names of
         `asyncio.BaseEventLoop`; tests/sim/test_loop.py pins them.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
CLOCK_STEP_S = 1e-6  # timers closer than this run together; far below any latency


class _Jump:
    """Stands where the OS poller stands: waiting costs nothing and moves the clock."""

    def __init__(self, loop: "SimLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise RuntimeError("stuck: no task is ready and no timer is set")
        self._loop.now_s += timeout
        return []


class SimLoop(asyncio.BaseEventLoop):
    """asyncio on virtual time, in one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0  # never wall time: at 1e8 s a 1e-9 step vanishes and the loop spins
        self._clock_resolution = CLOCK_STEP_S
        self._selector = _Jump(self)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self.now_s

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call `func` now: a simulation has no threads."""
        del executor
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  told to the caller, and logged if ours
            future.set_exception(error)
        return future

    def _process_events(self, event_list: list[object]) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """Nobody sleeps, so nobody is to be woken."""


def run(main: Coroutine[Any, Any, T], seed: int) -> T:
    """Run `main` to its end in virtual time; a failure is marked with the seed that replays it."""
    try:
        with asyncio.Runner(loop_factory=SimLoop) as runner:
            return runner.run(main)
    except BaseException as error:
        error.add_note(f"in a simulated run: replay it with seed {seed}")
        raise
