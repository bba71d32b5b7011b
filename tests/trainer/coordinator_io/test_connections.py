"""The members' streams: one a peer, told in order, ended with the last word."""

from p2pswarm.run.member_view import Incarnation, view_parts
from p2pswarm.run.messages.field_limits import REASON_CHARS, VIEW_PART_MAX
from p2pswarm.run.messages.membership import Assigned, MemberRecord, StandsBy
from p2pswarm.run.messages.run import Finished
from p2pswarm.run.messages.trainers import ALIVE_S, Alive, Trainers, Whereabouts
from p2pswarm.trainer.coordinator_io.connections import Connections, MemberConnection
from p2pswarm.trainer.coordinator_io.views import Views
from p2pswarm.trainer.reports.actions import MemberChange

ANN, BOB, CARL = b"a" * 32, b"b" * 32, b"c" * 32
FIRST = Incarnation(ANN, 1)
ASSIGNED = Assigned(0, 1, 0, keep=False)


def opened(*peers: bytes) -> tuple[Connections, list[MemberConnection]]:
    connections = Connections(Views(stages=1))
    return connections, [connections.open(peer) for peer in peers]


def joined(number: int, peer: bytes = CARL) -> MemberChange:
    return MemberChange(MemberRecord(peer, "h:1", 0, number, ready=False))


def said(connections: Connections, connection: MemberConnection) -> list:
    messages = []
    while (message := connections.next(connection)) is not None:
        messages.append(message)
    return messages


def test_a_member_hears_its_assignment_and_then_who_is_there():
    connections, (ann, bob) = opened(ANN, BOB)
    connections.assign(FIRST, ASSIGNED)
    connections.publish([joined(1)], 0.0)

    assert ann.incarnation == FIRST
    assert connections.drain() == [ann]
    assert connections.drain() == []
    assert said(connections, ann) == [ASSIGNED, *view_parts(1, (joined(1).record,))]
    assert said(connections, bob) == []


def test_an_assignment_for_a_stream_that_has_ended_goes_nowhere():
    connections, (ann,) = opened(ANN)
    connections.close(ann)
    connections.assign(FIRST, ASSIGNED)

    assert connections.drain() == []
    assert len(connections) == 0


def test_a_newer_stream_of_a_peer_ends_the_older():
    connections, (older,) = opened(ANN)
    newer = connections.open(ANN)
    connections.assign(FIRST, ASSIGNED)

    assert older.over
    assert older.incarnation is None
    assert (len(connections), said(connections, newer)) == (2, [ASSIGNED])
    assert not connections.close(older)
    assert connections.close(newer)
    assert len(connections) == 0


def test_who_is_evicted_hears_what_waits_and_no_more():
    connections, (ann,) = opened(ANN)
    connections.assign(FIRST, ASSIGNED)

    assert connections.evict(FIRST)
    connections.publish([joined(1)], 0.0)
    assert not ann.dismissed

    connections.finish(Finished("done"))

    assert ann.ending
    assert not ann.over
    assert said(connections, ann) == [ASSIGNED]
    assert ann.over
    assert not ann.dismissed


def test_only_the_present_incarnation_can_be_evicted():
    connections, (ann,) = opened(ANN)
    connections.assign(FIRST, ASSIGNED)

    assert not connections.evict(Incarnation(ANN, 9))
    assert not connections.evict(Incarnation(BOB, 1))
    assert not ann.ending


def test_a_member_that_takes_nothing_keeps_one_message_waiting():
    connections, (ann,) = opened(ANN)
    connections.assign(FIRST, ASSIGNED)
    for number in range(1, 1000):
        connections.publish([joined(number)], 0.2 * number)

    messages = said(connections, ann)

    assert messages[0] == ASSIGNED
    assert [len(view.joined) for view in messages[1:]] == [VIEW_PART_MAX] * 7 + [
        999 % VIEW_PART_MAX
    ]


def test_one_without_an_assignment_or_at_its_end_is_told_no_views():
    connections, (ann, bob) = opened(ANN, BOB)
    connections.assign(FIRST, ASSIGNED)
    connections.evict(FIRST)
    connections.publish([joined(1)], 0.0)

    assert said(connections, ann) == [ASSIGNED]
    assert said(connections, bob) == []


def test_a_stream_that_ended_is_told_nothing_more():
    connections, (ann,) = opened(ANN)
    connections.assign(FIRST, ASSIGNED)
    connections.close(ann)
    connections.drain()
    connections.publish([joined(1)], 0.0)

    assert connections.drain() == []


def test_views_wait_for_the_end_of_the_pause_or_for_an_order():
    connections, (ann,) = opened(ANN)
    connections.assign(FIRST, ASSIGNED)
    connections.publish([joined(1)], 0.0)
    assert connections.published()
    said(connections, ann)
    connections.publish([joined(2, BOB)], 0.01)
    due_s = connections.next_deadline_s()

    assert 0.1 < due_s < 0.11
    assert not connections.published()
    assert said(connections, ann) == []
    connections.on_deadline(due_s)
    assert connections.published()
    assert [len(view.joined) for view in said(connections, ann)] == [1]

    connections.publish([joined(3, ANN)], due_s)
    connections.publish_now(due_s)
    connections.publish_now(due_s)
    assert connections.next_deadline_s() == ALIVE_S  # no view waits
    assert [view.number for view in said(connections, ann)] == [3]


