"""The end of a step: nobody is overruled, nobody is waited for in vain."""

import math

import pytest

from p2pswarm.config import OptimizerConfig
from p2pswarm.swarm.messages import Reduced
from p2pswarm.swarm.view import Life
from p2pswarm.train.closing import Closing, Decided, Differ, NotFinite
from p2pswarm.train.membership import Member


def member(number: int, stage: int) -> Member:
    return Member(Life(bytes([number]) * 32, number), "h:1", stage, 0, ready=True)


A, B, C, D = member(1, 0), member(2, 0), member(3, 0), member(4, 1)


def closing(*members: Member) -> Closing:
    return Closing(1, list(members), OptimizerConfig(clip_norm=1.0), deadline_s=9.0)


def test_nothing_is_decided_before_all_have_answered():
    tried = closing(A, B)
    tried.reduced(A.life, Reduced(b"x", 1.0))

    assert tried.verdict() is None
    assert tried.silent == [B.life]


def test_the_norm_is_taken_over_all_stages_once_each():
    tried = closing(A, B, D)
    for one, square in ((A, 9.0), (B, 9.0), (D, 16.0)):
        tried.reduced(one.life, Reduced(bytes([one.stage]), square))

    assert tried.verdict() == Decided(5.0, pytest.approx(0.2))


def test_who_holds_other_bytes_than_most_is_named():
    tried = closing(A, B, C)
    for one, digest in ((A, b"odd"), (B, b"x"), (C, b"x")):
        tried.reduced(one.life, Reduced(digest, 1.0))

    assert tried.verdict() == Differ((A.life,))


def test_of_two_that_differ_the_first_is_believed():
    tried = closing(A, B)
    tried.reduced(A.life, Reduced(b"x", 1.0))
    tried.reduced(B.life, Reduced(b"y", 1.0))

    assert tried.verdict() == Differ((B.life,))


def test_a_gradient_that_overflowed_is_named_by_its_stage():
    tried = closing(A, D)
    tried.reduced(A.life, Reduced(b"x", 1.0))
    tried.reduced(D.life, Reduced(b"y", None))

    assert tried.verdict() == NotFinite(1)


def test_answers_of_strangers_are_ignored():
    tried = closing(A)
    tried.reduced(D.life, Reduced(b"y", math.pi))

    assert tried.silent == [A.life]
