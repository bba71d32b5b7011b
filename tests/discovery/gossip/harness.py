"""Peers with records, and directories that are compared without a network."""

import random
from collections.abc import Iterable

from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.gossip.directory import Directory, everybody
from p2pswarm.discovery.gossip.gossip import Gossip, Partners
from p2pswarm.discovery.gossip.messages import PREFIX_BYTES, Compared, RunRole
from p2pswarm.discovery.gossip.record import (
    Activity,
    OwnRecord,
    PeerRecord,
    RecordReader,
    RoleKind,
    make,
)
from p2pswarm.net.cards.card import Card
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.os.addresses import Scope

RUN, OTHER_RUN = b"r" * 16, b"q" * 16
SERVING = RunRole(RoleKind.SERVER, Activity.WORKING, 0)
TRAINING = RunRole(RoleKind.TRAINER, Activity.WORKING)
NAMES = "alice", "bob", "carol", "dave", "eve"
PEERS = {name: Identity.generate(name.encode()) for name in NAMES}
ADDRESSES = {name: Address(f"10.0.0.{at}", 4000) for at, name in enumerate(NAMES, start=1)}
LIFE_S = 60
READER = RecordReader()


def card(name: str, *addresses: Address, seq: int = 1) -> Card:
    return Card.make(PEERS[name], seq, addresses or [ADDRESSES[name]])


def record(
    name: str,
    version: int = 1,
    *roles: RunRole,
    run: bytes = RUN,
    lives_s: int = LIFE_S,
    left: bool = False,
    at: Address | None = None,
) -> PeerRecord:
    said = () if left else roles or (SERVING,)
    return make(PEERS[name], run, version, lives_s, card(name, *([at] if at else [])), said)


def stranger(number: int, host: str, version: int = 1, *roles: RunRole) -> PeerRecord:
    """A record of one of many peers."""
    identity = Identity.generate(b"stranger %d" % number)
    where = Card.make(identity, 1, [Address(host, 4000)] if host else [])
    return make(identity, RUN, version, LIFE_S, where, roles or (SERVING,))


def contact(name: str) -> Contact:
    return Contact(PEERS[name].peer_id, ADDRESSES[name])


def directory(*records: PeerRecord, seed: int = 1, now_s: float = 0.0) -> Directory:
    made = Directory(random.Random(seed))
    for each in records:
        made.take(each, 0.0, now_s)
    return made


def give(target: Directory, answer: Compared, now_s: float) -> None:
    for aged in answer.records:
        target.take(READER.read(aged.record), aged.age_s, now_s)


def exchange(asker: Directory, other: Directory, now_s: float = 0.0) -> None:
    """One exchange, as `Gossip` makes it."""
    answer = other.answer(asker.question(RUN), now_s)
    give(asker, answer, now_s)
    wanted = [
        answer.wanted[at : at + PREFIX_BYTES] for at in range(0, len(answer.wanted), PREFIX_BYTES)
    ]
    for aged in asker.records(wanted, now_s):
        other.take(READER.read(aged.record), aged.age_s, now_s)


def member(name: str, admitted=everybody) -> Gossip:
    rng = random.Random(1)
    own = OwnRecord(PEERS[name], RUN, rng)
    own.set_role(SERVING)
    partners = Partners(contact(name), Scope.PRIVATE, rng)
    return Gossip(own, partners, RecordReader(), rng, admitted)


def content(made: Directory) -> list[tuple[bytes, bytes]]:
    """What counts in a directory, to be compared."""
    return [(each.peer.raw, each.signed.body) for each in made.present()]


def names(records: Iterable[PeerRecord]) -> set[str]:
    known = {identity.peer_id: name for name, identity in PEERS.items()}
    return {known[each.peer] for each in records}
