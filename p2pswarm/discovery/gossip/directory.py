"""Directory: the records of a run's peers that count now, and in what two directories differ.

Units:   seconds on the caller's monotonic clock; versions as in `record.py`.
Source:  docs/directory.md; van Renesse et al., "Efficient Reconciliation and Flow Control for
         Anti-Entropy Protocols" (LADIS 2008): the largest gaps first.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.discovery.gossip.messages import (
    DIGEST_ENTRIES_MAX,
    ENTRY_BYTES,
    PREFIX_BYTES,
    RECORDS_MAX,
    AgedRecord,
    Compare,
    Compared,
)
from p2pswarm.discovery.gossip.record import HASH_BYTES, PeerRecord
from p2pswarm.net.guard.connection_limits import GroupCounter
from p2pswarm.net.os.addresses import NAMES, Scope, address_groups, scope_of

SLOTS_MAX = 4096  # as many members as a run has; about 4 MB
PER_NEAR_NET = 64  # of one public /24 (IPv6: /48): a lab, or a rack of spot instances
PER_WIDE_NET = 512  # of one public /16 (IPv6: /32): a cloud's region
SEEN_HOSTS = 4096
NOWHERE = "nowhere"  # peers that only dial; they count as one wide network


class Slots:
    """The slots of one directory, by the start of each peer's id, and how many a network may have.

    Ids are free, and what a card says of addresses is a claim. So records are counted by the
    network that they name. Who was met, by an exchange that we began ourselves, keeps its place:
    see docs/directory.md, "What a liar can do".
    """

    def __init__(self, slots: int = SLOTS_MAX) -> None:
        self._most = slots
        self._networks: dict[bytes, tuple[str, str]] = {}
        self._near: GroupCounter[str] = GroupCounter()
        self._wide: GroupCounter[str] = GroupCounter()
        self._unmet: dict[str, dict[bytes, None]] = {}
        """Those that were not met, by their wide network; who has come first stands first."""
        self._lost: dict[bytes, None] = {}
        """Those whose records have died; who was lost first stands first."""

    def __len__(self) -> int:
        return len(self._networks)

    def enter(self, record: PeerRecord) -> tuple[bool, bytes | None]:
        """Give a newcomer a place, if it may have one; who makes way for it, if somebody does."""
        near, wide = networks(host_of(record))
        if near and (self._near[near] >= PER_NEAR_NET or self._wide[wide] >= PER_WIDE_NET):
            return False, None
        victim = None
        if len(self._networks) >= self._most:
            victim = self._victim(wide)
            if victim is None:
                return False, None
            self.leave(victim)
        prefix = record.prefix
        self._networks[prefix] = near, wide
        self._near.add(near)
        self._wide.add(wide)
        self._unmet.setdefault(wide, {})[prefix] = None
        return True, victim

    def leave(self, prefix: bytes) -> None:
        """Take a place back."""
        near, wide = self._networks.pop(prefix)
        self._near.remove(near)
        self._wide.remove(wide)
        self._drop_unmet(prefix, wide)
        self._lost.pop(prefix, None)

    def on_contact(self, prefix: bytes) -> None:
        """Note that we have reached a peer ourselves."""
        if prefix in self._networks:
            self._drop_unmet(prefix, self._networks[prefix][1])

    def reached(self, prefix: bytes) -> bool:
        """Return whether we have reached a peer ourselves."""
        here = self._networks.get(prefix)
        return here is not None and prefix not in self._unmet.get(here[1], {})

    def on_death(self, prefix: bytes) -> None:
        """Note that a record has died."""
        self._lost[prefix] = None

    def on_return(self, prefix: bytes) -> None:
        """Note that a record counts again."""
        self._lost.pop(prefix, None)

    def _victim(self, newcomers: str) -> bytes | None:
        """Return the peer that makes way for a newcomer of a network; None if nobody does."""
        largest = max(self._unmet, key=lambda wide: (self._wide[wide], wide), default=None)
        if largest is not None and self._wide[largest] > self._wide[newcomers]:
            return next(iter(self._unmet[largest]))
        return next(iter(self._lost), None)

    def _drop_unmet(self, prefix: bytes, wide: str) -> None:
        unmet = self._unmet.get(wide, {})
        unmet.pop(prefix, None)
        if not unmet:
            self._unmet.pop(wide, None)


def host_of(record: PeerRecord) -> str:
    """The host that a record names first, or its relay's; empty for who only dials."""
    named = (*record.card.direct, *(relay.at for relay in record.card.relays))
    return named[0].host if named else ""


