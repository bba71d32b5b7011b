"""A replay: the events of a log at the times that they had, only faster.

Whoever shows events takes them by `async for`, whether they come from a file or from afar.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable

from p2pswarm.progress.event_lines import EventLine

PAUSE_MAX_S = 5.0  # of the replay: who watches need not wait through a night


async def replay(events: Iterable[EventLine], speed: float) -> AsyncIterator[EventLine]:
    """Give the events of a log, `speed` times as fast as they came."""
    clock = asyncio.get_running_loop().time
    due_s, before = clock(), None
    for told in events:
        if before is not None:
            due_s += min(max(0.0, told.at - before) / speed, PAUSE_MAX_S)
        before = told.at
        await asyncio.sleep(max(0.0, due_s - clock()))
        yield told
