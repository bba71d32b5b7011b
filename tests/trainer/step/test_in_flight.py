"""Tests of `trainer/step/in_flight.py`."""

import heapq

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.push_io import PUSH_S
from p2pswarm.trainer.members.membership import AnswerLimits
from p2pswarm.trainer.step.in_flight import (
    BACKOFF,
    BACKOFF_MAX_S,
    MARGIN,
    MARGIN_LEAST,
    MEASURED,
    NEVER_S,
    PER_ENTRY_MAX,
    SLOWEST_FACTOR,
    TIMEOUT_FIRST_S,
    TIMEOUT_MIN_S,
    USUAL_MAX_S,
    AttemptTimeout,
    Fences,
    InFlight,
    JobPhase,
    LaunchPace,
    MicrobatchJob,
)

ANN, BOB, CARL = (Incarnation(name * 32, number) for number, name in enumerate((b"a", b"b", b"c")))


def flight_of(count: int) -> InFlight:
    return InFlight(
        [MicrobatchJob(number, Work.FORWARD) for number in range(count)], AttemptTimeout()
    )


def launched(in_flight: InFlight, window: int, now_s: float = 0.0) -> list[int]:
    numbers = []
    while job := in_flight.launch(window, now_s):
        numbers.append(job.microbatch)
    return numbers


def given_up(in_flight: InFlight, number: int, now_s: float = 0.0) -> MicrobatchJob:
    job = in_flight.job(number)
    assert job is not None
    Fences(AnswerLimits(10.0, 60.0)).add(job)
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
    timeout = AttemptTimeout()
    for _ in range(20):
        timeout.on_completion(TIMEOUT_MIN_S)
    in_flight = InFlight([MicrobatchJob(0, Work.FORWARD)], timeout)
    launched(in_flight, 1, 5.0)

    due_s = in_flight.next_deadline_s(5.0)

    assert due_s == 5.0 + 4 * TIMEOUT_MIN_S
    assert in_flight.late(due_s - 0.001) == []
    assert in_flight.late(due_s) == [in_flight.job(0)]


def test_what_is_late_is_told_once():
    in_flight = flight_of(2)
    launched(in_flight, 2)
    due_s = in_flight.next_deadline_s(0.0)

    late = in_flight.late(due_s)

    assert [job.microbatch for job in late] == [0, 1]
    assert in_flight.late(due_s) == []


def test_a_longer_time_is_for_those_too_that_are_under_way():
    timeout = AttemptTimeout()
    timeout.on_completion(0.1)
    in_flight = InFlight([MicrobatchJob(n, Work.FORWARD) for n in range(2)], timeout)
    in_flight.launch(1, 0.0)
    in_flight.launch(2, 1.0)

    assert in_flight.late(TIMEOUT_MIN_S) == [in_flight.job(0)]

    assert in_flight.late(1.0 + TIMEOUT_MIN_S) == []
    assert in_flight.next_deadline_s(1.0 + TIMEOUT_MIN_S) == 1.0 + 2 * TIMEOUT_MIN_S


def test_a_job_that_was_late_keeps_its_longer_time_when_others_finish():
    timeout = AttemptTimeout()
    in_flight = InFlight([MicrobatchJob(n, Work.FORWARD) for n in range(2)], timeout)
    launched(in_flight, 1)
    timeout.on_completion(0.1)
    (job,) = in_flight.late(TIMEOUT_FIRST_S)
    given_up(in_flight, 0, TIMEOUT_FIRST_S)
    timeout.on_completion(0.1)

    launched(in_flight, 1, job.not_before_s)

    given_s = 2 * TIMEOUT_MIN_S
    assert in_flight.late(job.not_before_s + given_s - 1.0) == []
    assert in_flight.late(job.not_before_s + given_s) == [job]


def test_what_began_before_anything_was_measured_is_late_by_what_others_take():
    in_flight = flight_of(3)
    launched(in_flight, 3)

    for number in range(2):
        in_flight.finish(in_flight.job(number), 1.0)

    assert in_flight.next_deadline_s(1.0) == TIMEOUT_MIN_S
    assert in_flight.late(TIMEOUT_MIN_S) == [in_flight.job(2)]
    given_up(in_flight, 2, TIMEOUT_MIN_S)
    assert in_flight.late(TIMEOUT_FIRST_S) == []


