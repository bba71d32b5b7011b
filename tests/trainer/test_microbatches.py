"""The coordinator on microbatches: what is launched, fenced, and launched again."""

import dataclasses

from trainer.harness import CONFIG, Play

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Obstacle, Work
from p2pswarm.run.messages.microbatch import Evaluated
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.members.blame import COST_SHARE
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import Replayed, RunFinished, ServerFails, SumVoided
from p2pswarm.trainer.step.in_flight import FENCE_NEWCOMER_S, FENCE_S, REFUSALS_MAX, TIMEOUT_FIRST_S

BOTH = dataclasses.replace(CONFIG, min_replicas=2)
"""The run begins with two servers: neither is a newcomer."""


def test_what_a_fence_finds_counted_is_not_launched_again():
    play = Play()
    ann = play.serve("a")
    play.stuck(0)
    play.promise(ann, counted=(0,))
    play.seen(object)

    play.wait(5.0)

    assert play.seen(act.Launch) == []


def test_what_a_fence_found_counted_and_is_void_waits_for_the_others_to_answer_that_fence():
    """Ann's sum is void, and Bob may still count the attempt that is being fenced."""
    play = Play(BOTH)
    ann, bob = play.serve("a"), play.serve("b")
    play.stuck(0)
    play.promise(ann, counted=(0,))
    play.lose(ann)
    play.seen(act.Launch)

    actions = []
    for _ in range(5):
        play.wait(1.0)
        actions += play.seen(object)
    void = [one.incarnation for one in actions if isinstance(one, SumVoided)]
    early = [one for one in actions if isinstance(one, act.Launch) and one.microbatch == 0]
    play.promise(bob)
    play.wait(1.0)
    late = [launch.attempt for launch in play.seen(act.Launch) if launch.microbatch == 0]

    assert (void, early, late) == ([ann], [], [1])


def test_who_does_not_answer_a_fence_is_out():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.stuck(0)
    play.promise(bob)

    play.wait(FENCE_S)

    assert [d.incarnation for d in play.seen(act.Evict)] == [ann]


def test_who_was_too_slow_for_a_fence_may_take_twice_as_long_for_the_next():
    """One whose answers always take 12 s would else lose its sum with every fence."""
    play = Play()
    play.serve("a")
    play.stuck(0)
    play.wait(FENCE_S)
    (evicted,) = play.seen(act.Evict)
    assert evicted.reason == "it did not answer a fence"

    ann = play.join("a", stage=0, version=0, digest=b"w0")
    play.wait(1.0)
    (again,) = [launch for launch in play.seen(act.Launch) if launch.microbatch == 0]
    play.stuck(0, attempt=again.attempt)
    (fence,) = play.seen(act.SendFence)
    play.wait(1.2 * FENCE_S)
    play.promise(ann)

    assert fence.limit_s == 2 * FENCE_S
    assert play.seen(act.Evict) == []


def test_a_newcomer_has_less_time_to_answer_a_fence_until_it_was_slow_in_time():
    play = Play()
    ann = play.serve("a")
    bob = play.serve("b")
    play.stuck(0)
    (*_, fence) = play.seen(act.SendFence)
    play.wait(0.9 * FENCE_NEWCOMER_S)
    play.promise(ann, bob)
    play.stuck(1)

    play.wait(FENCE_NEWCOMER_S)

    assert (fence.incarnation, fence.limit_s) == (bob, FENCE_NEWCOMER_S)
    assert [evict.incarnation for evict in play.seen(act.Evict)] == [bob]


def test_who_speaks_and_does_not_answer_gets_no_work_for_a_while_and_no_longer_to_answer():
    """A stranger that answers nothing would hold up each step, and for longer than the one before.

    All have waited for it for a twentieth of the time in which it gets no work.
    """
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.stuck(0)
    play.promise(ann)
    play.coordinator.silence.on_word(bob, play.now_s)
    play.now_s += FENCE_NEWCOMER_S - 0.1
    play.coordinator.silence.on_word(bob, play.now_s)
    play.wait(0.1)
    (out,) = play.seen(ServerFails)
    again = play.join("b", stage=0, version=0, digest=b"w0")
    play.ready(again)
    play.stuck(1)
    (fence,) = play.seen(act.SendFence)
    held_out = fence.incarnation
    play.promise(ann)
    play.wait(out.pause_s)
    play.stuck(1, attempt=1)

    limits_s = {fence.incarnation: fence.limit_s for fence in play.seen(act.SendFence)}

    assert (out.incarnation, COST_SHARE * out.pause_s) == (bob, FENCE_NEWCOMER_S)
    assert held_out == ann
    assert limits_s[again] <= FENCE_S


def test_one_that_is_slow_to_answer_costs_nobody_else_a_longer_limit():
    play = Play(BOTH)
    ann, bob = play.serve("a"), play.serve("b")
    play.stuck(0)
    play.wait(0.9 * FENCE_S)
    play.promise(ann, bob)
    cat = play.serve("c")
    play.seen(act.SendFence)

    play.stuck(1)

    limits_s = {fence.incarnation: fence.limit_s for fence in play.seen(act.SendFence)}
    assert limits_s[cat] == FENCE_NEWCOMER_S
    assert limits_s[ann] > 1.7 * FENCE_S
    play.wait(FENCE_S)
    assert [evict.incarnation for evict in play.seen(act.Evict)] == [cat]


