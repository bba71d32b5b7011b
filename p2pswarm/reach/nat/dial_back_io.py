"""DialBackServer: dials peers back that ask for it. A dial that fails is the answer."""

import asyncio
from collections.abc import Callable

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.endpoint.preface import knock
from p2pswarm.net.os.base import Net
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.reach.nat.dial_back import (
    DialBack,
    DialBackLimits,
    DialledBack,
    DialOutcome,
    may_dial,
)

DIAL_S = 3.0  # three tries of the kernel's: at 0, 1 and 3 s


class DialBackServer:
    """Dials peers back that ask for it: answers `DialBack`."""

    def __init__(
        self,
        rpc: Rpc,
        net: Net,
        seen_at: Callable[[PeerId], Address | None],
        wall_s: Callable[[], float],
    ) -> None:
        """`seen_at`: the other end of the link to a peer; `wall_s`: seconds since 1970."""
        self._rpc = rpc
        self._net = net
        self._seen_at = seen_at
        self._wall_s = wall_s
        self._limits = DialBackLimits()
        rpc.serve_unary(DialBack, self._on_request)

    async def _on_request(self, peer: PeerId, request: DialBack) -> DialledBack:
        seen = self._seen_at(peer)
        if seen is None or seen.circuit or seen.web:  # the host is a relay's or a proxy's
            return self._answer(DialOutcome.NOT_TRIED, None)
        now_s = asyncio.get_running_loop().time()
        own_host = self._rpc.contact.address.host
        if not may_dial(seen.host, own_host) or not self._limits.begin(peer, seen.host, now_s):
            return self._answer(DialOutcome.NOT_TRIED, seen)
        try:
            outcome = await self._dial(Address(seen.host, request.port), request.nonce)
        finally:
            self._limits.on_end(peer)
        return self._answer(outcome, seen)

    async def _dial(self, at: Address, nonce: bytes) -> DialOutcome:
        """Dial afresh, from a port of the system's choice, and knock."""
        try:
            async with asyncio.timeout(DIAL_S):
                connection = await self._net.dial(at)
                try:
                    await connection.send(knock(nonce))
                finally:
                    connection.close()
        except (SwarmError, TimeoutError):
            return DialOutcome.FAILED
        return DialOutcome.CONNECTED

    def _answer(self, outcome: DialOutcome, seen: Address | None) -> DialledBack:
        host, port = (seen.host, seen.port) if seen is not None else ("", 0)
        return DialledBack(outcome, host, port, int(1000 * self._wall_s()))
