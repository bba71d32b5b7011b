"""By which kind of path a link leads to its peer, as people are told.

A side that has dialled knows what it has dialled. The other one sees an address only: it was
dialled at one that it has announced, or else through a hole that it has punched.

Units:   none.
Errors:  none.
Source:  docs/paths.md; docs/relays.md, "Which path a link has".
"""

from p2pswarm.net.cards.card import AddressKind, Card
from p2pswarm.net.link.path import Path, PathKind
from p2pswarm.net.os.addresses import Scope, scope_of

DIRECT, MAPPED, PUNCHED, RELAYED = "direct", "mapped", "punched", "relayed"


def kind_of_link(path: Path, ours: Card, theirs: Card | None) -> str:
    """One of the four kinds; `ours`, `theirs`: the cards of the two ends."""
    if path.remote.circuit or path.kind is PathKind.RELAYED:
        return RELAYED
    if path.kind is PathKind.PUNCHED:
        return PUNCHED
    if path.kind is PathKind.DIRECT:
        mapped = theirs is not None and any(
            each.kind == AddressKind.MAPPED and each.address == path.remote
            for each in theirs.direct
        )
        return MAPPED if mapped else DIRECT
    if scope_of(path.remote.host) is not Scope.PUBLIC:
        return DIRECT  # a neighbour
    kinds = [each.kind for each in ours.direct if scope_of(each.host) is Scope.PUBLIC]
    if not kinds:
        return PUNCHED  # a stranger who was let in, where nobody is
    return MAPPED if all(kind == AddressKind.MAPPED for kind in kinds) else DIRECT
