from dataclasses import replace

import pytest
from run.chain.harness import RUN, commit, genesis, peer, voter
from run.chain.leaders import (
    FIRST,
    NONCE,
    SECOND,
    accepted,
    asked,
    denied,
    leading,
    promise,
    seen,
    standing,
)

from p2pswarm.run.chain.actions import (
    Ask,
    Deposed,
    Fetch,
    Leading,
    RecordDecided,
    VotesChanged,
    VotesMissing,
)
from p2pswarm.run.chain.chain import BrokenRecord, ChainHead
from p2pswarm.run.chain.leader import (
    HEARTBEAT_S,
    PATIENCE,
    RESEND_S,
    UNDECIDED,
    WITHDRAWAL,
    Attempt,
    Leader,
    LeaderPhase,
)
from p2pswarm.run.chain.messages import (
    TERM_JUMP_MAX,
    Denial,
    HandOver,
    Heartbeat,
    Prepare,
    Propose,
)
from p2pswarm.run.messages.field_limits import TERM_MAX


def test_it_asks_the_others_first_and_itself_when_its_own_promise_is_the_one_that_lacks():
    leader = standing()
    assert asked(leader, Prepare) == [peer("b"), peer("c")]

    leader.receive(peer("c"), promise("c"))

    assert asked(leader, Prepare) == [peer("a")]


def test_a_lone_trainer_leads_by_its_own_promise():
    alone = genesis("a", "a")
    leader = Leader(Attempt(peer("a"), 2, NONCE), alone, alone.head(), 0.0)
    assert asked(leader, Prepare) == [peer("a")]

    leader.receive(peer("a"), promise("a"))

    assert leader.leads


def test_a_trainer_that_no_record_names_does_not_lead_though_voters_follow_it():
    """They were told of it; but nobody would take a record of a coordinator that is no trainer."""
    of_others = genesis("a", "abc")
    leader = Leader(Attempt(peer("d"), 2, NONCE), of_others, of_others.head(), 0.0)

    for name in "bc":
        leader.receive(peer(name), promise(name))

    assert not leader.leads
    (deposed,) = seen(leader, Deposed)
    assert deposed == Deposed(2, "no record names this trainer yet")


def test_a_majority_of_promises_leads_at_once_if_nothing_was_accepted():
    leader = standing()

    leader.receive(peer("c"), promise("c"))
    assert not leader.leads
    leader.receive(peer("b"), promise("b"))

    assert seen(leader, Leading) == [Leading(2)]


def test_promises_of_other_attempts_or_files_do_not_count():
    leader = standing()

    leader.receive(peer("b"), replace(promise("b"), attempt=b"o" * 16))
    leader.receive(peer("b"), replace(promise("b"), term=1))
    leader.receive(peer("b"), promise("b", memory=1))
    leader.receive(peer("z"), promise("z"))
    leader.receive(peer("c"), promise("c"))

    assert not leader.leads


def test_what_may_have_been_decided_is_proposed_again_unchanged():
    leader = standing()
    leader.receive(peer("b"), promise("b"))
    leader.receive(peer("c"), promise("c", FIRST))

    assert leader.phase is LeaderPhase.ANCHORING
    proposals = [a.message for a in seen(leader, Ask) if isinstance(a.message, Propose)]
    assert proposals == [Propose(RUN, 2, FIRST)] * 2

    leader.receive(peer("b"), accepted("b", FIRST))
    assert asked(leader, Propose) == [peer("a")]  # its own voter lacks now
    leader.receive(peer("c"), accepted("c", FIRST))
    assert seen(leader, RecordDecided | Leading) == [RecordDecided(FIRST), Leading(2)]
    assert leader.head == ChainHead.of(FIRST)


def test_of_several_records_the_one_of_the_greatest_term_is_taken():
    leader = standing(term=2, head=ChainHead.of(FIRST))
    rival = commit(ChainHead.of(FIRST), "a")

    leader.receive(peer("b"), promise("b", rival, accepted_term=0))
    leader.receive(peer("c"), promise("c", SECOND, accepted_term=1))

    assert leader.pending == SECOND


