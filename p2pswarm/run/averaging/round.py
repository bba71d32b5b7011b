"""One averaging as one member takes part in it: which pieces it waits for, and from which peers.

    missing -> offered -> granted -> here     a piece comes once
    offered -> missing                        there was no memory: its sender offers it again
    granted -> missing                        a part: the link was lost, its sender may have another
    granted -> the averaging fails            a reduced piece: half of it lies in the result

Two members that dial each other at once have two links, and one of them ends. So a part may be
offered again before we know that its first stream is lost; the later offer counts.

**The digest.** The members must know that they hold the same bytes, though an owner may send others
to each of them. A cryptographic hash of a whole gradient costs more than everything else here. So
each takes a keyed universal hash instead, with a key that nobody knew when the pieces were sent
(`KeyShares`).

A sender may have `parts_ahead` parts here that are not added yet. So one slow member holds the
others back, before their parts fill the owner's memory.

Source:  Carter and Wegman, "Universal classes of hash functions" (1979), for the digest.
Errors:  BadMessage for a piece that nobody waits for, or that does not fit; Busy for one too many.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from p2pswarm.base.errors import BadMessage, Busy, NotServing, Refused
from p2pswarm.base.ids import PeerId
from p2pswarm.run.averaging.piece_lane import parts_ahead
from p2pswarm.run.averaging.shards import PIECE, ShardPiece, cut_at, pieces
from p2pswarm.run.messages.step import Reduce, Shard
from p2pswarm.run.messages.waits import PieceKind
from p2pswarm.tensors.codecs.meta import Dtype, TensorMeta

KEY_BYTES = 16  # of a share, and of the key of a digest
TELL_ALL_MAX = 16  # members that tell each other directly: one way less, and at most 240 streams
EARLY_MAX = 512  # pieces that wait for their order: twice what 64 members may send ahead
OBSERVED_MAX = 1024  # pieces under way to newcomers; a newcomer that falls behind joins again
RAW = 1  # the code of the codec raw
RETRY_S = 0.05  # a sender that ran ahead of this limit has counted wrongly


class KeyShares:
    """The shares of one averaging's key, as one member or observer learns them.

    Each member adds a share, and tells it when it has every piece. Whoever sent different pieces to
    two members would have had to guess one. In a small group each tells all others. In a larger one
    that would be the square of its members: there all tell one of them, the collector, which sends
    the whole list to each. A member finds its own share in the list, or the averaging fails. The
    collector changes with each averaging, so one that is lost or lies holds up no second one.

    A collector learns the shares later than the bytes of all who told theirs are fixed, like
    anybody. It may choose the shares of members that are in league with it, so it may try many
    keys, but for each the chance that two different pieces have the same digest is that of any key.
    If it sends different lists, the digests differ, because the key is hashed with the tags.

    Raises BadMessage for a share that is not due, or of another size. Source: docs/reduction.md,
    "The digest".
    """

    def __init__(self, group: Sequence[bytes], me: bytes, turn: int) -> None:
        """`turn`: a number that all have in common, and that changes with each averaging."""
        self._group = tuple(group)
        self._members = frozenset(group)
        self._me = me
        self._shares: dict[bytes, bytes] = {}
        collected = len(self._group) > TELL_ALL_MAX
        self._collector = self._group[turn % len(self._group)] if collected else None

    @property
    def collects(self) -> bool:
        """Return whether it is we who send the list to all."""
        return self._collector == self._me

    def receivers(self, observers: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
        """Return who is told our share; a collector's list tells the observers."""
        to = (*self._group, *observers) if self._collector is None else (self._collector,)
        return tuple(peer for peer in to if peer != self._me)

    @property
    def missing(self) -> list[bytes]:
        """Return whose shares are not here, ours left out; the collector's list stands for all."""
        if self._collector is not None and not self.collects:
            return [] if self.whole else [self._collector]
        return [peer for peer in self._group if peer != self._me and peer not in self._shares]

    @property
    def whole(self) -> bool:
        """Return whether every member's share is here."""
        return len(self._shares) == len(self._group)

    def reveal(self, share: bytes) -> None:
        """Enter our own share; from now on others may know it."""
        self._shares[self._me] = share

    def on_shares(self, sender: bytes, said: bytes) -> bool:
        """Enter what another says; False for a collector's list without the share that we told."""
        if self._collector is None or self.collects:
            self._share_of(sender, said)
            return True
        if sender != self._collector or self.whole:
            raise BadMessage("no share of a key is wanted from you")
        if len(said) != len(self._group) * KEY_BYTES:
            return False
        listed = {
            peer: said[place * KEY_BYTES : (place + 1) * KEY_BYTES]
            for place, peer in enumerate(self._group)
        }
        if self._me in listed and listed[self._me] != self._shares.get(self._me):
            return False
        self._shares = listed
        return True

    @property
    def listed(self) -> bytes:
        """All shares, in the order of the group."""
        return b"".join(self._shares[peer] for peer in self._group)

    @property
    def key(self) -> bytes:
        """The key of the digest, the same for all."""
        return hashlib.blake2b(self.listed, digest_size=KEY_BYTES).digest()

    def _share_of(self, sender: bytes, share: bytes) -> None:
        if sender == self._me or sender not in self._members or sender in self._shares:
            raise BadMessage("no share of a key is wanted from you")
        if len(share) != KEY_BYTES:
            raise BadMessage(f"a share of a key has {KEY_BYTES} bytes")
        self._shares[sender] = share


