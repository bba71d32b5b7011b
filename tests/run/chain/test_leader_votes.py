"""A leader that looks who answers: who may vote soon, and whose vote is lost."""

from run.chain.harness import RUN, commit, genesis, peer
from run.chain.leaders import asked, denied, leading, promise, seen, standing

from p2pswarm.run.chain.actions import Ask, Deposed, VotesChanged
from p2pswarm.run.chain.electorate import MISSES_MAX
from p2pswarm.run.chain.leader import NO_TERM, Leader
from p2pswarm.run.chain.messages import Denial, Heartbeat, Prepare, Propose

FIRST_OF_A = commit(genesis().head(), "a", term=2)


def test_who_may_vote_soon_is_spoken_to_at_once_and_its_first_answer_is_told():
    leader = leading()

    leader.meet((peer("d"), peer("b")))
    assert asked(leader, Heartbeat) == [peer("d")]

    leader.receive(peer("d"), denied("d", 0, Denial.STRANGER))
    leader.receive(peer("d"), denied("d", 0, Denial.STRANGER))
    assert leader.actions() == [VotesChanged()]


def test_a_voter_whose_stream_has_ended_is_asked_and_its_silence_is_told():
    leader = leading()

    leader.doubt(peer("b"))
    assert asked(leader, Heartbeat) == [peer("b")]
    leader.doubt(peer("z"))
    assert leader.actions() == []

    leader.on_silence(peer("b"))
    leader.on_silence(peer("b"))
    assert leader.actions() == [VotesChanged()]
    assert leader.votes.lost == {peer("b")}


def test_who_is_lost_before_it_leads_is_known_then_and_told_to_nobody():
    leader = standing()
    leader.actions()

    leader.on_silence(peer("b"))
    leader.doubt(peer("c"))
    assert leader.actions() == []

    leader.receive(peer("c"), promise("c"))
    leader.receive(peer("a"), promise("a"))
    assert leader.leads
    assert leader.votes.lost == {peer("b")}


def unanswered(leader: Leader, until_s: int) -> None:
    """Two of three voters do not answer any more."""
    for now_s in range(1, until_s):
        leader.on_deadline(float(now_s))
        leader.receive(peer("a"), denied("a", 0, Denial.STRANGER))
        for name in "bc":
            leader.on_silence(peer(name))
    leader.actions()


def test_a_leader_that_no_majority_answers_says_nothing_that_voters_would_wait_for():
    """Some may hear it though it does not hear them."""
    leader = leading()
    unanswered(leader, MISSES_MAX + 1)
    assert not leader.quiet

    leader.on_deadline(10.0)
    leader.propose(FIRST_OF_A)
    leader.doubt(peer("b"))

    assert leader.quiet
    assert leader.leads
    asks = {ask.message for ask in seen(leader, Ask)}
    assert asks == {Prepare(RUN, NO_TERM, leader.attempt.nonce)}


def test_a_quiet_leader_speaks_again_as_soon_as_a_majority_answers():
    leader = leading()
    unanswered(leader, 2 * MISSES_MAX)
    leader.propose(FIRST_OF_A)

    leader.receive(peer("b"), denied("b", 2))

    assert not leader.quiet
    asks = [(ask.to, type(ask.message)) for ask in seen(leader, Ask)]
    assert (peer("b"), Propose) in asks
    assert (peer("b"), Heartbeat) in asks


def test_a_quiet_leader_hears_of_a_higher_term():
    leader = leading()
    unanswered(leader, 2 * MISSES_MAX)

    leader.receive(peer("b"), denied("b", 3))

    assert [action.promised for action in seen(leader, Deposed)] == [3]


def test_a_leader_that_a_majority_answers_is_never_quiet():
    leader = leading()

    for now_s in range(1, 20):
        leader.on_deadline(float(now_s))
        leader.receive(peer("b"), denied("b", 0, Denial.STRANGER))
        leader.on_silence(peer("c"))

        assert not leader.quiet
