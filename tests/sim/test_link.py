"""A stopped process in virtual time: it runs nothing, and goes on where it was."""

import asyncio

from sim.seed import SEED

from p2pswarm.sim.link import Suspension
from p2pswarm.sim.loop import run


def of(process: Suspension, tasks: asyncio.TaskGroup, work) -> asyncio.Task:
    return tasks.create_task(work, context=process.context.copy())


def test_stopped_process_runs_no_timer_and_no_task_until_it_goes_on():
    process, log = Suspension(), []

    async def tick(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(1.0)
            log.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            of(process, tasks, tick("stopped"))
            tasks.create_task(tick("free"))
            await asyncio.sleep(1.5)
            process.stop()
            await asyncio.sleep(10.0)
            process.go_on()

    run(main(), SEED)

    assert [at_s for name, at_s in log if name == "free"] == [1.0, 2.0, 3.0]
    assert [at_s for name, at_s in log if name == "stopped"] == [1.0, 11.5, 12.5]


def test_what_came_is_read_before_overdue_timers_fire():
    process, log = Suspension(), []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        process.context.run(loop.call_later, 1.0, log.append, "timer")
        process.stop()
        await asyncio.sleep(2.0)
        process.on_arrival(log.append, "arrival")
        assert log == []
        process.go_on()
        await asyncio.sleep(0.0)
        process.on_arrival(log.append, "after")

    run(main(), SEED)

    assert log == ["arrival", "timer", "after"]


def test_process_stopped_twice_goes_on_twice():
    process, log = Suspension(), []
    process.stop()
    process.stop()
    process.on_arrival(log.append, 1)

    process.go_on()
    assert process.stopped
    process.go_on()

    assert not process.stopped
    assert log == [1]


def test_process_that_ends_forgets_what_it_had_not_read_and_ends_its_tasks():
    process, log = Suspension(), []

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            task = of(process, tasks, asyncio.sleep(1.0))
            await asyncio.sleep(0.0)
            process.stop()
            process.on_arrival(log.append, 1)
            task.cancel()
            await asyncio.sleep(5.0)
            assert not task.done()
            process.forget_arrivals()
            process.release()

    run(main(), SEED)

    assert log == []


def test_timer_that_is_cancelled_while_its_process_is_stopped_does_not_fire():
    process, log = Suspension(), []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        timer = process.context.run(loop.call_later, 1.0, log.append, "timer")
        process.stop()
        await asyncio.sleep(2.0)
        timer.cancel()
        process.go_on()
        await asyncio.sleep(2.0)

    run(main(), SEED)

    assert log == []
