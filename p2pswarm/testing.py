"""Tests in virtual time for programs that use p2pswarm: an event loop, and whole runs.

`run(main, seed)` runs a coroutine on a `SimLoop`, where an hour costs only its events. `SimSwarm`
plays a whole run on simulated machines, which differ in speed, join late and die. The same seed
gives the same run:

    result = run(SimSwarm(SwarmConfig(seed=1, servers=20, death_every_s=4.0)).play(), seed=1)
"""

import logging

from p2pswarm.sim.compute import Cost
from p2pswarm.sim.loop import SimLoop, run
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, SwarmResult, small_run

__all__ = [
    "Cost",
    "SimLoop",
    "SimSwarm",
    "SwarmConfig",
    "SwarmResult",
    "WorldConfig",
    "run",
    "small_run",
]

logging.getLogger("p2pswarm").addHandler(logging.NullHandler())  # programs choose whether they log
