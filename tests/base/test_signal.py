"""A signal wakes those who wait, and nobody who comes later."""

import asyncio

from p2pswarm.base.signal import Signal
from p2pswarm.sim.loop import run


def test_a_signal_wakes_everybody_who_waits_and_is_not_kept():
    async def main():
        signal = Signal()
        waiting = [asyncio.ensure_future(signal.wait()) for _ in range(2)]
        await asyncio.sleep(1.0)
        assert not any(task.done() for task in waiting)

        signal.fire()
        await asyncio.gather(*waiting)
        later = asyncio.ensure_future(signal.wait())
        await asyncio.sleep(1.0)

        assert not later.done()
        later.cancel()

    run(main(), seed=1)
