"""Upkeep: the work by which a node joins the DHT and stays in it.

Source:  Maymounkov and Mazieres, "Kademlia" (2002), 2.3; hivemind issue #624, a swarm that stayed
         in two halves, for greeting seeds again.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from p2pswarm.base.errors import BadMessage, NoRoute
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.messages import Identified
from p2pswarm.discovery.dht.partition_healing import PartitionHealing
from p2pswarm.discovery.dht.put_value import Publication, Publisher
from p2pswarm.discovery.dht.records import RecordStore
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.discovery.dht.unverified_contacts import UnverifiedContacts
from p2pswarm.net.os.addresses import believable, expected_of
from p2pswarm.net.wire.message import Message

SEEDS_MAX = 64  # more entry points do not help, and every newcomer greets them all


@dataclass(slots=True)
class _Seed:
    """What is known of a seed."""

    peer: PeerId | None
    """Who answered there last; None if nobody did, or may do no more."""
    silent_s: float | None = None
    """Since when nobody answers; None if somebody did."""
    lost_s: float = float("-inf")
    """When it was lost last."""


class Seeds:
    """The addresses that a node was started with, without its own, and when to greet them again.

    If a swarm starts in two halves, because its seeds cannot reach each other, it stays in two
    halves unless a node greets the other seeds again. So for a while after the start a node greets
    all seeds repeatedly, and later one random seed at a time.

    A seed that falls silent may come back as somebody else, and then it knows nobody: whoever joins
    through it finds an empty swarm. So it is greeted again and again, whoever answers there.
    """

    def __init__(self, own: Contact, config: DhtConfig, rng: random.Random) -> None:
        self._own = own
        self._config = config
        self._rng = rng
        self._seeds: dict[Address, _Seed] = {}
        self._start_s = 0.0
        self._due_s = float("inf")
        self._silent_due_s = float("inf")

    def start(self, contacts: Iterable[Contact], now_s: float) -> list[Contact]:
        """Store the seeds; returns all that are to be greeted, at once."""
        for contact in contacts:
            ours = contact.address == self._own.address or contact.peer == self._own.peer
            if not ours and len(self._seeds) < SEEDS_MAX:
                self._seeds[contact.address] = _Seed(contact.peer)
        self._start_s = now_s
        self._postpone(now_s)
        return self._all()

    def on_answer(self, address: Address, peer: PeerId | None, now_s: float) -> None:
        """Note which peer answered at a seed's address; None if no peer did."""
        seed = self._seeds.get(address)
        if seed is None:
            return
        seed.peer = peer
        if peer is not None:
            seed.silent_s = None
        elif seed.silent_s is None:
            self._fall_silent(seed, now_s)

    def on_loss(self, peer: PeerId, now_s: float) -> None:
        """Note that a link to a peer has ended, or that it does not answer: it may be a seed."""
        for seed in self._seeds.values():
            if seed.peer == peer:
                seed.peer = None  # it may come back as another
                self._fall_silent(seed, now_s)

    def on_own_address(self, address: Address) -> None:
        """Forget a seed that is this node itself, under another address."""
        self._seeds.pop(address, None)

    def due(self, now_s: float) -> list[Contact]:
        """The seeds to greet now."""
        found: dict[Contact, None] = {}
        if now_s >= self._silent_due_s:
            found |= dict.fromkeys(self._silent())
            self._silent_due_s = self._next_silent_s(now_s)
        if now_s >= self._due_s and self._seeds:
            everybody = self._all()
            young = now_s <= self._start_s + self._config.seeds_all_s
            self._postpone(now_s)
            found |= dict.fromkeys(everybody if young else [self._rng.choice(everybody)])
        return list(found)

    def next_deadline_s(self) -> float | None:
        """The time of the next greeting; None without seeds."""
        return min(self._due_s, self._silent_due_s) if self._seeds else None

    def _all(self) -> list[Contact]:
        return [Contact(seed.peer, address) for address, seed in self._seeds.items()]

    def _silent(self) -> list[Contact]:
        seeds = self._seeds.items()
        return [Contact(seed.peer, at) for at, seed in seeds if seed.silent_s is not None]

    def _fall_silent(self, seed: _Seed, now_s: float) -> None:
        """Greet a seed soon; a swarm that has lost it does so at different times.

        A seed with too many links ends some. Who is lost again and again takes its time.
        """
        config = self._config
        again = now_s < seed.lost_s + config.seeds_all_s
        soon_s = config.seeds_all_s if again else config.seeds_silent_every_s
        seed.silent_s = seed.lost_s = now_s
        self._silent_due_s = min(self._silent_due_s, now_s + soon_s * self._rng.random())

    def _next_silent_s(self, now_s: float) -> float:
        since = [seed.silent_s for seed in self._seeds.values() if seed.silent_s is not None]
        if not since:
            return float("inf")
        config = self._config
        fresh = now_s < max(since) + config.seeds_silent_s
        pause_s = config.seeds_silent_every_s if fresh else config.seeds_late_every_s
        return now_s + self._jittered(pause_s)

    def _postpone(self, now_s: float) -> None:
        config = self._config
        young = now_s < self._start_s + config.seeds_all_s
        pause_s = config.seeds_all_every_s if young else config.seeds_one_every_s
        self._due_s = now_s + self._jittered(pause_s)

    def _jittered(self, pause_s: float) -> float:
        return pause_s * self._rng.uniform(1 - self._config.jitter, 1 + self._config.jitter)


