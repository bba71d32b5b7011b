"""A stranger that serves and lies, in virtual time, and what that costs an open run."""

import asyncio
import itertools
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from sim.seed import SEED

from p2pswarm.base.errors import Busy, SwarmError
from p2pswarm.net.rpc.base import ForwardingRpc, Rpc, Stream
from p2pswarm.net.wire.message import Message
from p2pswarm.progress.events import Report
from p2pswarm.run.messages.membership import Assigned, Join, Ready
from p2pswarm.run.messages.microbatch import Counted, Push
from p2pswarm.run.messages.step import Commit, Fence, Reduce, Reduced, Shard
from p2pswarm.run.messages.trainers import Alive
from p2pswarm.settings.config import BatchConfig
from p2pswarm.sim.devices import SimDevice
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.reports.reports import RunBegun, StepDone

STEPS, MICROBATCHES, STAGES = 16, 16, 2
COMES_AFTER = 4  # steps
CALM_S = 1.5  # a step of this run without a stranger; `test_a_calm_run` holds it


async def for_ever(*_: object) -> Any:
    """Leave something without an answer."""
    await asyncio.Event().wait()


class Mute(ForwardingRpc):
    """The calls of a server that leaves some messages without an answer."""

    def __init__(self, rpc: Rpc, *kinds: type[Message]) -> None:
        super().__init__(rpc)
        self._kinds = kinds

    def serve_unary(self, request: Any, handler: Any) -> None:
        self._rpc.serve_unary(request, for_ever if request in self._kinds else handler)

    def serve_stream(self, opening: Any, handler: Any) -> None:
        self._rpc.serve_stream(opening, for_ever if opening in self._kinds else handler)


class OtherDigests(ForwardingRpc):
    """The calls of a server that names another digest of what it has averaged."""

    def serve_unary(self, request: Any, handler: Any) -> None:
        async def answer(peer: Any, asked: Any) -> Message:
            made = handler(peer, asked)
            true = made if isinstance(made, Message) else await made
            return replace(true, digest=bytes(32)) if isinstance(true, Reduced) else true

        self._rpc.serve_unary(request, answer)


def seconds(hostile: Callable[[SimSwarm], Awaitable[None]] | None) -> list[float]:
    """The time of each step from when the stranger comes."""
    ended_s: list[float] = []
    batch = BatchConfig(microbatches=MICROBATCHES, rows=2, evaluate_every=0)
    config = small_run(stages=STAGES, steps=STEPS, min_replicas=2, batch=batch)
    swarm = SimSwarm(SwarmConfig(seed=SEED, run=config, servers=4, patience_s=3_000.0))
    comes: list[asyncio.Event] = []

    def heard(report: Report) -> None:
        if isinstance(report, RunBegun | StepDone):
            ended_s.append(asyncio.get_running_loop().time())
        if len(ended_s) > COMES_AFTER:
            comes[0].set()

    async def attack() -> None:
        await comes[0].wait()
        if hostile is not None:
            await hostile(swarm)

    async def main() -> int:
        comes.append(asyncio.Event())
        enemy = asyncio.ensure_future(attack())
        result = await swarm.play()
        enemy.cancel()
        return result.steps

    swarm.heard = heard
    assert run(main(), SEED) == STEPS
    return [end_s - begin_s for begin_s, end_s in itertools.pairwise(ended_s)][COMES_AFTER:]


def serving(through: Callable[[Rpc], Rpc]) -> Callable[[SimSwarm], Awaitable[None]]:
    """A server that does all that a server does, but for what its calls change."""

    async def hostile(swarm: SimSwarm) -> None:
        liar = len(swarm.machines)
        swarm.between = lambda number, rpc: through(rpc) if number == liar else rpc
        swarm.join(device=SimDevice(speed=1.0, stage=0))

    return hostile


def claiming(
    stage: int,
    push: Callable[[Stream, Push], Awaitable[None]],
    *,
    counts: bool = False,
) -> Callable[[SimSwarm], Awaitable[None]]:
    """A peer that claims to have the weights, lives, and does nothing else, or counts all."""

    async def stay(stream: Stream) -> None:
        assigned = await stream.receive()
        if not isinstance(assigned, Assigned):
            return
        await stream.send(Ready(assigned.since, assigned.state))
        while True:
            await asyncio.sleep(0.1)
            await stream.send(Alive())
            for microbatch in range(MICROBATCHES if counts else 0):
                number = assigned.since * MICROBATCHES + microbatch
                await stream.send(Counted(assigned.since, number, 0, counted=True, loss=1.0))

    async def hostile(swarm: SimSwarm) -> None:
        machine = swarm.join(device=SimDevice(speed=1.0, stage=stage))
        machine.task.cancel()
        rpc = machine.rpc
        rpc.serve_stream(Push, push)
        rpc.serve_stream(Shard, for_ever)
        for order in (Fence, Reduce, Commit):
            rpc.serve_unary(order, for_ever)
        (trainer,) = swarm.trainers.contacts
        genesis = swarm.trainers.genesis
        join = Join(genesis.run, str(rpc.contact.address), stage, None, b"", (), pinned=True)
        while True:
            try:
                async with rpc.open_stream(trainer, join, None) as stream:
                    await stay(stream)
            except SwarmError:
                await asyncio.sleep(0.1)

    return hostile


async def busy(_stream: Stream, _push: Push) -> None:
    """Be Busy, each time."""
    raise Busy("later", 0.05)


def test_a_calm_run() -> None:
    assert max(seconds(None)) == pytest.approx(CALM_S, abs=0.05)


def test_one_stranger_that_does_not_average_does_not_stop_the_run() -> None:
    assert max(seconds(serving(lambda rpc: Mute(rpc, Reduce)))) < CALM_S + 6.0


LIARS = {
    "is ready and takes nothing": (claiming(0, for_ever), 3.0),
    "is ready in the last stage and takes nothing": (claiming(1, for_ever), 7.0),
    "is Busy for ever": (claiming(0, busy), 3.0),
    "counts what it was not given": (claiming(1, for_ever, counts=True), 7.0),
    "does not answer the order to average": (serving(lambda rpc: Mute(rpc, Reduce)), 6.0),
    "takes no piece of an average": (serving(lambda rpc: Mute(rpc, Shard)), 6.0),
    "does not answer the commit": (serving(lambda rpc: Mute(rpc, Commit)), 2.0),
    "names other digests": (serving(OtherDigests), 1.0),
}
"""What a stranger does, and by how many seconds it may make a step longer."""


@pytest.mark.full
@pytest.mark.parametrize("liar", LIARS)
def test_a_stranger_costs_a_step_some_seconds_and_most_steps_nothing(liar: str) -> None:
    hostile, costs_s = LIARS[liar]

    took_s = seconds(hostile)

    assert max(took_s) < CALM_S + costs_s
    assert statistics.median(took_s) < 1.05 * CALM_S
    assert sum(step_s > 1.2 * CALM_S for step_s in took_s) <= 2
