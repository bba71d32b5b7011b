"""The order in which chunks leave on a simulated link."""

import asyncio

from p2pswarm.net.rpc.base import Priority
from p2pswarm.sim.bulk_turns import BulkTurns
from p2pswarm.sim.loop import run


def left(*transfers, cancelled=()):
    """What leaves, chunk by chunk: transfers as (name, priority, when it begins), of three."""

    async def transfer(turns, gone, name, priority, begins_s):
        await asyncio.sleep(begins_s)
        async with turns.transfer(priority) as turn:
            for _ in range(3):
                await asyncio.sleep(1.0)
                gone.append(name)
                await turn.chunk_sent()

    async def main():
        turns, gone = BulkTurns(), []
        tasks = [asyncio.ensure_future(transfer(turns, gone, *each)) for each in transfers]
        for index, at_s in cancelled:
            await asyncio.sleep(at_s - asyncio.get_running_loop().time())
            tasks[index].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return "".join(gone)

    return run(main(), seed=1)


def test_a_gradient_goes_before_a_newcomer_s_state():
    assert left(("s", Priority.STATE, 0.0), ("t", Priority.TENSOR, 0.5)) == "stttss"


def test_of_two_pieces_of_state_the_first_is_whole_first():
    pieces = ("a", Priority.STATE, 0.0), ("b", Priority.STATE, 0.1), ("c", Priority.STATE, 0.2)
    assert left(*pieces) == "aaabbbccc"


def test_who_is_cancelled_while_it_waits_or_sends_holds_nobody_up():
    pieces = ("a", Priority.STATE, 0.0), ("b", Priority.STATE, 0.1), ("c", Priority.STATE, 0.2)
    assert left(*pieces, cancelled=[(1, 0.5)]) == "aaaccc"
    assert left(*pieces, cancelled=[(0, 1.5)]) == "abbbccc"


def test_who_is_cancelled_when_its_turn_has_just_come_passes_it_on():
    async def main():
        turns, gone = BulkTurns(), []

        async def one(name):
            async with turns.transfer(1):
                gone.append(name)

        async with turns.transfer(1):
            first, second = (asyncio.ensure_future(one(name)) for name in "ab")
            await asyncio.sleep(1.0)
        first.cancel()  # its turn has come, and it has not run yet
        await asyncio.gather(first, second, return_exceptions=True)
        return gone

    assert run(main(), seed=1) == ["b"]
