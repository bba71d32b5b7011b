"""What is due when: seeds, publications, stale buckets, expired records."""

import random
from dataclasses import dataclass, field

import pytest
from discovery.dht.harness import CONFIG, EPOCH_S, KEY, OWN, a_sure_table, a_table, contact, raw
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.partition_healing import PROBE_S, PartitionHealing
from p2pswarm.discovery.dht.put_value import Publication, Publisher
from p2pswarm.discovery.dht.records import EXPIRED_AT_ONCE, RecordStore, SignatureCache, sign
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.discovery.dht.upkeep import (
    EXPIRE_EVERY_S,
    EXPIRE_PAUSE_S,
    REFRESH_PAUSE_S,
    REPUBLISH_TOGETHER,
    Duty,
    GreetSeed,
    GreetStranger,
    LookRound,
    PublishAgain,
    Upkeep,
)
from p2pswarm.net.crypto.identity import Identity

ALICE = Identity.generate(b"alice")
US = contact(int.from_bytes(OWN))
FIRST = Contact(None, Address("203.0.113.1", 1))
SECOND = Contact(None, Address("203.0.113.2", 2))
CALM = DhtConfig(jitter=0.0)


@dataclass
class Node:
    """An upkeep with all that it keeps up."""

    table: Table = field(default_factory=a_table)
    store: RecordStore = field(default_factory=lambda: RecordStore(CONFIG, SignatureCache()))
    publisher: Publisher = field(default_factory=lambda: Publisher(ALICE, CALM, random.Random(1)))

    def __post_init__(self) -> None:
        self.healing = PartitionHealing(random.Random(1))
        self.upkeep = Upkeep(
            US, self.table, self.store, self.publisher, random.Random(1), self.healing
        )

    def drain(self, now_s: float) -> list[Duty]:
        return self.upkeep.drain(now_s, int(1000 * (EPOCH_S + now_s)))

    def publish(self, number: int, ttl_s: float = 300.0, now_s: float = 0.0) -> Publication:
        publication = Publication(KEY, bytes([number]), b"value", 1, ttl_s, 0.0)
        self.publisher.keep(publication, now_s)
        return publication

    def hold(self, subkey: bytes, until_s: float) -> None:
        """A record that expires then."""
        expires_ms = int(1000 * (EPOCH_S + until_s))
        record = sign(ALICE, KEY, subkey, b"v", 1, expires_ms)
        self.store.offer(record, ALICE.peer_id, int(1000 * EPOCH_S))


def test_with_nothing_to_keep_up_nothing_is_due():
    node = Node()

    assert node.drain(0.0) == []
    assert node.upkeep.next_deadline_s() is None


def test_seeds_are_greeted_again_when_they_are_due():
    node = Node(a_sure_table())
    node.upkeep.seeds.start([FIRST, SECOND], 0.0)
    assert node.drain(0.0) == []

    due_s = node.upkeep.next_deadline_s()

    assert due_s is not None
    assert node.drain(due_s) == [GreetSeed(FIRST), GreetSeed(SECOND)]
    assert node.upkeep.next_deadline_s() > due_s


def test_a_value_is_published_again_after_a_third_of_its_time_to_live():
    node = Node()
    publication = node.publish(1, ttl_s=300.0)
    assert node.drain(99.0) == []
    assert node.upkeep.next_deadline_s() == pytest.approx(100.0)

    (duty,) = node.drain(100.0)

    assert isinstance(duty, PublishAgain)
    assert duty.publication is publication
    assert node.upkeep.next_deadline_s() == pytest.approx(200.0)


def test_only_so_many_values_are_published_at_once():
    node = Node()
    for number in range(REPUBLISH_TOGETHER + 2):
        node.publish(number)

    first = node.drain(100.0)
    assert len(first) == REPUBLISH_TOGETHER
    assert node.drain(100.1) == []
    node.upkeep.on_done(first[0], 100.2)

    assert len(node.drain(100.2)) == 1


def test_a_value_that_is_withdrawn_or_replaced_while_it_waits_is_not_published():
    node = Node()
    for number in range(REPUBLISH_TOGETHER + 3):
        node.publish(number)
    first = node.drain(100.0)
    node.publisher.withdraw(KEY, bytes([REPUBLISH_TOGETHER]))
    node.publish(REPUBLISH_TOGETHER + 1, now_s=100.0)
    for duty in first:
        node.upkeep.on_done(duty, 100.5)

    (last,) = node.drain(100.5)

    assert isinstance(last, PublishAgain)
    assert last.publication.subkey == bytes([REPUBLISH_TOGETHER + 2])


