"""What the outcome of a call means for the table and the round trips."""

import pytest
from discovery.dht.harness import CARDS, CONFIG, KEY, OWN, a_table, anywhere, contact, raw, told

from p2pswarm.base.errors import (
    BadMessage,
    Busy,
    DialFailed,
    Late,
    LinkLost,
    NoRoute,
    NotServing,
    Refused,
    SwarmError,
)
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.call_outcomes import (
    CallOutcome,
    CallRecorder,
    TimeoutEstimator,
    outcome_of,
)
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.messages import Find, Get, Identified, Pong
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.net.endpoint.link_table import ProvenAddress

FIND = Find(KEY)
PLAIN_GET = Get(KEY, b"", False, 0)
CARRIED_GET = Get(KEY, b"", False, 2)


def a_recorder(*known: int) -> tuple[CallRecorder, Table, TimeoutEstimator]:
    table, timeouts = a_table(*known), TimeoutEstimator(CONFIG)
    return CallRecorder(table, timeouts, anywhere, CARDS), table, timeouts


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (DialFailed("x"), CallOutcome.LOST),
        (LinkLost("x"), CallOutcome.LOST),
        (Late("x"), CallOutcome.LATE),
        (BadMessage("x"), CallOutcome.BREACH),
        (NotServing("x"), CallOutcome.NOT_SERVING),
        (Busy(), CallOutcome.BUSY),
        (Refused("x"), CallOutcome.BUSY),
        (NoRoute("x"), CallOutcome.BUSY),
        (SwarmError("x"), CallOutcome.BUSY),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_tells_how_the_peer_is(error, outcome):
    assert outcome_of(error) is outcome


def test_an_answer_is_a_round_trip_and_keeps_the_peer_in_the_table():
    recorder, table, timeouts = a_recorder()

    recorder.on_outcome(contact(5), FIND, CallOutcome.ANSWERED, 1.0, 1.1)

    assert table.get(raw(5)) is not None
    assert timeouts.expected_s(raw(5)) == pytest.approx(0.1)
    assert recorder.checks() == []


def test_an_answer_to_a_get_that_was_carried_on_is_no_round_trip():
    recorder, table, timeouts = a_recorder()
    stranger_s = timeouts.deadline_s(raw(5))

    recorder.on_outcome(contact(5), CARRIED_GET, CallOutcome.ANSWERED, 1.0, 1.1)

    assert table.get(raw(5)) is not None
    assert timeouts.deadline_s(raw(5)) == stranger_s


def test_a_busy_peer_is_well():
    recorder, table, timeouts = a_recorder()

    recorder.on_outcome(contact(5), FIND, CallOutcome.BUSY, 1.0, 1.1)

    assert table.get(raw(5)) is not None
    assert timeouts.deadline_s(raw(5)) == CONFIG.deadline_dial_s


@pytest.mark.parametrize("outcome", [CallOutcome.LATE, CallOutcome.LOST])
def test_a_peer_without_an_answer_leaves_when_that_has_happened_twice(outcome):
    recorder, table, timeouts = a_recorder(5)

    recorder.on_outcome(contact(5), FIND, outcome, 1.0, 2.0)
    assert table.get(raw(5)) is not None
    recorder.on_outcome(contact(5), FIND, outcome, 1.0, 2.0)

    assert table.get(raw(5)) is None
    for _ in range(14):
        recorder.on_outcome(contact(5), FIND, outcome, 1.0, 2.0)
    assert timeouts.failure_share == 1.0


@pytest.mark.parametrize("outcome", [CallOutcome.BREACH, CallOutcome.NOT_SERVING])
def test_a_peer_that_is_no_server_of_the_dht_leaves_at_once(outcome):
    recorder, table, timeouts = a_recorder(5)

    for _ in range(16):
        recorder.on_outcome(contact(5), FIND, outcome, 1.0, 2.0)

    assert table.get(raw(5)) is None
    assert timeouts.failure_share == 0.0


@pytest.mark.parametrize("how", ["called us", "answered", "busy"])
def test_a_newcomer_to_a_full_bucket_makes_us_check_an_old_contact(how):
    config = DhtConfig(k=1, beta=1, replicas=1, replicas_success=1)
    far = 1 << 255
    table = a_table(far, config=config)
    recorder = CallRecorder(table, TimeoutEstimator(config), anywhere, CARDS)

    if how == "called us":
        recorder.on_contact(contact(far + 1), 9.0)
    else:
        outcome = CallOutcome.ANSWERED if how == "answered" else CallOutcome.BUSY
        recorder.on_outcome(contact(far + 1), FIND, outcome, 8.0, 9.0)

    assert recorder.checks() == [contact(far)]
    assert recorder.checks() == []


def test_a_wrong_reply_costs_its_sender_the_place_in_the_table():
    recorder, table, _ = a_recorder(5)

    recorder.on_breach(contact(5))

    assert table.get(raw(5)) is None


def test_a_get_that_is_carried_on_has_the_time_that_this_takes():
    recorder, _, timeouts = a_recorder()

    plain_s = recorder.deadline_s(contact(5), PLAIN_GET)

    assert plain_s == recorder.deadline_s(contact(5), FIND) == timeouts.deadline_s(raw(5))
    assert recorder.deadline_s(contact(5), CARRIED_GET) == plain_s + CONFIG.carry_s