def test_records_that_the_head_has_passed_do_not_count():
    leader = standing(head=ChainHead.of(FIRST))

    leader.receive(peer("b"), promise("b", FIRST))
    leader.receive(peer("c"), promise("c", commit(genesis().head(), "a")))

    assert leader.leads


def test_a_promise_with_a_forged_record_is_a_refusal():
    leader = standing()

    leader.receive(peer("b"), promise("b", replace(FIRST, loss=0.1)))
    leader.receive(peer("c"), promise("c", replace(FIRST, loss=0.1)))

    assert leader.phase is LeaderPhase.OVER


def test_a_record_that_does_not_fit_ends_the_attempt():
    leader = standing()
    stray = commit(genesis().head(), "b", step=3, first=6)

    leader.receive(peer("b"), promise("b", stray))
    leader.receive(peer("c"), promise("c"))

    assert "does not fit" in seen(leader, Deposed)[0].why


def test_missing_records_are_fetched_from_who_holds_the_newest():
    leader = standing()
    leader.receive(peer("b"), promise("b"))
    leader.receive(peer("c"), promise("c", SECOND))
    assert leader.phase is LeaderPhase.BEHIND
    assert seen(leader, Fetch) == [Fetch(peer("c"), 0)]

    leader.on_head(ChainHead.of(FIRST))

    assert leader.phase is LeaderPhase.ANCHORING
    assert leader.pending == SECOND


def test_if_the_first_does_not_have_them_the_next_is_asked():
    leader = standing()
    leader.receive(peer("b"), promise("b"))
    leader.receive(peer("c"), promise("c", SECOND))
    leader.receive(peer("a"), promise("a"))
    leader.actions()

    leader.on_deadline(RESEND_S)
    leader.on_deadline(2 * RESEND_S)

    assert seen(leader, Fetch) == [Fetch(peer("b"), 0), Fetch(peer("c"), 0)]


def test_a_stream_of_records_is_not_asked_for_twice_while_it_comes():
    third = commit(ChainHead.of(SECOND), "b")
    leader = standing()
    leader.receive(peer("b"), promise("b"))
    leader.receive(peer("c"), promise("c", third))
    leader.actions()

    leader.on_head(ChainHead.of(FIRST))
    leader.on_deadline(RESEND_S)
    assert seen(leader, Fetch) == []
    leader.on_deadline(2 * RESEND_S)

    assert len(seen(leader, Fetch)) == 1


def test_who_has_not_answered_is_asked_again():
    leader = standing()
    leader.receive(peer("c"), promise("c"))
    leader.actions()

    leader.on_deadline(RESEND_S)

    assert asked(leader, Prepare) == [peer("a"), peer("b")]
    assert leader.next_deadline_s == 2 * RESEND_S


def test_a_record_is_decided_by_majorities_of_the_old_and_of_the_new_voters():
    leader = leading()
    voters = (voter("a"), voter("b"), voter("d"))
    record = commit(leader.head, "a", 2, voters=voters)
    leader.propose(record)
    assert asked(leader, Propose) == [peer("b"), peer("d")]

    leader.receive(peer("d"), accepted("d", record))
    assert asked(leader, Propose) == [
        peer("c")
    ]  # a voter no more: asked once the others are enough
    leader.receive(peer("c"), accepted("c", record))
    assert asked(leader, Propose) == [peer("a")]
    assert leader.pending == record
    leader.receive(peer("a"), accepted("a", record))

    assert seen(leader, RecordDecided) == [RecordDecided(record)]
    assert leader.head.voters == voters


def alone() -> Leader:
    leader = Leader(
        Attempt(peer("a"), 2, NONCE), genesis("ab", "a"), genesis("ab", "a").head(), 0.0
    )
    leader.receive(peer("a"), promise("a"))
    record = commit(leader.head, "a", 2, voters=(voter("a"), voter("b"), voter("c")))
    leader.propose(record)
    leader.actions()
    return leader


