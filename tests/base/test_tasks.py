"""Work that no cancellation of its caller cuts short."""

import asyncio

import pytest

from p2pswarm.base.errors import Busy, Late
from p2pswarm.base.tasks import obey_cancellation, to_its_end
from p2pswarm.sim.loop import run


class Work:
    """Work that a test lets end."""

    def __init__(self, error=None):
        self.go, self.done, self.error = asyncio.Event(), False, error

    async def __call__(self):
        await self.go.wait()
        if self.error is not None:
            raise self.error
        self.done = True
        return "result"


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_result_is_that_of_the_work():
    async def main():
        work = Work()
        work.go.set()
        return await to_its_end(work())

    assert run(main(), seed=1) == "result"


@pytest.mark.parametrize("times", [1, 3])
def test_a_caller_that_is_cancelled_is_so_when_the_work_is_done(times):
    async def main():
        work = Work()
        caller = asyncio.ensure_future(to_its_end(work()))
        for _ in range(times):
            await settle()
            caller.cancel()
        await settle()
        assert not caller.done()
        work.go.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        return work.done

    assert run(main(), seed=1)


def test_a_deadline_passes_when_the_work_is_done():
    async def main():
        work = Work()
        asyncio.get_running_loop().call_later(5.0, work.go.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await to_its_end(work())
        return work.done, asyncio.get_running_loop().time()

    assert run(main(), seed=1) == (True, 5.0)


def test_an_error_of_the_work_is_raised_even_to_a_caller_that_was_cancelled():
    async def main():
        work = Work(Busy("full", 1.0))
        caller = asyncio.ensure_future(to_its_end(work()))
        await settle()
        caller.cancel()
        await settle()
        work.go.set()
        with pytest.raises(Busy):
            await caller

    run(main(), seed=1)


def test_work_that_is_cancelled_itself_ends():
    async def main():
        work = Work(Late("never"))
        before = asyncio.all_tasks()
        caller = asyncio.ensure_future(to_its_end(work()))
        await settle()
        for task in asyncio.all_tasks() - before:
            task.cancel()  # as at the end of the process
        with pytest.raises(asyncio.CancelledError):
            await caller

    run(main(), seed=1)


async def test_who_goes_on_after_an_error_obeys_a_cancellation_that_the_error_hides():
    """A group of tasks raises the error of a task alone, if both come in one moment."""
    began = asyncio.Event()

    async def fails():
        await began.wait()
        raise Busy("later")

    async def goes_on():
        while True:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(fails())
            except* Busy:
                obey_cancellation()

    task = asyncio.create_task(goes_on())
    await settle()
    began.set()
    await asyncio.sleep(0)
    task.cancel()
    await settle()

    assert task.cancelled()


async def test_nothing_happens_to_who_was_not_cancelled():
    obey_cancellation()