def test_what_began_before_anything_was_measured_has_its_time_where_all_are_slow():
    in_flight = flight_of(2)
    launched(in_flight, 2)

    in_flight.finish(in_flight.job(0), TIMEOUT_FIRST_S / 4)

    assert in_flight.late(TIMEOUT_FIRST_S) == [in_flight.job(1)]


def test_a_longer_time_is_over_for_all_when_one_finishes():
    timeout = AttemptTimeout()
    timeout.on_completion(0.1)
    in_flight = InFlight([MicrobatchJob(n, Work.FORWARD) for n in range(2)], timeout)
    timeout.on_timeout(1000.0)
    launched(in_flight, 2)
    assert in_flight.late(TIMEOUT_MIN_S) == []

    timeout.on_completion(0.1)

    assert in_flight.next_deadline_s(TIMEOUT_MIN_S) == 2 * TIMEOUT_MIN_S
    assert in_flight.late(2 * TIMEOUT_MIN_S) == [in_flight.job(0), in_flight.job(1)]


def test_what_went_through_a_server_is_known_until_it_is_over():
    in_flight = flight_of(3)
    launched(in_flight, 3)
    for number in range(3):
        in_flight.on_handoff(in_flight.job(number), ANN)
        in_flight.on_handoff(in_flight.job(number), ANN)
    in_flight.on_handoff(in_flight.job(1), BOB)

    in_flight.finish(in_flight.job(0), 1.0)
    in_flight.give_up(in_flight.job(1), "it is gone")

    assert in_flight.touched_by(ANN) == [in_flight.job(2)]
    assert in_flight.touched_by(BOB) == in_flight.touched_by(CARL) == []
    assert in_flight.job(1).reason == "it is gone"


def test_an_attempt_goes_only_where_it_was_handed():
    in_flight = flight_of(1)
    launched(in_flight, 1)
    in_flight.on_handoff(in_flight.job(0), ANN)
    job = given_up(in_flight, 0)

    launched(in_flight, 1, job.not_before_s)

    assert in_flight.touched_by(ANN) == []


def test_the_job_that_got_stuck_most_often_is_known():
    in_flight = flight_of(3)
    assert in_flight.most_refused() is None
    for number in (0, 1, 1, 2):
        in_flight.refuse(in_flight.job(number))

    assert in_flight.most_refused() is in_flight.job(1)
    in_flight.finish(in_flight.job(1), 0.0)
    assert in_flight.most_refused() is in_flight.job(0)
    in_flight.again(in_flight.job(1), 0.0)
    assert in_flight.most_refused() is in_flight.job(1)


def test_what_was_counted_while_it_waited_and_is_void_waits_anew():
    in_flight = flight_of(1)
    launched(in_flight, 1)
    job = given_up(in_flight, 0)
    first_s = job.not_before_s
    in_flight.finish(job, first_s)
    in_flight.again(job, first_s)

    assert job.not_before_s > first_s
    assert launched(in_flight, 1, first_s) == []
    assert launched(in_flight, 1, job.not_before_s) == [0]


class FixedTimeout(AttemptTimeout):
    """Learns nothing."""

    def on_completion(self, took_s: float) -> None:
        assert took_s >= 0.0


class PlainFlight:
    """The same rules as sums and searches over all jobs; nothing is ever late."""

    def __init__(self, jobs: list[MicrobatchJob]) -> None:
        self.jobs = jobs

    def next(self, window: int, now_s: float) -> MicrobatchJob | None:
        if sum(job.phase is JobPhase.RUNNING for job in self.jobs) >= window:
            return None
        waiting = [job for job in self.jobs if job.phase is JobPhase.WAITING]
        again = [job for job in waiting if NEVER_S < job.not_before_s <= now_s]
        fresh = [job for job in waiting if job.not_before_s == NEVER_S]
        return min(again, key=lambda job: (job.not_before_s, job.microbatch), default=None) or next(
            iter(fresh), None
        )

    def through(self, server: Incarnation) -> set[int]:
        running = [job for job in self.jobs if job.phase is JobPhase.RUNNING]
        return {job.microbatch for job in running if server in job.path}

    def most_refused(self) -> int:
        return max((j.refusals for j in self.jobs if j.phase is not JobPhase.DONE), default=0)

    def next_deadline_s(self, timeout_s: float, now_s: float) -> float | None:
        running = [job for job in self.jobs if job.phase is JobPhase.RUNNING]
        waiting = [job for job in self.jobs if job.phase is JobPhase.WAITING]
        times = [job.launched_s + timeout_s for job in running]
        again = min((j.not_before_s for j in waiting if j.not_before_s > NEVER_S), default=now_s)
        return min([*times, *([again] if again > now_s else [])], default=None)


