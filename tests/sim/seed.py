"""The seed of every simulated run: from the environment, and shown."""

import os

SEED = int(os.environ.get("P2PSWARM_SEED", "1"))
print(f"P2PSWARM_SEED={SEED}")
