"""Tests of `trainer/members/blame.py`."""

import pytest
from trainer.harness import Play

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Obstacle, Work
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.members.blame import (
    IN_A_ROW,
    NOT_FINITE_LEFT_OUT,
    NOT_FINITE_MAX,
    NOT_FINITE_MIN,
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    RECOVERED,
    SAME_TROUBLE_S,
    Blame,
    FailedAttempt,
    FailingServers,
    FailureKind,
    Trouble,
)
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.members.unreachable_pairs import AVERAGINGS_SPENT as AVERAGINGS
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import NotFiniteThere, RoadBroken, RunFinished, ServerFails
from p2pswarm.trainer.step.in_flight import TIMEOUT_FIRST_S


class Crew:
    """Ready servers of some stages, and what is said of their attempts."""

    def __init__(self, *stages: int) -> None:
        self.members = Membership(3)
        self.servers = []
        for number, stage in enumerate(stages):
            member = self.members.admit(bytes([number]) * 32, "h:1", stage, 0)
            self.servers.append(self.members.make_ready(member.incarnation).incarnation)
        self.blame = Blame(self.members, 3)
        self.now_s = 0.0

    def fail(self, trouble: Trouble, *path: int, by: int | None = None, missing=(0, 1, 2)) -> list:
        self.now_s += 1.0
        way = tuple(self.servers[number] for number in path)
        speaker = None if by is None else self.servers[by]
        attempt = FailedAttempt(4, 7, trouble, "why", speaker, way, missing)
        return self.blame.on_attempt_failure(attempt, self.now_s)

    def often(self, trouble: Trouble, *path: int, by: int | None = None, missing=(0, 1, 2)) -> list:
        for _ in range(IN_A_ROW - 1):
            assert self.fail(trouble, *path, by=by, missing=missing) == []
        return self.fail(trouble, *path, by=by, missing=missing)


def test_a_server_that_fails_in_a_row_is_ended_and_avoided_if_its_stage_has_another():
    crew = Crew(0, 1, 1, 2)

    (report,) = crew.often(Trouble.WORK, 0, 1, by=1)

    assert report == ServerFails(crew.servers[1], 1, IN_A_ROW, "why", PAUSE_FIRST_S)
    assert [one for one, _ in crew.blame.to_end()] == [crew.servers[1]]
    assert crew.blame.to_end() == []
    assert crew.blame.servers.avoided(crew.servers[1].peer, crew.now_s)


def test_the_only_server_of_a_stage_is_named_and_goes_on():
    crew = Crew(0, 1, 2)

    (report,) = crew.often(Trouble.WORK, 0, 1, by=1)

    assert report == ServerFails(crew.servers[1], 1, IN_A_ROW, "why", None)
    assert crew.blame.to_end() == []


def test_one_whose_only_fellow_is_avoided_cannot_be_spared():
    crew = Crew(0, 1, 1, 2)
    crew.often(Trouble.WORK, by=1)

    (report,) = crew.often(Trouble.WORK, by=2)

    assert report.pause_s is None


def test_good_work_between_failures_clears_a_server():
    crew = Crew(0, 1, 1, 2)
    for _ in range(IN_A_ROW):
        crew.fail(Trouble.WORK, by=1)
        crew.blame.on_count(crew.servers[1], [])

    assert crew.blame.to_end() == []


def test_people_hear_of_the_same_trouble_less_and_less_often():
    crew = Crew(0, 1, 2)

    told = [n for n in range(1, 30) if crew.fail(Trouble.WORK, by=1)]

    assert told == [3, 6, 12, 24]


