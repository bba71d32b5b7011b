"""A record of the directory: what a peer says of itself, for one run, signed by itself.

Nobody but the peer can make or change it, so anybody may pass it on. Of two records of a peer the
one with the higher version counts, and of equal versions the one whose bytes are higher, so all
who have seen both agree.

Units:   bytes; `lives_s` seconds; versions in milliseconds since 1970 where the peer's clock is
         right.
Source:  docs/directory.md.
"""

import hashlib
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.base.recent_items import RecentItems
from p2pswarm.discovery.gossip.messages import (
    BODY_BYTES_MAX,
    LIFE_MOST_S,
    PREFIX_BYTES,
    VERSION_MAX,
    Figure,
    RecordBody,
    RunRole,
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


class RoleKind(IntEnum):
    """The role of a peer in a run. Unknown codes are kept and mean nothing."""

    SERVER = 1
    TRAINER = 2
    OBSERVER = 3


class Activity(IntEnum):
    """The progress of a peer in its role."""

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
    """The most that its uplink has carried lately."""
    TERM = 8
    """A trainer's: the highest term that it has heard of a leader of."""


@dataclass(frozen=True, slots=True, eq=False)
class PeerRecord:
    """A peer's own record. `RecordReader.read` and `make` are the only ways to have one."""

    peer: PeerId
    run: bytes
    version: int
    lives_s: int
    card: Card
    roles: tuple[RunRole, ...]
    signed: SignedRecord
    """The bytes to pass on."""
    entry: bytes
    """Its entry in a digest: the start of its peer's id, its version, a hash."""

    @property
    def prefix(self) -> bytes:
        """The start of its peer's id, which names it in messages."""
        return self.entry[:PREFIX_BYTES]

    @property
    def left(self) -> bool:
        """True if the peer says that it has left the run."""
        return not self.roles

    def role(self, role: int) -> RunRole | None:
        """Return the state of the peer in one role."""
        return next((each for each in self.roles if each.role == role), None)

    def beats(self, other: "PeerRecord") -> bool:
        """Return whether it counts, and not another record of the same peer."""
        return (self.version, self.signed.body) > (other.version, other.signed.body)


def make(
    identity: Identity, run: bytes, version: int, lives_s: int, card: Card, roles: Iterable[RunRole]
) -> PeerRecord:
    """Our own record; ValueError if others would not take it."""
    if card.peer != identity.peer_id:
        raise ValueError("a record has its own peer's card")
    body = encode(RecordBody(run, version, lives_s, card.signed, tuple(roles)))
    if len(body) > BODY_BYTES_MAX:
        raise ValueError(f"a record of {len(body)} bytes, over {BODY_BYTES_MAX}")
    return _record(SignedRecord(body, identity.sign(TAG, body)), decode(body), card)


class RecordReader:
    """Reads signed records; what it has read lately, it does not check again."""

    def __init__(self, remembered: int = 1024) -> None:
        """`remembered`: records, about 1 KiB each."""
        self._read: RecentItems[SignedRecord, PeerRecord] = RecentItems(remembered)

    def read(self, signed: SignedRecord) -> PeerRecord:
        """The record in signed bytes; BadMessage if it breaks a rule or is not its peer's."""
        if (known := self._read.get(signed)) is not None:
            return known
        body = decode(signed.body)
        if not isinstance(body, RecordBody):
            raise BadMessage(f"a directory record with a {type(body).__name__} in it")
        card = read_card(body.card)
        card_body = decode(card.signed.body)
        assert isinstance(card_body, CardBody), "it was read"
        if not verify(card_body.public_key, TAG, signed.body, signed.signature):
            raise BadMessage("a directory record that its peer did not sign")
        record = _record(signed, body, card)
        self._read[signed] = record
        return record


def contact_of(record: PeerRecord, least: Scope, us: Address) -> Contact | None:
    """The first address of a peer that is believed, or its relay's; None if there is none.

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


def _record(signed: SignedRecord, body: object, card: Card) -> PeerRecord:
    assert isinstance(body, RecordBody), "its class was checked"
    assert body.version <= VERSION_MAX, "its fields were checked"
    entry = (
        card.peer.raw[:PREFIX_BYTES]
        + body.version.to_bytes(VERSION_BYTES)
        + hashlib.sha256(signed.body).digest()[:HASH_BYTES]
    )
    return PeerRecord(
        card.peer, body.run, body.version, body.lives_s, card, body.roles, signed, entry
    )


RENEW_LEAST_S = 5.0  # a load that is older says little
RENEWALS_PER_S = 50.0  # of all members together: 17 KB a second at each
URGENT_LEAST_S = 1.0  # between two records, whatever happens
JITTER = 0.1
LIVES = 3  # renewals, of which two may fail
SLACK_S = 30.0  # beside them: spreading takes 15 s among 1,000, and a process may be stopped
NEVER_S = float("inf")


class OwnRecord:
    """Our own record in one run: what it says, and when it is renewed.

    What concerns others goes out at once. Everything else waits for the next renewal, and renewals
    are rarer the more members there are, so that all together make no more than a member can
    follow: see docs/directory.md, "Life".
    """

    def __init__(self, identity: Identity, run: bytes, rng: random.Random) -> None:
        self.peer = identity.peer_id
        self.run = run
        self._identity = identity
        self._rng = rng
        self._roles: dict[int, RunRole] = {}
        self._said: tuple[object, ...] = ()
        """The facts that others were told because they concern them."""
        self._version = 0
        self._lives_s = 1
        self._signed_s = -NEVER_S
        self._renew_s = NEVER_S
        self._urgent = False

    def set_role(self, role: RunRole) -> None:
        """Say from now on what we are in one role."""
        self._roles[role.role] = role
        self._urgent = self._urgent or self._concerns(self._said[0] if self._said else None)

    def withdraw(self, role: int) -> None:
        """Have one role no longer."""
        if self._roles.pop(role, None) is not None:
            self._urgent = True

    def leave(self) -> bool:
        """Have no role any more; whether others were told of one."""
        self._roles.clear()
        return bool(self._said and self._said[1])

    def on_card(self, card: Card) -> None:
        """Our card as it is now: a new one goes out at once."""
        self._urgent = self._urgent or (bool(self._said) and self._concerns(card.seq))

    def on_version(self, version: int, now_s: float) -> None:
        """Sign the next record above one of ours that we do not know, which others have.

        We were here before, or our clock is wrong. The version of the end of time cannot be passed.
        """
        if self._version < version < VERSION_MAX:
            self._version = version
            self._renew_s = min(self._renew_s, now_s)

    def next_deadline_s(self) -> float:
        """Return when to sign the next record; infinite if there is nothing to say."""
        if not self._roles and not self._said:
            return NEVER_S
        if self._urgent:
            return self._signed_s + URGENT_LEAST_S
        return max(self._renew_s, self._signed_s + URGENT_LEAST_S)

    def sign(self, card: Card, members: int, now_s: float, wall_ms: int) -> PeerRecord:
        """The next record. Without a role it says that we have left."""
        period_s = max(RENEW_LEAST_S, members / RENEWALS_PER_S)
        lives_s = min(math.ceil(LIVES * period_s + SLACK_S), LIFE_MOST_S)
        if not self._roles:
            lives_s = max(lives_s, self._lives_s)  # it outlives the last one
        self._version = min(max(self._version + 1, wall_ms), VERSION_MAX)
        self._lives_s, self._signed_s, self._urgent = lives_s, now_s, False
        self._renew_s = now_s + period_s * self._rng.uniform(1 - JITTER, 1 + JITTER)
        if not self._roles:
            self._renew_s = NEVER_S
        self._said = card.seq, self._outlines()
        roles = (self._roles[role] for role in sorted(self._roles))
        return make(self._identity, self.run, self._version, lives_s, card, roles)

    def _concerns(self, card_seq: object) -> bool:
        """Return whether others were told something else, figures aside."""
        return (card_seq, self._outlines()) != self._said

    def _outlines(self) -> tuple[RunRole, ...]:
        return tuple(replace(self._roles[r], figures=()) for r in sorted(self._roles))
