"""A closed run, its owner, and peers."""

from p2pswarm.base.ids import PeerId
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.access.gate import AccessGate, RunDoor
from p2pswarm.run.access.grant import ROLES, GrantTerms
from p2pswarm.run.access.invitation import Invitation, invite_bearer, invite_peer

OWNER, STRANGER = Identity.generate(b"owner"), Identity.generate(b"stranger")
RUN, OTHER_RUN = b"r" * 16, b"o" * 16
FOUNDER, ANN, BOB, EVE = (PeerId(name * 32) for name in (b"f", b"a", b"b", b"e"))
NOW_S = 1_800_000_000
DAY_S = 86_400
DOOR = RunDoor(RUN, OWNER.public_key, FOUNDER.raw)


def terms(role: str = "serve", days: int = 7, uses: int = 0) -> GrantTerms:
    return GrantTerms(ROLES[role], NOW_S, NOW_S + days * DAY_S, uses)


def bearer(
    seed: bytes = b"s" * 16, owner: Identity = OWNER, run: bytes = RUN, **about
) -> Invitation:
    return invite_bearer(owner, run, terms(**about), seed)


def personal(peer: PeerId = ANN, **about) -> Invitation:
    return invite_peer(OWNER, RUN, terms(**about), peer)


def gate(me: PeerId = FOUNDER, invitation: Invitation | None = None, **limits) -> AccessGate:
    token = invitation.token(me) if invitation else None
    return AccessGate(DOOR, me.raw, token, **limits)