@pytest.mark.parametrize(
    ("trouble", "path", "by", "missing", "road"),
    [
        (Trouble.ROAD, (), None, (0, 1, 2), (None, 0)),
        (Trouble.ROAD, (0,), None, (0, 1, 2), (None, 0)),
        (Trouble.ROAD, (0,), 0, (0, 1, 2), (0, 1)),
        (Trouble.ROAD, (0, 1), 0, (0, 1, 2), (0, 1)),
        (Trouble.ROAD, (0, 1, 2), 2, (0, 1), (1, 2)),
        (Trouble.ROAD, (0, 1, 2), 1, (0,), (0, 1)),
        (Trouble.LATE, (), None, (0, 1, 2), (None, 0)),
        (Trouble.LATE, (0,), None, (0, 1, 2), (0, 1)),
        (Trouble.LATE, (0, 1), None, (0, 1, 2), (1, 2)),
        (Trouble.LATE, (0, 1, 2), None, (0, 1, 2), (1, 2)),
        (Trouble.LATE, (0, 1, 2), None, (0, 1), (1, 2)),
        (Trouble.LATE, (0, 1, 2), None, (0,), (0, 1)),
        (Trouble.LATE, (0, 1, 2), None, (), (1, 2)),
    ],
)
def test_the_road_where_attempts_end_is_named(trouble, path, by, missing, road):
    crew = Crew(0, 1, 2)

    reports = crew.often(trouble, *path, by=by, missing=missing)

    (broken,) = [report for report in reports if isinstance(report, RoadBroken)]
    lower, upper = (None if end is None else crew.servers[end] for end in road)
    assert (broken.lower, broken.upper, broken.stage) == (lower, upper, road[1])
    assert (broken.failures, broken.reason) == (IN_A_ROW, "why")


def test_a_road_to_one_of_several_servers_that_is_not_known_is_not_named():
    crew = Crew(0, 1, 1, 2)

    assert [r for r in crew.often(Trouble.ROAD, 0, by=0) if isinstance(r, RoadBroken)] == []


def test_a_road_that_carries_again_is_forgotten():
    crew = Crew(0, 1, 2)
    crew.fail(Trouble.ROAD, 0, by=0)
    crew.fail(Trouble.ROAD, 0, by=0)

    crew.blame.on_count(crew.servers[0], [crew.servers[0]])  # by another road
    assert crew.fail(Trouble.ROAD, 0, by=0)
    crew.blame.on_count(crew.servers[0], crew.servers)

    assert crew.often(Trouble.ROAD, 0, by=0)


def test_of_all_in_the_path_of_a_gradient_that_is_not_finite_the_one_that_fails_always_is_avoided():
    crew = Crew(0, 1, 1, 2, 2)
    crew.fail(Trouble.NOT_FINITE, 0, 1, 3, by=3)
    crew.blame.on_count(crew.servers[3], [])
    crew.fail(Trouble.NOT_FINITE, 0, 1, 4, by=4)
    crew.blame.on_count(crew.servers[0], [])

    crew.fail(Trouble.NOT_FINITE, 0, 1, 3, by=3)

    assert [one for one, _ in crew.blame.to_end()] == [crew.servers[1]]
    assert crew.blame.condemned() == []


def test_without_a_server_to_leave_out_it_is_the_model_after_a_few_attempts():
    crew = Crew(0, 1, 2)
    for _ in range(NOT_FINITE_MIN - 1):
        crew.fail(Trouble.NOT_FINITE, 0, 1, 2, by=2)
    assert crew.blame.condemned() == []

    crew.fail(Trouble.NOT_FINITE, 0, 1, 2, by=2)

    assert crew.blame.condemned() == [7]
    assert crew.blame.condemned() == []


def test_it_is_the_model_once_different_servers_agree():
    crew = Crew(0, 1, 1, 2)
    for middle in (1, 1, 2):
        crew.fail(Trouble.NOT_FINITE, 0, middle, 3, by=3)

    assert crew.blame.condemned() == [7]


def test_while_a_server_was_in_all_attempts_and_is_gone_another_try_is_made():
    crew = Crew(0, 1, 1, 2)
    for _ in range(NOT_FINITE_MIN):
        crew.fail(Trouble.NOT_FINITE, 0, 1, 3, by=3)
        crew.members.end(crew.servers[1])
    assert crew.blame.condemned() == []

    crew.fail(Trouble.NOT_FINITE, 0, 2, 3, by=3)

    assert crew.blame.condemned() == [7]


