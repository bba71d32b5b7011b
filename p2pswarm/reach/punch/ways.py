"""PunchedWays: a way to each peer whose link leads through a relay.

Units:   none.
Errors:  PathError, if no hole can be punched now.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from p2pswarm.base.errors import PathError
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.link.path import PathCandidate, PathKind
from p2pswarm.net.os.base import Connection
from p2pswarm.reach.punch.puncher import Puncher

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PunchedWay:
    """Both sides dial each other at once: implements `PathCandidate`."""

    puncher: Puncher
    peer: PeerId
    relay: Address
    """The relay through which the link went when this way was found."""
    relayed: PathCandidate
    """For a bulk connection that cannot be punched."""

    @property
    def kind(self) -> PathKind:
        """Punched, even if one side can be dialled as it is."""
        return PathKind.PUNCHED

    async def connect(self) -> Connection:
        """Punch; for a link that has left its relay, a bulk connection may go through it still."""
        try:
            return await self.puncher.connect(self.peer, self.relay)
        except PathError as error:
            if not self.puncher.punched(self.peer):
                raise
            _log.info("a bulk connection with %s goes by relay: %s", self.peer.short, error)
            return await self.relayed.connect()


class PunchedWays:
    """Implements `CandidateSource`: a `Puncher`'s, for `Endpoint.offer_candidates`."""

    def __init__(self, puncher: Puncher) -> None:
        self._puncher = puncher

    def candidates(self, to: Contact) -> Sequence[PathCandidate]:
        """A punched way while the link goes through a relay: only then can both sides agree."""
        path = None if to.peer is None else self._puncher.relayed_path(to.peer)
        if to.peer is None or path is None or path.candidate is None:
            return ()
        return (PunchedWay(self._puncher, to.peer, path.remote.place, path.candidate),)
