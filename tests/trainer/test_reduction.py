"""The end of a step: nobody is overruled, nobody is waited for in vain."""

import math

import pytest

from p2pswarm.config import OptimizerConfig
from p2pswarm.swarm.messages.step import Reduced
from p2pswarm.swarm.view import Incarnation
from p2pswarm.trainer.membership import Member, StageGroup
from p2pswarm.trainer.prepared_moves import Movers
from p2pswarm.trainer.reduction import Decided, Disagreed, NotFinite, Reduction


def member(number: int, stage: int) -> Member:
    return Member(Incarnation(bytes([number]) * 32, number), "h:1", stage, 0, ready=True)


A, B, C, D = member(1, 0), member(2, 0), member(3, 0), member(4, 1)


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
    tried.reduced(A.incarnation, Reduced(b"x", 1.0))

    assert tried.verdict() is None
    assert tried.silent == [B.incarnation]


def test_the_norm_is_taken_over_all_stages_once_each():
    tried = reduction(A, B, D)
    for one, square in ((A, 9.0), (B, 9.0), (D, 16.0)):
        tried.reduced(one.incarnation, Reduced(bytes([one.stage]), square, state=b"%d" % one.stage))

    assert tried.verdict() == Decided(5.0, pytest.approx(0.2), {A.stage: b"0", D.stage: b"1"})


def test_who_holds_other_bytes_than_most_is_named():
    tried = reduction(A, B, C)
    for one, digest in ((A, b"odd"), (B, b"x"), (C, b"x")):
        tried.reduced(one.incarnation, Reduced(digest, 1.0))

    assert tried.verdict() == Disagreed((A.incarnation,))


def test_of_two_that_differ_the_first_in_peer_order_stands_and_the_tie_is_told():
    tried = reduction(A, B)
    tried.reduced(B.incarnation, Reduced(b"y", 1.0))
    tried.reduced(A.incarnation, Reduced(b"x", 1.0))

    assert tried.verdict() == Disagreed((B.incarnation,), tied=(0,))


def test_a_gradient_that_overflowed_is_named_by_its_stage():
    tried = reduction(A, D)
    tried.reduced(A.incarnation, Reduced(b"x", 1.0))
    tried.reduced(D.incarnation, Reduced(b"y", None))

    assert tried.verdict() == NotFinite(1)


def test_answers_of_strangers_are_ignored():
    tried = reduction(A)
    tried.reduced(D.incarnation, Reduced(b"y", math.pi))

    assert tried.silent == [A.incarnation]