def test_one_without_a_place_hears_nothing_and_ends():
    connections, (ann,) = opened(ANN)
    connections.decline(ANN, "full")
    connections.decline(BOB, "full")

    assert (ann.declined, ann.over) == ("full", True)
    assert connections.drain() == [ann]


def test_at_the_end_everybody_is_told_why_assigned_or_not():
    connections, (ann, bob) = opened(ANN, BOB)
    connections.assign(FIRST, ASSIGNED)
    connections.finish(Finished("done"))
    late = connections.open(b"c" * 32)

    assert said(connections, ann) == [ASSIGNED, Finished("done")]
    assert said(connections, bob) == said(connections, late) == [Finished("done")]
    assert all(one.over and one.dismissed for one in (ann, bob, late))


def test_the_last_word_says_how_many_steps_are_done():
    connections, (ann,) = opened(ANN)
    connections.finish(Finished("done", 100))

    assert said(connections, ann) == [Finished("done", 100)]


def test_until_the_weights_are_written_who_comes_hears_nothing_and_comes_again():
    connections, (ann,) = opened(ANN)
    connections.refuse(None)
    late = connections.open(BOB)

    assert said(connections, late) == []
    assert late.over
    assert not ann.over


def test_once_the_run_has_failed_newcomers_are_told_and_members_stay():
    connections, (ann,) = opened(ANN)
    connections.refuse("x" * 1000)
    late = connections.open(BOB)

    assert said(connections, late) == [Finished("x" * REASON_CHARS)]
    assert late.over
    assert not ann.ending


def trainers(term: int) -> Trainers:
    return Trainers(b"r" * 16, term, (Whereabouts(ANN, "h:1"),), ())


def test_a_member_is_told_of_the_trainers_after_its_assignment_and_only_the_newest():
    connections, (ann, bob) = opened(ANN, BOB)
    connections.announce(trainers(1))
    connections.assign(FIRST, ASSIGNED)
    connections.announce(trainers(2))
    connections.announce(trainers(3))

    assert said(connections, ann)[:2] == [ASSIGNED, trainers(3)]
    assert said(connections, bob) == []
    connections.drain()
    connections.announce(trainers(4))
    assert connections.drain() == [ann]
    assert said(connections, ann) == [trainers(4)]


def test_a_member_that_is_told_nothing_hears_each_second_that_its_coordinator_lives():
    connections, (ann,) = opened(ANN)
    assert connections.next_deadline_s() is None
    connections.assign(FIRST, ASSIGNED)
    assert said(connections, ann) == [ASSIGNED]

    for now_s in (7.0, 8.0, 9.0):
        connections.on_deadline(now_s)
        assert connections.next_deadline_s() == now_s + ALIVE_S
        assert said(connections, ann) == ([] if now_s == 7.0 else [Alive()])
    connections.on_deadline(10.0)
    connections.publish([joined(1)], 10.5)
    assert Alive() not in said(connections, ann)


def test_streams_that_are_abandoned_end_without_a_word():
    connections, (ann,) = opened(ANN)
    connections.assign(FIRST, ASSIGNED)
    said(connections, ann)

    connections.abandon()

    assert ann.over
    assert said(connections, ann) == []
    assert not ann.dismissed


def test_who_is_back_before_all_have_ended_is_told_the_same():
    """Servers come back at once; a stream without an answer would keep a trainer from leaving."""
    connections, (ann, _bob) = opened(ANN, BOB)
    connections.assign(FIRST, ASSIGNED)
    then = StandsBy(b"b" * 32, "h:1")
    connections.abandon(then)
    connections.close(ann)

    back = connections.open(ANN)

    assert back in connections.drain()
    assert said(connections, back) == [then]
    assert back.over


def test_streams_that_are_abandoned_for_another_trainer_say_who():
    connections, (ann,) = opened(ANN)
    connections.assign(FIRST, ASSIGNED)
    said(connections, ann)

    connections.abandon(StandsBy(b"b" * 32, "h:1"))

    assert said(connections, ann) == [StandsBy(b"b" * 32, "h:1")]
    assert ann.over


def test_a_coordinator_that_is_quiet_does_not_say_that_it_lives():
    connections, (ann,) = opened(ANN)
    connections.assign(FIRST, ASSIGNED)
    said(connections, ann)
    connections.on_deadline(7.0)
    connections.quiet = True

    connections.on_deadline(8.0)
    assert said(connections, ann) == []

    connections.quiet = False
    connections.on_deadline(9.0)
    assert said(connections, ann) == [Alive()]
