"""WebNet: a network whose `dial` also leads over WebSocket. Seam 1 round another one.

Source:  docs/relays.md, "Over WebSocket".
"""

import asyncio
import importlib
from typing import Protocol

from p2pswarm.base.ids import Address
from p2pswarm.base.tasks import Closing
from p2pswarm.net.os.base import Connection, Net


class _WebSocketDialler(Protocol):
    """`WebDialler` of `net/os/web_socket.py`."""

    async def dial(self, to: Address) -> Connection: ...

    async def close(self) -> None: ...


class WebNet(Closing):
    """A network with WebSockets in it: implements `Net`.

    WebSocket is for hosts that have nothing but the web. It needs aiohttp, which is large, so it
    is imported when the first such address is dialled: most nodes never do.
    """

    def __init__(self, net: Net) -> None:
        """`net`: the one for every other address."""
        self.listen, self.lock = net.listen, net.lock
        self._net = net
        self._dialler: _WebSocketDialler | None = None

    async def dial(self, to: Address, from_port: int = 0) -> Connection:
        """Connect, over WebSocket if the address says so."""
        if not to.web:
            return await self._net.dial(to, from_port)
        if self._dialler is None:
            module = await asyncio.to_thread(importlib.import_module, "p2pswarm.net.os.web_socket")
            self._dialler = self._dialler or module.WebDialler()
        return await self._dialler.dial(to)

    async def close(self) -> None:
        """End every WebSocket that we dialled."""
        if self._dialler is not None:
            await self._dialler.close()