@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_what_is_kept_is_what_a_count_over_all_jobs_would_say(rng, window):
    jobs = [MicrobatchJob(number, Work.FORWARD) for number in range(8)]
    in_flight, plain, now_s = InFlight(jobs, FixedTimeout()), PlainFlight(jobs), 0.0
    servers = [ANN, BOB, CARL]
    for _ in range(60):
        now_s += rng.choice([0.0, 0.01, 0.03])
        job = rng.choice(jobs)
        match rng.randrange(6), job.phase:
            case (0 | 1, _):
                expected = plain.next(window, now_s)
                assert in_flight.launch(window, now_s) is expected
            case 2, JobPhase.RUNNING:
                in_flight.on_handoff(job, rng.choice(servers))
            case 3, JobPhase.RUNNING:
                in_flight.refuse(job)
                in_flight.give_up(job, "stuck")
            case 4, (JobPhase.FENCING | JobPhase.DONE):
                in_flight.again(job, now_s)
            case 5, _:
                in_flight.finish(job, now_s)
        most = in_flight.most_refused()
        assert (most.refusals if most else 0) == plain.most_refused()
        assert in_flight.finished == all(job.phase is JobPhase.DONE for job in jobs)
        for server in servers:
            assert {j.microbatch for j in in_flight.touched_by(server)} == plain.through(server)
        assert in_flight.next_deadline_s(now_s) == plain.next_deadline_s(TIMEOUT_FIRST_S, now_s)


def after(*took_s: float) -> AttemptTimeout:
    timeout = AttemptTimeout()
    for one_s in took_s:
        timeout.on_completion(one_s)
    return timeout


def test_the_first_attempts_have_long():
    assert AttemptTimeout().timeout_s == TIMEOUT_FIRST_S


def test_it_is_four_times_what_most_take_within_limits():
    assert after(*[5.0] * 20).timeout_s == 20.0
    assert after(*[0.01] * 20).timeout_s == TIMEOUT_MIN_S
    assert after(*[200.0] * 20).timeout_s == USUAL_MAX_S


def test_what_took_longest_may_take_as_long_again_until_it_is_forgotten():
    timeout = after(*[0.1] * MEASURED, 1000.0)
    assert timeout.timeout_s == SLOWEST_FACTOR * 1000.0

    for _ in range(MEASURED):
        timeout.on_completion(0.1)

    assert timeout.timeout_s == TIMEOUT_MIN_S


def test_a_late_attempt_doubles_it_until_one_finishes():
    timeout = after(0.1)

    assert timeout.on_timeout(TIMEOUT_MIN_S) == 2 * TIMEOUT_MIN_S
    assert timeout.on_timeout(TIMEOUT_MIN_S) == 2 * TIMEOUT_MIN_S
    assert timeout.timeout_s == 2 * TIMEOUT_MIN_S
    assert timeout.on_timeout(2 * TIMEOUT_MIN_S) == timeout.timeout_s == 4 * TIMEOUT_MIN_S

    timeout.on_completion(0.1)
    assert timeout.timeout_s == TIMEOUT_MIN_S


def test_who_is_under_way_when_others_are_late_may_take_twice_its_time_and_not_more():
    timeout = after(0.1)
    timeout.on_timeout(TIMEOUT_MIN_S)
    timeout.on_timeout(2 * TIMEOUT_MIN_S)

    assert timeout.timeout_s == 4 * TIMEOUT_MIN_S
    assert timeout.extended_s(TIMEOUT_MIN_S) == BACKOFF * TIMEOUT_MIN_S
    assert timeout.extended_s(4 * TIMEOUT_MIN_S) == 4 * TIMEOUT_MIN_S


def test_what_finished_late_gives_all_that_are_under_way_its_time_too():
    assert after(100.0).extended_s(TIMEOUT_MIN_S) == 400.0


def test_attempts_that_are_late_are_given_an_hour_at_most():
    timeout = after(0.1)

    for _ in range(20):
        timeout.on_timeout(timeout.timeout_s)

    assert timeout.timeout_s == BACKOFF_MAX_S


def test_no_push_ends_before_the_attempt_that_it_belongs_to():
    """A fixed limit below it would end every attempt of a slow swarm, whatever was learned."""
    assert after(BACKOFF_MAX_S).timeout_s <= PUSH_S


WINDOW_ANN = Incarnation(b"a" * 32, 1)


