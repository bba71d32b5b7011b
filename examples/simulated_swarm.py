"""A swarm of 20 machines in virtual time: some die, others come, and no microbatch is lost.

python examples/simulated_swarm.py [SEED]
"""

import sys

import p2pswarm as ps

seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
run = ps.testing.small_run(steps=10, stages=3)
config = ps.testing.SwarmConfig(
    seed=seed,
    run=run,
    servers=20,
    speeds=(1.0, 0.5, 2.0),
    regions=((0.1, 0.1), (0.9, 0.1), (0.5, 0.9)),
    death_every_s=10.0,
    rebirth_s=2.0,
)

result = ps.testing.run(ps.testing.SimSwarm(config).play(), seed)

print(f"{result.ended.reason}: {result.steps} steps in {result.seconds:.1f} virtual seconds")
print(f"machines lost: {result.lost}; microbatches sent again: {result.replayed}")
print(f"{result.microbatches_per_s:.1f} microbatches a second, each counted once in every stage")
print(f"the same seed gives the same digest: {result.digest[:16]}")
