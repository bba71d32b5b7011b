"""Publishing our own values: sequence numbers, holders, and what `put` concludes."""

import random

import pytest
from discovery.dht.harness import CONFIG, KEY, OWN, STRANGER, contact, contacts

from p2pswarm.base.errors import NoRoute, Refused, Unusable
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.crowding import REGION_MAX, REGION_SUCCESS, Spread
from p2pswarm.discovery.dht.messages import Stored
from p2pswarm.discovery.dht.publications import Publications
from p2pswarm.discovery.dht.publisher import Publisher, holders_of
from p2pswarm.discovery.dht.put_value import PutOptions, PutValue
from p2pswarm.discovery.dht.record_store import Verdict
from p2pswarm.discovery.dht.records import SignatureCache
from p2pswarm.discovery.dht.timeouts import TimeoutEstimator
from p2pswarm.net.crypto.identity import Identity

ALICE = Identity.generate(b"alice")
NOW_MS = 1_700_000_000_000
US = contact(int.from_bytes(OWN))


def a_publisher(config: DhtConfig = CONFIG) -> Publisher:
    return Publisher(ALICE, config, Publications(config, random.Random(1)))


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, 3600.1, float("nan")])
def test_a_time_to_live_that_no_peer_grants_is_our_callers_mistake(ttl_s):
    with pytest.raises(ValueError, match="a value lives up to 3600 s"):
        a_publisher().publication(KEY, b"", b"value", ttl_s, NOW_MS)


def test_sequence_numbers_rise_even_if_the_clock_does_not():
    publisher = a_publisher()
    clock_ms = [NOW_MS, NOW_MS, NOW_MS - 5, NOW_MS + 9]

    seqs = [publisher.publication(KEY, b"", b"v", 1.0, now_ms).seq for now_ms in clock_ms]

    assert seqs == [NOW_MS, NOW_MS + 1, NOW_MS + 2, NOW_MS + 9]


def test_a_record_lives_from_the_time_it_is_signed():
    publisher = a_publisher()
    publication = publisher.publication(KEY, b"s", b"value", 300.0, NOW_MS)

    first, again = publisher.sign(publication, NOW_MS), publisher.sign(publication, NOW_MS + 7)

    assert SignatureCache().holds(first)
    assert (first.seq, first.expires_ms) == (publication.seq, NOW_MS + 300_000)
    assert (again.seq, again.expires_ms) == (publication.seq, NOW_MS + 300_007)


def test_a_kept_publication_is_due_again():
    publications = Publications(CONFIG, random.Random(1))
    publisher = Publisher(ALICE, CONFIG, publications)
    publication = publisher.publication(KEY, b"", b"value", 300.0, NOW_MS)
    assert publications.next_deadline_s() is None

    publisher.keep(publication, 10.0)

    assert publications.due(200.0) == [publication]


def test_as_many_are_asked_at_once_as_success_needs():
    options = a_publisher().options(failure_share=0.0, spread=Spread.EVEN, waited_for=True)

    assert (options.success, options.first, options.replicas) == (5, 5, 8)


def test_where_contacts_are_often_dead_all_holders_are_asked_at_once():
    options = a_publisher().options(failure_share=0.06, spread=Spread.EVEN, waited_for=True)

    assert (options.success, options.first) == (5, 8)


def test_nobody_is_asked_at_once_if_nobody_waits():
    options = a_publisher().options(failure_share=1.0, spread=Spread.EVEN, waited_for=False)

    assert (options.success, options.first) == (0, 0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((1, 2), [1, 2, "us"]),
        ((1, 1 << 201), [1, "us", 1 << 201]),
        ((1 << 201,), ["us", 1 << 201]),
        ((), ["us"]),
    ],
)
def test_a_server_is_a_candidate_in_its_own_place(found, expected):
    candidates = a_publisher().candidates(KEY, contacts(*found), US)

    assert candidates == [US if each == "us" else contact(each) for each in expected]


def test_only_the_k_closest_are_candidates():
    """Ourselves only if we are one of them."""
    candidates = a_publisher().candidates(KEY, contacts(*range(1, 21)), US)

    assert candidates == contacts(*range(1, 21))


def test_a_client_is_no_candidate():
    client = a_publisher(DhtConfig(server=False))

    assert client.candidates(KEY, contacts(1, 2), US) == contacts(1, 2)


def placed(*verdicts: int) -> PutValue:
    """A put that so many peers have answered, each in its way."""
    options = PutOptions(replicas=8, success=5, first=8, patience_s=5.0)
    known = contacts(*range(1, len(verdicts) + 1))
    publisher = a_publisher()
    record = publisher.sign(publisher.publication(KEY, b"", b"v", 60.0, NOW_MS), NOW_MS)
    put_value = PutValue(record, known, options, TimeoutEstimator(CONFIG))
    put_value.poll(0.0)
    for each, verdict in zip(known, verdicts, strict=True):
        put_value.on_response(each, Stored(bytes([verdict])), 0.1)
    return put_value


def test_one_holder_is_success():
    assert holders_of(placed(Verdict.QUOTA, Verdict.KEPT, Verdict.EXPIRED), STRANGER) == 1


@pytest.mark.parametrize("verdict", [Verdict.EXPIRED, Verdict.FUTURE])
def test_a_wrong_clock_is_named(verdict):
    with pytest.raises(Unusable, match="set this machine's clock"):
        holders_of(placed(Verdict.QUOTA, verdict), STRANGER)


def test_a_shared_subkey_that_a_stranger_has_taken_is_named_with_the_remedy():
    """Its number is as high as it likes; whoever wrote before it must not think that it is kept."""
    with pytest.raises(Refused, match="another peer's value under this subkey is newer"):
        holders_of(placed(Verdict.OLDER, Verdict.OLDER, Verdict.FULL), STRANGER)


@pytest.mark.parametrize("verdict", [Verdict.EXPIRED, Verdict.FUTURE])
def test_a_wrong_clock_is_named_though_we_keep_the_value_ourselves(verdict):
    """By our own clock nothing is wrong; nobody else would believe the value."""
    put_value = placed(Verdict.KEPT, verdict, verdict)
    ourselves, *_ = put_value.held_by

    with pytest.raises(Unusable, match="set this machine's clock"):
        holders_of(put_value, ourselves.peer)
    assert holders_of(placed(Verdict.KEPT, Verdict.FULL), ourselves.peer) == 1


def test_refusals_are_named_once_each():
    with pytest.raises(Refused, match=r"no peer kept the value: FULL, QUOTA$"):
        holders_of(placed(Verdict.QUOTA, Verdict.FULL, Verdict.QUOTA, 255), STRANGER)


@pytest.mark.parametrize("verdicts", [(), (255,)], ids=["nobody", "an unknown verdict"])
def test_without_any_known_verdict_nobody_could_be_reached(verdicts):
    with pytest.raises(NoRoute, match="no peer could be reached"):
        holders_of(placed(*verdicts), STRANGER)


@pytest.mark.parametrize(
    ("spread", "replicas", "success"),
    [(Spread.EVEN, 8, 5), (Spread.DENSE, 20, 5), (Spread.CROWDED, REGION_MAX, REGION_SUCCESS)],
)
def test_the_closer_the_closest_stand_together_the_more_peers_hold_a_record(
    spread, replicas, success
):
    waited = a_publisher().options(failure_share=1.0, spread=spread, waited_for=True)
    again = a_publisher().options(failure_share=1.0, spread=spread, waited_for=False)

    assert (waited.replicas, waited.success) == (replicas, success)
    assert waited.success <= waited.first <= waited.replicas
    assert (again.replicas, again.success) == (replicas, 0)
