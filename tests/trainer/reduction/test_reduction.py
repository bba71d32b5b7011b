"""The end of a step: nobody is overruled, nobody is waited for in vain."""

import math

import pytest

from p2pswarm.run.messages.step import Reduced, TiedGroup, TiedReduced
from p2pswarm.run.view import Incarnation
from p2pswarm.settings.config import OptimizerConfig
from p2pswarm.trainer.balance.prepared_moves import Movers
from p2pswarm.trainer.members.membership import Member, StageGroup
from p2pswarm.trainer.reduction.reduction import (
    Decided,
    Disagreed,
    EndsDiffer,
    NotFinite,
    Reduction,
)


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
        tried.reduced(one.incarnation, answer)
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
