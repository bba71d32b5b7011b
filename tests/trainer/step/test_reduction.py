"""Tests of `trainer/step/reduction.py`."""

import dataclasses
import math

import pytest
from trainer.harness import CONFIG, Play

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.step import Reduced, TiedGroup, TiedReduced
from p2pswarm.settings.config import BatchConfig, OptimizerConfig
from p2pswarm.trainer.balance.move_preparation import Movers
from p2pswarm.trainer.members.membership import Member, Membership, StageGroup
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import AveragingSlow, StepDone
from p2pswarm.trainer.step.reduction import (
    FAILED_RETRIES,
    FIRST_LIMIT_S,
    LIMIT_FACTOR,
    LIMIT_MIN_S,
    MEASURED,
    SLOW_RETRIES,
    AveragingLimit,
    Decided,
    Disagreed,
    EndsDiffer,
    NotFinite,
    Reduction,
    Reductions,
)


def test_the_limit_doubles_with_each_averaging_that_was_too_slow_up_to_a_bound():
    limit = AveragingLimit(first_s=10.0, max_s=35.0)
    limits_s = []
    for _ in range(4):
        limits_s.append(limit.seconds)
        limit.on_timeout()

    assert limits_s == [10.0, 20.0, 35.0, 35.0]
    limit.on_success(5.0)
    assert limit.seconds == LIMIT_MIN_S


def test_the_limit_is_a_multiple_of_the_slowest_of_the_last():
    limit = AveragingLimit()
    assert limit.seconds == FIRST_LIMIT_S
    limit.on_success(100.0)
    limit.on_success(1.0)
    assert limit.seconds == LIMIT_FACTOR * 100.0

    for _ in range(MEASURED):
        limit.on_success(20.0)

    assert limit.seconds == LIMIT_FACTOR * 20.0


def averaging(*stages: int) -> tuple[Reductions, list]:
    members = Membership(max(stages) + 1)
    for number, stage in enumerate(stages):
        one = members.admit(bytes([number]) * 32, "h:1", stage, 0)
        members.make_ready(one.incarnation)
    generations = Reductions(AveragingLimit(first_s=10.0))
    groups = [members.group(stage) for stage in range(max(stages) + 1)]
    generations.begin(0, groups, CONFIG.optimizer, 5.0)
    return generations, [m.incarnation for m in members.ready()]


def begin_again(generations: Reductions, stages: tuple[int, ...] = (0, 0, 1)) -> None:
    members = Membership(max(stages) + 1)
    for number, stage in enumerate(stages):
        one = members.admit(bytes([number]) * 32, "h:1", stage, 0)
        members.make_ready(one.incarnation)
    groups = [members.group(stage) for stage in range(max(stages) + 1)]
    generations.begin(0, groups, CONFIG.optimizer, 5.0)


def test_it_is_overdue_at_its_limit():
    generations, _ = averaging(0)

    assert not generations.overdue(14.9)
    assert generations.overdue(15.0)
    generations.drop()
    assert not generations.overdue(1e9)


def test_who_is_silent_while_its_stage_answers_is_blamed_after_some_tries():
    generations, (ann, bob, _cid) = averaging(0, 0, 1)
    for _ in range(SLOW_RETRIES):
        assert generations.give_up() == []
        begin_again(generations)
    assert generations.reduction is not None
    generations.reduction.on_answer(ann, Reduced(b"g", 1.0))

    assert generations.give_up() == [bob]


def test_a_stage_of_which_nobody_answers_is_not_blamed():
    generations, _ = averaging(0, 0, 1)
    for _ in range(SLOW_RETRIES + 1):
        assert generations.give_up() == []
        begin_again(generations)


@pytest.mark.parametrize("generation", [0, 2])
def test_only_the_generation_under_way_is_current(generation):
    generations, _ = averaging(0)

    assert generations.current(generation) is None
    assert generations.current(1) is generations.reduction


