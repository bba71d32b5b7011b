"""The members' streams: one a peer, told in order, ended with the last word."""

from p2pswarm.swarm.messages.membership import Assigned, View
from p2pswarm.swarm.messages.run import Finished
from p2pswarm.swarm.messages.types import REASON_CHARS
from p2pswarm.swarm.view import Incarnation
from p2pswarm.trainer.connections import Connections, MemberConnection

ANN, BOB = b"a" * 32, b"b" * 32
FIRST = Incarnation(ANN, 1)
ASSIGNED = Assigned(0, 1, 0, keep=False)


def view(number: int = 1) -> View:
    return View(number, 0, 1, ())


def said(connection: MemberConnection) -> list:
    messages = []
    while (message := connection.next()) is not None:
        messages.append(message)
    return messages


def test_a_member_hears_its_assignment_and_then_what_all_hear():
    connections = Connections()
    ann, bob = connections.open(ANN), connections.open(BOB)
    connections.assign(FIRST, ASSIGNED)
    connections.tell_all(view())

    assert ann.incarnation == FIRST
    assert connections.changed() == [ann]
    assert connections.changed() == []
    assert said(ann) == [ASSIGNED, view()]
    assert said(bob) == []


def test_an_assignment_for_a_stream_that_has_ended_goes_nowhere():
    connections = Connections()
    connections.close(connections.open(ANN))
    connections.assign(FIRST, ASSIGNED)

    assert connections.changed() == []
    assert len(connections) == 0


def test_a_newer_stream_of_a_peer_ends_the_older():
    connections = Connections()
    older = connections.open(ANN)
    newer = connections.open(ANN)
    connections.assign(FIRST, ASSIGNED)

    assert older.over
    assert older.incarnation is None
    assert (len(connections), said(newer)) == (2, [ASSIGNED])
    assert not connections.close(older)
    assert connections.close(newer)
    assert len(connections) == 0


def test_who_is_evicted_hears_what_waits_and_no_more():
    connections = Connections()
    ann = connections.open(ANN)
    connections.assign(FIRST, ASSIGNED)

    assert connections.evict(FIRST)
    connections.tell_all(view())
    assert not ann.dismissed

    assert ann.ending
    assert not ann.over
    assert said(ann) == [ASSIGNED]
    assert ann.over


def test_only_the_present_incarnation_can_be_evicted():
    connections = Connections()
    ann = connections.open(ANN)
    connections.assign(FIRST, ASSIGNED)

    assert not connections.evict(Incarnation(ANN, 9))
    assert not connections.evict(Incarnation(BOB, 1))
    assert not ann.ending


def test_a_member_that_takes_nothing_is_cut_off():
    connections = Connections(waiting_max=3)
    ann = connections.open(ANN)
    connections.assign(FIRST, ASSIGNED)
    for number in range(2):
        connections.tell_all(view(number))
    assert not ann.ending

    connections.tell_all(view(2))

    assert ann.over
    assert connections.changed() == [ann]


def test_at_the_end_everybody_is_told_why_assigned_or_not():
    connections = Connections()
    ann, bob = connections.open(ANN), connections.open(BOB)
    connections.assign(FIRST, ASSIGNED)
    connections.finish("done")
    late = connections.open(b"c" * 32)

    assert said(ann) == [ASSIGNED, Finished("done")]
    assert said(bob) == said(late) == [Finished("done")]
    assert all(one.over and one.dismissed for one in (ann, bob, late))


def test_once_the_run_is_over_newcomers_are_told_and_members_stay():
    connections = Connections()
    ann = connections.open(ANN)
    connections.refuse("x" * 1000)
    late = connections.open(BOB)

    assert said(late) == [Finished("x" * REASON_CHARS)]
    assert late.over
    assert not ann.ending
