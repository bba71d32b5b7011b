"""What servers of a stage take over from each other: `WorkStealing`."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import CONFIG, Play

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.microbatch import Handed
from p2pswarm.settings.config import BatchConfig
from p2pswarm.trainer.members.membership import Member
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.step.in_flight import MicrobatchJob
from p2pswarm.trainer.step.stalls import (
    BELIEVED_S,
    HANDED_ON_MAX,
    KEPT,
    LOOK_S,
    SHARED_MIN,
    STALL_SAMPLES,
    STALLED,
    STALLED_FIRST_S,
    STALLED_LEAST_S,
    STALLED_MOST,
    WorkStealing,
)

ANN, BOB, CARL = (Incarnation(name * 32, number) for number, name in enumerate((b"a", b"b", b"c")))


SIX = replace(CONFIG, batch=BatchConfig(microbatches=6, evaluate_every=0, window=6))


def jobs(*numbers: int) -> list[MicrobatchJob]:
    return [MicrobatchJob(number, Work.FORWARD) for number in numbers]


def numbers(surplus: list[MicrobatchJob]) -> list[int]:
    return [job.microbatch for job in surplus]


def test_the_newest_of_what_is_more_than_its_share_is_handed_on():
    assert numbers(WorkStealing(1).surplus([jobs(1, 2, 3, 4, 5), []])) == [4, 5]


def test_a_server_with_little_to_do_hands_on_nothing():
    assert WorkStealing(1).surplus([jobs(1, 2), []]) == []
    assert WorkStealing(1).surplus([jobs(1, 2, 3), jobs(4, 5, 6)]) == []


def test_a_microbatch_is_handed_on_a_few_times_and_no_more():
    sharing = WorkStealing(1)
    for _ in range(HANDED_ON_MAX):
        assert numbers(sharing.surplus([jobs(1, 2, 3, 4), []])) == [3, 4]

    assert numbers(sharing.surplus([jobs(5, 6, 3, 4), []])) == []


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_every_server_keeps_its_share_and_comers_and_goers_move_each_microbatch_few_times(loads):
    sharing, first = WorkStealing(1), 0
    there = []
    for load in loads:
        there.append(jobs(*range(first, first + load)))
        first += load
    share = -(-first // len(loads))

    for _ in range(HANDED_ON_MAX):
        moved = numbers(sharing.surplus(there))

        for mine in there:
            kept = [job for job in mine if job.microbatch not in moved]
            assert len(kept) == (min(len(mine), share) if len(mine) >= SHARED_MIN else len(mine))
    assert sharing.surplus(there) == []


def test_a_server_that_comes_in_the_middle_of_a_step_gets_its_share():
    play = Play(SIX)
    ann = play.serve("a")
    assert len(play.seen(act.Launch)) == 6
    for microbatch in range(6):
        play.hand(ann, microbatch)

    bob = play.serve("b")
    play.promise(ann, bob)
    play.wait(1.0)

    again = {one.microbatch for one in play.seen(act.Launch) if one.attempt == 1}
    assert again == {3, 4, 5}


def test_what_is_counted_stays_where_it_is():
    play = Play(SIX)
    ann = play.serve("a")
    for microbatch in range(6):
        play.hand(ann, microbatch)
    play.count(ann, 0, 1, 2, 3)

    bob = play.serve("b")
    play.promise(ann, bob)
    play.wait(1.0)

    assert not [one for one in play.seen(act.Launch) if one.attempt]


class Stage:
    """A stage of servers, and the microbatches that they have."""

    def __init__(self, *servers: Incarnation, stages: int = 1) -> None:
        self.stealing = WorkStealing(stages)
        self.servers = [Member(one, "h:1", 0, 0, ready=True) for one in servers]
        self.jobs: dict[int, MicrobatchJob] = {}
        self.unserved: set[int] = set()
        self.blamed: list[Incarnation] = []
        """The holders that may be at fault for what was stalled last."""

    def give(self, microbatch: int, to: Incarnation, now_s: float, stage: int = 0) -> None:
        new = MicrobatchJob(microbatch, Work.FORWARD, attempt=0)
        self.stealing.on_handoff(self.jobs.setdefault(microbatch, new), stage, to, now_s)

    def launch_again(self, microbatch: int, to: Incarnation, now_s: float) -> None:
        self.jobs[microbatch].attempt += 1
        self.give(microbatch, to, now_s)

    def count(self, microbatch: int, now_s: float, stage: int = 0) -> None:
        self.stealing.on_gradient(self.jobs[microbatch], stage, now_s)
        if stage == 0:
            del self.jobs[microbatch]

    def measure(self, by: Incarnation, took_s: float, now_s: float = 0.0) -> float:
        """One server computes as many as tell how long it takes; when it is done."""
        for microbatch in range(1000, 1000 + STALL_SAMPLES):
            self.give(microbatch, by, now_s)
            now_s += took_s
            self.count(microbatch, now_s)
        return now_s

    def stalled(self, now_s: float) -> list[tuple[int, Incarnation]]:
        found = self.stealing.stalled(self._running, self._ready, now_s)
        self.blamed = [one.holder for one in found if not one.blameless]
        return [(one.job.microbatch, one.holder) for one in found]

    def _ready(self, stage: int) -> list[Member]:
        return [] if stage in self.unserved else self.servers

    def _running(self, microbatch: int, attempt: int) -> MicrobatchJob | None:
        job = self.jobs.get(microbatch)
        return job if job and job.attempt == attempt else None


def test_what_a_slow_server_has_is_stalled_while_another_has_no_work():
    stage = Stage(ANN, BOB)
    now_s = stage.measure(BOB, took_s=1.0)
    stage.give(0, ANN, now_s)
    stage.give(1, ANN, now_s)

    assert stage.stalled(now_s + STALLED) == []
    assert stage.stalled(now_s + STALLED + 0.1) == [(0, ANN), (1, ANN)]


def test_nothing_is_stalled_while_all_others_have_work():
    stage = Stage(ANN, BOB)
    now_s = stage.measure(BOB, took_s=1.0)
    stage.give(0, ANN, now_s)
    stage.give(1, BOB, now_s + 99.0)

    assert stage.stalled(now_s + 100.0) == []


def test_a_long_queue_that_gets_on_is_not_stalled():
    stage = Stage(ANN, BOB)
    now_s = stage.measure(BOB, took_s=1.0)
    for microbatch in range(20):
        stage.give(microbatch, ANN, now_s)

    for microbatch in range(19):
        now_s += 2.0
        stage.count(microbatch, now_s)
        assert stage.stalled(now_s) == []


def test_a_short_pause_is_no_stall():
    stage = Stage(ANN, BOB)
    now_s = stage.measure(BOB, took_s=0.001)
    stage.give(0, ANN, now_s)

    assert stage.stalled(now_s + STALLED_LEAST_S) == []
    assert stage.stalled(now_s + STALLED_LEAST_S + 0.1) == [(0, ANN)]


def test_a_stage_that_was_never_measured_has_a_few_seconds():
    stage = Stage(ANN, BOB)
    stage.give(0, ANN, 10.0)

    assert stage.stalled(10.0 + STALLED_FIRST_S) == []
    assert stage.stalled(10.1 + STALLED_FIRST_S) == [(0, ANN)]


def test_each_time_a_microbatch_has_twice_as_long_and_in_the_end_it_stays():
    stage = Stage(ANN, BOB)
    stage.give(0, ANN, 0.0)
    now_s = 0.0

    for times in range(HANDED_ON_MAX):
        limit_s = STALLED_FIRST_S * 2.0**times
        assert stage.stalled(now_s + limit_s) == []
        now_s += limit_s + 0.1
        assert stage.stalled(now_s) == [(0, ANN)]
        stage.launch_again(0, ANN, now_s)

    assert stage.stalled(now_s + 1e6) == []


def test_what_waits_for_a_later_stage_is_not_stalled_at_the_first():
    """Its server has handed it on; the gradient makes it its work again."""
    stage = Stage(ANN, BOB, CARL, stages=2)
    stage.give(0, ANN, 0.0, stage=0)
    stage.give(0, BOB, 1.0, stage=1)

    assert stage.stalled(100.0) == [(0, BOB)]

    stage.launch_again(0, ANN, 100.0)
    stage.give(0, BOB, 101.0, stage=1)
    stage.count(0, 102.0, stage=1)
    assert stage.stalled(102.0 + 2 * STALLED_FIRST_S) == []
    assert stage.stalled(102.1 + 2 * STALLED_FIRST_S) == [(0, ANN)]


def test_notes_that_overtake_each_other_name_the_last_server():
    stage = Stage(ANN, BOB, CARL, stages=2)
    stage.give(0, BOB, 1.0, stage=1)
    stage.give(0, ANN, 1.1, stage=0)

    assert stage.stalled(100.0) == [(0, BOB)]


def test_a_server_that_nobody_has_named_is_not_suspected():
    stage = Stage(ANN, BOB, stages=2)
    stage.give(0, BOB, 0.0, stage=1)
    stage.count(0, 1.0, stage=1)

    assert stage.stalled(100.0) == []


def test_what_is_not_in_the_pipeline_any_more_is_forgotten():
    stage = Stage(ANN, BOB)
    stage.give(0, ANN, 0.0)
    del stage.jobs[0]

    assert stage.stealing.next_look_s == LOOK_S
    assert stage.stalled(100.0) == []
    assert stage.stealing.next_look_s == 100.0 + LOOK_S
    assert stage.stalled(200.0) == []
    assert stage.stealing.next_look_s == math.inf


def test_a_step_that_is_over_leaves_its_measurements_only():
    stage = Stage(ANN, BOB)
    now_s = stage.measure(BOB, took_s=1.0)
    stage.give(0, ANN, now_s)
    stage.stealing.begin()

    assert stage.stalled(now_s + 100.0) == []

    stage.give(1, ANN, now_s + 100.0)
    assert stage.stalled(now_s + 100.1 + STALLED) == [(1, ANN)]


def test_a_server_that_has_counted_nothing_is_left_out_of_the_step():
    """Else the averaging would wait until it is done with what was given to others."""
    play = Play(SIX)
    ann = play.serve("a")
    bob = play.serve("b")
    launches = [one.microbatch for one in play.seen(act.Launch)]
    for microbatch in launches:
        play.hand(ann, microbatch)
    play.wait(STALLED_FIRST_S + 2 * LOOK_S)

    asked = play.coordinator.drain()
    assert [one.incarnation for one in asked if isinstance(one, act.Evict)] == [ann]
    assert [one.incarnation for one in asked if isinstance(one, act.SendFence)] == [bob]
    play.promise(bob)
    play.wait(1.0)
    assert sorted(one.microbatch for one in play.seen(act.Launch)) == launches


def test_a_server_that_takes_ever_longer_cannot_raise_the_limit_without_end():
    stage = Stage(ANN, BOB)
    now_s = 0.0
    for microbatch in range(4 * STALL_SAMPLES):
        late = microbatch % 4 == 0
        stage.give(microbatch, ANN if late else BOB, now_s)
        now_s += 10.0 if late else 1.0
        stage.count(microbatch, now_s)

    stage.give(99, ANN, now_s)

    assert stage.stalled(now_s + STALLED_MOST) == []
    assert stage.stalled(now_s + STALLED_MOST + 0.1) == [(99, ANN)]


def test_a_stall_names_the_member_that_says_who_has_it():
    stage = Stage(ANN, BOB, stages=2)
    job = stage.jobs.setdefault(0, MicrobatchJob(0, Work.FORWARD, attempt=0))
    stage.stealing.on_handoff(job, 0, CARL, 0.0)
    stage.stealing.on_handoff(job, 1, ANN, 0.1, by=CARL)

    (forward,) = stage.stealing.stalled(stage._running, lambda _stage: stage.servers, 9.0)
    assert (forward.holder, forward.teller) == (ANN, CARL)

    stage.stealing.on_gradient(job, 1, 9.0)
    (gradient,) = stage.stealing.stalled(stage._running, lambda _stage: stage.servers, 20.0)
    assert (gradient.holder, gradient.teller) == (CARL, ANN)


def test_who_alone_says_that_two_others_have_something_is_the_suspect():
    stage = Stage(ANN, BOB, Incarnation(b"d" * 32, 9), stages=2)
    for microbatch, to in ((0, ANN), (1, BOB)):
        job = stage.jobs.setdefault(microbatch, MicrobatchJob(microbatch, Work.FORWARD, attempt=0))
        stage.stealing.on_handoff(job, 0, CARL, 0.0)
        stage.stealing.on_handoff(job, 1, to, 0.1, by=CARL)
    stage.stalled(9.0)

    assert [one.one for one in stage.stealing.suspects([ANN, BOB], 10.0)] == [CARL]
    (alone,) = stage.stealing.suspects([ANN], 10.0)
    assert (alone.one, alone.teller, round(alone.cost_s, 6)) == (CARL, None, 9.9)


def test_what_a_slow_server_would_finish_too_late_goes_to_one_that_has_nothing():
    stage = Stage(ANN, BOB)
    now_s = stage.measure(BOB, took_s=0.3)
    for microbatch in range(50, 50 + SHARED_MIN):  # fewer tell nothing of its pace
        stage.give(microbatch, ANN, now_s)
        now_s += 2.0
        stage.count(microbatch, now_s)
    for microbatch in range(8):
        stage.give(microbatch, ANN, now_s)

    late = stage.stalled(now_s + 0.5)

    assert late
    assert (0, ANN) not in late
    assert late == [(n, ANN) for n in range(8 - len(late), 8)]
    assert stage.stealing.suspects([], now_s) == []


def test_a_stage_does_not_wait_for_what_one_member_alone_says_that_all_of_it_have():
    stage = Stage(ANN, BOB, stages=2)
    for microbatch, holder in ((0, ANN), (1, BOB)):
        stage.give(microbatch, holder, 0.0)
        stage.give(microbatch, CARL, 0.1, stage=1)
        stage.count(microbatch, 0.2, stage=1)
    assert stage.stalled(STALLED_FIRST_S) == []

    assert stage.stalled(STALLED_FIRST_S + 0.3) == [(0, ANN), (1, BOB)]
    assert [one.one for one in stage.stealing.suspects([ANN, BOB], 3.0)] == [CARL]


def waits(microbatch: int = 0) -> tuple[Stage, float]:
    """A server has computed a microbatch, and waits for one of the next stage; and since when."""
    stage = Stage(ANN, BOB, CARL, stages=2)
    stage.give(microbatch, ANN, 0.0)
    stage.stealing.on_wait(stage.jobs[microbatch], ANN, 1.0)
    return stage, 1.0


def test_time_in_which_a_server_waits_for_another_is_no_slowness_of_its_own():
    stage, since_s = waits()

    assert stage.stalled(since_s + STALLED_FIRST_S) == []
    assert stage.stalled(since_s + STALLED_FIRST_S + 0.1) == [(0, ANN)]
    assert stage.blamed == []


def test_a_server_that_only_waits_for_another_has_nothing_to_do():
    stage, now_s = waits()
    stage.servers = stage.servers[:2]
    stage.give(1, BOB, now_s)

    assert stage.stalled(now_s + STALLED_FIRST_S + 0.1) == [(0, ANN), (1, BOB)]


def test_what_waits_for_a_stage_without_servers_is_stalled_nowhere():
    stage = Stage(ANN, BOB, stages=2)
    stage.give(0, ANN, 0.0)
    stage.unserved = {1}

    assert stage.stalled(100.0) == []
    stage.unserved = set()
    assert stage.stalled(100.0 + STALLED_FIRST_S) == []
    assert stage.stalled(100.1 + STALLED_FIRST_S) == [(0, ANN)]


def test_whoever_says_for_long_that_it_waits_for_others_is_suspected_like_any():
    stage, since_s = waits()
    assert stage.stalled(since_s + STALLED_FIRST_S + 0.1) == [(0, ANN)]
    stage.launch_again(0, ANN, since_s + 1.0)
    stage.stealing.on_wait(stage.jobs[0], ANN, since_s + 1.0)

    assert stage.stalled(since_s + STALLED_FIRST_S + BELIEVED_S) == [(0, ANN)]
    assert stage.blamed == []
    stage.launch_again(0, ANN, since_s + BELIEVED_S)
    stage.stealing.on_wait(stage.jobs[0], ANN, since_s + BELIEVED_S)
    assert stage.stalled(since_s + 9 * STALLED_FIRST_S + BELIEVED_S) == [(0, ANN)]
    assert stage.blamed == [ANN]


def test_the_word_that_another_waits_counts_for_what_the_sender_has():
    stage = Stage(ANN, BOB, CARL, stages=2)
    stage.give(0, ANN, 0.0)

    stage.stealing.on_wait(stage.jobs[0], BOB, 1.0)

    assert stage.stalled(100.0) == [(0, ANN)]
    assert stage.blamed == [ANN]


def test_an_honest_server_that_waits_for_a_dead_one_is_not_evicted_for_it():
    play = Play(replace(SIX, stages=2))
    ann, bob, _, _ = (play.serve(name) for name in "abcd")  # of stages 0, 1, 0, 1
    launches = [one.microbatch for one in play.seen(act.Launch)]
    for microbatch in launches:
        play.hand(ann, microbatch)
        asked = Handed(0, microbatch, 0, bob.peer, bob.number, granted=False)
        play.coordinator.on_handoff(bob, asked, play.now_s, ann)

    for _ in range(6):
        play.wait(LOOK_S)

    asked = play.coordinator.drain()
    assert not [one for one in asked if isinstance(one, act.Evict)]
    (fence, *_) = (one.message for one in asked if isinstance(one, act.SendFence))
    assert [work.microbatch for work in fence.work] == launches


def measured_back(took_s: float) -> tuple[Stage, float]:
    """A stage of Ann and Bob whose gradients take so long, by what Bob has done; and when."""
    stage, now_s = Stage(ANN, BOB, CARL, stages=2), 0.0
    for microbatch in range(1000, 1000 + STALL_SAMPLES):
        stage.give(microbatch, BOB, now_s)
        stage.give(microbatch, CARL, now_s, stage=1)
        stage.count(microbatch, now_s, stage=1)
        now_s += took_s
        stage.count(microbatch, now_s)
    return stage, now_s


def keeps(stage: Stage, microbatch: int, now_s: float) -> None:
    """A gradient has come back to Ann."""
    stage.give(microbatch, ANN, now_s)
    stage.give(microbatch, CARL, now_s, stage=1)
    stage.count(microbatch, now_s, stage=1)


def test_a_gradient_that_a_server_keeps_is_found_though_it_computes_on_and_all_others_work():
    stage, now_s = measured_back(took_s=1.0)
    stage.give(99, BOB, now_s + 100.0)
    stage.give(98, CARL, now_s + 100.0, stage=1)
    keeps(stage, 0, now_s)
    limit_s = KEPT * STALLED * 1.0

    for microbatch in range(1, 8):  # it hands on forwards all the time
        stage.give(microbatch, ANN, now_s + microbatch)
        stage.give(microbatch, CARL, now_s + microbatch + 0.5, stage=1)

    assert stage.stalled(now_s + limit_s) == []
    assert stage.stalled(now_s + limit_s + 0.1) == [(0, ANN)]
    assert stage.blamed == [ANN]


def test_a_long_queue_of_gradients_that_gets_on_is_not_kept():
    stage, now_s = measured_back(took_s=1.0)
    stage.give(99, BOB, now_s + 1000.0)
    stage.give(98, CARL, now_s + 1000.0, stage=1)
    for microbatch in range(20):
        keeps(stage, microbatch, now_s)

    for microbatch in range(19):
        now_s += 3.0
        stage.count(microbatch, now_s)
        assert stage.stalled(now_s) == []


def test_a_stage_whose_gradients_were_never_measured_waits_while_others_work():
    """First passes are slow, and all of a stage may be at theirs."""
    stage = Stage(ANN, BOB, CARL, stages=2)
    stage.give(99, BOB, 1000.0)
    stage.give(98, CARL, 1000.0, stage=1)
    keeps(stage, 0, 0.0)

    assert stage.stalled(100.0) == []


def hands_on(stage: Stage, microbatch: int, to: Incarnation, now_s: float) -> None:
    """Carl alone says that another has a microbatch."""
    job = stage.jobs.setdefault(microbatch, MicrobatchJob(microbatch, Work.FORWARD, attempt=0))
    stage.stealing.on_handoff(job, 0, CARL, now_s)
    stage.stealing.on_handoff(job, 1, to, now_s, by=CARL)


def test_whoever_holds_up_what_it_alone_said_that_another_had_has_done_so_from_the_first():
    stage = Stage(ANN, BOB, CARL, stages=2)
    hands_on(stage, 0, ANN, 0.0)
    stage.stalled(STALLED_FIRST_S + 0.5)
    stage.launch_again(0, CARL, STALLED_FIRST_S + 0.5)

    assert stage.stalled(10.0) == [(0, CARL)]

    (found,) = stage.stealing.suspects([CARL], 10.0)
    assert (found.one, found.cost_s) == (CARL, 10.0)


def test_another_stall_of_the_same_server_counts_by_itself():
    stage = Stage(ANN, BOB, CARL, stages=2)
    hands_on(stage, 0, ANN, 0.0)
    stage.stalled(STALLED_FIRST_S + 0.5)
    stage.launch_again(0, BOB, 5.0)

    assert stage.stalled(10.0) == [(0, BOB)]

    (found,) = stage.stealing.suspects([BOB], 10.0)
    assert (found.one, found.cost_s) == (BOB, 5.0)


def test_of_two_the_one_that_was_left_out_before_is_the_likelier():
    stage = Stage(ANN, BOB, CARL, stages=2)
    hands_on(stage, 0, ANN, 0.0)
    stage.stalled(STALLED_FIRST_S + 0.5)

    def suspects(pauses: dict[Incarnation, int]) -> list[Incarnation]:
        of_peer = {one.peer: number for one, number in pauses.items()}
        found = stage.stealing.suspects([ANN], 3.0, lambda peer: of_peer.get(peer, 0))
        return [each.one for each in found]

    assert suspects({CARL: 1}) == [CARL]
    assert suspects({CARL: 1, ANN: 1}) == [ANN]
    assert suspects({}) == [ANN]


def test_a_keeper_that_does_not_give_what_it_kept_is_not_asked_again():
    """Its sum is too much to be made again by others."""
    size = 40
    batch = BatchConfig(microbatches=size, evaluate_every=0, window=size)
    play = Play(replace(CONFIG, stages=2, batch=batch))
    ann, bob, carl, dan = (play.serve(name) for name in "abcd")  # of stages 0, 1, 0, 1
    for microbatch in range(size):
        play.hand(ann, microbatch)
        play.hand(bob, microbatch)
    for microbatch in range(size):
        play.wait(1.0)
        play.count(bob, microbatch)
        play.count(ann, *([microbatch] if microbatch else []))
    play.seen(act.Launch)

    def again(attempt: int) -> act.Launch:
        launches: list[act.Launch] = []
        while not launches:
            play.wait(LOOK_S)
            play.promise(ann, bob, carl, dan)
            launches = [one for one in play.seen(act.Launch) if not one.microbatch]
        assert launches[0].attempt == attempt
        return launches[0]

    assert bob.peer in again(1).keepers
    play.hand(carl, 0, attempt=1)
    play.hand(bob, 0, attempt=1)

    assert again(2).keepers == ()
    assert play.coordinator.members.alive(bob)


def test_the_way_of_a_microbatch_is_kept_and_notes_without_end_do_not_lengthen_it():
    """Two servers that are in league may say again and again that they have it."""
    stealing, (job,) = WorkStealing(2), jobs(1)
    job.attempt = 0
    stealing.on_handoff(job, 0, ANN, 1.0)
    stealing.on_handoff(job, 1, BOB, 2.0, ANN)
    stealing.on_gradient(job, 1, 3.0)
    stealing.on_gradient(job, 0, 4.0)

    hops = [(hop.stage, hop.server, hop.returning, hop.at_s) for hop in stealing.journey(1)]
    assert hops == [
        (0, ANN, False, 1.0),
        (1, BOB, False, 2.0),
        (0, ANN, True, 3.0),
        (-1, None, True, 4.0),
    ]

    for number in range(1000):
        stealing.on_gradient(job, number % 2, 5.0 + number)
        stealing.on_handoff(job, number % 2, ANN, 5.0 + number, BOB)
    assert len(stealing.journey(1)) <= 2 * 2 + 2
