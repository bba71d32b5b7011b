"""PathSearch: the path candidates of a peer, and when a link that needs a path tries them.

Source:  docs/paths.md, docs/addresses.md; RFC 8305 for the order.
"""

from collections.abc import Callable, Sequence

from p2pswarm.base.errors import NobodyThere, SwarmError, UnknownLink
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card_book import CardBook
from p2pswarm.net.cards.card_claims import CardClaims
from p2pswarm.net.link.path import (
    CandidateSource,
    ClaimedCandidate,
    DialledCandidate,
    Path,
    PathCandidate,
    PathKind,
    address_of,
)
from p2pswarm.net.os.base import Net


class CardCandidates:
    """Implements `CandidateSource` with what is known of peers.

    First the contact's address: whoever dials has a reason to believe it. Then where the peer's
    card says that it is, IPv6 first; then candidates that somebody else offers, such as a hole to
    punch; relays last. An address that only the card names is tried as `card_claims.py` allows.
    """

    offered: CandidateSource | None
    """A source of still other candidates; they come before relays."""

    def __init__(
        self,
        net: Net,
        book: CardBook,
        claims: CardClaims,
        us: Callable[[], Sequence[Address]],
        now_s: Callable[[], float],
    ) -> None:
        """`us`: tells our own addresses, which are not dialled; `now_s`: tells the loop's time."""
        self._net = net
        self._book = book
        self._claims = claims
        self._us = us
        self._now_s = now_s
        self.offered = None

    def candidates(self, to: Contact) -> Sequence[PathCandidate]:
        """The candidates that may be tried now, the best kind first; see `CandidateSource`."""
        known: dict[Address, PathCandidate] = {}
        if to.address.port:
            known[to.address] = DialledCandidate(self._net, to.address)
        if to.peer is not None:
            now_s, us = self._now_s(), self._us()
            for named in (*self._book.direct(to.peer, us), *self._book.relayed(to.peer, us)):
                if named.address in known:
                    continue
                if self._claims.confirmed(named):
                    known[named.address] = DialledCandidate(self._net, named.address)
                elif self._claims.may_dial(named, now_s):
                    known[named.address] = ClaimedCandidate(
                        self._net, named, self._claims, self._now_s
                    )
        offered = () if self.offered is None else self.offered.candidates(to)
        return sorted((*known.values(), *offered), key=lambda candidate: candidate.kind)


PAUSE_S = 0.1  # before the second round
PAUSE_S_MAX = 1.0
CLIMB_S_MAX = (
    5.0  # between two tries of a better candidate: a direct path is used 10 s after it is back
)
KEEP_S = 0.2  # a doubted path has so long to bring something, once the peer answers elsewhere
PEER_COMES_S = 1.0  # a peer that lives has dialled by then, through a relay too
HOST_REFUSES_S = 0.3  # the same where nothing but a firewall between can have spoken for its host


def was_refused(error: SwarmError) -> bool:
    """Return whether this failure of a candidate says that the peer's process is over.

    A relay that is gone says nothing of the peer behind it; one that knows no such peer does.
    """
    return isinstance(error, UnknownLink | NobodyThere)


class PathSearch:
    """One search, from the loss of a path to the next one.

    All candidates are tried beside each other, the best one a little ahead. If all fail, they are
    tried again after a pause that doubles. A candidate is *refused* where a host answers that
    nobody listens, or a peer that it does not know the link. If every candidate is refused, the
    peer's process is over as far as we can tell: who dialled the link gives up at once. Who was
    dialled waits a little for the peer to come, less if its own host refused than if a relay did,
    or if no candidate is known.
    """

    def __init__(self, now_s: float, wait_s: float, *, peer_may_come: bool) -> None:
        """`wait_s`: how long the link is kept. `peer_may_come`: whether the peer dials us, too."""
        self._begun_s = now_s
        self._by_s = now_s + wait_s
        self._peer_may_come = peer_may_come
        self._pause_s = PAUSE_S

    def next_round_s(
        self, candidates: int, refused: Sequence[PathKind], now_s: float
    ) -> float | None:
        """Return when to try all candidates again; None to give up. `refused`: by their kinds."""
        by_s = self._by_s
        if len(refused) == candidates:
            wait_s = HOST_REFUSES_S if PathKind.DIRECT in refused else PEER_COMES_S
            by_s = self._begun_s + wait_s if self._peer_may_come else now_s
        at_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        return min(at_s, by_s) if now_s < by_s else None


class PathClimb:
    """The pauses between tries of better candidates: none at first, then ever longer ones."""

    def __init__(self) -> None:
        self._pause_s = 0.0

    def next_try_s(self, now_s: float) -> float:
        """Return when to try them next."""
        at_s = now_s + self._pause_s
        self._pause_s = min(max(2 * PAUSE_S, 2 * self._pause_s), CLIMB_S_MAX)
        return at_s


def better(candidates: Sequence[PathCandidate], path: Path | None) -> list[PathCandidate]:
    """The candidates that give a better path than this one."""
    if path is None or path.candidate is None:
        return []
    kind = path.candidate.kind
    return [candidate for candidate in candidates if candidate.kind < kind]


def doubted_last(candidates: Sequence[PathCandidate], path: Path | None) -> list[PathCandidate]:
    """Return the candidates in the order to try them: last those that a doubted path may be by.

    The same one may well lead to the peer again, where a router has only forgotten a connection.
    """
    return (
        list(candidates)
        if path is None
        else sorted(candidates, key=lambda candidate: _like(candidate, path))
    )


def _like(candidate: PathCandidate, path: Path) -> bool:
    """Return whether a candidate leads where a path does: by host if the peer chose the path."""
    address = address_of(candidate)
    if address is None:
        return candidate == path.candidate
    if path.candidate is not None:
        return address == address_of(path.candidate)
    return address.host == path.remote.host and bool(address.circuit) is bool(path.remote.circuit)
