"""How many microbatches may be on their way at once.

Units:   microbatches.
Errors:  none.
"""

from p2pswarm.config import RunConfig
from p2pswarm.trainer.membership import Membership

WINDOW_PER_ENTRY = 4  # a server of stage 0 computes one while three are on the wire
WINDOW_PER_SERVER = 2  # deep pipelines: each server computes one while one is on its way there


def launch_window(config: RunConfig, members: Membership) -> int:
    """The setting, or else as many as keep all ready servers busy."""
    entries, servers = members.ready_count(0), members.ready_count()
    default = max(WINDOW_PER_ENTRY * entries, WINDOW_PER_SERVER * servers)
    return config.batch.window or default
