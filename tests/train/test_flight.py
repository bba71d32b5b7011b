"""A step's jobs: what goes first, what may go again, what a stranger's word does to them."""

from p2pswarm.swarm.messages import Work
from p2pswarm.train.fencing import Fencing
from p2pswarm.train.flight import DEADLINE_MIN_S, Flight, Job, Phase, runs_window


def flight_of(count: int) -> Flight:
    return Flight([Job(number, Work.FORWARD) for number in range(count)], runs_window())


def launched(flight: Flight, window: int, now_s: float = 0.0) -> list[int]:
    numbers = []
    while job := flight.launch(window, now_s):
        numbers.append(job.microbatch)
    return numbers


def given_up(flight: Flight, number: int, now_s: float = 0.0) -> Job:
    job = flight.job(number)
    assert job is not None
    Fencing().add(job)
    flight.again(job, now_s)
    return job


def test_jobs_go_in_their_order_within_the_window():
    flight = flight_of(5)

    assert launched(flight, 2) == [0, 1]
    flight.finish(flight.job(0), 1.0)
    assert launched(flight, 2) == [2]


def test_what_was_given_up_goes_before_what_was_never_launched():
    flight = flight_of(5)
    launched(flight, 3)

    job = given_up(flight, 1)

    assert launched(flight, 4, job.not_before_s) == [1, 3]
    assert job.attempt == 1


def test_what_was_given_up_waits_its_time_and_lets_others_pass():
    flight = flight_of(5)
    launched(flight, 2)

    job = given_up(flight, 0)

    assert job.not_before_s > 0.0
    assert launched(flight, 2, 0.0) == [2]
    assert flight.next_deadline_s(0.0) == job.not_before_s


def test_a_flight_is_finished_when_every_job_is_done():
    flight = flight_of(3)
    launched(flight, 3)

    for number in range(3):
        assert not flight.finished
        flight.finish(flight.job(number), 1.0)

    assert flight.finished
    assert flight.next_deadline_s(1.0) is None


def test_a_job_that_was_done_and_is_void_goes_again():
    flight = flight_of(2)
    launched(flight, 2)
    for number in range(2):
        flight.finish(flight.job(number), 1.0)

    job = flight.job(0)
    flight.again(job, 2.0)

    assert not flight.finished
    assert launched(flight, 2, job.not_before_s) == [0]


def test_what_was_counted_without_being_launched_is_not_launched():
    flight = flight_of(3)

    flight.finish(flight.job(1), 0.0)
    flight.finish(flight.job(1), 0.0)

    assert launched(flight, 3) == [0, 2]
    for number in (0, 2):
        flight.finish(flight.job(number), 1.0)
    assert flight.finished


def test_what_was_counted_without_being_launched_and_is_void_goes_once():
    flight = flight_of(2)
    flight.finish(flight.job(1), 0.0)

    job = flight.job(1)
    flight.again(job, 0.0)

    assert launched(flight, 2, job.not_before_s) == [1, 0]
    assert job.phase is Phase.RUNNING


def test_a_job_is_late_by_what_the_last_ones_took():
    runs_s = runs_window()
    runs_s.extend([DEADLINE_MIN_S] * 20)
    flight = Flight([Job(0, Work.FORWARD)], runs_s)
    launched(flight, 1, 5.0)

    due_s = flight.next_deadline_s(5.0)

    assert due_s == 5.0 + 4 * DEADLINE_MIN_S
    assert flight.late(due_s - 0.001) == []
    assert flight.late(due_s) == [flight.job(0)]
