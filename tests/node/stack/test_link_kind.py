"""By which kind of path people are told that a link leads."""

import pytest

from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.cards.card import Card, CardFlags
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.link.path import Path, PathKind
from p2pswarm.node.stack.link_kind import DIRECT, MAPPED, PUNCHED, RELAYED, kind_of_link

ME, THEM = Identity.generate(), Identity.generate()
PUBLIC, HOME = Address("203.0.114.7", 4000), Address("192.168.1.5", 4000)
THERE, NEIGHBOUR = Address("203.0.114.9", 4000), Address("192.168.1.9", 4000)
AT_RELAY = THERE.through(PeerId(bytes(32)))


def card(direct=(), mapped=(), *, by: Identity = ME) -> Card:
    flags = CardFlags.NONE if direct or mapped else CardFlags.CLIENT
    return Card.make(by, 1, direct, mapped=mapped, flags=flags)


@pytest.mark.parametrize(
    ("kind", "remote", "ours", "told"),
    [
        (PathKind.DIRECT, THERE, card([PUBLIC]), DIRECT),
        (PathKind.PUNCHED, THERE, card([HOME]), PUNCHED),
        (PathKind.RELAYED, AT_RELAY, card([HOME]), RELAYED),
        (None, AT_RELAY, card([HOME]), RELAYED),
        (None, THERE, card([PUBLIC]), DIRECT),
        (None, THERE, card([HOME]), PUNCHED),
        (None, THERE, card(), PUNCHED),
        (None, THERE, card([HOME], [PUBLIC]), MAPPED),
        (None, NEIGHBOUR, card([HOME]), DIRECT),
    ],
)
def test_a_link_is_told_by_what_was_dialled_or_could_have_been(kind, remote, ours, told):
    assert kind_of_link(Path(kind, remote, None), ours, None) == told


def test_who_has_dialled_a_port_of_a_router_sees_it_in_the_card():
    path = Path(PathKind.DIRECT, THERE, None)

    assert kind_of_link(path, card([PUBLIC]), card(mapped=[THERE], by=THEM)) == MAPPED
    assert kind_of_link(path, card([PUBLIC]), card([THERE], by=THEM)) == DIRECT
