import pytest
from run.chain.harness import RUN, chain_of, commit, genesis, peer

from p2pswarm.run.chain.actions import Fetch, Persist
from p2pswarm.run.chain.chain import BrokenRecord, Chain, ChainHead, Fork
from p2pswarm.run.chain.follower import Follower
from p2pswarm.run.chain.messages import Heartbeat
from p2pswarm.run.chain.record import digest

_, RECORDS = chain_of(4)
LEADER = peer("a")


def fresh() -> Follower:
    return Follower(Chain(genesis()))


def beat(height: int, record=None) -> Heartbeat:
    return Heartbeat(RUN, 1, height, digest(record or RECORDS[height - 1]))


def test_a_proposal_proves_that_the_record_before_it_is_decided():
    follower = fresh()

    follower.proposed(RECORDS[0], LEADER)
    assert follower.chain.head.height == 0
    follower.proposed(RECORDS[1], LEADER)

    assert follower.chain.last == RECORDS[0]
    assert follower.actions() == []


def test_a_heartbeat_proves_that_the_accepted_record_is_decided():
    follower = fresh()
    follower.proposed(RECORDS[0], LEADER)

    follower.heard(beat(1), LEADER)

    assert follower.chain.last == RECORDS[0]
    assert follower.actions() == []


def test_what_is_missing_is_fetched():
    follower = fresh()

    follower.heard(beat(2), LEADER)
    follower.proposed(RECORDS[3], LEADER)

    assert follower.actions() == [Fetch(LEADER, 0)] * 2


def test_fetched_records_go_to_the_disk_but_not_twice():
    follower = fresh()
    follower.proposed(RECORDS[1])

    assert follower.learned(RECORDS[0])
    assert follower.learned(RECORDS[1])

    assert follower.actions() == [Persist(RECORDS[0])]
    assert follower.chain.head.height == 2


def test_records_that_come_again_or_too_early_change_nothing():
    follower = fresh()
    follower.learned(RECORDS[0])
    follower.actions()

    assert not follower.learned(RECORDS[0])
    assert not follower.learned(RECORDS[2])

    assert follower.actions() == []
    assert follower.chain.head.height == 1


def test_a_rival_that_was_accepted_but_not_decided_gives_way():
    follower = fresh()
    follower.proposed(commit(genesis().head(), "b"), LEADER)

    follower.heard(beat(1), LEADER)
    follower.learned(RECORDS[0])

    assert follower.chain.last == RECORDS[0]


def test_a_proposal_proves_nothing_of_a_record_that_it_does_not_follow():
    follower = fresh()
    follower.proposed(commit(genesis().head(), "b"), LEADER)

    follower.proposed(RECORDS[1], LEADER)

    assert follower.chain.head.height == 0
    assert follower.actions() == [Fetch(LEADER, 0)]


def test_a_known_record_that_is_proposed_again_changes_nothing():
    follower = fresh()
    follower.learned(RECORDS[0])
    follower.learned(RECORDS[1])

    follower.proposed(RECORDS[0], LEADER)

    assert follower.chain.head.height == 2


def test_a_heartbeat_with_another_head_is_a_fork():
    follower = fresh()
    follower.learned(RECORDS[0])

    follower.heard(beat(1), LEADER)
    with pytest.raises(Fork, match="place 0 of the run"):
        follower.heard(beat(1, RECORDS[2]), LEADER)


def test_an_old_heartbeat_is_fine():
    follower = fresh()
    follower.learned(RECORDS[0])

    follower.actions()

    follower.heard(Heartbeat(RUN, 1, 0, bytes(32)), LEADER)

    assert follower.actions() == []


def test_a_fetched_record_that_does_not_follow_is_refused():
    follower = fresh()

    with pytest.raises(BrokenRecord):
        follower.learned(commit(ChainHead.of(RECORDS[0]), height=0, step=0, first=0))

    assert follower.chain.head.height == 0


def test_a_decided_record_proves_that_the_accepted_one_before_it_is_decided():
    """So a file with a proposal, and the records that were fetched after it, is read whole."""
    follower = fresh()
    follower.proposed(RECORDS[0])

    assert follower.learned(RECORDS[1])

    assert follower.chain.head.height == 2
    assert follower.actions() == [Persist(RECORDS[1])]
