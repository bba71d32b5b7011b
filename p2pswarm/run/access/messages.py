"""What members of a closed run show each other, and what its owner tells them all.

docs/closed_runs.md argues each limit.

Units:   times in whole seconds since 1970, UTC.
"""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range, Size, message

CLOCK_TOLERANCE_S = 300  # clocks may differ by so much
GRANT_MAX_S = 10 * 366 * 86_400  # a typing error is no eternity
TIME_MAX_S = (1 << 40) - 1  # five bytes in an invitation
USES_MAX = 256
PROVEN_MAX = 4_096  # peers whose tokens are remembered
SIGNED_MAX = 1_024  # grants whose signature was checked already
REVOKED_SERIALS_MAX = 1_024
REVOKED_PEERS_MAX = 512
EXTENDED_MAX = 512
SERIAL_BYTES = 8
REFUSAL_CHARS = 200  # one line
INVITATION_CHARS_MAX = 1_024
ADDRESSES_MAX = 4  # in an invitation
WARN_BEFORE_S = 86_400  # a member says so long before that its invitation expires


Run = Annotated[bytes, Size(16, 16)]
Serial = Annotated[bytes, Size(SERIAL_BYTES, SERIAL_BYTES)]
Signature = Annotated[bytes, Size(64, 64)]
UnixTime = Annotated[int, Range(0, TIME_MAX_S)]
ListVersion = Annotated[int, Range(0, 2**48)]
"""Of an access list; 0: there is none."""


@message(128)
@dataclass(frozen=True, slots=True)
class AccessGrant(Message):
    """What the owner of a run signs: somebody may be its member."""

    run: Run
    subject: Annotated[bytes, Size(32, 32)]
    """A peer id; or the public key of an invitation, if it is for its bearer."""
    bearer: bool
    """True if it is for whoever has the invitation's key."""
    roles: Annotated[int, Range(1, 7)]
    uses: Annotated[int, Range(0, USES_MAX)]
    """How many peers may use it; 0: as many as want to."""
    not_before: UnixTime
    not_after: UnixTime
    signature: Signature
    """The owner's, over all above."""


@message(129)
@dataclass(frozen=True, slots=True)
class Token(Message):
    """What a peer shows to prove that it is a member."""

    grant: AccessGrant
    binding: Annotated[bytes, Size(0, 64)]
    """The signature of the invitation's key over the peer's id; empty if the grant names that."""


@dataclass(frozen=True, slots=True)
class Extension(Message):
    """A grant holds for longer than it says."""

    serial: Serial
    not_after: UnixTime


@message(132)
@dataclass(frozen=True, slots=True)
class AccessList(Message):
    """What the owner has taken back or renewed; of two lists that of the higher version counts."""

    run: Run
    version: Annotated[int, Range(1, 2**48)]
    serials: Annotated[tuple[Serial, ...], Size(REVOKED_SERIALS_MAX)]
    """Grants that are revoked."""
    peers: Annotated[tuple[Annotated[bytes, Size(32, 32)], ...], Size(REVOKED_PEERS_MAX)]
    """Peers that are no members, whatever they show."""
    extended: Annotated[tuple[Extension, ...], Size(EXTENDED_MAX)]
    signature: Signature
    """The owner's, over all above."""


@message(130)
@dataclass(frozen=True, slots=True)
class ShowToken(Message):
    """A member shows its token; answered by `TokenShown`."""

    run: Run
    token: Token | None
    """None from the run's founder, and from one that has nothing to show and wants the list."""
    version: ListVersion
    """Of the access list that the sender has."""


@message(131)
@dataclass(frozen=True, slots=True)
class TokenShown(Message):
    """The answer of another member."""

    token: Token | None
    """Its own."""
    refusal: Annotated[str, Size(REFUSAL_CHARS)]
    """Why what was shown is not enough; empty if it is."""
    version: ListVersion
    """Of the access list that it has."""
    access: AccessList | None
    """That list, if it is newer."""


@message(133)
@dataclass(frozen=True, slots=True)
class TellAccess(Message):
    """There is a newer access list; whoever has it may tell it."""

    access: AccessList


@message(134)
@dataclass(frozen=True, slots=True)
class AccessKnown(Message):
    """The version of the list that the receiver of a list has now."""

    version: ListVersion