def slow_stage(averaging_s: float, tries: int) -> Play:
    """A stage of two whose averagings take `averaging_s`."""
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    done = []
    for _ in range(tries):
        actions = play.coordinator.drain()
        orders = [a for a in actions if isinstance(a, act.SendReduce)]
        done += [a for a in actions if isinstance(a, AveragingSlow | act.Evict | StepDone)]
        if orders and orders[0].limit_s > averaging_s:
            play.now_s += averaging_s
            for one in (ann, bob):
                play.told_reduced(one, orders[0].message.generation)
        elif orders:
            play.wait(orders[0].limit_s)
        for fence in [a for a in actions if isinstance(a, act.SendFence)]:
            play.coordinator.on_fence_answer(fence.incarnation, (), play.now_s)
    play.done = done
    return play


def test_a_slow_averaging_succeeds_in_the_end_and_people_are_told():
    play = slow_stage(averaging_s=400.0, tries=12)

    slow = [a for a in play.done if isinstance(a, AveragingSlow)]
    assert [(a.took_s, a.limit_s) for a in slow] == [(120.0, 240.0), (240.0, 480.0)]
    assert [a for a in play.done if isinstance(a, act.Evict)] == []
    assert [a.step for a in play.done if isinstance(a, StepDone)] == [0]


def test_one_that_never_finishes_while_the_other_does_is_out():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    for generation in range(1, SLOW_RETRIES + 2):
        play.told_reduced(ann, generation)
        assert play.seen(act.Evict) == []
        play.wait(1e4)
        if generation <= SLOW_RETRIES:
            for one in (ann, bob):
                play.promise(one)

    assert [d.incarnation for d in play.seen(act.Evict)] == [bob]


def test_a_decided_step_forgives_the_failures_before_it():
    generations, _ = averaging(0, 0, 1)
    for _ in range(FAILED_RETRIES):
        assert not generations.on_failure()
    begin_again(generations)
    generations.on_decision(6.0)

    assert [generations.on_failure() for _ in range(FAILED_RETRIES + 1)] == [
        False
    ] * FAILED_RETRIES + [True]


def shares_of_the_next_step(*rates: float) -> tuple[int, ...]:
    """The shares after a step in which the links of a stage's members carried so much."""
    batch = BatchConfig(microbatches=len(rates), evaluate_every=0)
    play = Play(dataclasses.replace(CONFIG, batch=batch))
    members = [play.serve(name) for name, _ in zip("abcd", rates, strict=False)]
    for step in range(2):
        for number, member in enumerate(members):
            play.count(member, step * len(rates) + number, step=step)
        orders = [a.message for a in play.seen(act.SendReduce)]
        assert len({order.shares for order in orders}) == 1, "all make the same plan"
        if step == 1:
            return orders[0].shares
        assert orders[0].shares == (), "nothing is measured yet"
        for member, rate in zip(members, rates, strict=True):
            answer = Reduced(b"g", 1.0, rate, b"w0")
            play.coordinator.on_reduction(member, orders[0].generation, answer, play.now_s)
        for member in members:
            play.commit(member, b"w1")
    raise AssertionError


def test_a_member_with_a_slow_link_is_given_a_smaller_shard_in_the_next_step():
    shares = shares_of_the_next_step(1e6, 1e6, 1e6, 6.4e5)

    assert shares[0] > 4 * shares[3] > 0


def test_members_with_equal_links_have_equal_shards():
    assert shares_of_the_next_step(1.1e6, 1e6, 1e6, 0.95e6) == ()


def test_after_an_averaging_that_took_too_long_the_shards_are_equal():
    generations, members = averaging(0, 0, 0)
    assert generations.reduction is not None
    for member, rate in zip(members, (100.0, 100.0, 10.0), strict=True):
        generations.reduction.on_answer(member, Reduced(b"g", 1.0, rate))
    generations.on_decision(6.0)
    for equal in (False, True):
        begin_again(generations, (0, 0, 0))
        orders = generations.reduction.orders(b"r" * 16, lambda _: b"", 9.0)
        assert (orders[0].message.shares == ()) == equal
        generations.give_up()


