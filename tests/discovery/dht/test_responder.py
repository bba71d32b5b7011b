"""What a node answers from its table and its store."""

import pytest
from discovery.dht.harness import (
    CARDS,
    CONFIG,
    KEY,
    HomeCards,
    a_table,
    anywhere,
    contact,
    contact_at,
    listed,
    raw,
)

from p2pswarm.base.ids import PeerId
from p2pswarm.discovery.dht.call_outcomes import CallRecorder, TimeoutEstimator
from p2pswarm.discovery.dht.get_value import NegativeCache
from p2pswarm.discovery.dht.messages import (
    RECORDS_MAX,
    Find,
    Found,
    Get,
    Got,
    Identified,
    Identify,
    Ping,
    Pong,
    Store,
    Stored,
)
from p2pswarm.discovery.dht.records import RecordStore, SignatureCache, Verdict, sign
from p2pswarm.discovery.dht.responder import Responder
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.sim.process import UnsignedCards

OWN = PeerId(raw(1 << 200))
ALICE = Identity.generate(b"alice")
NOW_MS = 1_700_000_000_000
ASKER = PeerId(raw(3))


def node(*known: int) -> Responder:
    return node_with(a_table(*known), NegativeCache(8, 5.0))


def node_with(table: Table, misses: NegativeCache, cards: UnsignedCards = CARDS) -> Responder:
    store = RecordStore(CONFIG, SignatureCache())
    recorder = CallRecorder(table, TimeoutEstimator(CONFIG), anywhere, cards)
    return Responder(OWN, table, store, recorder, misses, cards)


def get(after: bytes = b"", *, closer: bool = False) -> Get:
    return Get(KEY, after, closer, 0)


def store(answers: Responder, *subkeys: bytes, value: bytes = b"v") -> bytes:
    """One message for each, as many as it takes."""
    verdicts = b""
    for subkey in subkeys:
        record = sign(ALICE, KEY, subkey, value, 1, NOW_MS + 60_000)
        verdicts += answers.store(ALICE.peer_id, Store((record,)), NOW_MS).verdicts
    return verdicts


def test_a_peer_that_asks_hears_of_others_closest_first():
    answers = node(5, 3, 4)

    found = answers.answer(ASKER, Find(KEY), 0.0, NOW_MS)

    assert listed(found.peer_list) == [contact(4), contact(5)]


def test_a_newcomer_is_told_who_we_are_and_whom_to_meet():
    welcome = node(5, 4).answer(ASKER, Identify(KEY), 0.0, NOW_MS)

    assert welcome.peer == OWN.raw
    assert listed(welcome.peer_list) == [contact(4), contact(5)]


def test_no_more_than_k_contacts_are_told():
    answers = node(*range(10, 30), *[(1 << 220) + i for i in range(15)])

    assert len(answers.answer(ASKER, Find(KEY), 0.0, NOW_MS).peer_list.cards) == CONFIG.k


def test_without_a_record_contacts_are_told():
    got = node(5).get(ASKER, get(), NOW_MS)

    assert got.records == ()
    assert listed(got.peer_list) == [contact(5)]


def test_with_a_record_contacts_are_told_if_they_are_wanted():
    answers = node(5)
    assert store(answers, b"a") == bytes([Verdict.KEPT])

    assert answers.get(ASKER, get(), NOW_MS).peer_list.cards == ()
    assert len(answers.get(ASKER, get(closer=True), NOW_MS).peer_list.cards) == 1


def test_many_records_are_told_page_by_page():
    answers = node()
    names = [bytes([i]) for i in range(RECORDS_MAX + 1)]
    store(answers, *names)

    first = answers.get(ASKER, get(), NOW_MS)
    second = answers.get(ASKER, get(first.records[-1].subkey), NOW_MS)

    assert first.more
    assert not second.more
    assert [r.subkey for r in first.records + second.records] == names


def test_large_records_make_shorter_pages():
    answers = node()
    store(answers, *[bytes([i]) for i in range(20)], value=b"v" * 4096)

    first = answers.get(ASKER, get(), NOW_MS)

    assert first.more
    assert len(first.records) == 11


def test_every_record_has_its_verdict():
    answers = node()
    good = sign(ALICE, KEY, b"a", b"v", 1, NOW_MS + 60_000)
    old = sign(ALICE, KEY, b"b", b"v", 1, NOW_MS)

    stored = answers.store(ALICE.peer_id, Store((good, old, good)), NOW_MS)

    assert stored.verdicts == bytes([Verdict.KEPT, Verdict.EXPIRED, Verdict.SAME])


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (Identify(KEY), Identified),
        (Find(KEY), Found),
        (get(), Got),
        (Store((sign(ALICE, KEY, b"", b"v", 1, NOW_MS + 60_000),)), Stored),
        (Ping(), Pong),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, type) else "",
)
def test_every_request_has_its_reply_and_its_sender_is_met(request_, reply):
    table = a_table()

    answer = node_with(table, NegativeCache(8, 5.0)).answer(ASKER, request_, 0.0, NOW_MS)

    assert isinstance(answer, reply)
    assert table.get(ASKER.raw) is not None


@pytest.mark.parametrize("known", [True, False])
def test_a_client_that_asks_is_not_met(known):
    table = a_table()
    cards = UnsignedCards()
    if known:
        cards.say(ASKER)

    assert (
        node_with(table, NegativeCache(8, 5.0), cards).answer(ASKER, Ping(), 0.0, NOW_MS) == Pong()
    )

    assert len(table) == 0


def test_a_peer_that_no_longer_says_it_is_where_we_found_it_is_not_handed_out():
    cards = HomeCards()
    answers = node_with(a_table(4, 5), NegativeCache(8, 5.0), cards)
    cards.say(PeerId(raw(4)), contact_at(raw(4), "10.0.0.2:1"))

    assert listed(answers.answer(ASKER, Find(KEY), 0.0, NOW_MS).peer_list) == [contact(5)]


def test_a_key_that_is_stored_is_no_miss_any_more():
    misses = NegativeCache(8, 5.0)
    misses.add(KEY, 0.0)

    store(node_with(a_table(), misses), b"a")

    assert not misses.holds(KEY, 0.0)
