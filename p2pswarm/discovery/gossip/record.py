"""A record of the directory: what a peer says of itself, for one run, signed by itself.

Nobody but the peer can make or change it, so anybody may pass it on. Of two records of a peer the
one with the higher version counts, and of equal versions the one whose bytes are higher, so all
who have seen both agree.

Units:   bytes; `lives_s` seconds; versions in milliseconds since 1970 where the peer's clock is
         right.
Errors:  BadMessage for a record that breaks a rule; ValueError for one of ours that would.
Source:  docs/directory.md.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.gossip.messages import (
    BODY_BYTES_MAX,
    PREFIX_BYTES,
    VERSION_MAX,
    Figure,
    RecordBody,
    RunStanding,
    SignedRecord,
)
from p2pswarm.net.cards.card import Card, CardBody
from p2pswarm.net.cards.card import read as read_card
from p2pswarm.net.crypto.identity import Identity, verify
from p2pswarm.net.os.addresses import Scope, believable
from p2pswarm.net.wire.message import decode, encode

TAG = b"p2pswarm-directory-1:"  # separates these signatures from every other use of the key
VERSION_BYTES = 6
HASH_BYTES = 2  # tells two records of one version apart


class RunRole(IntEnum):
    """What a peer does in a run. Unknown codes are kept and mean nothing."""

    SERVER = 1
    TRAINER = 2
    OBSERVER = 3


class Activity(IntEnum):
    """How far a peer is with it."""

    SEEKING = 1
    """It looks for a trainer."""
    LOADING = 2
    """It gets its weights."""
    WORKING = 3
    """It serves its stage, or coordinates the run."""
    STANDING_BY = 4
    """It can take over."""
    LEAVING = 5


class FigureKey(IntEnum):
    """The names of figures. All are smoothed by whoever makes them, and only ever hints."""

    VERSION = 1
    """Of the weights: how many steps they have seen."""
    QUEUE_S = 2
    """Mean wait in the queue, seconds."""
    COMPUTE_S = 3
    """Mean compute per microbatch, forward and backward, seconds."""
    RATE_PER_S = 4
    """Microbatches counted per second."""
    QUEUED = 5
    """Microbatches in the queue."""
    FREE_BYTES = 6
    """Memory of the device that is free."""
    UPLOAD_BYTES_PER_S = 7
    """What its uplink has carried at best, lately."""
    TERM = 8
    """A trainer's: the highest term that it has heard of a leader of."""


@dataclass(frozen=True, slots=True, eq=False)
class PeerRecord:
    """What a peer said of itself. `RecordReader.read` and `make` are the only ways to have one."""

    peer: PeerId
    run: bytes
    version: int
    lives_s: int
    card: Card
    standings: tuple[RunStanding, ...]
    signed: SignedRecord
    """The bytes to pass on."""
    entry: bytes
    """What stands for it in a digest: the start of its peer's id, its version, a hash."""

    @property
    def prefix(self) -> bytes:
        """The start of its peer's id, which names it in messages."""
        return self.entry[:PREFIX_BYTES]

    @property
    def left(self) -> bool:
        """Whether the peer says that it has left the run."""
        return not self.standings

    def standing(self, role: int) -> RunStanding | None:
        """What the peer is in one role."""
        return next((each for each in self.standings if each.role == role), None)

    def beats(self, other: "PeerRecord") -> bool:
        """Whether it counts, and not another record of the same peer."""
        return (self.version, self.signed.body) > (other.version, other.signed.body)


def make(
    identity: Identity,
    run: bytes,
    version: int,
    lives_s: int,
    card: Card,
    standings: Iterable[RunStanding],
) -> PeerRecord:
    """Our own record; ValueError if others would not take it."""
    if card.peer != identity.peer_id:
        raise ValueError("a record has its own peer's card")
    body = encode(RecordBody(run, version, lives_s, card.signed, tuple(standings)))
    if len(body) > BODY_BYTES_MAX:
        raise ValueError(f"a record of {len(body)} bytes, over {BODY_BYTES_MAX}")
    return _record(SignedRecord(body, identity.sign(TAG, body)), decode(body), card)


class RecordReader:
    """Reads signed records; what it has read lately, it does not check again."""

    def __init__(self, remembered: int = 1024) -> None:
        """`remembered`: records, about 1 KiB each."""
        self._most = remembered
        self._read: dict[SignedRecord, PeerRecord] = {}

    def read(self, signed: SignedRecord) -> PeerRecord:
        """The record in signed bytes; BadMessage if it breaks a rule or is not its peer's."""
        if (known := self._read.get(signed)) is not None:
            return known
        body = decode(signed.body)
        if not isinstance(body, RecordBody):
            raise BadMessage(f"a directory record with a {type(body).__name__} in it")
        card = read_card(body.card)
        public_key = _public_key(card)
        if not verify(public_key, TAG, signed.body, signed.signature):
            raise BadMessage("a directory record that its peer did not sign")
        record = _record(signed, body, card)
        self._read[signed] = record
        if len(self._read) > self._most:
            del self._read[next(iter(self._read))]
        return record


def contact_of(record: PeerRecord, least: Scope, us: Address) -> Contact | None:
    """Where to dial a peer: the first address that is believed, or its relay; None if nowhere.

    `least`: the smallest scope that we believe; `us`: our own address.
    """
    for address in record.card.addresses:
        if address != us and believable(address, least):
            return Contact(record.peer, address)
    for relay in record.card.relays:
        if believable(relay.at.address, least):
            return Contact(record.peer, relay.at.address.through(record.peer))
    return None


def figures(values: Mapping[FigureKey, float]) -> tuple[Figure, ...]:
    """Named numbers as they travel."""
    return tuple(Figure(key, float(value)) for key, value in sorted(values.items()))


def _public_key(card: Card) -> bytes:
    body = decode(card.signed.body)
    assert isinstance(body, CardBody), "it was read"
    return body.public_key


def _record(signed: SignedRecord, body: object, card: Card) -> PeerRecord:
    assert isinstance(body, RecordBody), "its class was checked"
    assert body.version <= VERSION_MAX, "its fields were checked"
    entry = (
        card.peer.raw[:PREFIX_BYTES]
        + body.version.to_bytes(VERSION_BYTES)
        + hashlib.sha256(signed.body).digest()[:HASH_BYTES]
    )
    return PeerRecord(
        card.peer, body.run, body.version, body.lives_s, card, body.standings, signed, entry
    )
