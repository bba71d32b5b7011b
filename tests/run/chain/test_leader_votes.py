"""A leader that looks who answers: who may vote soon, and whose vote is lost."""

from run.chain.harness import peer
from run.chain.leaders import asked, denied, leading, promise, standing

from p2pswarm.run.chain.actions import VotesChanged
from p2pswarm.run.chain.messages import Denial, Heartbeat


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
