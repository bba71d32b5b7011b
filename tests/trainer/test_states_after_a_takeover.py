"""Who holds the weights of a stage that nobody serves: who is named, not who comes first."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import CONFIG, Play

from p2pswarm.run.chain.chain import ChainHead, Genesis
from p2pswarm.run.chain.record import RecordKind
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.membership import HeldReduction
from p2pswarm.run.messages.step import Committed
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator.decision import CoordinatorStart, unsigned_record
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.step.stage_digests import ABSENT_S, UNNAMED_S, StageDigests
from p2pswarm.trainer.step.sums import FORMER_SUMS_S

TERM = 7
RIGHT, WRONG = b"right".ljust(32, b"."), b"wrong".ljust(32, b".")


def record_of(members: str):
    """The record of step 0, averaged by these members."""
    size = BatchConfig(microbatches=len(members), evaluate_every=0)
    play = Play(dataclasses.replace(CONFIG, batch=size), kind=Coordinator)
    servers = play.averaged(*members)
    (decide,) = play.seen(act.Decide)
    assert len(servers) == len(members)
    genesis = Genesis.founded(b"r" * 16, b"t" * 32, 1, len(members))
    head = genesis.head()
    run = b"r" * 16, play.coordinator._config
    return unsigned_record(decide, head, 1, *run, head.trainers, head.voters)


def taken_over(members: str) -> Play:
    """Another trainer leads after step 0, and nobody is here yet."""
    record = record_of(members)
    start = CoordinatorStart.after(TERM, ChainHead.of(record), record)
    return Play(RunConfig(steps=9, stages=1), kind=Coordinator, start=start)


def come(play: Play, name: str, digest: bytes):
    return play.join(name, stage=0, version=1, digest=digest)


def ready(play: Play) -> list[bytes]:
    return sorted(m.incarnation.peer[:1].decode() for m in play.coordinator.members.ready(0))


def test_a_stranger_that_comes_first_is_not_believed():
    play = taken_over("ab")

    come(play, "x", WRONG)
    assert ready(play) == []
    come(play, "a", RIGHT)
    come(play, "b", RIGHT)

    assert ready(play) == ["a", "b"]
    assert [one.incarnation.peer[:1] for one in play.seen(act.Evict)] == [b"x"]


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_a_member_whose_memory_is_wrong_is_outvoted_whenever_it_comes(order):
    play = taken_over("abc")

    for name in order:
        come(play, name, WRONG if name == "a" else RIGHT)

    assert ready(play) == ["b", "c"]


def test_most_of_the_members_suffice():
    play = taken_over("abc")
    come(play, "a", RIGHT)
    assert ready(play) == []

    come(play, "b", RIGHT)

    assert ready(play) == ["a", "b"]


def test_the_lone_server_of_a_stage_goes_on_at_once():
    play = taken_over("a")

    come(play, "a", RIGHT)

    assert ready(play) == ["a"]


def test_one_that_died_with_the_trainer_is_not_waited_for_long():
    play = taken_over("ab")
    come(play, "a", RIGHT)
    assert play.coordinator.next_deadline_s() == pytest.approx(FORMER_SUMS_S)
    play.wait(ABSENT_S - 0.1)
    assert play.coordinator.next_deadline_s() == pytest.approx(ABSENT_S)
    assert ready(play) == []

    play.wait(0.1)

    assert ready(play) == ["a"]


def test_one_that_comes_back_without_weights_is_not_waited_for():
    play = taken_over("ab")
    come(play, "a", RIGHT)

    play.join("b")

    assert ready(play) == ["a"]


def test_a_server_that_the_record_does_not_name_is_believed_when_nobody_else_comes():
    """It had caught up with the record before the others died."""
    play = taken_over("ab")
    come(play, "x", RIGHT)
    play.wait(ABSENT_S)
    assert ready(play) == []

    play.wait(UNNAMED_S - ABSENT_S)

    assert ready(play) == ["x"]


def test_one_that_joins_again_and_again_has_one_vote():
    play = taken_over("abc")

    for _ in range(3):
        come(play, "a", WRONG)
    come(play, "b", RIGHT)
    assert ready(play) == []
    come(play, "c", RIGHT)

    assert ready(play) == ["b", "c"]


def test_a_stranger_that_claims_the_gradient_too_is_not_believed():
    """The record is public: anybody can say that it holds what the commit applies to."""
    play = taken_over("ab")
    record = record_of("ab")
    stage = record.stages[0]
    held = (HeldReduction(0, 1, stage.gradient),)
    stranger = play.join("x", stage=0, version=0, digest=stage.state, held=held)
    play.coordinator.on_commit_answer(stranger, 0, Committed(1, applied=True), play.now_s)

    play.ready(stranger, 1, WRONG)
    assert ready(play) == []
    come(play, "a", RIGHT)
    come(play, "b", RIGHT)

    assert ready(play) == ["a", "b"]


def test_a_stranger_that_leaves_after_a_lie_costs_nobody_a_step():
    play = taken_over("ab")
    stranger = come(play, "x", WRONG)
    play.lose(stranger)
    play.seen(object)

    come(play, "a", RIGHT)
    come(play, "b", RIGHT)

    assert ready(play) == ["a", "b"]
    assert play.seen(act.Evict) == []


def test_when_all_links_break_after_a_commit_a_stranger_is_not_believed_either():
    play = Play(dataclasses.replace(CONFIG, steps=9))
    play.lose(*play.averaged("a", "b"))

    come(play, "x", WRONG)
    assert ready(play) == []
    come(play, "b", RIGHT)
    come(play, "a", RIGHT)

    assert ready(play) == ["a", "b"]


def test_after_a_record_that_leads_back_its_own_digest_decides():
    record = record_of("ab")
    stage = dataclasses.replace(
        record.stages[0], members=(), holders=b"", state=RIGHT, gradient=b""
    )
    back = dataclasses.replace(record, kind=RecordKind.BACK, step=1, stages=(stage,))
    start = CoordinatorStart.after(TERM, ChainHead.of(back), back)
    play = Play(RunConfig(steps=9, stages=1), kind=Coordinator, start=start)

    come(play, "x", WRONG)
    come(play, "a", RIGHT)

    assigned = [a.message for a in play.seen(act.Assign)]
    assert [one.keep for one in assigned] == [False, True]
    assert {one.state for one in assigned} == {RIGHT}
    assert ready(play) == ["a"]


PEERS = "abcde"


@given(
    st.permutations(PEERS),
    st.lists(st.sampled_from([RIGHT, WRONG]), min_size=5, max_size=5),
    st.integers(1, 5),
)
def test_when_all_that_are_named_come_their_order_and_strangers_decide_nothing(order, said, named):
    digests = StageDigests()
    digests.recall(0, 1, [name.encode() for name in PEERS[:named]])
    words = dict(zip(PEERS, said, strict=True))
    for number, name in enumerate(order):
        member = Incarnation(name.encode(), number)
        digests.on_join(member, 0, 1, reports=True)
        digests.on_claim(0, 1, member, words[name])
        digests.settle(float(number) * 0.1)

    votes = [words[name] for name in PEERS[:named]]
    standing = digests.known(0, 1)
    assert votes.count(standing) * 2 >= named
    if votes.count(standing) * 2 == named:
        assert standing == votes[0], "the first in the order of peers"