@lru_cache(maxsize=SEEN_HOSTS)
def networks(host: str) -> tuple[str, str]:
    """The small and the wide network of a host; no small one where there is no limit.

    Private networks have none: a lab is behind one address. A name counts by its last two labels,
    because their owner owns all names below.
    """
    if not host:
        return NOWHERE, NOWHERE
    groups = address_groups(host)
    if groups[0] == NAMES:
        domain = ".".join(host.lower().rstrip(".").split(".")[-2:])
        return (domain, domain) if "." in domain else ("", host)
    near, wide = groups[2], groups[1]
    return (near, wide) if scope_of(host) is Scope.PUBLIC else ("", wide)


REMEMBERED_S = 3600.0  # a cut that lasts longer heals through entry points only
RECORDS_BYTES_MAX = 40 * 1024  # in one message; one of 60 KiB fits a mux frame
AGED_BYTES = 64 + 32  # beside a record's body: its signature, its age, and the lengths
LOWEST, HIGHEST = bytes(PREFIX_BYTES), b"\xff" * PREFIX_BYTES
NEVER_S = float("inf")
_VERSION = slice(PREFIX_BYTES, ENTRY_BYTES - HASH_BYTES)


class Acceptance(Enum):
    """The fate of a record that was told to a directory."""

    NEWS = auto()
    """It counts from now on, or again."""
    KNOWN = auto()
    """It was here already, or a newer one is."""
    DEAD = auto()
    """It is older than its life."""
    REFUSED = auto()
    """Its peer has no place here."""


@dataclass(slots=True)
class _KeptRecord:
    """One peer's record."""

    record: PeerRecord
    first_s: float
    """Time at which this version was first seen."""
    until_s: float
    """Time of its death."""
    over: bool = False
    """It has died, and is remembered: an older one must not count again."""

    def age_s(self, now_s: float) -> float:
        """Return the age of the record, as far as we know."""
        return min(max(self.record.lives_s - (self.until_s - now_s), 0.0), self.record.lives_s)


def everybody(_: PeerId) -> bool:
    """Return whether a peer may be in a run that is open."""
    return True


