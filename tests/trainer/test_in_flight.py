"""A step's jobs: what goes first, what may go again, what a stranger's word does to them."""

from p2pswarm.swarm.messages.types import Work
from p2pswarm.trainer.fencing import Fencing
from p2pswarm.trainer.in_flight import (
    DEADLINE_MIN_S,
    InFlight,
    JobPhase,
    MicrobatchJob,
    runs_window,
)


def flight_of(count: int) -> InFlight:
    return InFlight([MicrobatchJob(number, Work.FORWARD) for number in range(count)], runs_window())


def launched(in_flight: InFlight, window: int, now_s: float = 0.0) -> list[int]:
    numbers = []
    while job := in_flight.launch(window, now_s):
        numbers.append(job.microbatch)
    return numbers


def given_up(in_flight: InFlight, number: int, now_s: float = 0.0) -> MicrobatchJob:
    job = in_flight.job(number)
    assert job is not None
    Fencing().add(job)
    in_flight.again(job, now_s)
    return job


def test_jobs_go_in_their_order_within_the_window():
    in_flight = flight_of(5)

    assert launched(in_flight, 2) == [0, 1]
    in_flight.finish(in_flight.job(0), 1.0)
    assert launched(in_flight, 2) == [2]


def test_what_was_given_up_goes_before_what_was_never_launched():
    in_flight = flight_of(5)
    launched(in_flight, 3)

    job = given_up(in_flight, 1)

    assert launched(in_flight, 4, job.not_before_s) == [1, 3]
    assert job.attempt == 1


def test_what_was_given_up_waits_its_time_and_lets_others_pass():
    in_flight = flight_of(5)
    launched(in_flight, 2)

    job = given_up(in_flight, 0)

    assert job.not_before_s > 0.0
    assert launched(in_flight, 2, 0.0) == [2]
    assert in_flight.next_deadline_s(0.0) == job.not_before_s


def test_a_flight_is_finished_when_every_job_is_done():
    in_flight = flight_of(3)
    launched(in_flight, 3)

    for number in range(3):
        assert not in_flight.finished
        in_flight.finish(in_flight.job(number), 1.0)

    assert in_flight.finished
    assert in_flight.next_deadline_s(1.0) is None


def test_a_job_that_was_done_and_is_void_goes_again():
    in_flight = flight_of(2)
    launched(in_flight, 2)
    for number in range(2):
        in_flight.finish(in_flight.job(number), 1.0)

    job = in_flight.job(0)
    in_flight.again(job, 2.0)

    assert not in_flight.finished
    assert launched(in_flight, 2, job.not_before_s) == [0]


def test_what_was_counted_without_being_launched_is_not_launched():
    in_flight = flight_of(3)

    in_flight.finish(in_flight.job(1), 0.0)
    in_flight.finish(in_flight.job(1), 0.0)

    assert launched(in_flight, 3) == [0, 2]
    for number in (0, 2):
        in_flight.finish(in_flight.job(number), 1.0)
    assert in_flight.finished


def test_what_was_counted_without_being_launched_and_is_void_goes_once():
    in_flight = flight_of(2)
    in_flight.finish(in_flight.job(1), 0.0)

    job = in_flight.job(1)
    in_flight.again(job, 0.0)

    assert launched(in_flight, 2, job.not_before_s) == [1, 0]
    assert job.phase is JobPhase.RUNNING


def test_a_job_is_late_by_what_the_last_ones_took():
    runs_s = runs_window()
    for _ in range(20):
        runs_s.add(DEADLINE_MIN_S)
    in_flight = InFlight([MicrobatchJob(0, Work.FORWARD)], runs_s)
    launched(in_flight, 1, 5.0)

    due_s = in_flight.next_deadline_s(5.0)

    assert due_s == 5.0 + 4 * DEADLINE_MIN_S
    assert in_flight.late(due_s - 0.001) == []
    assert in_flight.late(due_s) == [in_flight.job(0)]