def play(pace: LaunchPace, steps: int, entries: int, rate: float, alone_s: float) -> list[int]:
    """A pipeline that finishes `rate` a second at most, and one that is alone after `alone_s`."""
    windows, now_s = [], 0.0
    for _ in range(steps):
        windows.append(pace.window(entries, 4 * entries))
        under_way: list[tuple[float, float]] = []
        free_s = now_s
        for _ in range(256):
            if len(under_way) == windows[-1]:
                now_s, launched_s = heapq.heappop(under_way)
                pace.on_completion(launched_s, now_s)
            free_s = max(free_s + 1 / rate, now_s + alone_s)
            heapq.heappush(under_way, (free_s, now_s))
        while under_way:
            now_s, launched_s = heapq.heappop(under_way)
            pace.on_completion(launched_s, now_s)
        pace.begin()
    return windows


@given(entries=st.integers(1, 8), rate=st.floats(0.5, 50.0), alone_s=st.floats(0.5, 20.0))
def test_the_window_comes_to_a_few_times_what_is_in_flight_by_little_and_stays_there(
    entries, rate, alone_s
):
    windows = play(LaunchPace(), 12, entries, rate, alone_s)

    most = PER_ENTRY_MAX * entries
    least = min(MARGIN * rate * alone_s, most, 256)
    served = entries / rate  # what those before it in the first queue add to the time of a first
    assert 0.8 * least <= windows[-1]
    assert windows[-1] <= max(1.3 * MARGIN * rate * (alone_s + served) + 1, 2 * entries)
    assert max(windows) <= max(most, 16 * entries)


def test_queues_of_a_step_that_overlaps_another_do_not_widen_the_window():
    """The first microbatches of such a step wait for others, so they tell nothing."""
    pace, now_s, windows = LaunchPace(), 0.0, []
    pace.window(1, 4)
    for step in range(8):
        for _ in range(64):
            now_s += 1.0
            pace.on_completion(now_s - (4.0 if step == 0 else windows[-1]), now_s)
        pace.begin(loaded=True)
        windows.append(pace.window(1, 4))

    assert windows[-1] == windows[1]


def test_before_a_step_was_measured_all_servers_have_something():
    pace = LaunchPace()

    assert pace.window(4, 16) == 32
    assert pace.window(4, 5) == 16
    pace.begin()
    assert pace.window(4, 16) == 32


def test_the_first_step_does_not_wait_for_its_end_to_widen_the_window():
    """A road of 4 s, 4 microbatches a second: 32 at once keep no server busy."""
    pace = LaunchPace()
    narrow = pace.window(4, 16)
    for turn in range(32):
        pace.on_completion(turn / 4, 4.0 + turn / 4)

    wide = pace.window(4, 16)
    assert narrow < wide <= MARGIN * 4 * 4.75 + 1
    pace.begin()
    assert wide / 2 <= pace.window(4, 16) <= 2 * wide


def test_a_step_of_few_microbatches_says_nothing():
    pace = LaunchPace()
    for turn in range(15):
        pace.on_completion(0.0, 1.0 + turn)
    pace.begin()

    assert pace.window(4, 16) == 32


def test_counts_that_are_told_in_one_moment_say_nothing():
    pace = LaunchPace()
    for _ in range(40):
        pace.on_completion(0.0, 1.0)
    pace.begin()

    assert pace.window(4, 16) == 32


def test_the_margin_shrinks_while_graphs_are_computed_again_and_grows_again():
    pace = LaunchPace()
    calm = play(pace, 4, 4, 4.0, 4.0)[-1]
    windows = []
    for graphs in range(1, 11):
        pace.on_recomputation(WINDOW_ANN, graphs)
        windows += play(pace, 1, 4, 4.0, 4.0)
    again = play(pace, 14, 4, 4.0, 4.0)[-1]

    assert windows[-1] < 0.6 * calm
    assert windows[-1] >= 0.9 * MARGIN_LEAST / MARGIN * calm
    assert again >= 0.95 * calm


def test_a_member_that_computed_graphs_again_in_another_life_says_nothing_new():
    pace = LaunchPace()
    calm = play(pace, 4, 4, 4.0, 4.0)[-1]
    pace.on_recomputation(WINDOW_ANN, 7)
    pace.on_end(WINDOW_ANN)
    pace.on_recomputation(WINDOW_ANN, 9)
    pace.on_recomputation(WINDOW_ANN, 9)

    assert play(pace, 2, 4, 4.0, 4.0)[-1] >= 0.95 * calm
