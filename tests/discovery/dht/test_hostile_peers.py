"""Whatever peers send, and whenever: the machines raise BadMessage only and keep their bounds."""

import random
from contextlib import suppress

from discovery.dht.harness import (
    CONFIG,
    EPOCH_S,
    HOME,
    KEY,
    OWN,
    a_lookup,
    contact,
    contact_at,
    raw,
    told,
)
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Contact
from p2pswarm.discovery.dht.call_outcomes import TimeoutEstimator
from p2pswarm.discovery.dht.config import CONTACTS_MAX, DhtConfig
from p2pswarm.discovery.dht.get_value import PAGES_MAX, GetOptions, GetValue
from p2pswarm.discovery.dht.lookup import ASKS_MAX, CANDIDATES_MAX, FindNode, Query
from p2pswarm.discovery.dht.messages import (
    PEER_LIST_BYTES,
    Found,
    Get,
    Got,
    PeerList,
    Pong,
    Record,
    Stored,
    peers_in,
)
from p2pswarm.discovery.dht.put_value import PutOptions, PutValue
from p2pswarm.discovery.dht.records import SignatureCache, sign
from p2pswarm.discovery.dht.routing_table import ID_BITS, Table
from p2pswarm.discovery.dht.upkeep import SEEDS_MAX, Seeds
from p2pswarm.net.cards.card import CARD_BYTES_MAX, decode_card
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.wire.message import Message, decode, encode
from p2pswarm.sim.process import read_unsigned

ALICE = Identity.generate(b"alice")
US = contact(int.from_bytes(OWN))
TIME_MS = int(1000 * EPOCH_S)
SMALL = DhtConfig(k=4, beta=2, replicas=3, replicas_success=2, waiting=2, per_wide_net=5)

ids = st.one_of(
    st.integers(0, 30).map(raw),
    st.binary(min_size=32, max_size=32),
    st.just(OWN),
    st.integers(0, 255).map(lambda bit: raw(int.from_bytes(OWN) ^ 1 << bit)),
)
addresses = st.one_of(
    st.just(HOME),
    st.sampled_from(["8.8.8.8:1", "8.8.4.4:9", "[2600::1]:1", "[2600::1%x]:1", "a.example.org:7"]),
    st.text(max_size=20),
)
peer_lists = st.lists(st.tuples(ids, addresses), max_size=20).map(told)
genuine = st.builds(
    lambda subkey, seq, ttl_s: sign(ALICE, KEY, subkey, b"v", seq, TIME_MS + 1000 * ttl_s),
    st.binary(max_size=2),
    st.integers(0, 3),
    st.integers(-5, 7200),
)
forged = st.builds(
    Record,
    key=st.sampled_from([KEY, raw(1)]),
    subkey=st.one_of(st.binary(max_size=2), ids),
    value=st.binary(max_size=2),
    seq=st.integers(0, 2**62),
    expires_ms=st.one_of(st.integers(0, 2**53), st.just(TIME_MS + 1000)),
    public_key=ids,
    signature=st.binary(min_size=64, max_size=64),
)
replies = st.one_of(
    st.none(),
    st.just(Pong()),
    st.builds(Found, peer_lists),
    st.builds(
        Got, st.lists(st.one_of(genuine, forged), max_size=4).map(tuple), st.booleans(), peer_lists
    ),
    st.builds(Stored, st.binary(min_size=1, max_size=3)),
)


def tell(query: Query, peer: Contact, reply: Message | None, now_s: float) -> None:
    try:
        if reply is not None:
            query.on_response(peer, reply, now_s)
            return
    except BadMessage:
        pass
    query.on_failure(peer)


def play(query: Query, data: st.DataObject, asks_max: int) -> None:
    """Answer a query as badly as can be; it ends, and asks no more than it may."""
    now_s, waiting, asked = 0.0, [], 0
    for _ in range(60):
        while asks := query.drain(now_s):
            waiting += [ask.contact for ask in asks]
            asked += len(asks)
        if query.finished:
            break
        if waiting and data.draw(st.booleans()):
            one = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            tell(query, one, data.draw(replies), now_s)
        else:
            deadline_s = query.next_deadline_s()
            assert deadline_s is not None
            now_s = max(now_s, deadline_s)
            query.on_deadline(now_s)
    else:
        query.on_deadline(6.0)  # patience is 5 s
        query.drain(6.0)
    assert query.ready
    assert query.finished
    assert asked <= asks_max
    for each in waiting:  # late answers may still be told
        tell(query, each, data.draw(replies), now_s)


@given(st.data(), st.lists(st.integers(1, 30), max_size=20))
def test_a_search_for_peers_survives_any_answers(data, start):
    query = FindNode(a_lookup(*start))

    play(query, data, ASKS_MAX)

    assert len(query.lookup.closest(10_000)) <= CANDIDATES_MAX + ASKS_MAX
    assert US not in query.lookup.closest(10_000)