class Directory:
    """The records of one run that count now; one's own is among them.

    Two directories that have been given the same records hold the same ones, in whatever order
    these came. How long a record lives is counted by our own clock, from how old it is said to be,
    and never longer than its life from when we have first seen it. What has died is remembered for
    a while, so that its peer can be asked whether it is back.
    """

    def __init__(
        self,
        rng: random.Random,
        admitted: Callable[[PeerId], bool] = everybody,
        slots: int = SLOTS_MAX,
    ) -> None:
        """`admitted`: whether a peer may be in the run; members of a closed one only."""
        self._rng = rng
        self._admitted = admitted
        self._slots = Slots(slots)
        self._entries: dict[bytes, _KeptRecord] = {}
        self._living: dict[bytes, None] = {}
        """The digest's entries of the records that count."""
        self._lost: dict[bytes, None] = {}
        """The starts of the ids of those that have died; who died last stands last."""
        self._next_s = NEVER_S
        """No record dies before this time."""

    def __len__(self) -> int:
        """Return the number of records that count now."""
        return len(self._living)

    def get(self, peer: PeerId) -> PeerRecord | None:
        """The record of a peer that counts now."""
        entry = self._entries.get(peer.raw[:PREFIX_BYTES])
        return entry.record if entry and not entry.over and entry.record.peer == peer else None

    def known(self, contact: Contact) -> PeerRecord | None:
        """The record of a peer, also if it has died."""
        entry = self._entries.get(contact.peer.raw[:PREFIX_BYTES]) if contact.peer else None
        return entry.record if entry and entry.record.peer == contact.peer else None

    def present(self) -> list[PeerRecord]:
        """The records of all peers that are in the run now, by their ids."""
        found = (self._entries[entry[:PREFIX_BYTES]].record for entry in sorted(self._living))
        return [record for record in found if not record.left]

    def pick(self) -> PeerRecord | None:
        """A random record that counts; None if there is none."""
        living = list(self._living)
        return self._entries[self._rng.choice(living)[:PREFIX_BYTES]].record if living else None

    def missing(self) -> list[PeerRecord]:
        """The records that have died without a word; who died last stands last."""
        return [self._entries[prefix].record for prefix in self._lost]

    def on_contact(self, peer: PeerId) -> None:
        """Note that we have reached a peer ourselves: it keeps its place."""
        self._slots.on_contact(peer.raw[:PREFIX_BYTES])

    def reached(self, peer: PeerId) -> bool:
        """Return whether we have reached a peer ourselves since its record came."""
        return self._slots.reached(peer.raw[:PREFIX_BYTES])

    def take(self, record: PeerRecord, age_s: float, now_s: float) -> Acceptance:
        """Take a record that is `age_s` old, as whoever brings it says."""
        known = self._entries.get(record.prefix)
        if known is not None and known.record.peer != record.peer:
            return Acceptance.REFUSED  # somebody has tried 2**64 keys
        until_s = now_s + record.lives_s - age_s
        if known is not None and not record.beats(known.record):
            return self._again(known, record, until_s, now_s)
        if until_s <= now_s:
            return Acceptance.DEAD
        if known is None and not self._admit(record):
            return Acceptance.REFUSED
        if known is not None:
            self._living.pop(known.record.entry, None)
        self._entries[record.prefix] = _KeptRecord(record, now_s, until_s)
        self._counts(record, until_s)
        return Acceptance.NEWS

    def _again(
        self, known: _KeptRecord, record: PeerRecord, until_s: float, now_s: float
    ) -> Acceptance:
        """The same record, or an older one: it may be younger than we were told."""
        until_s = min(until_s, known.first_s + record.lives_s)
        same = record.signed.body == known.record.signed.body
        if not same or until_s <= known.until_s or until_s <= now_s:
            return Acceptance.KNOWN
        known.until_s = until_s
        if not known.over:
            return Acceptance.KNOWN
        known.over = False
        self._counts(known.record, until_s)
        return Acceptance.NEWS

    def _admit(self, record: PeerRecord) -> bool:
        if not self._admitted(record.peer):
            return False
        entered, victim = self._slots.enter(record)
        if victim is not None:
            self._living.pop(self._entries.pop(victim).record.entry, None)
            self._lost.pop(victim, None)
        return entered

    def _counts(self, record: PeerRecord, until_s: float) -> None:
        self._living[record.entry] = None
        self._lost.pop(record.prefix, None)
        self._slots.on_return(record.prefix)
        self._next_s = min(self._next_s, until_s)

    # Life

    def next_deadline_s(self) -> float:
        """Return when a record may die; infinite for an empty directory."""
        return self._next_s

    def on_deadline(self, now_s: float) -> list[PeerRecord]:
        """Let records die whose time is over; returns those of peers that had not left."""
        if now_s < self._next_s:
            return []
        died = []
        for prefix, entry in list(self._entries.items()):
            if self._ends_s(entry) > now_s:
                continue
            if entry.over:
                self._forget(prefix)
                continue
            entry.over = True
            del self._living[entry.record.entry]
            self._slots.on_death(prefix)
            if not entry.record.left:
                self._lost[prefix] = None
                died.append(entry.record)
        self._next_s = min(map(self._ends_s, self._entries.values()), default=NEVER_S)
        return died

    def _ends_s(self, entry: _KeptRecord) -> float:
        return entry.until_s + (REMEMBERED_S if entry.over else 0.0)

    def _forget(self, prefix: bytes) -> None:
        del self._entries[prefix]
        self._lost.pop(prefix, None)
        self._slots.leave(prefix)

    # Differences

    def question(self, run: bytes) -> Compare:
        """Return the digest of our records, or of a part that begins at a random id."""
        if len(self._living) <= DIGEST_ENTRIES_MAX:
            return Compare(run, LOWEST, HIGHEST, b"".join(self._living))
        ordered = sorted(self._living)
        start = self._rng.randrange(len(ordered))
        turned = ordered[start:] + ordered[:start]
        chosen = turned[:DIGEST_ENTRIES_MAX]
        after = int.from_bytes(turned[DIGEST_ENTRIES_MAX][:PREFIX_BYTES])
        last = ((after - 1) % (1 << 8 * PREFIX_BYTES)).to_bytes(PREFIX_BYTES)
        return Compare(run, chosen[0][:PREFIX_BYTES], last, b"".join(chosen))

    def answer(self, question: Compare, now_s: float) -> Compared:
        """Return what the other lacks of its range, and what we lack."""
        digest, ours = question.digest, self._living
        theirs = dict.fromkeys(
            digest[at : at + ENTRY_BYTES] for at in range(0, len(digest), ENTRY_BYTES)
        )
        here = {each[:PREFIX_BYTES]: each for each in theirs if each not in ours}
        whole = (question.first, question.last) == (LOWEST, HIGHEST)
        gaps = []
        for each in [each for each in ours if each not in theirs]:
            prefix = each[:PREFIX_BYTES]
            if whole or _within(prefix, question.first, question.last):
                gap = _gap(each, here.get(prefix))
                if gap >= 0:
                    gaps.append((gap, prefix))
        wanted = [(gap, p) for p, each in here.items() if (gap := self._lacks(p, each)) >= 0]
        return Compared(
            self.records(self._first(gaps), now_s), b"".join(self._first(wanted)[:RECORDS_MAX])
        )

    def records(self, prefixes: Iterable[bytes], now_s: float) -> tuple[AgedRecord, ...]:
        """The records that others asked for, as many as fit a message."""
        found: list[AgedRecord] = []
        left_bytes = RECORDS_BYTES_MAX
        for prefix in prefixes:
            entry = self._entries.get(prefix)
            if entry is None or entry.over:
                continue
            left_bytes -= len(entry.record.signed.body) + AGED_BYTES
            if left_bytes < 0 or len(found) >= RECORDS_MAX:
                break
            found.append(AgedRecord(entry.record.signed, entry.age_s(now_s)))
        return tuple(found)

    def _lacks(self, prefix: bytes, theirs: bytes) -> int:
        """Return by how much another's record is newer, -1 if it is not."""
        entry = self._entries.get(prefix)
        return _gap(theirs, entry.record.entry if entry and not entry.over else None)

    def _first(self, gaps: list[tuple[int, bytes]]) -> Sequence[bytes]:
        """The ids in the order in which they matter; chance decides between equals."""
        self._rng.shuffle(gaps)
        gaps.sort(key=lambda each: -each[0])
        return [prefix for _, prefix in gaps]


def _gap(newer: bytes, older: bytes | None) -> int:
    """By how much one digest entry is newer than another of the same peer; -1 if it is not.

    Of equal versions nobody can tell from the digest: both are sent.
    """
    if older is None:
        return 1 << 48  # more than two versions can differ
    gap = int.from_bytes(newer[_VERSION]) - int.from_bytes(older[_VERSION])
    return gap if gap > 0 or (gap == 0 and newer != older) else -1


def _within(prefix: bytes, first: bytes, last: bytes) -> bool:
    return first <= prefix <= last if first <= last else prefix >= first or prefix <= last
