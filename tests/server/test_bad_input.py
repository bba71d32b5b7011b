"""Bad orders and tensors: each is a typed error; weights, moments and sum are what they were."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from server.harness import RUN_ID, B, Member, Swarm, microbatch, peer, swarm, virtual

import p2pswarm
from p2pswarm.base.errors import BadMessage, Busy, NotComputed, NotServing, Refused
from p2pswarm.net.rpc.base import Priority
from p2pswarm.run.messages.microbatch import CHECK_BASE
from p2pswarm.run.messages.step import Commit, Fence, Reduce
from p2pswarm.tensors.codecs.registry import encode

OTHER_RUN = b"o" * 16
Told = Callable[[Swarm, Member], Awaitable[object]]


def state(r: Swarm) -> list[bytes]:
    """All bytes that training changes, of every server."""
    flats = [r.engines[who][-1].weights._flat for who in r.servers]
    return [x.numpy().tobytes() for flat in flats for x in (*flat.state, flat.sum_N)]


def push(number: int, **changes) -> Told:
    """The trainer pushes a microbatch, with something wrong in its announcement."""

    async def told(r: Swarm, to: Member) -> object:
        return await r.trainer.push(to, number, **changes)

    return told


def push_tensor(tensor: torch.Tensor) -> Told:
    """The trainer pushes something else than the tokens of a microbatch."""

    async def told(r: Swarm, to: Member) -> object:
        encoded = encode(tensor, "raw")
        opening, _ = r.trainer.push_of(to, B + 1, tensors=(encoded.meta,))
        async with r.trainer.rpc.open_stream(to.contact, opening, 10.0) as stream:
            grant = await stream.receive()
            await r.trainer.tensors.send(stream, grant, [encoded], Priority.TENSOR)
            return await stream.receive()

    return told


def order(kind: type, **changes) -> Told:
    """The trainer gives an order of the present step, with something wrong in it."""

    async def told(r: Swarm, to: Member) -> object:
        r.trainer.generation += 1
        orders = {
            Reduce: r.trainer.reduce_order(to),
            Commit: Commit(RUN_ID, 1, 77, to.record.incarnation, 1.0, 0.1),
            Fence: Fence(RUN_ID, 1, to.record.incarnation, ()),
        }
        fields = {name: each(to) if callable(each) else each for name, each in changes.items()}
        return await r.trainer.call(to, replace(orders[kind], **fields))

    return told


def by_a_stranger(kind: type) -> Told:
    """Somebody else gives an order."""

    async def told(r: Swarm, to: Member) -> object:
        orders = {
            Reduce: r.trainer.reduce_order(to),
            Commit: Commit(RUN_ID, 1, 1, to.record.incarnation, 1.0, 0.1),
        }
        return await r.world.rpc(peer(99)).call(to.contact, orders[kind], 10.0)

    return told


def replayed_commit(**changes) -> Told:
    """The commit of the step before comes again, perhaps with other numbers."""

    async def told(r: Swarm, to: Member) -> object:
        commit = Commit(RUN_ID, 0, 1, to.record.incarnation, 1.0, 1e-2)
        return await r.trainer.call(to, replace(commit, **changes))

    return told


def former(to: Member) -> int:
    return to.record.incarnation - 1


TOKENS = microbatch(B + 1)
BAD = {
    "a microbatch of another step": (push(5 * B), BadMessage),
    "a check of another step": (push(CHECK_BASE + 5 * B), BadMessage),
    "a step long past": (push(B + 1, step=0), NotServing),
    "a step far ahead": (push(9 * B, step=9), NotServing),
    "another stage": (push(B + 1, stage=1), Busy),
    "a microbatch of another run": (push(B + 1, run=OTHER_RUN), NotServing),
    "tokens of another shape": (push_tensor(TOKENS[:, :-1]), BadMessage),
    "tokens of another type": (push_tensor(TOKENS.double()), BadMessage),
    "tokens that the vocabulary lacks": (push_tensor(TOKENS.to(torch.int32) + 1000), NotComputed),
    "averaging of another ledger": (order(Reduce, counted=b"\x0f"), Refused),
    "averaging by a former life": (order(Reduce, incarnation=former), NotServing),
    "averaging of another run": (order(Reduce, run=OTHER_RUN), NotServing),
    "averaging that a stranger orders": (by_a_stranger(Reduce), Refused),
    "a fence of another step": (order(Fence, step=7), NotServing),
    "a commit of what was not averaged": (order(Commit), NotServing),
    "a commit for a former life": (order(Commit, incarnation=former), NotServing),
    "a commit of another run": (order(Commit, run=OTHER_RUN), NotServing),
    "a commit by a stranger": (by_a_stranger(Commit), Refused),
    "a second commit of the last step": (replayed_commit(generation=5), NotServing),
    "the last commit again": (replayed_commit(), None),
    "the last commit with another rate": (replayed_commit(learning_rate=9.0, scale=0.1), None),
}


ENDS_THE_SESSION = {"a commit of what was not averaged"}  # its weights could not follow the run


@pytest.mark.parametrize("what", BAD)
def test_weights_moments_and_sums_are_untouched(what: str):
    told, error = BAD[what]

    async def main() -> None:
        async with swarm() as r:
            await r.ready_servers(2, 3)
            await r.trainer.whole_step()
            (first,) = r.trainer.of_stage(0)
            await r.trainer.push(first, B)
            await r.trainer.until_counted(B)
            before = state(r)

            if error is None:
                await told(r, first)
            else:
                with pytest.raises(error):
                    await told(r, first)

            assert state(r) == before
            if what not in ENDS_THE_SESSION:
                await goes_on(r)

    virtual(main)


async def goes_on(r: Swarm) -> None:
    """The step can still be ended as if nothing had happened."""
    (first,) = r.trainer.of_stage(0)
    for member in r.trainer.members.values():  # as after every averaging that failed
        await r.trainer.fence(member, B, 0)
    for number in range(B + 1, 2 * B):
        await r.trainer.push(first, number, attempt=1)
    await r.trainer.until_counted(*range(B, 2 * B))
    r.trainer.generation = 100
    await r.trainer.end_step()


def test_training_never_asks_for_the_time_of_day():
    """So a clock that jumps changes nothing: deadlines are of the loop's clock, which does not."""
    root = Path(p2pswarm.__file__).parent
    folders = "trainer", "server", "chain", "allreduce", "compute", "swarm", "state", "flow"
    asks = re.compile(r"\btime\.time\(|\bdatetime\b|\btime_ns\(|\bclock_gettime")

    found = [p.name for f in folders for p in (root / f).glob("*.py") if asks.search(p.read_text())]

    assert found == []