def test_a_server_that_was_in_many_attempts_is_left_out_though_it_works_well_in_between():
    crew = Crew(0, 1, 1, 2)
    for attempt in range(NOT_FINITE_LEFT_OUT):
        assert crew.blame.to_end() == [], attempt
        reports = crew.fail(Trouble.NOT_FINITE, 0, 1, 3, by=1)
        crew.blame.on_count(crew.servers[1], [])

    assert reports == [ServerFails(crew.servers[1], 1, NOT_FINITE_LEFT_OUT, "why", 10.0)]
    assert [one for one, _ in crew.blame.to_end()] == [crew.servers[1]]
    assert crew.blame.condemned() == []


def test_in_the_end_the_model_is_blamed_though_a_server_was_in_all_attempts():
    crew = Crew(0, 1, 1, 2)
    for _ in range(NOT_FINITE_MAX):
        assert crew.blame.condemned() == []
        crew.fail(Trouble.NOT_FINITE, 0, 1, 3, by=3)

    assert crew.blame.condemned() == [7]


def test_a_decided_step_forgets_its_gradients_that_were_not_finite():
    crew = Crew(0, 1, 2)
    for _ in range(NOT_FINITE_MIN):
        crew.fail(Trouble.NOT_FINITE, 0, 1, 2, by=2)
        crew.blame.on_averaging(crew.servers, lambda _: tuple(crew.servers))

    assert crew.blame.condemned() == []


@pytest.mark.parametrize(
    ("paths", "holders", "suspects"),
    [
        ([(0, 1, 3)], (0, 2, 4), (3, 1)),
        ([(0, 1, 3), (0, 1, 4)], (0, 2, 4), (1,)),
        ([(0, 1, 3), (0, 2, 3)], (0, 1, 3), (2,)),
        ([(0, 1, 3)], (0, 1, 3), (3,)),
    ],
)
def test_who_was_only_in_the_attempts_that_failed_is_named(paths, holders, suspects):
    crew = Crew(0, 1, 1, 2, 2)
    for path in paths:
        crew.fail(Trouble.NOT_FINITE, *path, by=path[-1])

    counted = tuple(crew.servers[number] for number in holders)
    (report,) = crew.blame.on_averaging(counted, lambda microbatch: {7: counted}[microbatch])

    stages = (0, 1, 1, 2, 2)
    named = tuple((crew.servers[number], stages[number]) for number in suspects)
    assert report == NotFiniteThere(4, 7, named, "why")
    assert crew.blame.on_averaging(counted, lambda _: counted) == []


def test_nobody_is_named_for_what_no_server_could_do():
    crew = Crew(0, 1, 2)
    for _ in range(NOT_FINITE_MIN):
        crew.fail(Trouble.NOT_FINITE, 0, 1, 2, by=2)

    assert crew.blame.on_averaging(crew.servers, lambda _: ()) == []


def fail_and_fence(play: Play, bad: Incarnation, attempt: int, obstacle: Obstacle) -> None:
    play.now_s += 1.0
    play.stuck(0, attempt, by=bad, obstacle=obstacle)
    play.promise(*(m.incarnation for m in play.coordinator.members.ready()))
    play.wait(2.0)


def failing_server() -> tuple[Play, Incarnation]:
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    for attempt in range(IN_A_ROW):
        fail_and_fence(play, bob, attempt, Obstacle.WORK)
    assert [m.incarnation for m in play.coordinator.members.ready(0)] == [ann]
    return play, ann


def test_a_failing_server_gets_no_work_for_a_while_and_comes_back():
    play, ann = failing_server()

    again = play.join("b", stage=0, version=0, digest=b"w0")
    assert play.coordinator.members.ready(0)[0].incarnation == ann
    assert len(play.coordinator.members.ready(0)) == 1
    play.wait(PAUSE_FIRST_S)

    assert [m.incarnation for m in play.coordinator.members.ready(0)] == [ann, again]


def test_a_failing_server_serves_at_once_when_its_stage_has_no_other():
    play, ann = failing_server()
    again = play.join("b", stage=0, version=0, digest=b"w0")

    play.lose(ann)

    assert [m.incarnation for m in play.coordinator.members.ready(0)] == [again]


