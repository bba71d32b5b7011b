"""The snapshots that a donor holds still, each as long as a newcomer fetches it.

Units:   bytes.
Errors:  Busy while enough are held; BadMessage for a piece that cannot be served.
"""

from p2pswarm.errors import BadMessage, Busy
from p2pswarm.state.pieces import PIECE_BYTES
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.swarm.messages.state import FetchPiece
from p2pswarm.wire.message import Message

SNAPSHOTS_MAX = 2  # each is three times the weights; fetchers of two versions may overlap
RETRY_AFTER_S = 0.2  # another fetcher may be done by then


class HeldSnapshots:
    """One snapshot for each version, with the number of its fetchers."""

    def __init__(self, snapshots_max: int = SNAPSHOTS_MAX) -> None:
        self._snapshots_max = snapshots_max
        self._held: dict[int, tuple[Snapshot, int]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def lend(self, at_least: int) -> Snapshot | None:
        """The newest snapshot for one more fetcher; None if a newer one has to be copied."""
        newest = max(self._held, default=-1)
        if newest < at_least:
            if len(self._held) >= self._snapshots_max:
                raise Busy(f"{len(self._held)} snapshots are being fetched", RETRY_AFTER_S)
            return None
        snapshot, fetchers = self._held[newest]
        self._held[newest] = snapshot, fetchers + 1
        return snapshot

    def hold(self, snapshot: Snapshot) -> Snapshot:
        """Keep a new copy for its first fetcher."""
        assert snapshot.version not in self._held, "a version is copied once"
        self._held[snapshot.version] = snapshot, 1
        return snapshot

    def give_back(self, version: int) -> None:
        """A fetcher is done; a snapshot without fetchers is forgotten."""
        snapshot, fetchers = self._held.pop(version)
        if fetchers > 1:
            self._held[version] = snapshot, fetchers - 1


def piece_wanted(
    message: Message | None, nbytes: int, piece_bytes: int = PIECE_BYTES
) -> FetchPiece | None:
    """The piece of `nbytes` that a fetcher asks for; None when it has enough."""
    if message is None:
        return None
    if not isinstance(message, FetchPiece):
        raise BadMessage(f"{type(message).__name__} where a FetchPiece is due")
    end = message.offset + message.nbytes
    if end > nbytes or message.nbytes > piece_bytes:
        raise BadMessage(f"bytes {message.offset}..{end} of {nbytes}")
    return message
