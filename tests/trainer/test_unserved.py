"""Stages without servers, and newcomers on their way to them."""

from p2pswarm.swarm.messages.membership import Join
from p2pswarm.swarm.view import Incarnation
from p2pswarm.trainer.newcomers import Newcomers
from p2pswarm.trainer.unserved import UNSERVED_STAGE_S, UnservedStages

ANN = Incarnation(b"a" * 32, 1)


def test_people_are_told_once_of_every_change():
    unserved = UnservedStages()

    told = [unserved.watch(s, 0.0, counting=True) for s in ([], [1], [1], [0, 1], [])]

    assert told == [None, (1,), None, (0, 1), ()]


def test_a_stage_that_waits_too_long_is_hopeless():
    unserved = UnservedStages()
    unserved.watch([1], 5.0, counting=True)
    unserved.watch([1, 2], 9.0, counting=True)

    assert unserved.next_deadline_s() == 5.0 + UNSERVED_STAGE_S
    assert unserved.hopeless(4.9 + UNSERVED_STAGE_S) is None
    assert unserved.hopeless(5.0 + UNSERVED_STAGE_S) == 1


def test_a_stage_that_is_served_again_has_all_its_time_anew():
    unserved = UnservedStages()
    unserved.watch([1], 5.0, counting=True)
    unserved.watch([], 6.0, counting=True)
    unserved.watch([1], 7.0, counting=True)

    assert unserved.next_deadline_s() == 7.0 + UNSERVED_STAGE_S


def test_a_run_that_still_gathers_gives_nothing_up():
    unserved = UnservedStages()
    unserved.watch([0], 5.0, counting=False)

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