class PieceState(Enum):
    """How far a piece on its way to us has come."""

    MISSING = "nothing of it has come"
    OFFERED = "its sender has announced it"
    GRANTED = "its bytes may be on the way"


@dataclass(frozen=True, slots=True, order=True)
class RoundId:
    """Names one averaging of a run; a later one replaces an earlier."""

    step: int
    generation: int

    def __str__(self) -> str:
        return f"step {self.step}, generation {self.generation}"


@dataclass(frozen=True, slots=True)
class ExpectedPiece:
    """A piece on its way to us."""

    index: int
    sender: bytes
    gathered: bool
    offer: int = field(default=0, compare=False)
    """Which of its sender's offers this is."""


@dataclass(frozen=True, slots=True)
class MissingPieces:
    """The members of whom something of an averaging has not come."""

    parts: tuple[bytes, ...] = ()
    """Parts of their sums, for the pieces that we reduce."""
    reduced: tuple[bytes, ...] = ()
    """Pieces that they reduce: they may lack the parts of others for these."""
    shares: tuple[bytes, ...] = ()
    """Shares of the key: they may lack pieces."""

    @property
    def first(self) -> tuple[PieceKind, tuple[bytes, ...]]:
        """Return the first kind of which something is missing, and of whom."""
        kinds = zip(PieceKind, (self.parts, self.reduced, self.shares), strict=True)
        return next(((kind, peers) for kind, peers in kinds if peers), (PieceKind.SHARES, ()))

    def __add__(self, other: "MissingPieces") -> "MissingPieces":
        """Of two averagings together."""
        pairs = (
            (self.parts, other.parts),
            (self.reduced, other.reduced),
            (self.shares, other.shares),
        )
        return MissingPieces(*(tuple(dict.fromkeys(ours + theirs)) for ours, theirs in pairs))


