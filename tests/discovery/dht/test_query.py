"""Tests of `discovery/dht/query.py`."""

from collections.abc import Callable

import pytest
from discovery.dht.harness import HOME, KEY, OWN, a_lookup, contact, raw, told

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import PeerId
from p2pswarm.discovery.dht.messages import Find, Found, Get, Pong, Store
from p2pswarm.discovery.dht.query import (
    Alarm,
    FindNode,
    QueryProgress,
    QueryRequest,
    QueryState,
    Route,
)
from p2pswarm.discovery.dht.records import sign
from p2pswarm.net.crypto.identity import Identity


class Timer:
    """A timer of the clock below."""

    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self.callback = callback
        self.cancelled = False

    def when(self) -> float:
        return self.at_s

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """Notes the timers that were set, and fires them when told."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    def pending_s(self) -> list[float]:
        return [timer.at_s for timer in self.timers if not timer.cancelled]

    def fire(self) -> None:
        (timer,) = [timer for timer in self.timers if not timer.cancelled]
        self.timers.clear()
        timer.callback()


def an_alarm() -> tuple[Alarm, Clock, list[str]]:
    clock, rung = Clock(), []
    return Alarm(clock, lambda: rung.append("rung")), clock, rung


def test_it_rings_at_its_deadline_once():
    alarm, clock, rung = an_alarm()

    alarm.set(2.0)
    clock.fire()

    assert rung == ["rung"]
    assert clock.pending_s() == []


def test_a_sooner_deadline_moves_the_timer():
    alarm, clock, _ = an_alarm()
    alarm.set(2.0)

    alarm.set(1.0)

    assert clock.pending_s() == [1.0]


def test_a_later_deadline_leaves_the_timer_where_it_is():
    alarm, clock, _ = an_alarm()
    alarm.set(2.0)

    alarm.set(3.0)
    alarm.set(2.0)
    alarm.set(None)

    assert [timer.at_s for timer in clock.timers] == [2.0]


def test_without_a_deadline_no_timer_is_set():
    alarm, clock, _ = an_alarm()

    alarm.set(None)

    assert clock.timers == []


def test_after_it_rang_it_can_be_set_again():
    alarm, clock, rung = an_alarm()
    alarm.set(2.0)
    clock.fire()

    alarm.set(5.0)
    clock.fire()

    assert rung == ["rung", "rung"]


def test_a_cancelled_alarm_does_not_ring():
    alarm, clock, _ = an_alarm()
    alarm.cancel()
    alarm.set(2.0)

    alarm.cancel()
    assert clock.pending_s() == []

    alarm.set(3.0)
    assert clock.pending_s() == [3.0]


RECORD = sign(Identity.generate(b"alice"), KEY, b"", b"value", 1, 1_700_000_000_000)
STORE = Store((RECORD,))
US = PeerId(OWN)
OURS = contact(int.from_bytes(OWN))
NOBODY_CLOSER = Found(told([]))


def searching(*start: int, first_round: int | None = None) -> QueryProgress:
    """A search for peers that has asked everyone in `start`."""
    query = FindNode(a_lookup(*start, settle=len(start)), first_round)
    query.drain(0.0)
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

    assert progress.query.drain(0.2) == []
    assert progress.advance() == [QueryState.READY, QueryState.FINISHED]
    assert isinstance(progress.query, FindNode)
    assert progress.query.lookup.responder_ids() == [raw(20)]


def test_a_wrong_reply_is_a_failure_and_a_breach():
    progress = searching(10, 20)

    assert not progress.on_reply(contact(10), Pong(), 0.1)

    progress.on_reply(contact(20), NOBODY_CLOSER, 0.1)
    assert progress.query.drain(0.2) == []
    assert progress.advance() == [QueryState.READY, QueryState.FINISHED]


def test_a_query_is_woken_until_it_has_finished():
    progress = searching(10)
    assert progress.next_deadline_s() == progress.query.next_deadline_s()

    progress.on_reply(contact(10), NOBODY_CLOSER, 0.1)
    progress.advance()

    assert progress.next_deadline_s() is None


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
