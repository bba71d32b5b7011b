"""An invitation as a line of text: a grant, the seed of its key, and where to join.

    "p2pswarm-invite-" base64url( version u8 | flags u8 | roles u8 | uses u16 | not before u40 |
                                  not after u40 | run 16 | signature 64 | seed 16, or peer id 32 |
                                  addresses, separated by commas | checksum 4 )

The checksum is the first bytes of the SHA-256 of all before it: it finds a mistyped line, and
protects against nothing else.

Units:   bytes; times in seconds since 1970, UTC.
"""

import base64
import hashlib
import struct
from dataclasses import dataclass

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.access.grant import GrantTerms, sign_grant, token_for
from p2pswarm.run.access.messages import (
    ADDRESSES_MAX,
    GRANT_MAX_S,
    INVITATION_CHARS_MAX,
    USES_MAX,
    AccessGrant,
    Token,
)

PREFIX = "p2pswarm-invite-"
VERSION = 1
BEARER = 1
SEED_BYTES, PEER_BYTES, CHECKSUM_BYTES = 16, 32, 4
KEY_TAG = b"p2pswarm-invitation-key-1:"
MISTYPED = (
    "is not whole or has a wrong character: copy the line that `p2pswarm invite` printed again"
)
_FIXED = struct.Struct(">BBBH5s5s16s64s")


@dataclass(frozen=True, slots=True)
class Invitation:
    """What somebody who is invited has."""

    grant: AccessGrant
    seed: bytes
    """Of the invitation's key; empty if the grant is for a peer id."""
    addresses: tuple[Address, ...] = ()
    """Nodes through which the run's swarm can be joined."""

    @property
    def run(self) -> bytes:
        """The id of the run."""
        return self.grant.run

    def token(self, peer: PeerId) -> Token:
        """Return what `peer` shows. Raises Unusable for an invitation of another peer."""
        try:
            return token_for(self.grant, key_of(self.seed) if self.seed else None, peer)
        except ValueError as error:
            raise Unusable(
                f"this invitation is {error}: start the node with the identity that it is for "
                "(--identity FILE), or ask for another invitation"
            ) from error


def invite_bearer(
    owner: Identity, run: bytes, terms: GrantTerms, seed: bytes, addresses: tuple[Address, ...] = ()
) -> Invitation:
    """An invitation for whoever has its text; `seed` is 16 bytes of chance."""
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    grant = sign_grant(owner, run, key_of(seed).public_key, terms)
    return Invitation(grant, seed, addresses[:ADDRESSES_MAX])


def invite_peer(
    owner: Identity,
    run: bytes,
    terms: GrantTerms,
    peer: PeerId,
    addresses: tuple[Address, ...] = (),
) -> Invitation:
    """An invitation for one peer: its text is no secret."""
    return Invitation(sign_grant(owner, run, peer, terms), b"", addresses[:ADDRESSES_MAX])


def key_of(seed: bytes) -> Identity:
    """The key of an invitation."""
    return Identity.generate(KEY_TAG + seed)


def as_text(invitation: Invitation) -> str:
    """The line that its user pastes."""
    grant = invitation.grant
    fixed = _FIXED.pack(
        VERSION,
        BEARER if grant.bearer else 0,
        grant.roles,
        grant.uses,
        grant.not_before.to_bytes(5),
        grant.not_after.to_bytes(5),
        grant.run,
        grant.signature,
    )
    whom = invitation.seed if grant.bearer else grant.subject
    data = fixed + whom + ",".join(map(str, invitation.addresses)).encode()
    return PREFIX + base64.urlsafe_b64encode(data + _checksum(data)).decode().rstrip("=")


def from_text(text: str) -> Invitation:
    """Read what `as_text` wrote; white space and line breaks within it do not matter."""
    whole = "".join(text.split()) if len(text) <= 2 * INVITATION_CHARS_MAX else text
    if not whole.startswith(PREFIX):
        raise Unusable(f"an invitation begins with {PREFIX}: give the whole line")
    if len(whole) > INVITATION_CHARS_MAX:
        raise Unusable(f"the invitation is longer than {INVITATION_CHARS_MAX} characters")
    try:
        return _read(_checked(whole.removeprefix(PREFIX)))
    except ValueError as error:
        raise Unusable(f"the invitation {MISTYPED}") from error


def _checked(body: str) -> bytes:
    data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    data, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    if _checksum(data) != checksum or len(data) < _FIXED.size + SEED_BYTES:
        raise ValueError("a wrong checksum, or too few bytes")
    return data


def _read(data: bytes) -> Invitation:
    """The invitation of bytes whose checksum is right: they may still have been made by anybody."""
    if data[0] != VERSION:
        raise Unusable("the invitation is of another release of p2pswarm: install the same one")
    _, flags, roles, uses, begin, end, run, signature = _FIXED.unpack_from(data)
    rest = data[_FIXED.size :]
    bearer = flags == BEARER
    size = SEED_BYTES if bearer else PEER_BYTES
    whom, places = rest[:size], rest[size:]
    not_before, not_after = int.from_bytes(begin), int.from_bytes(end)
    sane = 1 <= roles <= 7 and uses <= USES_MAX and 0 < not_after - not_before <= GRANT_MAX_S  # noqa: PLR2004
    if not sane or flags > BEARER or len(whom) < size:
        raise ValueError("impossible roles, uses, times or flags, or too few bytes")
    texts = places.decode("ascii").split(",") if places else []
    addresses = tuple(Address.parse(place) for place in texts[: ADDRESSES_MAX + 1])
    if len(addresses) > ADDRESSES_MAX:
        raise ValueError("too many addresses")
    subject = key_of(whom).public_key if bearer else whom
    grant = AccessGrant(run, subject, bearer, roles, uses, not_before, not_after, signature)
    return Invitation(grant, whom if bearer else b"", addresses)


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:CHECKSUM_BYTES]
