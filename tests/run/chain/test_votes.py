"""Whose vote is lost: one that left several calls unanswered, or the first of all."""

import pytest

from p2pswarm.run.chain.votes import MISSES_MAX, Votes

ANN, BOB = b"ann", b"bob"
FILE, OTHER = b"file one", b"file two"


def test_one_that_has_answered_is_lost_after_several_failures():
    votes = Votes()
    assert votes.answered(ANN, FILE)

    news = [votes.unanswered(ANN) for _ in range(MISSES_MAX + 1)]

    assert news == [*[False] * (MISSES_MAX - 1), True, False]
    assert votes.lost == {ANN}


def test_one_that_has_never_answered_is_lost_after_the_first_failure():
    votes = Votes()

    assert votes.unanswered(ANN)
    assert not votes.unanswered(ANN)
    assert votes.lost == {ANN}


def test_an_answer_finds_a_vote_again():
    votes = Votes()
    votes.unanswered(ANN)

    assert votes.answered(ANN, FILE)
    assert not votes.answered(ANN, FILE)
    assert votes.lost == set()
    assert not votes.unanswered(ANN)


def test_another_file_is_news():
    votes = Votes()
    votes.answered(ANN, FILE)

    assert votes.answered(ANN, OTHER)
    assert votes.memories == {ANN: OTHER}


def test_one_whose_stream_has_ended_is_lost_after_one_more_failure():
    votes = Votes()
    votes.answered(ANN, FILE)
    votes.doubted(ANN)

    assert votes.lost == set()
    assert votes.unanswered(ANN)


@pytest.mark.parametrize("peer", [ANN, BOB])
def test_a_doubt_alone_makes_nobody_lost(peer):
    votes = Votes()
    votes.answered(ANN, FILE)

    for _ in range(MISSES_MAX):
        votes.doubted(peer)

    assert votes.lost == set()