def test_a_pair_whose_road_stays_broken_is_named_and_the_run_goes_on():
    config = RunConfig(stages=2, steps=2, batch=BatchConfig(microbatches=1, evaluate_every=0))
    play = Play(config)
    ann, bob = play.serve("a"), play.serve("b")
    reports = []
    for attempt in range(30):
        play.hand(ann, 0, attempt)
        play.wait(TIMEOUT_FIRST_S * 2**attempt)  # one that was late has twice the time
        play.promise(ann, bob)
        play.wait(2.0)
        reports += play.seen(RoadBroken | RunFinished)

    assert [(r.lower, r.upper, r.failures) for r in reports] == [
        (ann, bob, failures) for failures in (3, 6, 12, 24)
    ]
    play.count(ann, 0, attempt=40)
    play.count(bob, 0, attempt=40)
    assert play.seen(act.SendReduce) != []


def test_the_word_of_one_that_is_not_ready_gives_nothing_up():
    play = Play()
    play.serve("a")
    bob = play.join("b")
    cid = play.serve("c")
    play.lose(cid)
    play.seen(object)

    for one in (bob, cid):
        play.stuck(0, by=one, obstacle=Obstacle.NOT_FINITE)

    assert play.seen(object) == []


def test_a_held_out_batch_that_is_late_is_on_its_way_up():
    batch = BatchConfig(microbatches=1, evaluate_every=1, evaluate_microbatches=1)
    play = Play(RunConfig(stages=2, steps=1, batch=batch))
    ann, bob = play.serve("a"), play.serve("b")
    held_out = next(x for x in play.seen(act.Launch) if x.work is Work.EVALUATE).microbatch
    play.count(ann, 0)
    play.count(bob, 0)
    reports = []
    for attempt in range(IN_A_ROW):
        play.hand(ann, held_out, attempt)
        play.hand(bob, held_out, attempt)
        play.wait(TIMEOUT_FIRST_S * 2**attempt)
        play.promise(ann, bob)
        play.wait(2.0)
        reports += play.seen(RoadBroken)

    assert [(report.lower, report.upper) for report in reports] == [(ann, bob)]


@pytest.mark.parametrize(
    ("stages", "ends", "leaves"),
    [
        ((0, 0, 2, 2), (0, 2), 2),  # it has counted less
        ((0, 2, 2), (0, 2), 1),
        ((0, 0, 2), (0, 2), 0),  # the other one is alone in its stage
        ((0, 2), (0, 2), None),  # and so are both: only the road helps
        ((0, 0, 2, 2), None, 0),  # they have nothing to average with each other
    ],
)
def test_of_two_that_average_a_tied_tensor_one_leaves_that_its_stage_can_spare(
    stages, ends, leaves
):
    crew = Crew(*stages)
    crew.blame = Blame(crew.members, 3, ends)
    ann, bob = crew.servers[0], crew.servers[stages.index(2)]

    out = crew.blame.leaver(ann, bob.peer, {ann: b"\x0f", bob: b"\x01"}.__getitem__, 1.0)

    assert out == (None if leaves is None else crew.servers[leaves])


ANN, BOB = b"a" * 32, b"b" * 32
WORK, AVERAGE = FailureKind.MICROBATCHES, FailureKind.AVERAGING


def test_failures_are_counted_in_a_row_for_each_duty():
    servers = FailingServers()

    counts = [servers.on_failure(ANN, WORK, now_s) for now_s in (0.0, 1.0, 2.0)]
    other = servers.on_failure(ANN, AVERAGE, 2.0)
    servers.on_success(ANN, WORK)

    assert counts == [1, 2, 3]
    assert other == 1
    assert servers.on_failure(ANN, WORK, 3.0) == 1
    assert servers.on_failure(ANN, AVERAGE, 3.0) == 2


def test_failures_at_one_moment_are_one():
    servers = FailingServers()
    servers.on_failure(ANN, WORK, 5.0)

    assert servers.on_failure(ANN, WORK, 5.0 + 0.9 * SAME_TROUBLE_S) == 1
    assert servers.on_failure(ANN, WORK, 5.0 + SAME_TROUBLE_S) == 2


