"""PortMapper: the sockets of `PortMapping`: packets and calls to the router, and its answers.

Without a router, or where it says no, there is no lease.
"""

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from p2pswarm.base.ids import Address
from p2pswarm.base.loop_clock import now_s, wait_until
from p2pswarm.net.os.local_network import group_socket
from p2pswarm.reach.nat.mapping_search import CallRouter, Lease, SendDatagram
from p2pswarm.reach.nat.port_mapping import ANNOUNCED_GROUP, ANNOUNCED_PORT, PortMapping

LEAVE_S = 0.5  # to return the port at exit

log = logging.getLogger(__name__)


class PortMapper:
    """Keeps a port of the router forwarded while `run` runs."""

    def __init__(
        self, port: int, entropy: Callable[[int], bytes], on_lease: Callable[[Lease | None], None]
    ) -> None:
        """`on_lease`: called with what the router forwards, when that changes or a search ends."""
        self.machine = PortMapping(port, entropy)
        self.settled = False
        """True if the router has been asked, or there is none."""
        self._on_lease = on_lease
        self._changed = asyncio.Event()
        self._route: tuple[str | None, str | None] = (None, None)
        self._bound: str | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self._news: asyncio.DatagramTransport | None = None
        """Socket at which routers tell all that they were started."""
        self._calls: dict[asyncio.Task[None], None] = {}
        self._web: ModuleType | None = None
        """Calls the router over HTTP; None where the library for that is missing."""

    @property
    def router(self) -> str | None:
        """The router that is asked; None if there is none."""
        return self._route[0]

    def on_gateway(self, gateway: str | None, own_host: str | None) -> None:
        """Set our IPv4 router and our address towards it; None: there is none."""
        self._route = gateway, own_host
        self._changed.set()

    def on_doubt(self) -> None:
        """Note that peers no longer arrive at the leased port."""
        self.machine.on_doubt(now_s())
        self._changed.set()

    async def run(self) -> None:
        """Run until cancelled; then return the port."""
        self._web = await asyncio.to_thread(_web)
        async with self._web.session() if self._web else contextlib.nullcontext() as http:
            try:
                while True:
                    self._changed.clear()
                    await self._follow_route()
                    self.machine.on_deadline(now_s())
                    self._drain(http)
                    await wait_until(self._changed, self.machine.next_deadline_s())
            finally:
                await self._leave(http)

    async def _follow_route(self) -> None:
        gateway, own_host = self._route
        if own_host != self._bound:
            self._close()
            self._bound = own_host
            if own_host is not None:
                self._transport = await _bound(own_host, self._on_datagram)
                self._news = await _hears_starts(own_host, self._on_datagram)
        self.machine.on_gateway(gateway, own_host if self._transport else None, now_s())

    async def _leave(self, http: Any) -> None:
        self.machine.release()
        for task in list(self._calls):
            task.cancel()
        self._drain(http)
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=LEAVE_S)
        for task in list(self._calls):
            task.cancel()
        self._close()

    def _close(self) -> None:
        for transport in (self._transport, self._news):
            if transport is not None:
                transport.close()
        self._transport = self._news = None

    def _drain(self, http: Any) -> None:
        for output in self.machine.drain():
            match output:
                case SendDatagram(data=data, to=to):
                    if self._transport is not None:
                        self._transport.sendto(data, (to.host, to.port))
                case CallRouter():
                    task = asyncio.get_running_loop().create_task(self._call(http, output))
                    self._calls[task] = None
                    task.add_done_callback(self._calls.pop)
        changes, settled = self.machine.changes(), not self.machine.searching
        for lease in changes:
            log.info("the router forwards %s", lease and lease.external)
        if changes or settled != self.settled:
            self.settled = settled
            self._on_lease(self.machine.lease)

    def _on_datagram(self, data: bytes, sender: Address) -> None:
        self.machine.on_datagram(data, sender, now_s())
        self._changed.set()

    async def _call(self, http: Any, call: CallRouter) -> None:
        status, data = 0, None
        try:
            if self._web is not None:
                status, data = await self._web.fetched(http, call)
        except (TimeoutError, OSError, ValueError) as error:
            log.info("the router did not answer a call: %r", error)
        self.machine.on_reply(call.number, status, data, now_s())
        self._changed.set()


def _web() -> ModuleType | None:
    """What calls routers over HTTP. Without it they are asked by packets: PCP and NAT-PMP."""
    try:
        return importlib.import_module("p2pswarm.reach.nat.router_calls_io")
    except ModuleNotFoundError as error:
        log.info("no calls to routers by UPnP, which need %s", error.name)
        return None


class _Datagrams(asyncio.DatagramProtocol):
    """Hands every packet on."""

    def __init__(self, received: Callable[[bytes, Address], None]) -> None:
        self._on_datagram = received

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._on_datagram(data, Address(str(addr[0]), int(addr[1])))


async def _bound(
    own_host: str, received: Callable[[bytes, Address], None]
) -> asyncio.DatagramTransport | None:
    """A socket at our address; None if the address has just gone."""
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Datagrams(received), local_addr=(own_host, 0)
        )
    except OSError as error:
        log.info("no packets from %s: %s", own_host, error)
        return None
    return transport


async def _hears_starts(
    own_host: str, received: Callable[[bytes, Address], None]
) -> asyncio.DatagramTransport | None:
    """A socket for what routers tell all; where there is none, their clocks are looked at."""
    sock = group_socket(ANNOUNCED_GROUP, ANNOUNCED_PORT, own_host)
    if sock is None:
        log.info("starts of the router are not heard")
        return None
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(received), sock=sock)
    return transport
