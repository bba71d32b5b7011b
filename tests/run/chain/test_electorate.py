"""Tests of `run/chain/electorate.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run.chain.harness import voter

from p2pswarm.run.chain.chain import may_change
from p2pswarm.run.chain.electorate import (
    MISSES_MAX,
    VoterCandidates,
    Votes,
    next_voters,
    wanted_voters,
)

ANN, BOB = b"ann", b"bob"
FILE, OTHER = b"file one", b"file two"


def test_one_that_has_answered_is_lost_after_several_failures():
    votes = Votes()
    assert votes.on_answer(ANN, FILE)

    news = [votes.on_silence(ANN) for _ in range(MISSES_MAX + 1)]

    assert news == [*[False] * (MISSES_MAX - 1), True, False]
    assert votes.lost == {ANN}


def test_one_that_has_never_answered_is_lost_after_the_first_failure():
    votes = Votes()

    assert votes.on_silence(ANN)
    assert not votes.on_silence(ANN)
    assert votes.lost == {ANN}


def test_an_answer_finds_a_vote_again():
    votes = Votes()
    votes.on_silence(ANN)

    assert votes.on_answer(ANN, FILE)
    assert not votes.on_answer(ANN, FILE)
    assert votes.lost == set()
    assert not votes.on_silence(ANN)


def test_another_file_is_news():
    votes = Votes()
    votes.on_answer(ANN, FILE)

    assert votes.on_answer(ANN, OTHER)
    assert votes.memories == {ANN: OTHER}


def test_one_whose_stream_has_ended_is_lost_after_one_more_failure():
    votes = Votes()
    votes.on_answer(ANN, FILE)
    votes.doubted(ANN)

    assert votes.lost == set()
    assert votes.on_silence(ANN)


@pytest.mark.parametrize("peer", [ANN, BOB])
def test_a_doubt_alone_makes_nobody_lost(peer):
    votes = Votes()
    votes.on_answer(ANN, FILE)

    for _ in range(MISSES_MAX):
        votes.doubted(peer)

    assert votes.lost == set()


def some(names: str) -> list:
    return [voter(name) for name in names]


def chosen(voters: str, trainers: str, servers: str, known: int | None = None) -> str:
    wanted = wanted_voters(len(trainers) if known is None else known, len(trainers))
    after = next_voters(tuple(some(voters)), VoterCandidates(some(trainers), some(servers)), wanted)
    return "".join(name for one in after for name in "abcdefstuvw" if voter(name) == one)


def test_voters_are_one_three_or_five():
    assert [wanted_voters(trainers, trainers) for trainers in (1, 2, 3, 4, 16)] == [1, 3, 3, 5, 5]
    assert [wanted_voters(trainers, 2) for trainers in (2, 3, 4, 16)] == [3, 3, 5, 5]
    assert [wanted_voters(trainers, 1) for trainers in (1, 2, 3, 4, 16)] == [1, 5, 5, 5, 5]


@pytest.mark.parametrize(
    ("voters", "trainers", "servers", "known", "after"),
    [
        pytest.param("a", "a", "stu", 1, "a", id="a lone trainer votes alone"),
        pytest.param("a", "ab", "stu", 2, "abs", id="a second trainer, and the oldest server"),
        pytest.param("a", "ab", "", 2, "a", id="two voters are worse than one"),
        pytest.param("abs", "ab", "stu", 2, "abs", id="nothing to do"),
        pytest.param("abs", "abc", "stu", 3, "abc", id="a trainer displaces a server"),
        pytest.param("abc", "abcd", "s", 4, "abcds", id="a fourth trainer makes five"),
        pytest.param("abs", "ab", "tu", 2, "abt", id="a dead server is replaced"),
        pytest.param("abs", "a", "st", 2, "ats", id="a dead trainer is replaced by a server"),
        pytest.param("ats", "a", "stuv", 2, "atsuv", id="a trainer alone has four servers vote"),
        pytest.param(
            "atsuv", "a", "suv", 2, "atsuv", id="of five, a dead one without a spare stays"
        ),
        pytest.param("astuv", "ab", "stuv", 2, "ast", id="another is back: three are enough"),
        pytest.param("ast", "ab", "stuv", 2, "asb", id="and it displaces a server"),
        pytest.param("abs", "ab", "", 2, "a", id="fewer, before one more loss would stop it"),
        pytest.param("abcds", "abcd", "", 4, "abcds", id="five stand one loss without a spare"),
        pytest.param("abcds", "abc", "", 4, "abc", id="after two losses three are better"),
        pytest.param("abcds", "ab", "s", 2, "abs", id="fewer trainers are known"),
        pytest.param("abs", "a", "s", 1, "a", id="the coordinator stays"),
        pytest.param("a", "", "", 1, "a", id="nobody is left"),
    ],
)
def test_the_next_voters(voters, trainers, servers, known, after):
    assert chosen(voters, trainers, servers, known) == after


@given(
    st.sampled_from(["a", "abs", "abcst", "ast"]),
    st.sets(st.sampled_from("bcdef")),
    st.lists(st.sampled_from("stuvw"), unique=True),
    st.integers(1, 6),
)
def test_every_change_is_allowed_and_they_settle(voters, others, servers, known):
    trainers = "a" + "".join(sorted(others))
    seen = [tuple(some(voters))]
    for _ in range(12):
        wanted = wanted_voters(known, len(trainers))
        candidates = VoterCandidates(some(trainers), some("".join(servers)))
        after = next_voters(seen[-1], candidates, wanted)
        assert may_change(seen[-1], after)
        seen.append(after)

    assert seen[-1] == seen[-2]
    assert voter("a") in seen[-1]


@given(
    st.permutations("abcst"),
    st.sets(st.sampled_from("bcst"), max_size=2),
    st.sets(st.sampled_from("bcst")),
    st.integers(1, 6),
)
def test_no_dead_voter_stays_for_one_that_answers_and_is_no_member_yet(order, dead, members, known):
    voters = tuple(some("".join(order)))
    living = [voter(name) for name in order if name not in dead]
    candidates = VoterCandidates(
        some("a"), [v for v in living if v in some("".join(members))], living, frozenset(living)
    )

    after = next_voters(voters, candidates, wanted_voters(known, 1))

    assert may_change(voters, after)
    assert 2 * sum(v in living for v in after) > len(after)
    dropped = set(voters) - set(after)
    if len(dropped & set(living)) and known > 1:
        assert not set(after) - set(living)


def test_voters_of_whom_no_majority_answers_are_not_proposed():
    voters = tuple(some("abs"))
    candidates = VoterCandidates(some("a"), some("t"), some("bs"), frozenset(some("a")))

    assert next_voters(voters, candidates, 3) == voters