def test_each_relapse_doubles_the_pause_up_to_a_bound():
    servers = FailingServers()

    pauses_s = [servers.avoid(ANN, 0.0) for _ in range(9)]

    assert pauses_s[:3] == [PAUSE_FIRST_S, 2 * PAUSE_FIRST_S, 4 * PAUSE_FIRST_S]
    assert pauses_s[-1] == PAUSE_MAX_S


def test_a_pause_ends():
    servers = FailingServers()
    servers.avoid(ANN, 100.0)

    assert servers.avoided(ANN, 99.9 + PAUSE_FIRST_S)
    assert not servers.avoided(ANN, 100.0 + PAUSE_FIRST_S)
    assert not servers.avoided(BOB, 100.0)
    assert servers.next_deadline_s(100.0) == 100.0 + PAUSE_FIRST_S
    assert servers.next_deadline_s(100.0 + PAUSE_FIRST_S) is None


def test_once_the_cause_is_known_the_suspicion_against_others_is_dropped():
    servers = FailingServers()
    for now_s in (0.0, 1.0):
        servers.on_failure(ANN, WORK, now_s)
        servers.on_failure(BOB, WORK, now_s)

    servers.forget([ANN, BOB])

    assert servers.on_failure(BOB, WORK, 3.0) == 1


def test_one_that_works_well_for_long_begins_anew():
    servers = FailingServers()
    servers.avoid(ANN, 0.0)
    for _ in range(RECOVERED):
        servers.on_success(ANN, WORK)

    assert servers.avoid(ANN, 0.0) == PAUSE_FIRST_S


def test_good_microbatches_forgive_no_bad_averaging():
    servers = FailingServers()
    servers.on_failure(ANN, AVERAGE, 0.0)
    for _ in range(2 * RECOVERED):
        servers.on_success(ANN, WORK)

    assert servers.on_failure(ANN, AVERAGE, 1.0) == 2


def test_with_too_many_the_longest_known_is_forgotten():
    servers = FailingServers(peers_max=1)
    servers.on_failure(ANN, WORK, 0.0)
    servers.on_failure(BOB, WORK, 0.0)

    assert servers.on_failure(ANN, WORK, 9.0) == 1
    assert IN_A_ROW > 1


def test_some_good_work_does_not_clear_the_past():
    servers = FailingServers()
    servers.avoid(ANN, 0.0)
    for now_s in (0.0, 1.0):
        for _ in range(RECOVERED - 2):
            servers.on_success(ANN, WORK)
        servers.on_failure(ANN, AVERAGE, now_s)
        servers.on_success(ANN, AVERAGE)

    assert servers.avoid(ANN, 0.0) == 2 * PAUSE_FIRST_S


def a_stage_with_a_cut(play):
    """Two members of a stage: one has counted all of the step, and the other nothing."""
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0, 1)
    return ann, bob


def test_a_newcomer_behind_a_cut_leaves_and_no_work_is_done_again():
    play = Play()
    ann, bob = a_stage_with_a_cut(play)
    play.coordinator.on_reduction_failure(ann, 1, "no road", play.now_s, bob.peer)
    play.promise(ann, bob)
    play.seen(object)

    play.coordinator.on_reduction_failure(ann, 2, "no road", play.now_s, bob.peer)
    play.promise(ann)

    actions = play.coordinator.drain()
    assert [one.incarnation for one in actions if isinstance(one, act.Evict)] == [bob]
    assert [one for one in actions if isinstance(one, act.Launch)] == []
    (order,) = [one for one in actions if isinstance(one, act.SendReduce)]
    assert order.message.group == (ann.peer,)


def test_who_left_for_a_cut_is_not_ready_again_at_once():
    play = Play()
    ann, bob = a_stage_with_a_cut(play)
    for generation in (1, 2):
        play.coordinator.on_reduction_failure(ann, generation, "no road", play.now_s, bob.peer)
        play.promise(ann, bob)
    play.reduce(ann)
    play.coordinator.on_decision(0, play.now_s)
    play.commit(ann, b"w1")

    again = play.join("b")
    play.ready(again, 1, b"w1")
    assert not play.coordinator.members.alive(again).ready
    play.wait(PAUSE_FIRST_S)
    play.promise(ann)  # what was launched is late by now

    assert play.coordinator.members.alive(again).ready


