"""One download: which donor is next, whether its offer fits, which piece is next, when to pause.

A download is of one snapshot, known by its version and digest. If the next donor offers the same
snapshot, the download goes on where it stopped. If it offers another, the download starts over,
because pieces of two versions must not mix.

Units:   seconds, bytes.
Errors:  BadMessage for a message that is no offer, or an offer of another size.
"""

from collections.abc import Sequence

from p2pswarm.errors import BadMessage
from p2pswarm.ids import Contact
from p2pswarm.state.pieces import PIECE_BYTES, PieceTracker, StatePiece
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.swarm.messages.state import StateOffer
from p2pswarm.wire.message import Message

AHEAD = 2  # pieces asked for at once: one on its way while the next is asked for
RETRY_S = 0.2  # after every donor has failed in turn


class DownloadPlan:
    """The pieces of one snapshot that have come, and the donor that gives the next."""

    def __init__(self, nbytes: int, piece_bytes: int = PIECE_BYTES, ahead: int = AHEAD) -> None:
        """`nbytes`: size of the snapshot; `ahead`: pieces that may be under way at once."""
        self._nbytes = nbytes
        self._piece_bytes = piece_bytes
        self._ahead = ahead
        self._turn = 0
        self._pause_s = 0.0
        self._offer: StateOffer | None = None
        self._pieces = PieceTracker(nbytes, piece_bytes)
        self._memory = memoryview(b"")

    @property
    def complete(self) -> bool:
        """Whether every byte is here."""
        return self._pieces.complete

    @property
    def pause_s(self) -> float:
        """How long to wait before the next donor is asked."""
        return self._pause_s

    def donor(self, candidates: Sequence[Contact]) -> Contact:
        """The donor to ask now: the candidates in turn."""
        donor = candidates[self._turn % len(candidates)]
        self._turn += 1
        all_asked = self._turn % len(candidates) == 0
        self._pause_s = RETRY_S if all_asked else 0.0
        return donor

    def offered(self, message: Message | None) -> None:
        """A donor has answered: go on with the same snapshot, or start over with another."""
        if not isinstance(message, StateOffer) or message.nbytes != self._nbytes:
            raise BadMessage(f"{message} where an offer of {self._nbytes} bytes is due")
        if message != self._offer:
            self._offer = message
            self._pieces = PieceTracker(self._nbytes, self._piece_bytes)
            self._memory = memoryview(bytearray(self._nbytes))

    def ask(self) -> StatePiece | None:
        """The next piece to ask the donor for; None if enough are under way, or none is left."""
        return self._pieces.ask() if self._pieces.under_way < self._ahead else None

    def memory(self, piece: StatePiece) -> memoryview:
        """Where the bytes of a piece go."""
        return self._memory[piece.offset : piece.offset + piece.nbytes]

    def came(self, piece: StatePiece) -> None:
        """A piece is here."""
        self._pieces.came(piece)

    def stopped(self) -> None:
        """The donor gives no more: what was asked of it is missing again."""
        self._pieces.give_up()

    def snapshot(self) -> Snapshot:
        """The whole snapshot; its digest is not checked."""
        assert self._offer is not None, "a donor has offered one"
        return Snapshot(self._offer.version, self._offer.digest, self._memory)