def test_a_record_whose_new_voters_are_gone_is_withdrawn():
    """Its own voter has not accepted it, so another record may take its place."""
    leader = alone()

    for second in range(WITHDRAWAL):
        assert leader.leads
        for name in "bc":
            leader.on_silence(peer(name))
        leader.on_deadline(second + 1.0)

    assert [each.promised for each in seen(leader, Deposed)] == [2]


def test_a_record_whose_new_voters_answer_is_not_withdrawn():
    leader = alone()

    for second in range(2 * WITHDRAWAL):
        leader.on_silence(peer("b"))
        leader.receive(peer("c"), denied("c", 1))
        leader.on_deadline(second + 1.0)

    assert leader.leads


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(("b", 1), id="under another term"),
        pytest.param(("z", 2), id="by nobody that it names"),
    ],
)
def test_other_acceptances_do_not_count(answer):
    leader = leading()
    record = commit(leader.head, "a", 2)
    leader.propose(record)
    name, term = answer

    for _ in range(3):
        leader.receive(peer(name), accepted(name, record, term))
    leader.receive(peer("c"), accepted("c", record))
    leader.receive(peer("a"), accepted("a", FIRST))

    assert leader.pending == record


def test_one_record_at_a_time():
    leader = leading()
    leader.propose(commit(leader.head, "a", 2))

    with pytest.raises(ValueError, match="nothing can be proposed"):
        leader.propose(commit(leader.head, "a", 2))


def test_only_who_leads_proposes_and_only_records_of_its_term_that_fit():
    with pytest.raises(ValueError, match="asking for promises"):
        standing().propose(FIRST)
    with pytest.raises(ValueError, match="of term 1, not 2"):
        leading().propose(FIRST)
    with pytest.raises(BrokenRecord):
        leading().propose(commit(ChainHead.of(FIRST), "a", 2))


def test_a_leader_says_that_it_lives_and_proposes_again():
    leader = leading()
    leader.meet((peer("d"),))
    record = commit(leader.head, "a", 2)
    leader.propose(record)
    leader.receive(peer("a"), accepted("a", record))
    leader.actions()

    leader.on_deadline(5.0)

    actions = seen(leader, Ask)
    proposed = [a.to for a in actions if isinstance(a.message, Propose)]
    beats = [a for a in actions if isinstance(a.message, Heartbeat)]
    assert proposed == [peer("b"), peer("c")]
    assert [a.to for a in beats] == [peer(name) for name in "abcd"]
    assert beats[0].message == Heartbeat(RUN, 2, 0, bytes(32))
    assert leader.next_deadline_s == 5.0 + HEARTBEAT_S


def test_whose_votes_a_record_lacks_is_told_once_after_a_while():
    leader = leading()
    record = commit(leader.head, "a", 2)
    leader.propose(record)
    leader.receive(peer("a"), accepted("a", record))

    for second in range(3 * PATIENCE):
        leader.on_deadline(float(second))

    assert seen(leader, VotesMissing) == [VotesMissing((voter("b"), voter("c")))]
    leader.receive(peer("c"), accepted("c", record))
    assert leader.silent == ()


def test_a_record_lacks_votes_once_it_was_proposed_again_and_until_it_is_decided():
    leader = leading()
    record = commit(leader.head, "a", 2)
    leader.propose(record)
    leader.on_deadline(0.0)
    assert not leader.lacks_votes

    for resend in range(1, UNDECIDED + 1):
        leader.on_deadline(resend * RESEND_S)
    assert leader.lacks_votes

    for name in "ab":
        leader.receive(peer(name), accepted(name, record))
    assert not leader.lacks_votes


def test_of_two_sets_of_voters_only_those_that_lack_a_majority_are_silent():
    leader = leading()
    record = commit(leader.head, "a", 2, voters=(voter("a"), voter("b"), voter("d")))
    leader.propose(record)

    leader.receive(peer("a"), accepted("a", record))
    leader.receive(peer("c"), accepted("c", record))

    assert leader.silent == (voter("b"), voter("d"))


