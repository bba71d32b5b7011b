"""A peer that breaks the rules, and an honest one beside it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from worlds.net import SimInternet

from p2pswarm.base.ids import Address
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.link.events import StreamEvent, StreamOpened
from p2pswarm.net.rpc.base import Stream
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.net.wire.message import Message, message
from p2pswarm.sim.loop import run

SEED = 1
UNKNOWN = b"\x92\xcd\xea\x5f\x01"  # [59999, 1]


@message(61401)
@dataclass(frozen=True, slots=True)
class Ask(Message):
    number: int


class Rogue:
    """A peer with a link and no manners: it sends what it is told and notes what it hears."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.heard: list[StreamEvent] = []
        self.reply: Callable[[Link, StreamOpened], None] | None = None
        self._news = asyncio.Event()
        endpoint.on_event = self._note

    def _note(self, link: Link, event: StreamEvent) -> None:
        self.heard.append(event)
        self._news.set()
        if isinstance(event, StreamOpened) and self.reply is not None:
            self.reply(link, event)

    async def hear(self, kind: type[StreamEvent]) -> StreamEvent:
        """The first event of a kind."""
        while True:
            for event in self.heard:
                if isinstance(event, kind):
                    return event
            self._news.clear()
            await self._news.wait()


def meet(body: Callable[[Rogue, LinkRpc], Awaitable[None]]) -> None:
    """Run `body` with a rogue and an honest peer that serves Ask."""
    internet, rng = SimInternet(SEED), random.Random(SEED)

    def endpoint() -> Endpoint:
        identity = Identity.generate(rng.randbytes(32))
        net = internet.net(identity.peer_id)
        return Endpoint(identity, net, TransportConfig(), rng.randbytes)

    async def echo(stream: Stream, _ask: Ask) -> None:
        while (got := await stream.receive()) is not None:
            await stream.send(got)

    async def main() -> None:
        async with endpoint() as theirs, endpoint() as ours, LinkRpc(ours) as rpc:
            await theirs.listen(Address("0.0.0.0", 0))
            await ours.listen(Address("0.0.0.0", 0))
            rpc.serve_unary(Ask, lambda _peer, ask: ask)
            rpc.serve_stream(Ask, echo)
            await body(Rogue(theirs), rpc)

    run(main(), SEED)
