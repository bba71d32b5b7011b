"""Virtual time: asyncio works on it unchanged, and a deadlock is an exception."""

import asyncio
import contextlib
import inspect

import pytest
from sim.seed import SEED

from p2pswarm.sim.loop import CANCELLED_LEAST, CLOCK_STEP_S, SimLoop, run

YEAR_S = 365 * 86_400.0


def test_sleep_takes_virtual_time_only() -> None:
    async def main() -> float:
        await asyncio.sleep(YEAR_S)
        return asyncio.get_running_loop().time()

    assert run(main(), SEED) == pytest.approx(YEAR_S)


def test_clock_starts_at_zero() -> None:
    """At wall time, 1e9 s, a step of 1e-7 s would vanish and the loop would spin."""

    async def main() -> float:
        return asyncio.get_running_loop().time()

    assert run(main(), SEED) == 0.0


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    async def main() -> list[int]:
        woken: list[int] = []

        async def sleeper(seconds: int) -> None:
            await asyncio.sleep(seconds)
            woken.append(seconds)

        async with asyncio.TaskGroup() as group:
            for seconds in (3, 1, 2):
                group.create_task(sleeper(seconds))
        return woken

    assert run(main(), SEED) == [1, 2, 3]


def test_timers_of_one_time_fire_in_the_order_in_which_they_were_set() -> None:
    """Whatever else is in the heap, so that a timer more or less does not change the others."""

    async def main(others: int) -> list[int]:
        loop, fired = asyncio.get_running_loop(), []
        kept = [loop.call_at(0.5 + number % 3, int) for number in range(others)]
        for number in range(20):
            loop.call_at(2.0, fired.append, number)
        for timer in kept[::2]:
            timer.cancel()
        await asyncio.sleep(3.0)
        return fired

    assert [run(main(others), SEED) for others in (0, 1, 500)] == [list(range(20))] * 3


def test_timers_that_were_cancelled_do_not_pile_up() -> None:
    """Each call has a deadline, of up to hours, and most calls are answered in no time."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        for _ in range(10_000):
            loop.call_later(7200.0, int).cancel()
        return loop.timers

    assert run(main(), SEED) <= CANCELLED_LEAST


def test_timer_that_is_cancelled_when_it_is_due_does_not_fire() -> None:
    async def main() -> list[int]:
        loop, fired = asyncio.get_running_loop(), []
        second = loop.call_at(1.0, lambda: later.cancel())  # noqa: PLW0108  set below
        later = loop.call_at(1.0, fired.append, 1)
        await asyncio.sleep(2.0)
        second.cancel()
        return fired

    assert run(main(), SEED) == []


def test_error_in_a_callback_is_told_and_ends_nothing() -> None:
    async def main() -> list[object]:
        loop, told = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))
        loop.call_soon(int, "x")
        await asyncio.sleep(1.0)
        return told

    assert [type(error) for error in run(main(), SEED)] == [ValueError]


def test_timeout_fires_at_its_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.sleep(YEAR_S)
        return asyncio.get_running_loop().time()

    assert run(main(), SEED) == pytest.approx(2.5)


def test_thread_is_a_plain_call() -> None:
    async def main() -> int:
        return await asyncio.to_thread(lambda: 42)

    assert run(main(), SEED) == 42


def test_error_in_a_thread_reaches_the_task_that_awaits_it() -> None:
    async def main() -> None:
        await asyncio.to_thread(int, "x")

    with pytest.raises(ValueError, match="'x'"):
        run(main(), SEED)


def test_deadlock_raises() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="stuck"):
        run(main(), SEED)


def test_failure_tells_the_seed_that_replays_it() -> None:
    async def main() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError) as raised:
        run(main(), 4711)

    assert any("seed 4711" in note for note in raised.value.__notes__)


@pytest.mark.parametrize(
    "name", ["_run_once", "_call_soon", "_ready", "_stopping", "_write_to_self"]
)
def test_private_name_that_the_loop_leans_on_is_still_asyncios(name: str) -> None:
    """These five are no promise of asyncio's: an interpreter without them must fail here."""
    loop = SimLoop()
    loop.close()

    assert f"self.{name}" in inspect.getsource(asyncio.BaseEventLoop)
    assert hasattr(loop, name)


def test_tasks_of_a_group_are_cancelled_in_one_order() -> None:
    """Else what they say in their last breath would make each run another one."""

    async def main() -> list[int]:
        ended: list[int] = []
        kept = []

        async def child(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(number)

        async def failing() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(50):
                    group.create_task(child(number))
                    kept.append([0] * number)  # so that addresses are not in order
                    kept[number // 2] = None
                await asyncio.sleep(1.0)
                raise ZeroDivisionError

        with pytest.raises(ExceptionGroup):
            await failing()
        return ended

    first, again = run(main(), SEED), run(main(), SEED)

    assert first == again
    assert sorted(first) == list(range(50))


def test_who_waits_for_a_deadline_never_wakes_before_it():
    """Two that look at the clock again, a hair apart, would keep each other from getting there."""

    async def until(due_s: float) -> int:
        loop, woken = asyncio.get_running_loop(), 0
        while loop.time() < due_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await asyncio.Event().wait()
            woken += 1
        return woken

    async def main() -> list[int]:
        dues_s = [1.0 + place * CLOCK_STEP_S / 7 for place in range(40)]
        return await asyncio.gather(*(until(due_s) for due_s in dues_s))

    assert run(main(), SEED) == [1] * 40
