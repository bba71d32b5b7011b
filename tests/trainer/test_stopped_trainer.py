"""A trainer that is stopped for some seconds, in virtual time: it takes nobody for silent."""

import pytest
from core import core_of

from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run

TRAINER, SERVER = 0, 1


@pytest.mark.parametrize("later_s", core_of([0.01, 0.05], [0.01]))
def test_a_trainer_that_stops_while_it_waits_for_a_fence_evicts_nobody_when_it_goes_on(later_s):
    """Links last 15 s of silence; a fence has less, and its answers wait in the sockets."""
    died = Fault(FaultKind.KILL, 1.5, 1.0, (SERVER,))
    stopped = Fault(FaultKind.FREEZE, 1.5 + later_s, 14.0, (TRAINER,))
    config = SwarmConfig(run=small_run(steps=12), faults=FaultPlan(1, (died, stopped)))

    result = run(SimSwarm(config).play(), 1)

    assert not result.ended.failed
    assert result.lost == 1, "only the server that died"