class Round:
    """The pieces of one order."""

    def __init__(
        self,
        order: Reduce,
        me: bytes,
        length: int,
        piece: int = PIECE,
        *,
        cut: int = 0,
        tied: bool = False,
        second: bool = False,
    ) -> None:
        """`cut`: an element that no piece reaches across; `tied`, `second`: as in `Shard`."""
        self.order = order
        self.turn = RoundId(order.step, order.generation)
        self.me = me
        self._tied, self._second = tied, second
        self.pieces = tuple(cut_at(pieces(length, len(order.group), piece, order.shares), cut))
        self.failure: Refused | None = None
        """Why this averaging cannot succeed any more; it names a peer."""
        self._missing: dict[ExpectedPiece, PieceState] = {}
        self._parts_missing: dict[int, int] = {}
        self.parts_ahead = parts_ahead(len(order.group))
        """How many parts of one sender may wait here."""
        self._ahead: Counter[bytes] = Counter()
        self._offers: Counter[ExpectedPiece] = Counter()
        self.key_shares = KeyShares(order.group, me, order.step + order.generation)
        self.others = tuple(peer for peer in order.group if peer != me)
        """The members of the group besides ourselves."""
        self.mine = tuple(i for i, p in enumerate(self.pieces) if order.group[p.owner] == me)
        """The pieces that we reduce."""
        for index, owned in enumerate(self.pieces):
            owner = order.group[owned.owner]
            if owner != me:
                self._missing[ExpectedPiece(index, owner, gathered=True)] = PieceState.MISSING
            else:
                self._parts_missing[index] = len(self.others)
                for peer in self.others:
                    wanted = ExpectedPiece(index, peer, gathered=False)
                    self._missing[wanted] = PieceState.MISSING

    @property
    def adds(self) -> bool:
        """Return whether our sum is among those that are added; an observer's is not."""
        return self.me in self.order.group

    @property
    def prompt(self) -> tuple[bytes, ...]:
        """The observers that are sent what is reduced with the members."""
        return self.order.observers[: self.order.prompt]

    @property
    def parts_to_send(self) -> dict[bytes, list[int]]:
        """The pieces that our sum is a part of, for each other owner."""
        owned: dict[bytes, list[int]] = {}
        for index, piece in enumerate(self.pieces if self.adds else ()):
            owner = self.order.group[piece.owner]
            if owner != self.me:
                owned.setdefault(owner, []).append(index)
        return owned

    @property
    def complete(self) -> bool:
        """Return whether every piece has come, and ours are reduced."""
        return not self._missing and not self._parts_missing

    @property
    def lacks(self) -> MissingPieces:
        """Return of whom something is not here."""
        parts = dict.fromkeys(wanted.sender for wanted in self._missing if not wanted.gathered)
        reduced = dict.fromkeys(wanted.sender for wanted in self._missing if wanted.gathered)
        shares = () if self._missing else self.key_shares.missing
        return MissingPieces(tuple(parts), tuple(reduced), tuple(shares))

    def has_parts(self, index: int) -> bool:
        """Return whether every part of a piece of ours has come."""
        return not self._parts_missing.get(index)

    def is_reduced(self, index: int) -> bool:
        """Return whether a piece of ours is reduced."""
        return index not in self._parts_missing

    def shard(self, index: int, tensor: TensorMeta, *, gathered: bool) -> Shard:
        """Return what opens the stream of one piece."""
        order = self.order
        place = order.run, order.step, order.generation
        return Shard(*place, gathered, index, tensor, self._tied, self._second)

    def reveal(self, secret: bytes) -> Shard:
        """Return what tells the others our share of the key; only when everything is complete."""
        assert self.complete, "whoever knows a share could still choose a piece by it"
        # two averagings of one order must not have one share: the first would tell it too soon
        what = b" tied" if self._tied else b" second" if self._second else b""
        label = b"%s %d %d%s" % (self.order.run, self.turn.step, self.turn.generation, what)
        share = hashlib.blake2b(self.me + label, digest_size=KEY_BYTES, key=secret).digest()
        self.key_shares.reveal(share)
        return self._key_message(share)

    def all_shares(self) -> Shard:
        """Return what tells the shares of all, once they are here."""
        return self._key_message(self.key_shares.listed)

    def revealed(self, sender: bytes, shard: Shard) -> None:
        """Note a member's share of the key, or the list of all; BadMessage if it is not due.

        A list of another size, or in which our own share is not the one that we told, ends the
        averaging: no other will come.
        """
        if not self.key_shares.on_shares(sender, shard.tensor.inline):
            peer = PeerId(sender).short
            self.failure = Refused(f"averaging with {peer} failed: its list of shares is wrong")

    def _key_message(self, shares: bytes) -> Shard:
        meta = TensorMeta(Dtype.UINT8, (len(shares),), RAW, len(shares), shares)
        return self.shard(len(self.pieces), meta, gathered=True)

    def expect(self, sender: bytes, shard: Shard) -> tuple[ExpectedPiece, ShardPiece]:
        """The piece that a sender offers; BadMessage if it is unwanted or unfit."""
        wanted = ExpectedPiece(shard.index, sender, shard.gathered)
        state = self._missing.get(wanted)
        if state is None or (state is PieceState.GRANTED and wanted.gathered):
            raise BadMessage(f"piece {shard.index} of {self.turn} is not wanted from you")
        piece = self.pieces[shard.index]
        if shard.tensor.shape != (piece.span.length,):
            raise BadMessage(f"piece {shard.index} has {piece.span}, not {shard.tensor.shape}")
        if not wanted.gathered and state is PieceState.MISSING:
            if self._ahead[sender] >= self.parts_ahead:
                raise Busy(f"{self.parts_ahead} parts of yours wait to be added", RETRY_S)
            self._ahead[sender] += 1
        self._missing[wanted] = PieceState.OFFERED
        self._offers[wanted] += 1
        return replace(wanted, offer=self._offers[wanted]), piece

    def granted(self, wanted: ExpectedPiece) -> None:
        """Its sender is told that there is memory for it."""
        if self._is_current(wanted):
            self._missing[wanted] = PieceState.GRANTED

    def on_piece(self, wanted: ExpectedPiece) -> bool:
        """Note that a piece is in place; False if another copy of it came before."""
        if wanted not in self._missing:
            return False
        del self._missing[wanted]
        if not wanted.gathered:
            self._parts_missing[wanted.index] -= 1
        return True

    def stopped(self, wanted: ExpectedPiece) -> None:
        """Nothing more of an offer will come; of a reduced piece nothing may have come."""
        if not self._is_current(wanted):
            return
        if wanted.gathered and self._missing[wanted] is PieceState.GRANTED:
            peer = PeerId(wanted.sender).short
            self.failure = Refused(f"averaging with {peer} failed: half of a piece came")
            return
        self._missing[wanted] = PieceState.MISSING
        if not wanted.gathered:
            self._ahead[wanted.sender] -= 1

    def _is_current(self, wanted: ExpectedPiece) -> bool:
        """Return whether a piece has not come, and its sender has made no later offer of it."""
        return wanted in self._missing and self._offers[wanted] == wanted.offer

    def reduced(self, index: int) -> None:
        """Note that a piece of ours is reduced: its parts take no memory any more."""
        del self._parts_missing[index]
        for peer in self.others:
            self._ahead[peer] -= 1