def test_the_group_of_a_tied_tensor_is_of_both_ends_and_has_shares_of_its_own():
    generations = Reductions(ends=(0, 2))
    members = Membership(3)
    for number, stage in enumerate((0, 0, 1, 2, 2, 2)):
        one = members.admit(bytes([number]) * 32, "h:1", stage, 0)
        if number < 5:
            members.make_ready(one.incarnation)

    def begin() -> dict:
        groups = [members.group(stage) for stage in range(3)]
        reduction = generations.begin(0, groups, CONFIG.optimizer, 5.0)
        orders = reduction.orders(b"r" * 16, lambda _one: b"", 9.0)
        return {order.incarnation.peer[0]: order.message.tied for order in orders}

    tied = begin()
    assert tied[2] is None
    assert {*tied.values()} - {None} == {
        TiedGroup(tuple(bytes([n]) * 32 for n in (0, 1, 3, 4)), (bytes([5]) * 32,))
    }
    for one in generations.reduction.stages:
        rate = 1e6 if one.peer[0] == 0 else 1e8
        generations.reduction.on_answer(one, Reduced(b"x", 1.0, rate))
    generations.on_decision(9.0)

    shares = begin()[0].shares
    assert len(shares) == 4
    assert shares[0] < min(shares[1:])


def member(number: int, stage: int) -> Member:
    return Member(Incarnation(bytes([number]) * 32, number), "h:1", stage, 0, ready=True)


A, B, C, D, E = *(member(n, 0) for n in (1, 2, 3)), member(4, 1), member(5, 1)
ANY_STATES = {0: b"", 1: b""}


def reduction(*members: Member) -> Reduction:
    stages = sorted({m.stage for m in members})
    groups = [StageGroup([m for m in members if m.stage == stage], []) for stage in stages]
    return Reduction(0, 1, groups, OptimizerConfig(clip_norm=1.0), deadline_s=9.0)


def test_orders_name_those_first_that_change_stage_with_the_commit():
    stays, comes, newcomer = member(5, 1), member(6, 1), member(7, 0)
    group = StageGroup([A, B], [newcomer])
    both = [stays.incarnation, comes.incarnation]
    movers = Movers({0: both}, frozenset({comes.incarnation, D.incarnation}))
    tried = Reduction(0, 1, [group], OptimizerConfig(), 9.0, movers)
    orders = [each.message for each in tried.orders(b"r" * 16, lambda _one: b"", 9.0)]

    seen = tuple(one.incarnation.peer for one in (comes, newcomer, stays))
    assert len(orders) == 5
    assert {(one.observers, one.prompt) for one in orders} == {(seen, 1)}


def test_nothing_is_decided_before_all_have_answered():
    tried = reduction(A, B)
    tried.on_answer(A.incarnation, Reduced(b"x", 1.0))

    assert tried.verdict() is None
    assert tried.silent == [B.incarnation]


def test_the_norm_is_taken_over_all_stages_once_each():
    tried = reduction(A, B, D)
    for one, square in ((A, 9.0), (B, 9.0), (D, 16.0)):
        tried.on_answer(
            one.incarnation, Reduced(bytes([one.stage]), square, state=b"%d" % one.stage)
        )

    assert tried.verdict() == Decided(5.0, pytest.approx(0.2), {A.stage: b"0", D.stage: b"1"})


def test_who_holds_other_bytes_than_most_is_named():
    tried = reduction(A, B, C)
    for one, digest in ((A, b"odd"), (B, b"x"), (C, b"x")):
        tried.on_answer(one.incarnation, Reduced(digest, 1.0))

    assert tried.verdict() == Disagreed((A.incarnation,))


def test_of_two_that_differ_the_first_in_peer_order_stands_and_the_tie_is_told():
    tried = reduction(A, B)
    tried.on_answer(B.incarnation, Reduced(b"y", 1.0))
    tried.on_answer(A.incarnation, Reduced(b"x", 1.0))

    assert tried.verdict() == Disagreed((B.incarnation,), tied=(0,))


