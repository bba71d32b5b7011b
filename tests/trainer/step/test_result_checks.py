"""Tests of `trainer/step/result_checks.py`."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import Play

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Obstacle, Work
from p2pswarm.run.messages.microbatch import CHECK_BASE, Sketch
from p2pswarm.run.messages.step import Fenced
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig, RunConfig
from p2pswarm.trainer.members.blame import NOT_FINITE_MIN
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import (
    Quarantined,
    ResultsTied,
    RunFinished,
    StepDone,
    WrongResult,
)
from p2pswarm.trainer.step.result_checks import (
    BROKEN_WAY,
    CONTRADICTS,
    OPINIONS_MAX,
    STEPS_MAX,
    UNTOLD,
    Quarantine,
    SpotChecks,
    agree,
    most_in_step,
    tolerance,
)

WHY = "a gradient is not finite"


def config(microbatches: int, **batch: int) -> RunConfig:
    sizes = {"microbatches": microbatches, "evaluate_every": 0, **batch}
    return RunConfig(stages=2, steps=2, batch=BatchConfig(**sizes))


def fail(play: Play, microbatch: int, by: Incarnation, *, counted=()) -> None:
    """Every attempt of a microbatch is not finite; `counted`: who tells so when it is fenced."""
    for attempt in range(NOT_FINITE_MIN):
        play.now_s += 1.0
        play.stuck(microbatch, attempt, by=by, obstacle=Obstacle.NOT_FINITE)
        for member in play.coordinator.members.ready():
            one = member.incarnation
            answer = Fenced((microbatch,) if one in counted else ())
            play.coordinator.on_fence_answer(one, answer.counted, play.now_s)
        play.wait(2.0)


def test_a_step_goes_on_without_a_microbatch_that_no_server_has_a_finite_gradient_of():
    play = Play(config(2))
    ann, bob = play.serve("a"), play.serve("b")
    fail(play, 0, by=bob)
    (aside,) = play.seen(Quarantined)
    assert aside == Quarantined(0, 0, "no road", held_out=False)

    for one in (ann, bob):
        play.count(one, 1)
    orders = play.seen(act.SendReduce)
    assert [order.message.counted for order in orders] == [b"\x02", b"\x02"]
    for one in (ann, bob):
        play.told_reduced(one, orders[0].message.generation)

    (done,) = play.seen(StepDone)
    assert (done.microbatches, done.quarantined, done.loss) == (2, (0,), 1.0)


def test_a_sum_that_holds_a_microbatch_that_is_set_aside_is_void():
    play = Play(config(2))
    ann, bob = play.serve("a"), play.serve("b")
    for microbatch in (0, 1):
        play.count(bob, microbatch)
    play.count(ann, 1)
    play.seen(object)

    fail(play, 0, by=ann)

    actions = play.coordinator.drain()
    evicted = [one.incarnation for one in actions if isinstance(one, act.Evict)]
    launched = [(one.microbatch, one.counting) for one in actions if isinstance(one, act.Launch)]
    assert evicted == [bob]
    assert (1, (1,)) not in launched  # stage 1 has nobody
    again = play.join("b", stage=1, version=0, digest=b"w0")
    play.promise(ann, again)
    play.wait(2.0)
    launched = [(one.microbatch, one.counting) for one in play.seen(act.Launch)]
    assert launched == [(1, (1,))]


def test_one_that_a_fence_finds_in_a_sum_is_not_left_there():
    play = Play(config(2))
    ann, bob = play.serve("a"), play.serve("b")

    fail(play, 0, by=ann, counted=(bob,))

    assert [one.incarnation for one in play.seen(act.Evict)] == [bob]


def test_who_counts_a_microbatch_that_was_set_aside_is_out():
    play = Play(config(2))
    ann, bob = play.serve("a"), play.serve("b")
    fail(play, 0, by=bob)
    play.seen(object)

    play.count(ann, 0, attempt=NOT_FINITE_MIN - 1)

    assert [one.incarnation for one in play.seen(act.Evict)] == [ann]


def test_one_that_all_stages_have_counted_after_all_is_not_set_aside():
    play = Play(config(2))
    ann, bob = play.serve("a"), play.serve("b")

    fail(play, 0, by=bob, counted=(ann, bob))

    assert play.seen(Quarantined) == []
    for one in (ann, bob):
        play.count(one, 1)
    assert {order.message.counted for order in play.seen(act.SendReduce)} == {b"\x03"}


def test_a_held_out_batch_without_a_loss_does_not_hold_the_run_up():
    play = Play(config(1, evaluate_every=1, evaluate_microbatches=1))
    ann, bob = play.serve("a"), play.serve("b")
    held_out = next(x for x in play.seen(act.Launch) if x.work is Work.EVALUATE).microbatch

    fail(play, held_out, by=bob)

    (aside,) = play.seen(Quarantined)
    assert aside.held_out
    for one in (ann, bob):
        play.count(one, 0)
    assert play.seen(act.SendReduce) != []


def test_too_many_in_one_step_end_the_run_and_say_what_to_do():
    play = Play(config(16, window=16))
    _, bob = play.serve("a"), play.serve("b")
    for microbatch in range(most_in_step(16)):
        fail(play, microbatch, by=bob)
    assert play.seen(RunFinished) == []

    fail(play, most_in_step(16), by=bob)

    (ended,) = play.seen(RunFinished)
    assert ended.failed
    text = "3 of the 16 microbatches of step 0 are not finite on any server: no road"
    assert ended.reason == text


@pytest.mark.parametrize(("microbatches", "most"), [(1, 1), (8, 1), (15, 1), (16, 2), (800, 100)])
def test_an_eighth_of_a_step_may_be_set_aside_and_one_at_least(microbatches, most):
    assert most_in_step(microbatches) == most


def aside(step: int, microbatch: int, *, held_out: bool = False) -> Quarantined:
    return Quarantined(step, microbatch, WHY, held_out)


def test_steps_in_a_row_with_one_set_aside_end_the_run():
    quarantine = Quarantine(8)
    for step in range(STEPS_MAX):
        quarantine.add(aside(step, 8 * step))
        assert quarantine.hopeless is None
        assert quarantine.on_decision() == (8 * step,)

    quarantine.add(aside(STEPS_MAX, 8 * STEPS_MAX))

    assert quarantine.hopeless == f"6 steps in a row have a microbatch that is not finite: {WHY}"


def test_a_step_without_any_begins_the_row_anew():
    quarantine = Quarantine(8)
    for step in range(3 * STEPS_MAX):
        if step % STEPS_MAX:
            quarantine.add(aside(step, 8 * step))
        quarantine.on_decision()

    assert quarantine.hopeless is None


def test_what_is_set_aside_of_the_next_step_does_not_count_in_this_one():
    quarantine = Quarantine(8)
    quarantine.add(aside(0, 3))
    quarantine.add(aside(1, 9))

    assert quarantine.hopeless is None
    assert quarantine.on_decision(0) == (3,)
    assert quarantine.on_decision(1) == (9,)


def test_held_out_batches_do_not_count_against_a_run():
    quarantine = Quarantine(8)
    for number in range(20):
        quarantine.add(aside(0, number, held_out=True))

    assert quarantine.hopeless is None
    assert quarantine.on_decision() == ()


RAW = CodecConfig(activation="raw", gradient="raw")
CONFIG = RunConfig(stages=3, spot_check_share=1.0, codecs=RAW)
KEY = b"k" * 32
RIGHT, WRONG, WORSE = (1.0, 2.0), (1.0, 2.5), (9.0, 9.0)
CREW = [Incarnation(bytes([n]) * 32, n) for n in range(1, 8)]
ANN, BOB, CID, DAN, EVE, *_ = CREW


def tell(
    checks: SpotChecks,
    by: Incarnation,
    gave: tuple = RIGHT,
    *,
    took: tuple = RIGHT,
    stage: int = 1,
    attempt: int = 0,
    check: bool = False,
    work: Work = Work.FORWARD,
    size: float = 1.0,
) -> None:
    number = 7 + CHECK_BASE * check
    checks.on_sketch(by, stage, Sketch(0, number, attempt, work, took, gave, size))


def named(checks: SpotChecks) -> list[tuple[Incarnation, str]]:
    return [(found.incarnation, found.reason) for found in checks.wrong()]


def test_a_share_of_all_is_chosen_and_only_who_has_the_key_can_tell_which():
    some = dataclasses.replace(CONFIG, spot_check_share=0.1)
    ours, theirs = SpotChecks(some, KEY), SpotChecks(some, b"other")

    chosen = [m for m in range(10_000) if ours.chosen(m)]

    assert 900 < len(chosen) < 1100
    assert chosen == [m for m in range(10_000) if SpotChecks(some, KEY).chosen(m)]
    assert len([m for m in chosen if theirs.chosen(m)]) < 200


@pytest.mark.parametrize(("share", "all_of_them"), [(0.0, False), (1.0, True)])
def test_none_and_all(share, all_of_them):
    checks = SpotChecks(dataclasses.replace(CONFIG, spot_check_share=share), KEY)

    assert {checks.chosen(m) for m in range(1000)} == {all_of_them}


def test_who_agrees_is_not_named():
    checks = SpotChecks(CONFIG, KEY)
    for by in (ANN, BOB, CID):
        tell(checks, by)

    assert named(checks) == []
    assert not checks.disputed(7)
    assert checks.tied(7) is None


def test_two_that_differ_are_a_dispute_and_the_third_settles_it():
    checks = SpotChecks(CONFIG, KEY)
    tell(checks, ANN, WRONG)
    tell(checks, BOB, check=True)
    assert named(checks) == []
    assert checks.disputed(7)
    assert not checks.disputed(8)

    tell(checks, CID, check=True, attempt=1)

    assert named(checks) == [(ANN, CONTRADICTS)]
    assert not checks.disputed(7)


def test_a_server_that_gives_two_results_for_one_input_is_wrong():
    checks = SpotChecks(CONFIG, KEY)
    tell(checks, ANN, WRONG)

    tell(checks, ANN, check=True)

    assert named(checks) == [(ANN, CONTRADICTS)]


def test_two_that_insist_are_a_tie():
    checks = SpotChecks(CONFIG, KEY)
    for attempt in range(3):
        tell(checks, ANN, WRONG, attempt=attempt)
        tell(checks, BOB, attempt=attempt, check=True)

    assert checks.tied(7) == ResultsTied(7, 1, (ANN, BOB))
    assert not checks.disputed(7)
    assert named(checks) == []


def test_results_of_other_inputs_are_not_compared():
    checks = SpotChecks(CONFIG, KEY)
    tell(checks, ANN, WRONG, took=WORSE)
    tell(checks, BOB, check=True)

    assert named(checks) == []
    assert not checks.disputed(7)


@pytest.mark.parametrize("size", [1.0 + 1e-2, 0.0])
def test_a_norm_or_loss_that_differs_is_a_difference(size):
    checks = SpotChecks(CONFIG, KEY)
    tell(checks, ANN, size=size)
    tell(checks, BOB, check=True)

    assert checks.disputed(7)


def test_what_rounding_explains_is_no_difference():
    checks = SpotChecks(CONFIG, KEY)
    tell(checks, ANN, (1.0, 2.0001), took=(1.0, 2.0001))
    tell(checks, BOB, check=True)

    assert not checks.disputed(7)


def test_a_backward_is_compared_with_backwards():
    checks = SpotChecks(CONFIG, KEY)
    tell(checks, ANN, RIGHT)
    tell(checks, BOB, WRONG, work=Work.BACKWARD, check=True)

    assert not checks.disputed(7)


WAY = [
    (0, Work.FORWARD),
    (1, Work.FORWARD),
    (2, Work.FORWARD),
    (1, Work.BACKWARD),
    (0, Work.BACKWARD),
]


@pytest.mark.parametrize("broken", range(4))
@pytest.mark.parametrize("backwards", [False, True])
def test_what_one_gave_the_next_must_have_taken(broken: int, backwards: bool):
    """Each hop of the way up and down, told in either order."""
    checks = SpotChecks(CONFIG, KEY)
    told = [
        (CREW[place], stage, work, (float(place + 1),), (float(place),) if place else ())
        for place, (stage, work) in enumerate(WAY)
    ]
    by, stage, work, gave, took = told[broken]
    told[broken] = by, stage, work, (99.0,), took
    for by, stage, work, gave, took in reversed(told) if backwards else told:
        tell(checks, by, gave, took=took, stage=stage, work=work)

    both = {(CREW[broken], BROKEN_WAY), (CREW[broken + 1], BROKEN_WAY)}
    assert set(named(checks)) == both


def test_of_two_neighbours_the_one_that_tells_nothing_is_wrong():
    checks = SpotChecks(CONFIG, KEY)
    tell(checks, ANN, RIGHT, stage=0, took=())
    tell(checks, BOB, took=(), stage=1)

    assert named(checks) == [(BOB, BROKEN_WAY)]


def test_who_counted_and_told_nothing_is_wrong():
    checks = SpotChecks(CONFIG, KEY)
    tell(checks, ANN, took=(), stage=0)
    tell(checks, ANN, stage=0, work=Work.BACKWARD)
    tell(checks, BOB, stage=1)
    tell(checks, CID, stage=2)

    checks.on_check(7, {0: ANN, 1: BOB, 2: CID})

    assert named(checks) == [(BOB, UNTOLD)]


def test_what_is_told_in_one_step_is_not_compared_in_another():
    checks = SpotChecks(CONFIG, KEY)
    tell(checks, ANN, WRONG)
    other = checks.of_step()
    tell(other, BOB, check=True)

    assert not other.disputed(7)


def test_who_is_found_wrong_in_one_step_is_known_in_all():
    checks = SpotChecks(CONFIG, KEY)
    one, other = checks.of_step(), checks.of_step()
    tell(one, ANN, WRONG)
    tell(one, ANN, check=True)

    assert named(other) == [(ANN, CONTRADICTS)]
    assert named(one) == []


def test_who_told_before_the_step_began_anew_need_not_tell_again():
    """Its sum may be found by a fence afterwards, so it was not void."""
    checks = SpotChecks(CONFIG, KEY)
    tell(checks, ANN, took=(), stage=0)
    checks.begin_anew()
    tell(checks, CID, stage=2)

    checks.on_check(7, {0: ANN, 1: BOB, 2: CID})

    assert named(checks) == [(BOB, UNTOLD)]


def test_in_the_next_step_it_must_tell():
    checks = SpotChecks(CONFIG, KEY)
    tell(checks, ANN, took=(), stage=0)
    checks.begin_anew()
    following = checks.of_step()

    following.on_check(7, {0: ANN})

    assert named(following) == [(ANN, UNTOLD)]


def test_the_roughest_codec_sets_the_tolerance():
    rough = CodecConfig(activation="raw", gradient="raw", gradient_keys=("memory=dither5",))
    exact = ModelConfig(dtype="float64")

    assert tolerance(dataclasses.replace(CONFIG, model=exact)) == 1e-9
    assert tolerance(CONFIG) == 1e-4
    assert tolerance(dataclasses.replace(CONFIG, codecs=rough)) == pytest.approx(0.1201)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((), (1.0,), True),
        ((1.0,), (), True),
        ((1.0,), (1.0, 0.0), False),
        ((0.0, 0.0), (0.0, 0.0), True),
        ((0.0, 0.0), (0.0, 1e-9), False),
        ((100.0, 0.0), (100.0, 1.0), True),
        ((100.0, 0.0), (100.0, 1.1), False),
    ],
)
def test_sketches_agree_within_a_share_of_their_length(one, other, same):
    assert agree(one, other, 0.01) is same
    assert agree(other, one, 0.01) is same


@given(st.lists(st.sampled_from(CREW), max_size=12), st.integers(0, 6), st.data())
def test_an_honest_majority_is_never_named(tellers, liar, data):
    """One liar says anything; all others the same. Whenever somebody is named, it is the liar."""
    checks = SpotChecks(CONFIG, KEY)
    for attempt, by in enumerate([CREW[liar - 1], CREW[liar - 2], *tellers]):
        lies = by == CREW[liar] and data.draw(st.booleans())
        tell(checks, by, WORSE if lies else RIGHT, attempt=attempt, check=True)

        assert {one for one, _ in named(checks)} <= {CREW[liar]}


# With a coordinator.

SMALL = RunConfig(
    stages=2,
    steps=2,
    spot_check_share=1.0,
    codecs=RAW,
    batch=BatchConfig(microbatches=1, evaluate_every=0),
)


def computed(play: Play, first: Incarnation, last: Incarnation, **changes) -> None:
    """An attempt of a microbatch, 0 if none is named, through two servers.

    `microbatch`, `step`, `check`, `attempt`, and what the last one `gave`.
    """
    check, attempt = changes.get("check", False), changes.get("attempt", 0)
    number = changes.get("microbatch", 0) + CHECK_BASE * check
    gave, step = changes.get("gave", (3.0,)), changes.get("step", 0)
    play.sketch(first, number, attempt, Work.FORWARD, (), (1.0,), step)
    play.sketch(last, number, attempt, Work.FORWARD, (1.0,), gave, step)
    play.sketch(first, number, attempt, Work.BACKWARD, gave, (), step)
    for one in (last, first):
        play.count(one, number, step=step, attempt=attempt, counted=not check)


def test_a_step_waits_for_its_checks():
    play = Play(SMALL)
    ann, bob = play.serve("a"), play.serve("b")
    computed(play, ann, bob)
    (check,) = [x for x in play.seen(act.Launch) if x.microbatch >= CHECK_BASE]
    assert (check.microbatch, check.attempt, check.counting) == (CHECK_BASE, 0, (0, 1))

    computed(play, ann, bob, check=True)

    assert play.seen(act.SendReduce) != []


def wrong_server() -> tuple[Play, list[Incarnation]]:
    play = Play(SMALL)
    crew = [play.serve(name) for name in "abcdef"]  # stages 0, 1, 0, 1, 0, 1
    computed(play, crew[0], crew[1], gave=(4.0,))
    computed(play, crew[2], crew[3], check=True)
    play.wait(1.0)
    (again,) = [x for x in play.seen(act.Launch) if x.attempt == 1]
    assert again.microbatch == CHECK_BASE
    computed(play, crew[4], crew[5], check=True, attempt=1)
    return play, crew


def test_the_step_of_a_wrong_server_is_done_again_without_it():
    play, crew = wrong_server()

    actions = play.coordinator.drain()
    (found,) = [x for x in actions if isinstance(x, WrongResult)]
    assert found == WrongResult(crew[1], 1, 0, CONTRADICTS, 10.0)
    evicted = [x.incarnation for x in actions if isinstance(x, act.Evict)]
    assert set(evicted) == {crew[0], crew[1]}  # all that hold counts
    assert not any(isinstance(x, act.SendReduce) for x in actions)
    play.promise(*crew[2:])
    play.wait(5.0)
    (again,) = play.seen(act.Launch)
    assert (again.microbatch, again.counting) == (0, (0, 1))
    computed(play, crew[2], crew[3], attempt=again.attempt)
    play.wait(5.0)
    (check,) = play.seen(act.Launch)
    assert check.microbatch == CHECK_BASE
    computed(play, crew[4], crew[5], check=True, attempt=check.attempt)
    assert play.seen(act.SendReduce) != []


def test_one_that_is_found_gets_no_work_for_a_while():
    play, crew = wrong_server()

    play.join("b", stage=1, version=0, digest=b"w0")

    ready = [m.incarnation for m in play.coordinator.members.ready(1)]
    assert ready == [crew[3], crew[5]]


def test_a_tie_is_told_and_the_run_goes_on():
    play = Play(SMALL)
    ann, bob, cid = play.serve("a"), play.serve("b"), play.serve("c")
    dan = play.serve("d")
    del cid
    computed(play, ann, bob, gave=(4.0,))
    for attempt in range(OPINIONS_MAX):
        assert play.seen(act.SendReduce) == []
        computed(play, ann, dan, check=True, attempt=attempt)
        play.wait(2.0)

    reports = play.coordinator.drain()
    assert ResultsTied(0, 1, (bob, dan)) in reports
    assert any(isinstance(x, act.SendReduce) for x in reports)


def test_a_check_that_never_gets_through_does_not_hold_the_run_up():
    play = Play(SMALL)
    ann, bob = play.serve("a"), play.serve("b")
    computed(play, ann, bob)
    for attempt in range(OPINIONS_MAX):
        assert play.seen(act.SendReduce | RunFinished) == []
        play.stuck(CHECK_BASE, attempt)
        play.promise(ann, bob)
        play.wait(3.0)

    assert play.seen(act.SendReduce) != []


LATE = dataclasses.replace(
    SMALL, steps=3, delay=1, batch=BatchConfig(microbatches=2, evaluate_every=0)
)


def test_with_a_delay_checks_of_the_next_step_hold_up_no_averaging_and_each_step_has_its_own():
    play = Play(LATE)
    ann, bob = play.serve("a"), play.serve("b")
    for microbatch in (0, 1):
        computed(play, ann, bob, microbatch=microbatch)
        computed(play, ann, bob, microbatch=microbatch, check=True)
    computed(play, ann, bob, microbatch=2, step=1)
    play.reduce(ann, bob)
    assert play.coordinator.step == 1
    play.commit(ann, b"w1")
    play.commit(bob, b"w1")

    computed(play, ann, bob, microbatch=3, step=1)
    computed(play, ann, bob, microbatch=2, step=1, check=True)
    assert play.seen(act.SendReduce) == []
    computed(play, ann, bob, microbatch=3, step=1, check=True)

    actions = play.coordinator.drain()
    assert any(isinstance(x, act.SendReduce) for x in actions)
    assert not any(isinstance(x, WrongResult) for x in actions)


def test_a_wrong_result_of_the_next_step_voids_the_sums_of_both_steps():
    play = Play(LATE)
    crew = [play.serve(name) for name in "abcdef"]  # stages 0, 1, 0, 1, 0, 1
    computed(play, crew[2], crew[3])
    computed(play, crew[0], crew[1], microbatch=2, step=1, gave=(4.0,))
    computed(play, crew[2], crew[3], microbatch=2, step=1, check=True)
    assert not play.seen(WrongResult)

    computed(play, crew[4], crew[5], microbatch=2, step=1, check=True, attempt=1)

    actions = play.coordinator.drain()
    (found,) = [x for x in actions if isinstance(x, WrongResult)]
    assert (found.incarnation, found.reason) == (crew[1], CONTRADICTS)
    evicted = {x.incarnation for x in actions if isinstance(x, act.Evict)}
    assert evicted == set(crew[:4])
