"""A session that ends leaves nothing behind: no task, no memory set aside, no push that waits."""

import asyncio
import dataclasses

import pytest
from server.gates import Gate
from server.harness import (
    CONFIG,
    swarm,
    virtual,
)

from p2pswarm.base.errors import SwarmError
from p2pswarm.run.messages.microbatch import Receipt
from p2pswarm.run.messages.run import Finished
from p2pswarm.settings.config import BatchConfig
from p2pswarm.tensors.codecs.meta import Grant

BATCH = BatchConfig(microbatches=4, rows=1400)  # tokens that do not fit into their announcement
LONG_ROWS = dataclasses.replace(CONFIG, batch=BATCH)


async def end_by_dismissal(r, member):
    """The trainer ends the run for this server."""
    await member.stream.send(Finished("over"))


async def end_by_leaving(r, member):
    await r.servers[member.record.peer].leave(0.0)


async def end_by_a_lost_link(r, member):
    r.world.world.partition([member.contact.peer])
    await member.over.wait()
    r.world.world.heal()


ENDS = {
    "dismissed": end_by_dismissal,
    "left": end_by_leaving,
    "cut off": end_by_a_lost_link,
}


async def outcome(work):
    """How a push ended."""
    try:
        return await work
    except SwarmError as error:
        return error


async def half_sent(r, member, number):
    """A push whose bytes never come."""
    push, _ = r.trainer.push_of(member, number)
    async with r.trainer.rpc.open_stream(member.contact, push, None) as stream:
        grant = await stream.receive()
        assert isinstance(grant, Grant)
        return await stream.receive()


@pytest.mark.parametrize("end", ENDS)
def test_a_session_that_ends_leaves_nothing_behind(end):
    async def main():
        async with swarm(LONG_ROWS) as r:
            gate = Gate()
            await r.ready_servers(2, 3, compute=gate)
            (member,) = r.trainer.of_stage(0)
            server = r.servers[member.record.peer]
            budget = server._context.tensors._budget
            before = len(asyncio.all_tasks())
            gate.open.clear()
            pushes = [asyncio.ensure_future(outcome(r.trainer.push(member, n))) for n in (0, 1, 2)]
            pushes.append(asyncio.ensure_future(outcome(half_sent(r, member, 3))))
            await gate.waiting.wait()
            await asyncio.sleep(1.0)
            assert budget.held_bytes > 0
            parts = server._session

            await ENDS[end](r, member)
            ends = await asyncio.gather(*pushes)
            gate.open.set()
            await asyncio.sleep(5.0)

            assert not any(isinstance(e, Receipt) for e in ends)
            assert budget.held_bytes == 0
            assert not parts.orders
            assert not parts.worker._jobs
            assert len(asyncio.all_tasks()) <= before
            return server

    virtual(main)