def test_a_gradient_that_overflowed_is_named_by_its_stage():
    tried = reduction(A, D)
    tried.on_answer(A.incarnation, Reduced(b"x", 1.0))
    tried.on_answer(D.incarnation, Reduced(b"y", None))

    assert tried.verdict() == NotFinite(1)


def test_answers_of_strangers_are_ignored():
    tried = reduction(A)
    tried.on_answer(D.incarnation, Reduced(b"y", math.pi))

    assert tried.silent == [A.incarnation]


def tied(*members: Member) -> Reduction:
    stages = sorted({m.stage for m in members})
    both = TiedGroup(tuple(m.incarnation.peer for m in members), ())
    groups = [
        StageGroup([m for m in members if m.stage == stage], [], tied=both) for stage in stages
    ]
    return Reduction(0, 1, groups, OptimizerConfig(clip_norm=1.0), deadline_s=9.0)


def said(one: Member, digest: bytes = b"d", square: float | None = 16.0, state: bytes = b"s"):
    return Reduced(bytes([one.stage]) + digest, 9.0, tied=TiedReduced(digest, square, state))


def answered(*answers: tuple[Member, Reduced]) -> Reduction:
    tried = tied(*(one for one, _ in answers))
    for one, answer in answers:
        tried.on_answer(one.incarnation, answer)
    return tried


def test_a_tied_tensor_is_once_in_the_norm():
    tried = answered((A, said(A)), (B, said(B)), (D, said(D)))

    assert tried.verdict() == Decided(math.sqrt(9 + 9 + 16), pytest.approx(34**-0.5), ANY_STATES)


def test_of_two_ends_that_hold_other_bytes_the_one_with_fewer_servers_leaves():
    tried = answered((A, said(A, b"x")), (D, said(D, b"y")), (E, said(E, b"y")))

    assert tried.verdict() == Disagreed((A.incarnation,))


def test_of_two_ends_of_one_server_each_the_first_stands_and_the_tie_is_told():
    tried = answered((A, said(A, b"x")), (D, said(D, b"y")))

    assert tried.verdict() == Disagreed((D.incarnation,), tied=(1,))


def test_who_says_another_tied_state_than_its_stage_is_named():
    tried = answered((A, said(A)), (B, said(B)), (C, said(C, state=b"odd")), (D, said(D)))

    assert tried.verdict() == Disagreed((C.incarnation,))


def test_ends_that_computed_with_other_tied_tensors_are_told_apart_before_anything_is_decided():
    tried = answered((A, said(A)), (D, said(D, state=b"damaged")))

    assert tried.verdict() == EndsDiffer((0, 1))


def test_a_tied_gradient_that_overflowed_ends_as_any_other():
    tried = answered((A, said(A, square=None)), (D, said(D, square=None)))

    assert tried.verdict() == NotFinite(0)


@pytest.mark.parametrize(
    ("answer", "sound"),
    [
        (said(A), True),
        (said(A, square=None), True),
        (said(A, square=-1.0), False),
        (said(A, square=math.nan), False),
        (Reduced(b"x", 1.0), False),
        (Reduced(b"x", -1.0, tied=TiedReduced(b"d", 1.0, b"")), False),
    ],
)
def test_an_answer_of_an_end_says_something_of_the_tied_tensor(answer, sound):
    assert tied(A, D).sound(A.incarnation, answer) is sound


def test_an_answer_of_another_stage_says_nothing_of_it():
    assert not reduction(A, D).sound(A.incarnation, said(A))
    assert reduction(A, D).sound(B.incarnation, said(B))  # it takes no part, and is not asked


def test_the_order_of_an_end_names_the_members_of_both():
    orders = tied(A, B, D).orders(b"r" * 16, lambda _one: b"", 9.0)

    assert {order.message.tied for order in orders} == {
        TiedGroup(tuple(m.incarnation.peer for m in (A, B, D)), ())
    }
