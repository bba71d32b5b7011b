"""AccessGate: whom the owner of one run has invited, as one member knows it.

Units:   `now_s` seconds since 1970, UTC, by this machine's clock.
"""

from collections import Counter
from dataclasses import dataclass
from typing import TypeVar

from p2pswarm.base.errors import BadMessage
from p2pswarm.run.access.access_list import KnownList, check_list
from p2pswarm.run.access.grant import Access, check_subject, is_signed, serial_of, time_refusal
from p2pswarm.run.access.messages import (
    CLOCK_TOLERANCE_S,
    PROVEN_MAX,
    REFUSAL_CHARS,
    SIGNED_MAX,
    WARN_BEFORE_S,
    AccessGrant,
    AccessList,
    Token,
)

UNINVITED = "this run is closed: ask its owner for an invitation (p2pswarm invite)"
OTHER_ROLE = "this invitation is for another role: ask the run's owner for one (p2pswarm invite)"
STRANGER = (
    "a stranger may compute in this run, and nothing else: ask its owner for an invitation "
    "(p2pswarm invite --role train)"
)
NOBODY_INVITES = (
    "a stranger may compute in this run, and nothing else: its trainer can invite to more if it "
    "keeps a `state` folder"
)
REVOKED = "this invitation was revoked by the run's owner: ask for another (p2pswarm invite)"


@dataclass(frozen=True, slots=True)
class RunDoor:
    """What the run itself says about who may enter."""

    run: bytes
    owner: bytes
    """The owner's public key; empty: nobody can invite to this run."""
    founder: bytes
    """The peer id of the trainer that made the run: it needs no token."""
    open: bool = False
    """Peers without a token take part, too: they may do what needs no role."""

    @property
    def uninvited(self) -> str:
        """Return why a peer without a token may not do something."""
        if not self.open:
            return UNINVITED
        return STRANGER if self.owner else NOBODY_INVITES


V = TypeVar("V")
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class _Proven:
    token: Token
    serial: bytes


