"""The messages of the directory, and their limits.

Units:   bytes; `_s` seconds; versions in milliseconds since 1970 where a peer's clock is right.
Source:  docs/directory.md; van Renesse et al., "Efficient Reconciliation and Flow Control for
         Anti-Entropy Protocols" (LADIS 2008).
"""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.cards.card import SignedCard
from p2pswarm.net.crypto.identity import SIGNATURE_BYTES
from p2pswarm.net.wire.message import Message, Range, Size, message

RUN_ID_BYTES = 16
PREFIX_BYTES = 8  # of a peer's id: to make another id with the same takes 2**64 tries
ENTRY_BYTES = PREFIX_BYTES + 6 + 2  # the start of an id, a version, a hash of the record
DIGEST_ENTRIES_MAX = 1024  # 16 KiB each round; a larger directory is compared in parts
RECORDS_MAX = 64  # in one message: their signatures take 13 ms, and the event loop waits for them
BODY_BYTES_MAX = 2200  # a card of 1 KiB, four roles of 16 figures
LIFE_MOST_S = 600
VERSION_MAX = 2**48 - 1  # 6 bytes of milliseconds last until the year 10889
FIGURES_MAX = 16
ROLES_MAX = 4
FIGURE_MOST = 1e12
STAGE_MAX = 255

RunName = Annotated[bytes, Size(RUN_ID_BYTES, RUN_ID_BYTES)]
Code = Annotated[int, Range(0, 255)]
Prefix = Annotated[bytes, Size(PREFIX_BYTES, PREFIX_BYTES)]


@dataclass(frozen=True, slots=True)
class Figure(Message):
    """One small number; see `FigureKey` in `discovery/gossip/record.py`."""

    key: Code
    value: Annotated[float, Range(-FIGURE_MOST, FIGURE_MOST)]


@dataclass(frozen=True, slots=True)
class RunRole(Message):
    """The state of a peer in one role of a run."""

    role: Code
    state: Code
    stage: Annotated[int, Range(0, STAGE_MAX)] | None = None
    figures: Annotated[tuple[Figure, ...], Size(FIGURES_MAX)] = ()

    def __post_init__(self) -> None:
        if len({each.key for each in self.figures}) < len(self.figures):
            raise ValueError("a figure is there twice")


@message(120)
@dataclass(frozen=True, slots=True)
class RecordBody(Message):
    """The facts that a peer signs about itself."""

    run: RunName
    version: Annotated[int, Range(0, VERSION_MAX)]
    lives_s: Annotated[int, Range(1, LIFE_MOST_S)]
    card: SignedCard
    roles: Annotated[tuple[RunRole, ...], Size(ROLES_MAX)]
    """One for each role; none if the peer has left."""

    def __post_init__(self) -> None:
        if len({each.role for each in self.roles}) < len(self.roles):
            raise ValueError("a role is there twice")


@dataclass(frozen=True, slots=True)
class SignedRecord(Message):
    """A record as it is passed on."""

    body: Annotated[bytes, Size(1, BODY_BYTES_MAX)]
    """An encoded `RecordBody`, as it was signed."""
    signature: Annotated[bytes, Size(SIGNATURE_BYTES, SIGNATURE_BYTES)]


@dataclass(frozen=True, slots=True)
class AgedRecord(Message):
    """A record and its age, as far as the sender knows."""

    record: SignedRecord
    age_s: Annotated[float, Range(0.0, LIFE_MOST_S)]


@message(121)
@dataclass(frozen=True, slots=True)
class Compare(Message):
    """A call: what the sender has of the ids from `first` to `last`; answered by `Compared`.

    The range goes round: if `last` is below `first`, it ends after the highest id.
    """

    run: RunName
    first: Prefix
    last: Prefix
    digest: Annotated[bytes, Size(DIGEST_ENTRIES_MAX * ENTRY_BYTES)]
    """Entries of `ENTRY_BYTES`, each id once."""

    def __post_init__(self) -> None:
        if len(self.digest) % ENTRY_BYTES:
            raise ValueError(f"a digest of {len(self.digest)} bytes has half an entry")


@message(122)
@dataclass(frozen=True, slots=True)
class Compared(Message):
    """The records that the caller lacks, and the ids of those that the sender lacks."""

    records: Annotated[tuple[AgedRecord, ...], Size(RECORDS_MAX)]
    wanted: Annotated[bytes, Size(RECORDS_MAX * PREFIX_BYTES)]
    """Starts of ids."""

    def __post_init__(self) -> None:
        if len(self.wanted) % PREFIX_BYTES:
            raise ValueError(f"{len(self.wanted)} bytes of wanted ids have half an id")


@message(123)
@dataclass(frozen=True, slots=True)
class Deliver(Message):
    """A call: records that the receiver wants; answered by `Delivered`."""

    run: RunName
    records: Annotated[tuple[AgedRecord, ...], Size(RECORDS_MAX)]


@message(124)
@dataclass(frozen=True, slots=True)
class Delivered(Message):
    """The records have come."""
