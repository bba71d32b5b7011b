"""Gets that we carry on for others: which, how many at once, and with what answer."""

import pytest
from discovery.dht.harness import CARDS, CONFIG, EPOCH_S, HOME, KEY, OWN, contact, listed, raw, told

from p2pswarm.base.ids import PeerId
from p2pswarm.discovery.dht.call_outcomes import TimeoutEstimator
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.get_value import GetValue
from p2pswarm.discovery.dht.messages import PAGE_BYTES, RECORDS_MAX, Get, Got, Record
from p2pswarm.discovery.dht.records import SignatureCache, sign
from p2pswarm.discovery.dht.responder import QueryProxy, to_be_carried
from p2pswarm.discovery.dht.unverified_contacts import UnverifiedContacts
from p2pswarm.net.crypto.identity import Identity

ALICE = Identity.generate(b"alice")
OURS = "10.0.0.9:9"
ASKED = Get(KEY, b"", True, 2)
PLAIN = Got((), False, told([(raw(number), HOME) for number in range(1, 6)]))


def a_record(subkey: bytes = b"a", value: bytes = b"v") -> Record:
    return sign(ALICE, KEY, subkey, value, 1, int(1000 * (EPOCH_S + 60)))


def a_carrier(config: DhtConfig = CONFIG) -> QueryProxy:
    return QueryProxy(
        PeerId(OWN), config, TimeoutEstimator(config), SignatureCache(), UnverifiedContacts(CARDS)
    )


def carried(proxy: QueryProxy) -> GetValue:
    return proxy.query(ASKED, listed(PLAIN.peer_list), 0.0, EPOCH_S)


def test_a_get_that_found_nothing_here_is_carried_on():
    assert to_be_carried(ASKED, PLAIN)
    assert not to_be_carried(ASKED, Got((a_record(),), False, PLAIN.peer_list))
    assert not to_be_carried(Get(KEY, b"", True, 0), PLAIN)


def test_only_so_many_are_carried_at_once():
    proxy = a_carrier(DhtConfig(carrying=2))

    assert [proxy.begin() for _ in range(3)] == [True, True, False]
    proxy.on_end()

    assert [proxy.begin() for _ in range(2)] == [True, False]


def test_a_few_of_the_closest_are_asked_in_our_name_with_one_hop_less():
    get_value = carried(a_carrier())

    asks = get_value.drain(0.0)

    assert [ask.contact for ask in asks] == [contact(1), contact(2), contact(3)]
    assert [ask.request for ask in asks] == [Get(KEY, b"", False, 1)] * 3
    for each in (1, 2, 3):
        get_value.on_failure(contact(each))
    assert get_value.drain(0.1) == []
    assert get_value.finished


def test_it_takes_no_longer_than_the_asker_waits():
    get_value = carried(a_carrier())
    get_value.drain(0.0)

    get_value.on_deadline(CONFIG.carry_s)

    assert get_value.finished


def test_what_was_found_is_the_answer_in_the_order_of_subkeys():
    proxy = a_carrier()
    get_value = carried(proxy)
    get_value.drain(0.0)
    found = a_record(b"b"), a_record(b"a")

    get_value.on_response(contact(1), Got(found, False, told([])), 0.1)

    answer = proxy.answer(get_value, PLAIN)
    assert answer == Got((a_record(b"a"), a_record(b"b")), False, told([]))


def test_what_was_not_found_leaves_the_plain_answer():
    proxy = a_carrier()

    assert proxy.answer(carried(proxy), PLAIN) == PLAIN


def test_a_holder_with_more_than_one_page_leaves_the_plain_answer():
    proxy = a_carrier()
    get_value = carried(proxy)
    get_value.drain(0.0)

    get_value.on_response(contact(1), Got((a_record(),), True, told([])), 0.1)

    assert proxy.answer(get_value, PLAIN) == PLAIN


@pytest.mark.parametrize(
    ("count", "size_bytes"),
    [(RECORDS_MAX + 1, 1), (PAGE_BYTES // 4096 + 1, 4096)],
    ids=["too many", "too large"],
)
def test_more_than_fits_a_message_leaves_the_plain_answer(count, size_bytes):
    """Two holders that answer in the same moment may together have more than one page."""
    proxy = a_carrier()
    get_value = carried(proxy)
    get_value.drain(0.0)
    records = [a_record(b"%03d" % i, b"v" * size_bytes) for i in range(count)]

    for number, half in ((1, records[::2]), (2, records[1::2])):
        get_value.on_response(contact(number), Got(tuple(half), False, told([])), 0.1)

    assert len(get_value.records) == count
    assert proxy.answer(get_value, PLAIN) == PLAIN
