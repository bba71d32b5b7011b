"""Where a query's requests go, and when those who wait are released."""

import pytest
from discovery.dht.harness import KEY, OWN, a_lookup, contact, raw, told

from p2pswarm.base.ids import PeerId
from p2pswarm.discovery.dht.find_node import FindNode
from p2pswarm.discovery.dht.messages import Find, Found, Get, Pong, Store
from p2pswarm.discovery.dht.query import QueryRequest
from p2pswarm.discovery.dht.query_progress import QueryProgress, QueryState, Route
from p2pswarm.discovery.dht.records import sign
from p2pswarm.net.crypto.identity import Identity

RECORD = sign(Identity.generate(b"alice"), KEY, b"", b"value", 1, 1_700_000_000_000)
STORE = Store((RECORD,))
US = PeerId(OWN)
OURS = contact(int.from_bytes(OWN))
NOBODY_CLOSER = Found(told([]))


def searching(*start: int, first_round: int | None = None) -> QueryProgress:
    """A search for peers that has asked everyone in `start`."""
    query = FindNode(a_lookup(*start, settle=len(start)), first_round)
    query.poll(0.0)
    return QueryProgress(query, US)


@pytest.mark.parametrize(
    ("ask", "route"),
    [
        (QueryRequest(contact(5), Find(KEY)), Route.CALL),
        (QueryRequest(contact(5), Get(KEY, b"", False, 0)), Route.CALL),
        (QueryRequest(contact(5), STORE), Route.CALL),
        (QueryRequest(contact(5), STORE, at_leisure=True), Route.BATCH),
        (QueryRequest(OURS, STORE, at_leisure=True), Route.BATCH),
        (QueryRequest(OURS, STORE), Route.OURSELVES),
    ],
)
def test_a_request_goes_the_cheapest_way(ask, route):
    assert searching(10).route(ask) is route


def test_a_query_that_runs_has_reached_nothing():
    progress = searching(10, 20)

    assert progress.advance() == []
    assert progress.state is QueryState.RUNNING


def test_a_query_that_ends_is_ready_and_finished_once():
    progress = searching(10)
    assert progress.on_reply(contact(10), NOBODY_CLOSER, 0.1)

    assert progress.advance() == [QueryState.READY, QueryState.FINISHED]
    assert progress.advance() == []
    assert progress.state is QueryState.FINISHED


def test_those_who_wait_may_be_released_before_the_end():
    progress = searching(10, 20, first_round=1)
    progress.on_reply(contact(10), NOBODY_CLOSER, 0.1)

    assert progress.advance() == [QueryState.READY]
    assert progress.advance() == []
    progress.on_reply(contact(20), NOBODY_CLOSER, 0.2)

    assert progress.advance() == [QueryState.FINISHED]


def test_no_reply_is_a_failure_and_no_breach():
    progress = searching(10, 20)

    assert progress.on_reply(contact(10), None, 0.1)
    assert progress.on_reply(contact(20), NOBODY_CLOSER, 0.1)

    assert progress.query.poll(0.2) == []
    assert progress.advance() == [QueryState.READY, QueryState.FINISHED]
    assert isinstance(progress.query, FindNode)
    assert progress.query.lookup.heard_from() == [raw(20)]


def test_a_wrong_reply_is_a_failure_and_a_breach():
    progress = searching(10, 20)

    assert not progress.on_reply(contact(10), Pong(), 0.1)

    progress.on_reply(contact(20), NOBODY_CLOSER, 0.1)
    assert progress.query.poll(0.2) == []
    assert progress.advance() == [QueryState.READY, QueryState.FINISHED]


def test_a_query_is_woken_until_it_has_finished():
    progress = searching(10)
    assert progress.next_deadline_s() == progress.query.next_deadline_s()

    progress.on_reply(contact(10), NOBODY_CLOSER, 0.1)
    progress.advance()

    assert progress.next_deadline_s() is None
