"""Reading a version while commits come, in virtual time."""

import asyncio

import pytest

from p2pswarm.base.errors import NotServing
from p2pswarm.run.state.version_reader import CHANGE_WAIT_S, VersionReader
from p2pswarm.sim.loop import run


class Memory:
    """A state whose parts say their version; it can be read one part at a time."""

    tensors, pieces = 3, 4

    def __init__(self, window=48):
        self.version = 0
        self.changing = False
        self.reads = 0
        self.reader = VersionReader(self, lambda: self.version, self.aside, window)

    async def aside(self, work):
        version = self.version
        await asyncio.sleep(0.1)
        result = work()
        assert self.version == version, "it was read while it changed"
        return result

    def read(self, tensor, piece):
        assert not self.changing, "it was read while it changed"
        self.reads += 1
        return memoryview(b"%d.%d.%d" % (self.version, tensor, piece))

    async def commit(self):
        async with self.reader.changing():
            self.changing = True
            await asyncio.sleep(1.0)
            self.version += 1
            self.changing = False
        self.reader.moved()


def whole(version):
    return [b"%d.%d.%d" % (version, t, k) for t in range(3) for k in range(4)]


async def all_of(held, pause_s=0.0):
    found = []
    for t in range(Memory.tensors):
        for k in range(Memory.pieces):
            found.append(bytes(await held.read(t, k)))
            await asyncio.sleep(pause_s)
    return found


def test_a_version_is_read_whole_while_two_commits_come():
    async def main():
        memory = Memory()
        with memory.reader.hold() as held:
            reading = asyncio.ensure_future(all_of(held))
            await asyncio.sleep(0.35)
            await memory.commit()
            await memory.commit()
            assert held.version == 0
            return await reading, memory

    found, memory = run(main(), seed=1)
    assert found == whole(0)
    assert memory.version == 2
    assert memory.reads == 12  # nothing is copied twice


def test_a_commit_waits_for_a_reader_as_long_as_the_window_is_full():
    async def main():
        loop, memory = asyncio.get_running_loop(), Memory(window=2)
        with memory.reader.hold() as held:
            reading = asyncio.ensure_future(all_of(held))
            await memory.commit()
            return await reading, loop.time()

    found, took_s = run(main(), seed=1)
    assert found == whole(0)
    assert took_s == pytest.approx(10 * 0.1 + 0.2 + 1.0, abs=0.2)


def test_a_commit_gives_up_a_reader_that_stands_still_and_tells_it_so():
    async def main():
        loop, memory = asyncio.get_running_loop(), Memory(window=2)
        with memory.reader.hold() as held:
            await held.read(0, 0)
            await memory.commit()
            took_s = loop.time()
            with pytest.raises(NotServing, match="version 0 was read too slowly"):
                await held.read(0, 1)
        return took_s, memory.version

    took_s, version = run(main(), seed=1)
    assert took_s == pytest.approx(CHANGE_WAIT_S + 1.1)
    assert version == 1


def test_a_piece_is_of_one_version():
    async def main():
        memory = Memory()
        later = asyncio.ensure_future(memory.reader.reached(1))
        at_once = await memory.reader.piece(2)
        assert not later.done()
        await memory.commit()
        await later
        return at_once, await memory.reader.piece(2)

    assert run(main(), seed=1) == ((0, b"0.0.20.1.20.2.2"), (1, b"1.0.21.1.21.2.2"))


def test_a_piece_is_not_read_while_a_commit_changes_it():
    async def main():
        memory = Memory()
        going = asyncio.ensure_future(memory.commit())
        await asyncio.sleep(0.5)
        version, _ = await memory.reader.piece(2)
        await going
        return version

    assert run(main(), seed=1) == 1


def test_a_read_that_is_cancelled_holds_up_no_commit():
    async def main():
        memory = Memory()
        asked = asyncio.ensure_future(memory.reader.piece(2))
        await asyncio.sleep(0.05)
        asked.cancel()
        await memory.commit()
        return memory.version

    assert run(main(), seed=1) == 1


def test_no_version_can_be_held_while_it_changes():
    async def main():
        memory = Memory()
        going = asyncio.ensure_future(memory.commit())
        await asyncio.sleep(0.5)
        with pytest.raises(NotServing, match="just changing"), memory.reader.hold():
            pass
        await going

    run(main(), seed=1)
