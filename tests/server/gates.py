"""What holds up servers: compute threads that wait, and trainers that answer who may leave."""

import asyncio

from p2pswarm.run.messages.membership import MayLeave


async def answer_leaving(trainer):
    """Tell those who were asked to leave whether another server stays in their stage."""
    for one in trainer.leaving:
        others = trainer.of_stage(one.record.stage)
        await one.stream.send(MayLeave(any(other not in trainer.leaving for other in others)))


class Gate:
    """A compute thread that a test can hold up."""

    def __init__(self):
        self.open, self.waiting = asyncio.Event(), asyncio.Event()
        self.open.set()

    async def __call__(self, work):
        if not self.open.is_set():
            self.waiting.set()
        await self.open.wait()
        return work()