def test_a_new_bucket_is_looked_into_a_moment_after_the_start():
    """So that the buckets which a join brings are looked into together."""
    node = Node(a_table(1, 1 << 255))
    assert node.drain(0.0) == []
    assert node.upkeep.next_deadline_s() == REFRESH_PAUSE_S

    (first,) = node.drain(REFRESH_PAUSE_S)

    assert isinstance(first, LookRound)
    assert node.table.index(first.target) == 0
    assert node.upkeep.next_deadline_s() is None


def test_buckets_are_looked_into_one_after_another_and_ourselves_last():
    node = Node(a_table(1 << 255, 1 << 254))
    node.drain(0.0)
    targets = []
    (duty,) = node.drain(1.0)
    for step in range(2, 20):
        assert isinstance(duty, LookRound)
        targets.append(duty.target)
        assert node.drain(float(step)) == []
        node.table.on_refresh(duty.target, [raw(1 << 255), raw(1 << 254)], float(step))
        node.upkeep.on_done(duty, float(step))
        duties = node.drain(float(step))
        if not duties:
            break
        (duty,) = duties

    assert [node.table.index(target) for target in targets[:-1]] == [0, 1]
    assert targets[-1] == OWN
    deadline_s = node.upkeep.next_deadline_s()
    assert deadline_s is not None
    assert deadline_s > CONFIG.refresh_s


def test_buckets_that_get_stale_together_are_looked_into_together():
    node = Node(a_sure_table(1 << 255, 1 << 254))
    node.table.on_refresh(raw(1 << 255), [raw(n) for n in range(1, 21)], 0.5)
    node.drain(2.0)
    assert node.upkeep.next_deadline_s() == CONFIG.refresh_s

    targets = []
    duties = node.drain(CONFIG.refresh_s)
    while duties:
        (duty,) = duties
        targets.append(node.table.index(duty.target))
        node.upkeep.on_done(duty, CONFIG.refresh_s)
        duties = node.drain(CONFIG.refresh_s)

    assert targets == [0, 1, 256]


def test_refreshing_waits_for_joining():
    node = Node(a_table(1 << 255))
    node.drain(0.0)
    node.upkeep.joining = True
    assert node.drain(5.0) == []
    assert node.upkeep.next_deadline_s() is None

    node.upkeep.joining = False

    assert len(node.drain(5.0)) == 1


def test_a_refresh_that_was_given_up_is_tried_again():
    node = Node(a_table(1 << 255))
    node.drain(0.0)
    for step in (1.0, 3.0):
        for _ in range(2):  # the bucket, and ourselves
            (duty,) = node.drain(step)
            node.upkeep.on_done(duty, step)

        assert node.drain(step) == []
        assert node.upkeep.next_deadline_s() == step + REFRESH_PAUSE_S


def test_the_end_of_a_greeting_changes_nothing():
    node = Node(a_sure_table())
    node.upkeep.seeds.start([FIRST], 0.0)
    (duty,) = node.drain(7.0)

    node.upkeep.on_done(duty, 8.0)

    assert node.drain(8.0) == []


def test_expired_records_are_forgotten_at_their_time():
    node = Node()
    node.hold(b"a", until_s=50.0)
    node.hold(b"b", until_s=70.0)
    node.drain(0.0)
    assert node.upkeep.next_deadline_s() == pytest.approx(50.0)

    node.drain(50.1)

    assert len(node.store) == 1
    assert node.upkeep.next_deadline_s() == pytest.approx(70.0)


def test_records_that_expire_one_after_another_are_forgotten_together():
    node = Node()
    for number in range(10):
        node.hold(bytes([number]), until_s=50.0 + number)
    node.drain(0.0)
    node.drain(50.1)

    deadline_s = node.upkeep.next_deadline_s()

    assert deadline_s == pytest.approx(50.1 + EXPIRE_EVERY_S)
    node.drain(deadline_s)
    assert len(node.store) == 0
    assert node.upkeep.next_deadline_s() is None


