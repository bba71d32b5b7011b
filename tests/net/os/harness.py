"""Two raw connections on loopback that are each other's ends."""

import asyncio
from contextlib import asynccontextmanager

from p2pswarm.base.ids import Address
from p2pswarm.net.os.sockets import SocketNet

HERE = Address("127.0.0.1", 0)


PATIENCE_S = 20.0


@asynccontextmanager
async def connected():
    """Two raw streams that are each other's ends."""
    net = SocketNet()
    listener = await net.listen(HERE)
    ours, theirs = await asyncio.gather(net.dial(listener.address), listener.accept())
    try:
        yield ours, theirs
    finally:
        for stream in (ours, theirs):
            stream.close()
        listener.close()