class RoundAdmission:
    """Admits rounds, early pieces, and pieces to newcomers.

    One averaging is under way at a time; a newer order ends the older. A piece may come before the
    order that it belongs to, because the other members may have had their orders earlier. It waits,
    if not too many do.
    """

    def __init__(self, early_max: int = EARLY_MAX, observed_max: int = OBSERVED_MAX) -> None:
        self._early_max = early_max
        self._observed_max = observed_max
        self._current: Round | None = None
        self._newest = RoundId(-1, 0)
        self._early = 0
        self._observed = 0

    def begin(self, round_: Round) -> Round | None:
        """Begin an averaging, unless a newer one began; returns the one that it ends, if any."""
        if round_.turn <= self._newest:
            raise NotServing(f"{round_.turn} comes after {self._newest}")
        ended, self._current = self._current, round_
        self._newest = round_.turn
        return ended

    def end(self, round_: Round) -> None:
        """An averaging is over, well or not."""
        if self._current is round_:
            self._current = None

    def find(self, turn: RoundId) -> Round | None:
        """The averaging of a piece; None while its order has not come, NotServing if it is over."""
        if self._newest < turn:
            return None
        if self._current is None or self._current.turn != turn:
            raise NotServing(f"the averaging of {turn} is over")
        return self._current

    def enter_early(self) -> None:
        """A piece begins to wait for its order; Busy if too many do."""
        if self._early >= self._early_max:
            raise Busy("too many pieces wait for their order")
        self._early += 1

    def leave_early(self) -> None:
        """A piece has stopped waiting."""
        self._early -= 1

    def enter_observed(self) -> bool:
        """Return whether one more piece may be under way to newcomers; if so, it is counted."""
        if self._observed >= self._observed_max:
            return False
        self._observed += 1
        return True

    def leave_observed(self) -> None:
        """A piece to a newcomer has arrived, or was given up."""
        self._observed -= 1