# Claims of addresses

CLAIM = Contact(contact(1).peer, Address("10.0.0.9", 9))


def a_recorder_without_links(*known: int) -> tuple[CallRecorder, Table]:
    """Its links show of nobody where it is."""
    table = a_table(*known)
    return CallRecorder(
        table, TimeoutEstimator(CONFIG), lambda _: ProvenAddress.CLAIMED, CARDS
    ), table


def identified(number: int) -> Identified:
    return Identified(raw(number), told([]))


@pytest.mark.parametrize(
    ("reply", "enters"),
    [(identified(1), True), (identified(2), False), (Pong(), False), (None, False)],
)
def test_a_peer_enters_the_table_when_it_was_found_where_it_claims_to_be(reply, enters):
    recorder, table = a_recorder_without_links()

    recorder.on_contact(CLAIM, 1.0)
    assert len(table) == 0
    assert recorder.claims() == [CLAIM]
    recorder.on_check(CLAIM, reply, 2.0)

    assert [each.contact for each in table] == ([CLAIM] if enters else [])
    assert recorder.claims() == []


@pytest.mark.parametrize(("reply", "where"), [(identified(1), CLAIM), (None, contact(1))])
def test_a_known_peer_moves_when_it_was_found_at_its_new_address(reply, where):
    """Others may have named that address: an answer over its old link does not show it."""
    recorder, table = a_recorder_without_links(1)

    recorder.on_outcome(CLAIM, FIND, CallOutcome.ANSWERED, 0.0, 1.0)
    assert [each.contact for each in table] == [contact(1)]
    recorder.on_check(*recorder.claims(), reply, 2.0)

    assert [each.contact for each in table] == [where]


def test_a_known_peer_at_its_address_needs_no_check():
    recorder, table = a_recorder_without_links(1)

    recorder.on_contact(contact(1), 50.0)

    assert recorder.claims() == []
    assert [each.heard_s for each in table] == [50.0]


def test_what_is_not_believed_or_is_ourselves_is_not_dialled():
    recorder, _ = a_recorder_without_links()

    recorder.on_contact(Contact(contact(1).peer, Address("224.0.0.1", 9)), 1.0)
    recorder.on_contact(Contact(contact(1).peer, Address("10.0.0.9", 0)), 1.0)
    recorder.on_contact(Contact(PeerId(OWN), Address("10.0.0.9", 9)), 1.0)

    assert recorder.claims() == []


def test_a_claim_that_was_refuted_is_not_checked_again():
    recorder, _ = a_recorder_without_links()
    recorder.on_contact(CLAIM, 1.0)
    recorder.on_check(*recorder.claims(), None, 4.0)

    recorder.on_contact(CLAIM, 5.0)

    assert recorder.claims() == []


def test_checks_that_are_over_make_room_for_others():
    recorder, _ = a_recorder_without_links()
    for number in range(1, 40):
        recorder.on_contact(Contact(contact(number).peer, Address(f"10.0.1.{number}", 9)), 1.0)
        (claimed,) = recorder.claims()
        recorder.on_check(claimed, None, 1.0)


# Peers whose links come from where they say that they are


def test_a_peer_that_called_us_is_dialled_back_before_it_enters_the_table():
    table = a_table()
    recorder = CallRecorder(table, TimeoutEstimator(CONFIG), lambda _: ProvenAddress.HOST, CARDS)

    recorder.on_contact(CLAIM, 1.0)
    recorder.on_contact(CLAIM, 1.1)

    assert len(table) == 0
    assert recorder.claims() == [CLAIM]
    recorder.on_check(CLAIM, identified(1), 2.0)
    assert [each.contact for each in table] == [CLAIM]


def test_a_peer_that_could_not_be_dialled_back_leaves_its_neighbours_alone():
    """Another node of the same machine, at another port, is no less believed."""
    recorder = CallRecorder(
        a_table(), TimeoutEstimator(CONFIG), lambda _: ProvenAddress.HOST, CARDS
    )
    recorder.on_contact(CLAIM, 1.0)
    recorder.on_check(*recorder.claims(), None, 4.0)

    recorder.on_contact(CLAIM, 5.0)
    assert recorder.claims() == []
    neighbour = Contact(contact(2).peer, Address(CLAIM.address.host, 10))
    recorder.on_contact(neighbour, 5.0)
    assert recorder.claims() == [neighbour]


def test_a_peer_that_has_no_place_in_the_table_is_not_dialled_at_each_request():
    config = DhtConfig(k=1, beta=1, replicas=1, replicas_success=1)
    far = 1 << 255
    table = a_table(far, config=config)
    recorder = CallRecorder(table, TimeoutEstimator(config), lambda _: ProvenAddress.HOST, CARDS)
    recorder.on_contact(contact(far + 1), 9.0)
    recorder.on_check(*recorder.claims(), identified(far + 1), 9.1)
    assert recorder.checks() == [contact(far)]  # it waits for that one's place

    recorder.on_contact(contact(far + 1), 10.0)

    assert recorder.claims() == []