def test_a_fence_with_nobody_to_ask_is_settled_at_once():
    play = Play()
    ann = play.serve("a")
    play.hand(ann, 0)

    play.lose(ann)

    assert [r.microbatches for r in play.seen(Replayed)] == [(0,)]


def test_a_microbatch_handed_to_one_who_is_gone_is_given_up():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.lose(bob)
    play.seen(object)

    play.hand(bob, 1)

    fences = play.seen(act.SendFence)
    assert [(f.incarnation, f.message.work[0].microbatch) for f in fences] == [(ann, 1)]


def test_notes_of_a_former_life_count_nothing():
    play = Play()
    ann = play.serve("a")
    again = play.serve("a")
    play.count(ann, 0, 1)

    assert again != ann
    assert play.seen(act.SendReduce) == []


def test_notes_about_attempts_that_are_over_change_nothing():
    play = Play()
    ann = play.serve("a")
    play.seen(object)

    play.stuck(0, attempt=7)
    play.hand(ann, 0, attempt=7)
    play.count(ann, 0, step=5)
    play.coordinator.on_evaluation(ann, Evaluated(0, 0, 1.0), play.now_s)
    play.promise(ann, counted=(0, 1))

    assert play.seen(object) == []


def test_the_second_to_count_a_microbatch_is_out():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)

    play.count(bob, 0)

    assert [d.incarnation for d in play.seen(act.Evict)] == [bob]


def fail_often(play: Play, ann: Incarnation, obstacle: Obstacle) -> list[RunFinished]:
    for attempt in range(REFUSALS_MAX):
        play.stuck(0, attempt, by=ann, obstacle=obstacle)
        play.promise(ann)
        play.wait(5.0)
    return play.seen(RunFinished)


def test_a_microbatch_that_nobody_can_do_ends_the_run_with_its_reason():
    play = Play()
    (ended,) = fail_often(play, play.serve("a"), Obstacle.WORK)

    assert ended.failed
    assert ended.reason == f"microbatch 0 of step 0 failed {REFUSALS_MAX} times: no road"


def test_a_road_that_stays_broken_does_not_end_a_run_that_waits():
    play = Play()
    assert fail_often(play, play.serve("a"), Obstacle.ROAD) == []

    impatient = Play(dataclasses.replace(CONFIG, on_stage_lost="end"))
    (ended,) = fail_often(impatient, impatient.serve("a"), Obstacle.ROAD)
    assert ended.failed


def test_a_late_attempt_is_fenced_and_launched_again():
    play = Play()
    ann = play.serve("a")
    play.seen(object)

    play.wait(TIMEOUT_FIRST_S)
    (fence,) = play.seen(act.SendFence)
    play.promise(ann)
    play.wait(5.0)

    assert {w.microbatch for w in fence.message.work} == {0, 1}
    assert {(x.microbatch, x.attempt) for x in play.seen(act.Launch)} == {(0, 1), (1, 1)}


def test_the_word_of_one_who_is_gone_settles_nothing():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.stuck(0)
    play.lose(ann)
    play.lose(ann)
    play.promise(ann, counted=(0,))
    play.seen(object)

    play.promise(bob)
    play.wait(5.0)

    assert [(x.microbatch, x.attempt) for x in play.seen(act.Launch)] == [(0, 1)]


def test_a_held_out_batch_may_answer_while_it_is_fenced():
    config = RunConfig(
        stages=1,
        steps=1,
        batch=BatchConfig(microbatches=1, evaluate_every=1, evaluate_microbatches=1),
    )
    play = Play(config)
    ann = play.serve("a")
    held_out = next(x for x in play.seen(act.Launch) if x.work is Work.EVALUATE).microbatch
    play.stuck(held_out)
    play.coordinator.on_evaluation(ann, Evaluated(0, held_out, 3.5), play.now_s)

    play.promise(ann)
    play.wait(5.0)

    assert play.seen(act.Launch) == []


def with_a_lost_stage() -> tuple[Play, Incarnation]:
    """Of two stages the second has lost what it had of microbatch 0; the first has it."""
    play = Play(dataclasses.replace(CONFIG, stages=2))
    first, second = play.serve("a"), play.serve("b")
    play.serve("c"), play.serve("d")
    play.hand(first, 0)
    play.hand(second, 0)
    play.count(first, 0)
    play.count(second, 0)
    play.seen(object)
    play.lose(second)
    play.wait(2.0)  # its sum is void
    play.wait(2.0)
    return play, first


def test_what_one_stage_has_lost_is_launched_with_the_keepers_of_the_others():
    play, first = with_a_lost_stage()

    (again,) = [launch for launch in play.seen(act.Launch) if launch.microbatch == 0]
    assert again.counting == (1,)
    assert again.keepers == (first.peer, b"")


def test_after_an_attempt_that_got_stuck_all_is_computed_again():
    play, first = with_a_lost_stage()
    (again,) = [launch for launch in play.seen(act.Launch) if launch.microbatch == 0]

    play.stuck(0, attempt=again.attempt)
    play.promise(*(fence.incarnation for fence in play.seen(act.SendFence)))
    play.wait(5.0)

    (third,) = [launch for launch in play.seen(act.Launch) if launch.microbatch == 0]
    assert third.counting == (1,)
    assert third.keepers == ()
    assert play.coordinator.members.alive(first)
