"""A node that only keeps its part of the DHT: others join through it.

Units:   none.
Errors:  none.
"""

import asyncio
from collections.abc import Callable

from p2pswarm.roles.stack import NodeStack


async def run(_stack: NodeStack, leaving: asyncio.Event, _say: Callable[[str], None]) -> int:
    """Stay until asked to leave."""
    await leaving.wait()
    return 0
