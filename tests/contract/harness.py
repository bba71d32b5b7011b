"""Three worlds that implement `Rpc`, behind one face, so that one suite runs over all.

A bed makes peers, kills them, and runs a test's body on its own event loop.
"""

import asyncio
import inspect
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import pytest
from worlds.net import SimInternet

from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.guard.connection_limits import HandlerLimits
from p2pswarm.net.os.base import Net
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.rpc.base import Rpc, Stream
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.net.wire.message import Message, Size, message
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.rpc import SimWorld

SEED = int(os.environ.get("P2PSWARM_SEED", "1"))

Body = Callable[["Bed"], Coroutine[Any, Any, None]]


class Bed(Protocol):
    """One world."""

    def run(self, body: Body) -> None:
        """Run a test's body here."""

    async def peer(self, config: HandlerLimits | None = None) -> Rpc:
        """A new peer that serves."""

    async def kill(self, rpc: Rpc) -> None:
        """End a peer's process without a word."""


class EndpointBed(ABC):
    """LinkRpc over endpoints; `net` and `loop` differ."""

    def __init__(self) -> None:
        self._rng = random.Random(SEED)
        self._stack = AsyncExitStack()
        self._endpoints: dict[Rpc, Endpoint] = {}

    async def peer(self, config: HandlerLimits | None = None) -> Rpc:
        identity = Identity.generate(self._rng.randbytes(32))
        endpoint = Endpoint(
            identity, self.net(identity.peer_id), TransportConfig(), self._rng.randbytes
        )
        await self._stack.enter_async_context(endpoint)
        await endpoint.listen(Address("127.0.0.1", 0))
        rpc = await self._stack.enter_async_context(LinkRpc(endpoint, config))
        self._endpoints[rpc] = endpoint
        return rpc

    async def _main(self, body: Body) -> None:
        async with self._stack:
            await body(self)

    @abstractmethod
    def net(self, peer: PeerId) -> Net:
        """The network of a new peer."""


class SocketBed(EndpointBed):
    """The whole stack over loopback."""

    def run(self, body: Body) -> None:
        asyncio.run(self._main(body))

    async def kill(self, rpc: Rpc) -> None:
        await self._endpoints[rpc].close()

    def net(self, peer: PeerId) -> Net:
        return SocketNet()


class SimNetBed(EndpointBed):
    """The whole stack in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        config = WorldConfig(bandwidth_bytes_per_s=50e6, loss=0.01, jitter=0.1)
        self.internet = SimInternet(SEED, config)

    def run(self, body: Body) -> None:
        run(self._main(body), SEED)

    async def kill(self, rpc: Rpc) -> None:
        peer = rpc.contact.peer
        assert peer is not None
        self.internet.kill(peer, silent=False)

    def net(self, peer: PeerId) -> Net:
        return self.internet.net(peer)


class SimRpcBed:
    """Calls as objects, streams as frames, in virtual time."""

    def __init__(self) -> None:
        self._rng = random.Random(SEED)
        config = WorldConfig(bandwidth_bytes_per_s=50e6, through_codec=True, dial_rtts=2)
        self.world = SimWorld(SEED, config)

    def run(self, body: Body) -> None:
        run(body(self), SEED)

    async def peer(self, config: HandlerLimits | None = None) -> Rpc:
        return self.world.rpc(PeerId(self._rng.randbytes(32)), config=config)

    async def kill(self, rpc: Rpc) -> None:
        peer = rpc.contact.peer
        assert peer is not None
        self.world.kill(peer, silent=False)


BEDS: dict[str, Callable[[], Bed]] = {
    "sockets": SocketBed,
    "sim-net": SimNetBed,
    "sim-rpc": SimRpcBed,
}


LONG_S = 60.0  # no test waits so long; a hang ends the suite instead
SOON_S = 0.05
BULK_BYTES = 3 * 1024 * 1024 + 17


@message(61001)
@dataclass(frozen=True, slots=True)
class Ask(Message):
    number: int
    text: str = ""


@message(61002)
@dataclass(frozen=True, slots=True)
class Reply(Message):
    number: int


@message(61003)
@dataclass(frozen=True, slots=True)
class Block(Message):
    data: Annotated[bytes, Size(60_000)]


@message(61004)
@dataclass(frozen=True, slots=True)
class Room(Message):
    transfer: int


def contract(body: Body) -> Callable[[Bed], None]:
    """A test over every bed."""

    @pytest.mark.parametrize("bed", [pytest.param(make, id=name) for name, make in BEDS.items()])
    def test(bed: Callable[[], Bed]) -> None:
        bed().run(body)

    test.__name__, test.__doc__ = body.__name__, inspect.getdoc(body)
    return test


async def double(_peer: PeerId, ask: Ask) -> Reply:
    return Reply(2 * ask.number)


class Handler:
    """A handler that tells what becomes of it."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.how: BaseException | None = None

    async def answer(self, _peer: PeerId, _ask: Ask) -> Reply:
        await self._hang()
        return Reply(0)

    async def serve_stream(self, _stream: Stream, _ask: Ask) -> None:
        await self._hang()

    async def read(self, stream: Stream, _ask: Ask) -> None:
        self.started.set()
        try:
            while await stream.receive() is not None:
                pass
        except BaseException as error:
            self.how = error
            raise
        finally:
            self.ended.set()

    async def _hang(self) -> None:
        self.started.set()
        try:
            await asyncio.get_running_loop().create_future()
        except BaseException as error:
            self.how = error
            raise
        finally:
            self.ended.set()


async def pair(bed: Bed) -> tuple[Rpc, Rpc]:
    return await bed.peer(), await bed.peer()
