"""Vouching: asks a relay whether it has seen a peer where the peer says, and answers the same.

Units:   seconds.
Errors:  none: a relay that does not answer vouches for nobody.
Source:  docs/punching.md, "Vouching".
"""

import asyncio
import logging
from collections.abc import Sequence

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.endpoint.preface import ObservationSeals
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.reach.punch.messages import PunchCandidate, Vouch, Vouched

VOUCH_S = 2.0

_log = logging.getLogger(__name__)


class Vouching:
    """Both sides of `Vouch`."""

    def __init__(self, rpc: Rpc, seals: ObservationSeals) -> None:
        """`seals`: our own."""
        self._rpc = rpc
        self._seals = seals
        rpc.serve_unary(Vouch, self._on_vouch)

    async def vouched(
        self, relay: Address | None, candidates: Sequence[PunchCandidate]
    ) -> set[PunchCandidate]:
        """Those candidates that a relay has seen, as it says; none if there is no relay."""
        sealed = tuple(each for each in candidates if each.seal)
        if relay is None or not sealed:
            return set()
        try:
            answer = await self._rpc.call(Contact(None, relay), Vouch(sealed), VOUCH_S)
        except SwarmError as error:
            _log.info("relay %s vouches for nobody: %s", relay, error)
            return set()
        if not isinstance(answer, Vouched) or len(answer.seen) != len(sealed):
            return set()
        return {each for each, seen in zip(sealed, answer.seen, strict=True) if seen}

    def _on_vouch(self, peer: PeerId, asked: Vouch) -> Vouched:
        del peer
        now_s = asyncio.get_running_loop().time()
        return Vouched(tuple(self._ours(each, now_s) for each in asked.candidates))

    def _ours(self, candidate: PunchCandidate, now_s: float) -> bool:
        try:
            seen = Address(candidate.host, candidate.port)
        except ValueError:
            return False
        return self._seals.vouches(seen, candidate.seal, now_s)
