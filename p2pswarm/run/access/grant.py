"""Grants and tokens: who signs what, and whether a token is good for a peer.

    owner's key -> grant -> a peer id
                        -> an invitation's key -> a peer id

Units:   times in seconds since 1970, UTC.
Errors:  BadMessage for a token that is forged, or shown by somebody else; ValueError for our own
         misuse. What is not good now is no error: `time_refusal` says why, in words.
"""

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntFlag

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import PeerId
from p2pswarm.net.crypto.identity import Identity, verify
from p2pswarm.run.access.messages import (
    CLOCK_TOLERANCE_S,
    GRANT_MAX_S,
    SERIAL_BYTES,
    AccessGrant,
    Token,
)

GRANT_TAG = b"p2pswarm-grant-1:"
BINDING_TAG = b"p2pswarm-grant-binding-1:"
SERIAL_TAG = b"p2pswarm-grant-serial-1:"


class Access(IntFlag):
    """What a member may do."""

    SERVE = 1
    TRAIN = 2
    WATCH = 4


ROLES = {
    "serve": Access.SERVE | Access.WATCH,
    "train": Access.SERVE | Access.TRAIN | Access.WATCH,
    "watch": Access.WATCH,
}
"""The roles that an owner names."""
ANY = Access.SERVE | Access.TRAIN | Access.WATCH


@dataclass(frozen=True, slots=True)
class GrantTerms:
    """What a grant allows, and for how long."""

    roles: Access
    not_before: int
    not_after: int
    uses: int = 0
    """How many peers may use it; 0: as many as want to."""

    def __post_init__(self) -> None:
        if not 0 < self.not_after - self.not_before <= GRANT_MAX_S:
            raise ValueError(f"a grant lasts from 1 s to {GRANT_MAX_S // 86_400} days")


def sign_grant(
    owner: Identity, run: bytes, subject: bytes | PeerId, terms: GrantTerms
) -> AccessGrant:
    """The owner's word that a peer, or who has the key `subject`, may be a member of a run."""
    bearer = not isinstance(subject, PeerId)
    raw = subject.raw if isinstance(subject, PeerId) else subject
    times = terms.not_before, terms.not_after
    grant = AccessGrant(run, raw, bearer, int(terms.roles), terms.uses, *times, bytes(64))
    return replace(grant, signature=owner.sign(GRANT_TAG, signed_part(grant)))


def signed_part(grant: AccessGrant) -> bytes:
    """The bytes that the owner's signature covers; each field has a fixed length."""
    numbers = (
        bytes([grant.bearer, grant.roles])
        + grant.uses.to_bytes(2)
        + grant.not_before.to_bytes(8)
        + grant.not_after.to_bytes(8)
    )
    return grant.run + grant.subject + numbers


def is_signed(grant: AccessGrant, owner: bytes) -> bool:
    """Return whether the holder of the public key `owner` signed a grant."""
    return verify(owner, GRANT_TAG, signed_part(grant), grant.signature)


def serial_of(grant: AccessGrant) -> bytes:
    """The name of a grant: two grants have two."""
    return hashlib.sha256(SERIAL_TAG + signed_part(grant)).digest()[:SERIAL_BYTES]


def token_for(grant: AccessGrant, key: Identity | None, peer: PeerId) -> Token:
    """Return what `peer` shows, by its invitation's `key`; ValueError for another peer's grant."""
    if not grant.bearer:
        if grant.subject != peer.raw:
            raise ValueError(f"a grant for {PeerId(grant.subject).short}, not for {peer.short}")
        return Token(grant, b"")
    if key is None or key.public_key != grant.subject:
        raise ValueError("a grant for the holder of another key")
    return Token(grant, key.sign(BINDING_TAG, _bound(grant, peer.raw)))


def check_subject(token: Token, peer: bytes) -> None:
    """Raise BadMessage unless the token is this peer's; who signed its grant is not checked."""
    grant = token.grant
    if grant.bearer:
        if not verify(grant.subject, BINDING_TAG, _bound(grant, peer), token.binding):
            raise BadMessage("a token that is bound to another peer")
    elif grant.subject != peer or token.binding:
        raise BadMessage("a token of another peer")


def time_refusal(not_before: int, not_after: int, now_s: float) -> str:
    """Return why a grant of these times is not good now; empty if it is."""
    if now_s < not_before - CLOCK_TOLERANCE_S:
        return f"this invitation is good from {day(not_before)} on: compare the clocks"
    if now_s > not_after + CLOCK_TOLERANCE_S:
        return (
            f"this invitation expired on {day(not_after)}: ask the run's owner to renew it "
            "(p2pswarm renew)"
        )
    return ""


def day(unix_s: int) -> str:
    """A time as people write it."""
    if unix_s > 253_402_300_799:  # noqa: PLR2004 - the end of the year 9999, the last of datetime
        return "a day after the year 9999"
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _bound(grant: AccessGrant, peer: bytes) -> bytes:
    return grant.run + serial_of(grant) + peer
