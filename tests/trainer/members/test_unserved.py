"""Stages without servers, and newcomers on their way to them."""

from p2pswarm.run.messages.membership import Join
from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.members.membership import Member
from p2pswarm.trainer.members.newcomers import Newcomers
from p2pswarm.trainer.members.unserved import UnservedStages
from p2pswarm.trainer.reports import actions as act

ANN = Incarnation(b"a" * 32, 1)


def told(unserved, stages, now_s=0.0, *, counting=True):
    return unserved.watch(stages, 7, now_s, counting=counting)


def test_people_are_told_once_of_every_change():
    unserved = UnservedStages("wait")

    reports = [told(unserved, stages) for stages in ([], [1], [1], [0, 1], [])]

    assert reports == [
        [],
        [act.StagesUnserved((1,))],
        [],
        [act.StagesUnserved((0, 1))],
        [act.StagesUnserved(())],
    ]


def test_people_are_told_who_held_the_weights_last():
    unserved = UnservedStages("wait")
    unserved.left(Member(ANN, "h:1", 1, 0, ready=True))

    reports = told(unserved, [1])

    assert reports == [act.StagesUnserved((1,)), act.WeightsSought(1, 7, ANN, "h:1")]


def test_a_run_that_ends_for_a_stage_does_so_after_a_while():
    unserved = UnservedStages("end", end_s=20.0)
    told(unserved, [1], 5.0)
    told(unserved, [1, 2], 9.0)
    unserved.overdue(10.0, 7)

    assert unserved.next_deadline_s() == 25.0
    assert unserved.hopeless(24.9) is None
    assert unserved.hopeless(25.0) == "stage 1 has no server left that holds its weights"
    assert unserved.overdue(25.0, 7) == []


def test_a_run_that_waits_does_so_for_ever():
    unserved = UnservedStages("wait")
    told(unserved, [1], 5.0)
    unserved.overdue(10.0, 7)

    assert unserved.next_deadline_s() is None
    assert unserved.hopeless(1e9) is None
    assert unserved.overdue(1e9, 7) == []


def test_a_run_that_goes_back_does_so_after_its_time_and_asks_again_if_it_could_not():
    unserved = UnservedStages("rewind", 20.0)
    told(unserved, [1], 5.0)
    unserved.overdue(10.0, 7)

    assert unserved.next_deadline_s() == 25.0
    asked = [unserved.overdue(s, 7) for s in (24.9, 25.0, 25.0, 44.9, 45.0)]
    assert asked == [[], [act.GoBack()], [], [], [act.GoBack()]]
    assert unserved.hopeless(1e9) is None


def test_people_are_told_once_what_can_be_done_when_a_stage_stays_away():
    unserved = UnservedStages("rewind", 20.0)
    told(unserved, [2], 5.0)
    told(unserved, [1, 2], 6.0)

    assert unserved.next_deadline_s() == 10.0
    assert unserved.overdue(9.9, 7) == []
    assert unserved.overdue(10.0, 7) == [act.SeekCopy((1, 2), 7, 15.0)]
    assert unserved.overdue(11.0, 7) == []
    told(unserved, [], 12.0)
    told(unserved, [1], 13.0)
    assert unserved.overdue(18.0, 7) == [act.SeekCopy((1,), 7, 15.0)]


def test_a_run_that_does_not_go_back_does_not_say_when():
    unserved = UnservedStages("wait")
    told(unserved, [1], 5.0)

    assert unserved.overdue(10.0, 7) == [act.SeekCopy((1,), 7, None)]


def test_a_stage_that_is_served_again_has_all_its_time_anew():
    unserved = UnservedStages("end", end_s=20.0)
    told(unserved, [1], 5.0)
    told(unserved, [], 6.0)
    told(unserved, [1], 7.0)
    unserved.overdue(12.0, 7)

    assert unserved.next_deadline_s() == 27.0


def test_a_run_that_still_gathers_gives_nothing_up():
    unserved = UnservedStages("end")
    told(unserved, [0], 5.0, counting=False)

    assert unserved.next_deadline_s() is None
    assert unserved.hopeless(1e9) is None


def test_parked_joins_are_taken_out_once_and_the_newest_of_a_peer_counts():
    newcomers, older, newer = (
        Newcomers(),
        *(Join(b"r" * 16, a, None, None, b"", None) for a in "xy"),
    )
    newcomers.park(b"a", older)
    newcomers.park(b"a", newer)
    newcomers.park(b"b", older)
    newcomers.withdraw(b"b")
    newcomers.withdraw(b"b")

    assert newcomers.parked() == [(b"a", newer)]
    assert newcomers.parked() == []


def test_candidates_are_taken_out_once_and_leave_with_their_incarnation():
    newcomers = Newcomers()
    newcomers.caught_up(ANN, b"w")

    assert newcomers.candidates() == [(ANN, b"w")]
    assert newcomers.candidates() == []
    newcomers.caught_up(ANN, b"w")
    newcomers.end(ANN)
    newcomers.end(ANN)
    assert newcomers.candidates() == []