def test_a_leader_without_a_proposal_only_says_that_it_lives():
    leader = leading()

    leader.on_deadline(5.0)

    actions = leader.actions()
    assert {type(a.message) for a in actions if isinstance(a, Ask)} == {Heartbeat}
    assert [a for a in actions if not isinstance(a, Ask)] == [VotesChanged()]


def test_it_learns_with_which_file_each_peer_votes():
    leader = leading()
    leader.meet((peer("d"),))

    leader.receive(peer("c"), denied("c", 0, Denial.STRANGER, memory=7))
    leader.receive(peer("d"), denied("d", 0, Denial.STRANGER, memory=8))
    leader.receive(peer("z"), denied("z", 0, Denial.STRANGER))

    assert leader.votes.memories[peer("c")] == voter("c", 7).memory
    assert leader.votes.memories[peer("d")] == voter("d", 8).memory
    assert peer("z") not in leader.votes.memories
    assert leader.leads


def test_a_higher_term_deposes():
    leader = leading()

    leader.receive(peer("c"), denied("c", 3))

    assert [one.promised for one in seen(leader, Deposed)] == [3]
    assert not leader.leads


def test_who_does_not_vote_deposes_nobody():
    leader = leading()

    leader.receive(peer("z"), denied("z", 9))
    leader.receive(peer("c"), denied("c", 9, memory=1))

    assert leader.leads


def test_a_conflict_deposes_and_is_called_a_fork():
    leader = leading()

    leader.receive(peer("c"), denied("c", 2, Denial.CONFLICT))

    assert "fork" in seen(leader, Deposed)[0].why


def test_an_attempt_that_a_majority_refuses_is_over():
    leader = standing()

    leader.receive(peer("b"), denied("b", why=Denial.CALM))
    assert leader.phase is LeaderPhase.PREPARING
    leader.receive(peer("c"), denied("c", why=Denial.CALM))

    assert len(seen(leader, Deposed)) == 1


def test_a_refusal_may_be_followed_by_a_promise():
    leader = standing()

    leader.receive(peer("b"), denied("b", why=Denial.CALM))
    leader.receive(peer("b"), promise("b"))
    leader.receive(peer("c"), denied("c", why=Denial.CALM))
    leader.receive(peer("a"), promise("a"))

    assert leader.leads


def test_refusals_of_former_questions_do_not_count():
    leader = standing()

    for name in "bc":
        leader.receive(peer(name), replace(denied(name), asked=1))

    assert leader.phase is LeaderPhase.PREPARING


def test_a_leader_that_is_over_hears_nothing_more():
    leader = leading()
    leader.give_up("the run ends")
    leader.give_up("the run ends")
    assert [one.why for one in seen(leader, Deposed)] == ["the run ends"]

    leader.receive(peer("c"), promise("c"))
    leader.on_deadline(9.0)

    assert leader.actions() == []


def test_heads_that_are_learned_late_change_nothing():
    leader = leading()

    leader.on_head(ChainHead.of(FIRST))

    assert leader.head == genesis().head()


def test_who_hands_over_says_so_to_all_and_leads_no_more():
    leader = leading()

    leader.hand_over(peer("b"))

    *asks, over = leader.actions()
    assert {ask.to for ask in asks} == {peer(name) for name in "abc"}
    assert {ask.message for ask in asks} == {HandOver(RUN, 2, peer("b"))}
    assert isinstance(over, Deposed)
    assert leader.phase is LeaderPhase.OVER


def test_a_voter_that_names_the_last_of_all_terms_leaves_a_trainer_others():
    leader = standing("a", term=2)

    leader.receive(peer("c"), denied("c", promised=TERM_MAX))

    assert [one.promised for one in seen(leader, Deposed)] == [2 + TERM_JUMP_MAX]