@given(st.data(), st.lists(st.integers(1, 30), max_size=20), st.integers(1, 3))
def test_a_get_survives_any_answers(data, start, quorum):
    signatures = SignatureCache()
    options = GetOptions(
        request=Get(KEY, b"", False, 0), quorum=quorum, wall_less_loop_s=EPOCH_S, carried=3
    )
    query = GetValue(a_lookup(*start, settle=8), options, CONFIG, signatures)

    play(query, data, ASKS_MAX * PAGES_MAX)

    assert all(record.key == KEY and signatures.holds(record) for record in query.records.values())
    assert len(list(query.repairs())) <= 2


@given(st.data(), st.lists(st.integers(1, 30), max_size=20, unique=True), st.integers(0, 3))
def test_a_put_survives_any_answers(data, candidates, success):
    record = sign(ALICE, KEY, b"", b"v", 1, TIME_MS)
    options = PutOptions(replicas=3, success=success, first=success, patience_s=5.0)
    known = [contact(number) for number in candidates]
    query = PutValue(record, known, options, TimeoutEstimator(CONFIG))

    play(query, data, len(candidates))

    assert query.holders + len(query.refusals) <= len(candidates)


times_s = st.floats(-1e6, 1e12)
knocks = st.lists(
    st.tuples(st.sampled_from(["heard", "failed", "drop", "refreshed"]), ids, addresses, times_s),
    max_size=80,
)


@given(knocks, ids, times_s)
def test_a_table_keeps_its_bounds_whatever_happens_and_whenever(history, key, now_s):
    table = Table(US.peer, SMALL)
    for event, peer, address, at_s in history:
        if event == "heard":
            try:
                check = table.on_contact(contact_at(peer, address), at_s)
            except ValueError:
                continue
            assert check is None or table.get(check.peer.raw) is not None
        elif event == "failed":
            table.on_failure(peer)
        elif event == "drop":
            table.drop(peer)
        else:
            table.on_refresh(peer, [each.raw for each in table.nearest(peer, 4)], at_s)

        everybody = list(table)
        assert len(everybody) == len(table) <= SMALL.k * (ID_BITS + 1)
        nets = [each.wide_net for each in everybody if each.wide_net]
        assert all(nets.count(net) <= SMALL.per_wide_net for net in nets)
        assert table.get(OWN) is None
    near = table.nearest(key, 3)
    table.sure(key, near, 3, now_s)
    deadline_s = table.next_refresh_s()
    stale = table.stale(now_s, random.Random(1))
    assert (deadline_s is None) == (table.depth == 0)
    assert bool(stale) == (deadline_s is not None and deadline_s <= now_s)


@given(
    st.lists(st.tuples(st.sampled_from(["start", "learned", "us", "due"]), ids, addresses, times_s))
)
def test_seeds_are_bounded_and_never_ourselves(history):
    seeds = Seeds(US, CONFIG, random.Random(1))
    for event, peer, text, at_s in history:
        try:
            one = contact_at(peer, text)
        except ValueError:
            continue
        if event == "start":
            seeds.start([Contact(None, one.address), one], at_s)
        elif event == "learned":
            seeds.on_answer(one.address, one.peer, at_s)
        elif event == "us":
            seeds.on_own_address(one.address)
        else:
            assert len(seeds.due(at_s)) <= SEEDS_MAX
        known = seeds.start([], at_s)
        assert len(known) <= SEEDS_MAX
        assert all(each.address != US.address for each in known)
        assert (seeds.next_deadline_s() is None) == (not known)


@given(st.lists(st.binary(max_size=1200), max_size=24), st.binary(max_size=24))
def test_a_peer_list_is_whole_or_no_message(cards, found):
    fits = all(1 <= len(each) <= CARD_BYTES_MAX for each in cards)
    fits = fits and len(cards) == len(found) <= CONTACTS_MAX
    fits = fits and sum(map(len, cards)) <= PEER_LIST_BYTES
    try:
        known = decode(encode(PeerList(tuple(cards), found)))
    except ValueError:
        assert not fits
        return
    assert fits
    assert isinstance(known, PeerList)
    with suppress(BadMessage):
        assert len(peers_in(known, decode_card)) == 0  # no bytes of chance are signed


@given(peer_lists)
def test_what_a_list_names_is_signed_and_has_an_address(packed):
    with suppress(BadMessage):
        for named, card in peers_in(packed, read_unsigned):
            assert named.peer == card.peer
            assert named.address in card.addresses
            assert named.address.port > 0
            named.address.host.encode("idna")  # as a resolver does