def test_what_expires_in_portions_is_forgotten_soon():
    node = Node()
    for number in range(EXPIRED_AT_ONCE + 1):
        node.hold(b"%d" % number, until_s=50.0)
    node.drain(0.0)

    node.drain(50.0)
    assert len(node.store) == 1
    assert node.upkeep.next_deadline_s() == pytest.approx(50.0 + EXPIRE_PAUSE_S)
    node.drain(50.0 + EXPIRE_PAUSE_S)

    assert len(node.store) == 0


moves = st.lists(
    st.tuples(
        st.sampled_from(["wait", "early", "met", "put", "withdraw", "seed", "store", "done"]),
        st.integers(1, 300),
    ),
    max_size=60,
)


@given(moves)
def test_nothing_is_due_twice_and_no_deadline_is_forgotten(history):
    """After a poll the next deadline lies ahead, and duties under way keep their limits."""
    node, now_s, under_way = Node(), 0.0, []
    for move, number in history:
        if move == "wait":
            now_s = max(now_s, node.upkeep.next_deadline_s() or now_s)
        elif move == "early":
            now_s += number / 100
        elif move == "met":
            node.table.on_contact(contact(1 << (number % 256) | 1 << 201), now_s)
        elif move == "put":
            node.publish(number % 256, ttl_s=float(number), now_s=now_s)
        elif move == "withdraw":
            node.publisher.withdraw(KEY, bytes([number % 256]))
        elif move == "seed":
            node.upkeep.seeds.start([FIRST], now_s)
        elif move == "store":
            node.hold(bytes([number % 256]), until_s=float(number))
        elif under_way:
            node.upkeep.on_done(under_way.pop(number % len(under_way)), now_s)

        under_way += node.drain(now_s)

        assert sum(isinstance(duty, LookRound) for duty in under_way) <= 1
        assert sum(isinstance(duty, PublishAgain) for duty in under_way) <= REPUBLISH_TOGETHER
        deadline_s = node.upkeep.next_deadline_s()
        assert deadline_s is None or deadline_s > now_s


def test_a_peer_that_is_gone_is_asked_again_unless_we_are_joining():
    node, gone = Node(a_sure_table()), contact(7)
    node.drain(0.0)
    node.healing.on_loss(gone, 0.0)
    assert node.upkeep.next_deadline_s() <= 1.2 * PROBE_S

    node.upkeep.joining = True
    assert node.drain(2 * PROBE_S) == []
    assert node.upkeep.next_deadline_s() is None
    node.upkeep.joining = False

    assert node.drain(2 * PROBE_S) == [GreetSeed(gone)]


def test_a_stranger_is_greeted():
    node = Node(a_sure_table())
    node.drain(0.0)
    node.healing.on_stranger(contact(7), 0.0)

    assert node.drain(node.upkeep.next_deadline_s()) == [GreetStranger(contact(7))]
    assert node.upkeep.next_deadline_s() is None


def test_another_part_is_looked_for_at_every_distance_and_next_to_us():
    node = Node(a_sure_table(1, 1 << 201, 1 << 255))
    node.drain(0.0)

    node.upkeep.merge()

    *across, last = rounds_of(node)
    assert [node.table.index(each.target) for each in across] == [*range(node.table.depth)][::-1]
    assert all(each.across for each in across)
    assert last == LookRound(node.table.own.raw)


@given(st.sets(st.integers(1, 2**256 - 1), min_size=1, max_size=60))
def test_no_distance_of_another_part_is_left_out(numbers):
    """Each is looked at by itself, or is within the reach of the lookup of our own id."""
    node = Node(a_sure_table(*numbers))
    node.drain(0.0)

    node.upkeep.merge()

    *across, _ = rounds_of(node)
    looked = {node.table.index(each.target) for each in across}
    k = node.table.config.k
    reached = {node.table.index(each.raw) for each in node.table.nearest(node.table.own.raw, k)}
    assert looked | reached >= {node.table.index(each.raw) for each in node.table}
    assert looked == set(range(len(looked)))


def rounds_of(node: Node) -> list[LookRound]:
    """What is looked up, one after another, until nothing is due."""
    rounds, now_s = [], 1.0
    while duties := node.drain(now_s):
        (duty,) = duties
        assert isinstance(duty, LookRound)
        rounds.append(duty)
        now_s += 0.001
        node.upkeep.on_done(duty, now_s)
    return rounds