class AccessGate:
    """The peers that the owner of one run has invited.

    It is told the tokens that peers show and the owner's access lists, and says whom to refuse and
    why. In a closed run they are all members; in an open one, those that are no strangers.
    """

    def __init__(
        self, door: RunDoor, me: bytes, token: Token | None, proven_max: int = PROVEN_MAX
    ) -> None:
        """`me`: our own peer id, whose token is `token`."""
        self.door = door
        self.token = token
        self._me = me
        self.known = KnownList()
        self._proven: dict[bytes, _Proven] = {}
        """The peers that have shown a good token, oldest first."""
        self._proven_max = proven_max
        self._signed: dict[AccessGrant, None] = {}
        """Grants whose signature is right, oldest first."""
        self._users: dict[bytes, dict[bytes, None]] = {}
        """The peers that have used a grant of limited uses, by its serial number."""
        self._barred: list[bytes] = []
        self._reasons: dict[bytes, str] = {}
        """Why those were barred that had been members, oldest first."""
        self._warned_until = 0

    @property
    def members(self) -> list[bytes]:
        """The peers that have shown a good token."""
        return list(self._proven)

    def show(self, peer: bytes, token: Token | None, now_s: float) -> str:
        """A peer shows a token, over a link that proves its id; why that is not enough, or "".

        Raises BadMessage for a token that the owner did not sign, or that is another peer's.
        """
        if peer == self.door.founder:
            return self._founder_refusal()
        if token is None:
            return "" if self.door.open else UNINVITED
        known = self._proven.get(peer)
        if known is None or known.token != token:
            self._check(token, peer)
            known = _Proven(token, serial_of(token.grant))
        refusal = self._refusal_of(known.serial, token.grant, peer, now_s)
        if not refusal:
            refusal = self._use(known.serial, token.grant, peer)
        self._proven.pop(peer, None)
        if not refusal:
            self._make_room()
            self._proven[peer] = known
        return refusal

    def refusal(self, peer: bytes, needed: Access, now_s: float) -> str:
        """Return why a peer may not do what any of the roles `needed` may; empty if it may."""
        if not needed:
            return ""
        if peer == self.door.founder:
            return self._founder_refusal()
        known = self._proven.get(peer)
        if known is None:
            return self._reasons.get(peer, self.door.uninvited)
        refusal = self._refusal_of(known.serial, known.token.grant, peer, now_s)
        if not refusal and not known.token.grant.roles & needed:
            refusal = OTHER_ROLE
        return refusal

    def own_refusal(self, now_s: float) -> str:
        """Why we are no member any more, as far as we can tell ourselves; empty if we are."""
        if self._me == self.door.founder:
            return self._founder_refusal()
        if self.token is None:
            return "" if self.door.open else UNINVITED
        grant = self.token.grant
        return self._refusal_of(serial_of(grant), grant, self._me, now_s)

    def learn(self, access: AccessList, now_s: float) -> bool:
        """Learn a list; True if it is newer than ours; BadMessage if it is not the owner's."""
        if access.version <= self.known.version:
            if access.run != self.door.run:
                raise BadMessage("an access list of another run")
            return False  # nothing follows from it: its signature does not matter
        check_list(access, self.door.run, self.door.owner)
        self.known.replace(access)
        if self._founder_refusal():
            self._barred.append(self.door.founder)
        self.on_deadline(now_s)
        return True

    def barred(self) -> list[bytes]:
        """The peers that were members and are not any more; drained by reading."""
        drained, self._barred = self._barred, []
        return drained

    def warning(self, now_s: float) -> int | None:
        """Return when our own token expires, if that is soon and was not said before."""
        if self.token is None:
            return None
        until = self._not_after(serial_of(self.token.grant), self.token.grant)
        if now_s < until - WARN_BEFORE_S or until <= self._warned_until:
            return None
        self._warned_until = until
        return until

    def next_deadline_s(self) -> float | None:
        """Return when the first token expires."""
        times = [self._not_after(one.serial, one.token.grant) for one in self._proven.values()]
        return min(times) + CLOCK_TOLERANCE_S if times else None

    def on_deadline(self, now_s: float) -> None:
        """Forget whose token is not good any more."""
        for peer, known in list(self._proven.items()):
            if refusal := self._refusal_of(known.serial, known.token.grant, peer, now_s):
                del self._proven[peer]
                self._barred.append(peer)
                self._reasons.pop(peer, None)
                remember(self._reasons, peer, self._proven_max, refusal)

    def _check(self, token: Token, peer: bytes) -> None:
        """Raise BadMessage unless the owner signed the grant, and it is this peer's."""
        grant = token.grant
        if grant.run != self.door.run:
            raise BadMessage("a token of another run")
        if grant not in self._signed:
            if not is_signed(grant, self.door.owner):
                raise BadMessage("a token that the run's owner did not sign")
            remember(self._signed, grant, SIGNED_MAX, None)
        check_subject(token, peer)

    def _founder_refusal(self) -> str:
        """The founder has no token that could expire: its peer id alone can be revoked."""
        return REVOKED if self.known.revoked(b"", self.door.founder) else ""

    def _refusal_of(self, serial: bytes, grant: AccessGrant, peer: bytes, now_s: float) -> str:
        if self.known.revoked(serial, peer):
            return REVOKED
        return time_refusal(grant.not_before, self._not_after(serial, grant), now_s)

    def _not_after(self, serial: bytes, grant: AccessGrant) -> int:
        return self.known.not_after(serial, grant.not_after)

    def _use(self, serial: bytes, grant: AccessGrant, peer: bytes) -> str:
        """Count the peers that use a grant of limited uses."""
        if not grant.uses:
            return ""
        users = self._users.pop(serial, {})
        remember(self._users, serial, SIGNED_MAX, users)
        if peer not in users and len(users) >= grant.uses:
            return (
                f"this invitation has been used by {grant.uses} peers, as many as it is for: start "
                "the node with the identity that it had (--identity), or ask for another"
            )[:REFUSAL_CHARS]
        users[peer] = None
        return ""

    def _make_room(self) -> None:
        """Forget the oldest peer of the grant that most peers use, if there are too many."""
        if len(self._proven) < self._proven_max:
            return
        counts = Counter(one.serial for one in self._proven.values())
        largest = max(counts, key=lambda one: (counts[one], one))
        oldest = next(peer for peer, one in self._proven.items() if one.serial == largest)
        del self._proven[oldest]


def remember(table: dict[K, V], key: K, most: int, value: V) -> None:
    """Put an entry into a table of at most so many; the oldest makes way."""
    if len(table) >= most:
        del table[next(iter(table))]
    table[key] = value
