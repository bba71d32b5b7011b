"""A coordinator is stopped while a step is averaged; its successor averages it anew, and dies.

The first one goes on, and makes a record of its own average, which its own voter may accept. The
next leader has to anchor that record: all members must be able to follow it.
"""

import asyncio

import pytest
from core import core_of
from sim.seed import SEED

from p2pswarm.run.averaging.stage_averaging import StageAveraging
from p2pswarm.run.chain.record import term_of
from p2pswarm.run.messages.step import Reduce
from p2pswarm.server.replica import Replica
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.leadership.proposals import Proposals
from p2pswarm.trainer.reports.reports import RunFinished

ALL_DONE = RunFinished("all steps are done", failed=False)
STEPS = 4
STAGES = 3
STOPPED_IN = 1
FIRST = 0  # the seat of the first coordinator
STOPPED_S = (5.0, 5.5, 6.0, 6.5, 7.0, 8.0, 10.0, 13.0, 20.0)


class Stopped:
    """Stops the first coordinator as all have averaged, and ends the second as it would propose."""

    def __init__(self, swarm: SimSwarm, stopped_s: float, *, silent: bool) -> None:
        self._swarm, self._stopped_s, self._silent = swarm, stopped_s, silent
        self._averaged = 0
        self.killed = 0

    async def reduce(self, replica: Replica, order: Reduce, averaging: StageAveraging):
        outcome = await REDUCE(replica, order, averaging)
        self._averaged += (order.step, term_of(order.generation)) == (STOPPED_IN, 1)
        if self._averaged == STAGES:
            self._averaged = 0
            go_on = self._swarm.faults._freeze(FIRST)
            asyncio.get_running_loop().call_later(self._stopped_s, go_on)
        return outcome

    def propose_step(self, proposals: Proposals, decide, coordination, now_s: float) -> None:
        if coordination.term == 1 or self.killed:
            return PROPOSE(proposals, decide, coordination, now_s)
        seats = enumerate(self._swarm.trainers.seats)
        seat = next(n for n, one in seats if one.leads and n != FIRST)
        self.killed += 1
        return self._swarm.end(seat, silent=self._silent, same=False)


REDUCE, PROPOSE = Replica.reduce, Proposals.propose_step


def play(patch, stopped_s: float, *, silent: bool, trainers: int = 3) -> int:
    """Play it; returns how many coordinators died before they had proposed the step."""
    run_config = small_run(steps=STEPS, min_replicas=1)
    config = SwarmConfig(
        seed=SEED, trainers=trainers, servers=STAGES, patience_s=300.0, run=run_config
    )
    swarm = SimSwarm(config)
    stopped = Stopped(swarm, stopped_s, silent=silent)

    async def reduce(replica: Replica, order: Reduce, averaging: StageAveraging):
        return await stopped.reduce(replica, order, averaging)

    def propose_step(proposals: Proposals, decide, coordination, now_s: float) -> None:
        stopped.propose_step(proposals, decide, coordination, now_s)

    patch.setattr(Replica, "reduce", reduce)
    patch.setattr(Proposals, "propose_step", propose_step)
    result = run(swarm.play(), SEED)
    assert result.ended == ALL_DONE, (stopped_s, result.ended)
    return stopped.killed


@pytest.mark.parametrize("silent", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("stopped_s", core_of(STOPPED_S, [6.5, 7.0]))
def test_whichever_average_is_decided_all_members_can_follow_it(monkeypatch, stopped_s, silent):
    assert play(monkeypatch, stopped_s, silent=silent)