EXPIRE_EVERY_S = 10.0  # a read checks the time itself; expiring only frees memory
EXPIRE_PAUSE_S = 0.05  # between two portions, each of some milliseconds
REFRESH_PAUSE_S = 1.0  # joining fills several buckets in less time
REPUBLISH_TOGETHER = 16  # of our values, at the same time


@dataclass(frozen=True, slots=True)
class GreetSeed:
    """Greet a seed again, or a peer that is gone."""

    seed: Contact


@dataclass(frozen=True, slots=True)
class GreetStranger:
    """Ask a peer that has come whom it knows next to us."""

    stranger: Contact


@dataclass(frozen=True, slots=True)
class LookRound:
    """Look up an id, to refresh the bucket in which it lies."""

    target: bytes
    across: bool = False
    """True if it begins in the other part of the DHT that was met, and there alone."""


@dataclass(frozen=True, slots=True, eq=False)
class PublishAgain:
    """Publish a value of ours again."""

    publication: Publication


Duty = GreetSeed | GreetStranger | LookRound | PublishAgain


class Upkeep:
    """Tells which duties are due to stay in the DHT, and when the next one is.

    There are five kinds of work: greet seeds again, greet who is gone or new, publish our own
    values again, refresh buckets, and forget expired records. `drain` returns the duties that the
    pump is to do, and forgets expired records itself.

    Refreshing makes one lookup at a time, because it is never urgent. It waits while the node
    joins, and pauses for REFRESH_PAUSE_S after a round, so that buckets that appear together are
    refreshed in one round.
    """

    def __init__(
        self,
        own: Contact,
        table: Table,
        store: RecordStore,
        publisher: Publisher,
        rng: random.Random,
        healing: PartitionHealing,
    ) -> None:
        assert own.peer is not None
        self._own = own.peer.raw
        self._table = table
        self._store = store
        self._publisher = publisher
        self._rng = rng
        self._healing = healing
        self.seeds = Seeds(own, table.config, rng)
        self.joining = False
        """True if we look up our own id to join; refreshing waits for it."""
        self._to_publish: deque[Publication] = deque()
        self._publishing = 0
        self._rounds: deque[LookRound] = deque()
        self._refreshing = False
        self._rest_s: float | None = None
        """No round of refreshing begins before this time; None until the first `drain`."""
        self._expire_s = 0.0
        """No record is expired before this time."""
        self._wall_less_loop_s = 0.0

    def drain(self, now_s: float, now_ms: int) -> list[Duty]:
        """The duties to do now; call `done` at the end of each."""
        self._wall_less_loop_s = now_ms / 1000 - now_s
        if self._rest_s is None:
            self._rest_s = now_s + REFRESH_PAUSE_S
            self._expire_s = now_s + EXPIRE_EVERY_S
        self._expire(now_s, now_ms)
        for peer in self._healing.losses():
            self.seeds.on_loss(peer, now_s)
        duties: list[Duty] = [GreetSeed(seed) for seed in self.seeds.due(now_s)]
        duties += self._reunite(now_s)
        duties += self._publish(now_s)
        duties += self._refresh(now_s)
        return duties

    def on_done(self, duty: Duty, now_s: float) -> None:
        """Note that a duty was done or given up."""
        if isinstance(duty, PublishAgain):
            self._publishing -= 1
        elif isinstance(duty, LookRound):
            self._refreshing = False
            self._rest_s = now_s + REFRESH_PAUSE_S

    def next_deadline_s(self) -> float | None:
        """Return when to poll again, unless a duty ends earlier; None if nothing will be due."""
        deadlines_s = (
            self.seeds.next_deadline_s(),
            None if self.joining else self._healing.next_deadline_s(),
            self._publisher.next_deadline_s(),
            self._next_refresh_s(),
            self._next_expiry_s(),
        )
        return min((each for each in deadlines_s if each is not None), default=None)

    def _expire(self, now_s: float, now_ms: int) -> None:
        due_s = self._next_expiry_s()
        if due_s is not None and due_s <= now_s:
            self._store.expire(now_ms)
            next_ms = self._store.next_expiry_ms()
            more = next_ms is not None and next_ms <= now_ms
            self._expire_s = now_s + (EXPIRE_PAUSE_S if more else EXPIRE_EVERY_S)

    def _next_expiry_s(self) -> float | None:
        first_ms = self._store.next_expiry_ms()
        if first_ms is None:
            return None
        return max(self._expire_s, first_ms / 1000 - self._wall_less_loop_s)

    def _reunite(self, now_s: float) -> list[Duty]:
        """Greet who is gone, and who came close; joining goes first."""
        if self.joining:
            return []
        gone, stranger = self._healing.probe(now_s), self._healing.newcomer(now_s)
        duties: list[Duty] = [GreetSeed(gone)] if gone is not None else []
        return duties if stranger is None else [*duties, GreetStranger(stranger)]

    def merge(self) -> None:
        """Another part of the DHT was met: look at every distance, ourselves last."""
        self._rounds.extendleft(
            LookRound(each, across=True) for each in self._table.at_every_distance(self._rng)
        )  # the nearest first: who is there does the same
        self._rounds.append(LookRound(self._own))

    def _publish(self, now_s: float) -> list[Duty]:
        self._to_publish += self._publisher.due(now_s)
        duties: list[Duty] = []
        while self._to_publish and self._publishing < REPUBLISH_TOGETHER:
            publication = self._to_publish.popleft()
            if self._publisher.keeps(publication):
                self._publishing += 1
                duties.append(PublishAgain(publication))
        return duties

    def _refresh(self, now_s: float) -> list[Duty]:
        due_s = self._next_refresh_s()
        if due_s is not None and due_s <= now_s:
            soon_s = now_s + REFRESH_PAUSE_S  # so that buckets stay in one round
            targets = [*self._table.stale(soon_s, self._rng), self._own]
            self._rounds += [LookRound(each) for each in targets]
        if not self._rounds or self._refreshing:
            return []
        self._refreshing = True
        return [self._rounds.popleft()]

    def _next_refresh_s(self) -> float | None:
        """Return when the next round of refreshing begins; None during a round or while joining."""
        stale_s = self._table.next_refresh_s()
        if stale_s is None or self._rest_s is None:
            return None
        if self.joining or self._refreshing or self._rounds:
            return None
        return max(stale_s, self._rest_s)


