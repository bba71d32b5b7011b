"""The queries of a lookup, and the pump that runs queries."""

from dataclasses import dataclass, field

import pytest
from discovery.dht.harness import HOME, KEY, OWN, a_lookup, contact, raw, told

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.discovery.dht.lookup import FindNode, QueryRequest
from p2pswarm.discovery.dht.messages import Find, Found, Pong, Store, Stored
from p2pswarm.discovery.dht.put_value import BatchedRecord
from p2pswarm.discovery.dht.query_runner import RunningQuery
from p2pswarm.discovery.dht.records import sign
from p2pswarm.net.crypto.identity import Identity

RECORD = sign(Identity.generate(b"alice"), KEY, b"", b"value", 1, 1_700_000_000_000)
STORE = Store((RECORD,))
OURS = contact(int.from_bytes(OWN))
NOBODY_CLOSER = Found(told([]))


@dataclass
class Runner:
    """Stands for a `QueryRunner`: notes how requests go, and which peers broke the protocol."""

    own: PeerId = field(default_factory=lambda: PeerId(OWN))
    running: dict[RunningQuery, None] = field(default_factory=dict)
    routes: list[str] = field(default_factory=list)
    breaches: list[Contact] = field(default_factory=list)

    @property
    def recorder(self) -> "Runner":
        return self

    def on_breach(self, peer: Contact) -> None:
        self.breaches.append(peer)

    def start(self, work) -> None:
        work.close()
        self.routes.append("call")

    def post(self, _contact: Contact, _batched: BatchedRecord) -> bool:
        self.routes.append("batch")
        return True

    def keep(self, _own: PeerId, _store: Store) -> Stored:
        self.routes.append("ourselves")
        return Stored(b"\0")


@dataclass
class Asks:
    """A query with given requests."""

    asks: list[QueryRequest]
    ready = finished = False

    def drain(self, _now_s: float) -> list[QueryRequest]:
        asks, self.asks = self.asks, []
        return asks

    def on_response(self, *_: object) -> None: ...

    def next_deadline_s(self) -> None: ...


@pytest.mark.parametrize(
    ("ask", "route"),
    [
        (QueryRequest(contact(5), Find(KEY)), "call"),
        (QueryRequest(OURS, Find(KEY)), "call"),
        (QueryRequest(contact(5), STORE), "call"),
        (QueryRequest(contact(5), STORE, at_leisure=True), "batch"),
        (QueryRequest(OURS, STORE, at_leisure=True), "batch"),
        (QueryRequest(OURS, STORE), "ourselves"),
    ],
)
async def test_a_request_goes_the_cheapest_way(ask, route):
    runner = Runner()

    RunningQuery(runner, Asks([ask]), lambda: None).step()

    assert runner.routes == [route]


def running(*start: int, ended: list[str], first_round: int | None = None) -> RunningQuery:
    """A search for peers that has asked everyone in `start`."""
    query = FindNode(a_lookup(*start, settle=len(start)), first_round)
    query.drain(0.0)
    return RunningQuery(Runner(), query, lambda: ended.append("ended"))


async def test_a_query_ends_once():
    search = running(10, ended=(ended := []))
    search.step()
    assert (ended, len(search._runner.running)) == ([], 1)

    search.on_reply(contact(10), NOBODY_CLOSER)
    search.step()

    assert (ended, len(search._runner.running)) == (["ended"], 0)


async def test_those_who_wait_may_be_released_before_the_end():
    search = running(10, 20, ended=(ended := []), first_round=1)
    search.on_reply(contact(10), NOBODY_CLOSER)

    await search.wait()
    assert ended == []

    search.on_reply(contact(20), NOBODY_CLOSER)
    assert ended == ["ended"]


async def test_no_reply_is_a_failure_and_no_breach():
    search = running(10, 20, ended=(ended := []))

    search.on_reply(contact(10), None)
    search.on_reply(contact(20), NOBODY_CLOSER)

    assert ended == ["ended"]
    assert search.query.lookup.responders(5) == [contact(20)]
    assert search._runner.breaches == []


async def test_a_wrong_reply_is_a_failure_and_a_breach():
    search = running(10, 20, ended=(ended := []))

    search.on_reply(contact(10), Pong())
    search.on_reply(contact(20), NOBODY_CLOSER)

    assert ended == ["ended"]
    assert search._runner.breaches == [contact(10)]


def found(*numbers: int) -> Found:
    return Found(told([(raw(number), HOME) for number in numbers]))


def test_it_asks_and_learns():
    search = FindNode(a_lookup(10))
    assert search.drain(0.0) == [QueryRequest(contact(10), Find(KEY))]

    search.on_response(contact(10), found(5), 0.1)

    assert search.drain(0.1) == [QueryRequest(contact(5), Find(KEY))]
    search.on_response(contact(5), found(), 0.2)
    assert search.drain(0.2) == []
    assert search.finished
    assert search.ready


def test_a_peer_that_fails_is_passed_over():
    search = FindNode(a_lookup(10, 20))
    search.drain(0.0)

    search.on_failure(contact(10))
    search.on_response(contact(20), found(), 0.1)
    search.drain(0.1)

    assert search.lookup.closest(5) == [contact(20)]


def test_an_answer_to_another_question_is_a_breach():
    search = FindNode(a_lookup(10))
    search.drain(0.0)

    with pytest.raises(BadMessage, match="Pong does not answer Find"):
        search.on_response(contact(10), Pong(), 0.1)


def test_a_newcomer_is_ready_after_the_first_round():
    search = FindNode(a_lookup(10, 20), first_round=2)
    search.drain(0.0)
    search.on_response(contact(10), found(1, 2, 3), 0.1)
    assert not search.ready

    search.on_deadline(search.next_deadline_s())

    assert search.ready
    assert not search.finished