@pytest.mark.parametrize("beside", [None, b"e" * 32])
def test_who_complains_of_nobody_in_its_stage_leaves_itself(beside):
    play = Play()
    ann, bob = a_stage_with_a_cut(play)
    for generation in (1, 2):
        play.coordinator.on_reduction_failure(ann, generation, "no road", play.now_s, beside)
        play.promise(ann, bob)

    assert [one.incarnation for one in play.seen(act.Evict)] == [ann]


def complain(crew: Crew, by: int, of: int) -> list:
    """A member says three times that it cannot hand on to another, and works well between."""
    reports = []
    for _ in range(IN_A_ROW):
        reports += crew.fail(Trouble.ROAD, by, of, by=by)
        crew.blame.on_count(crew.servers[by], [])
    return [one.incarnation for one in reports if isinstance(one, ServerFails)]


def test_the_complaints_of_one_member_alone_cost_another_its_place_once():
    crew = Crew(0, 0, 1, 1, 1)
    liar = crew.servers[0]

    assert complain(crew, by=0, of=2) == [crew.servers[2]]
    assert complain(crew, by=0, of=3) == [liar]


def test_the_complaints_of_two_members_count_each_time():
    crew = Crew(0, 0, 0, 1, 1, 1)
    complain(crew, by=0, of=3)
    crew.fail(Trouble.ROAD, 1, 4, by=1)

    assert complain(crew, by=0, of=4) == [crew.servers[4]]


def test_a_server_is_left_out_on_the_word_of_one_alone_once_in_many_averagings():
    crew = Crew(0, 0, 1, 1, 1, 1)
    liar, one, other = crew.servers[0], crew.servers[2], crew.servers[3]

    blamed = [
        report.incarnation
        for stalled in (one, other)
        for report in crew.blame.on_stall(stalled, liar, 1.0)
    ]
    assert blamed == [one, liar]

    for _ in range(AVERAGINGS):
        crew.blame.on_averaging([liar], lambda _microbatch: ())
    crew.now_s = PAUSE_MAX_S
    (again,) = crew.blame.on_stall(other, liar, PAUSE_MAX_S)
    assert again.incarnation == other


def test_of_a_slow_server_and_one_whose_word_is_spent_both_are_left_out():
    """A server that is slow again after its pause would be waited for through another teller."""
    crew = Crew(0, 0, 1, 1, 1)
    teller, slow = crew.servers[0], crew.servers[2]
    crew.blame.on_stall(slow, teller, 1.0)
    crew.now_s = 1.0 + PAUSE_FIRST_S

    again = crew.blame.on_stall(slow, teller, crew.now_s)

    assert [report.incarnation for report in again] == [teller, slow]


def test_one_that_lies_costs_another_less_of_its_time_than_of_its_own():
    crew = Crew(0, 0, 1, 1, 1)
    liar, honest = crew.servers[0], crew.servers[2]
    lost_s = dict.fromkeys((liar, honest), 0.0)

    for _ in range(20):
        for report in crew.blame.on_stall(honest, liar, crew.now_s):
            lost_s[report.incarnation] += report.pause_s
        crew.now_s += PAUSE_MAX_S

    assert lost_s[honest] <= 20 * PAUSE_FIRST_S
    assert lost_s[honest] < lost_s[liar] / 20


def test_what_the_trainer_or_several_say_of_a_stall_counts_always():
    crew = Crew(0, 0, 1, 1, 1, 1)

    blamed = [crew.blame.on_stall(crew.servers[n], None, 1.0)[0].incarnation for n in (2, 3, 4)]

    assert blamed == crew.servers[2:5]


def test_a_server_that_relapses_has_to_work_well_for_twice_as_long():
    servers = FailingServers()
    servers.avoid(ANN, 0.0)
    servers.avoid(ANN, 0.0)
    for _ in range(2 * RECOVERED - 1):
        servers.on_success(ANN, WORK)
    assert servers.avoid(ANN, 0.0) == 4 * PAUSE_FIRST_S

    for _ in range(4 * RECOVERED):
        servers.on_success(ANN, WORK)

    assert servers.avoid(ANN, 0.0) == PAUSE_FIRST_S
