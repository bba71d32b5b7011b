"""Voters die while the only trainer is away: those that are left go on with it when it is back."""

import asyncio
import itertools

import pytest
from core import core_of
from sim.seed import SEED

from p2pswarm.settings.config import BatchConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.reports.reports import RunFinished

ALL_DONE = RunFinished("all steps are done", failed=False)
TRAINERS, SERVERS, VOTING_SERVERS = 2, 9, 4
AWAY_S = (14.0, 70.0, 130.0)
PAIRS = tuple(itertools.combinations(range(VOTING_SERVERS), 2))


def play(away_s: float, pair: tuple[int, int]) -> None:
    """The second trainer dies; the first is stopped, and two of the four servers that vote die."""
    batch = BatchConfig(microbatches=8, rows=1, evaluate_every=0)
    config = SwarmConfig(
        seed=SEED,
        run=small_run(steps=4, min_replicas=1, batch=batch),
        trainers=TRAINERS,
        servers=SERVERS,
        cost=Cost(forward_s=1.0, state_bytes=1 << 14),
        patience_s=900.0,
    )
    swarm = SimSwarm(config)
    voters: list[int] = []

    async def fate() -> None:
        await asyncio.sleep(8.0)
        swarm.end(1, silent=False, same=False)
        await asyncio.sleep(12.0)
        (disk,) = (one.disk for one in swarm.trainers.seats if one.leads)
        head = disk.restored(swarm.trainers.genesis).learner.chain.head
        peers = {v.peer for v in head.voters}
        voters.extend(
            seat
            for seat in range(TRAINERS, TRAINERS + SERVERS)
            if swarm.process_at(seat).host.peer.raw in peers
        )
        assert len(voters) == VOTING_SERVERS
        go_on = swarm.faults._freeze(0)
        await asyncio.sleep(away_s / 2)
        for each in pair:
            swarm.end(voters[each], silent=True, same=False)
        await asyncio.sleep(away_s / 2)
        go_on()

    async def main():
        task = asyncio.ensure_future(fate())
        result = await swarm.play()
        await task
        return result

    result = run(main(), SEED)
    assert result.ended == ALL_DONE, (away_s, pair, result.ended)
    assert len(voters) == VOTING_SERVERS


@pytest.mark.parametrize("away_s", AWAY_S)
@pytest.mark.parametrize(("one", "other"), core_of(PAIRS, PAIRS[2:3]))
def test_the_voters_that_answer_stay_and_the_dead_go(away_s, one, other):
    play(away_s, (one, other))