class BootstrapReply(Enum):
    """The answer of a seed."""

    ANSWERED = auto()
    SILENT = auto()
    """No answer came, or none that could be used."""
    OURSELVES = auto()
    """The seed is this node."""


class JoinRound:
    """Follows one round of greetings to its end.

    All seeds are greeted at once, and one answer is enough, so a dead seed costs no time. A seed
    may be this node itself, under an address that it did not know.
    """

    def __init__(self, greeted: Sequence[Contact]) -> None:
        self._left = len(greeted)
        self._silent: list[Contact] = []
        self._joined = False

    def on_reply(self, seed: Contact, greeting: BootstrapReply) -> None:
        """Note how one of the seeds answered."""
        self._left -= 1
        if greeting is BootstrapReply.ANSWERED:
            self._joined = True
        elif greeting is BootstrapReply.SILENT:
            self._silent.append(seed)

    @property
    def over(self) -> bool:
        """True if one seed has answered, or none will."""
        return self._joined or self._left <= 0

    @property
    def failure(self) -> NoRoute | None:
        """Return why joining failed, or None. It is no failure if the only seed is this node."""
        if not self.over or self._joined or not self._silent:
            return None
        addresses = ", ".join(str(seed.address) for seed in self._silent)
        return NoRoute(f"no answer from {addresses}: is a node running and reachable there?")


def contacts_through(
    seed: Contact, reply: Message, unverified: UnverifiedContacts
) -> list[Contact]:
    """The contact of a greeted seed, and then the servers close to us that it knows."""
    if not isinstance(reply, Identified):
        raise BadMessage(f"{type(reply).__name__} does not answer Identify")
    least = expected_of(seed.address.host)
    named = [
        each for each in unverified.named(reply.peer_list, seed) if believable(each.address, least)
    ]
    return [Contact(PeerId(reply.peer), seed.address), *named]


def worth_a_lookup(met: Sequence[Contact], table: Table, *, joined_before: bool) -> bool:
    """Return whether to look up our own id: the first time, or if there are new contacts."""
    strangers = [each for each in met if each.peer and table.get(each.peer.raw) is None]
    return bool(strangers) or not joined_before
