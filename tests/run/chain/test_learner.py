"""Tests of `run/chain/learner.py`."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run.chain.harness import RUN, back, chain_of, commit, genesis, peer, revote, voter

from p2pswarm.run.chain.actions import Fetch, Persist
from p2pswarm.run.chain.chain import BrokenRecord, Chain, ChainHead, Fork
from p2pswarm.run.chain.learner import Learner, ProvenRecords
from p2pswarm.run.chain.messages import Heartbeat
from p2pswarm.run.chain.record import CommitRecord, digest

STRANGER, VOTER = peer("s"), peer("c")
VOTERS = ["abc", "abd", "ade"]


def decided(makers: list[str], chain: Chain | None = None) -> list[CommitRecord]:
    """A chain of commits, votes and returns; the trainers a and b lead in turn."""
    chain = chain or Chain(genesis())
    records = []
    for term, maker in enumerate(makers, start=1):
        head, by = chain.head, "ab"[term % 2]
        kind, _, names = maker.partition(" ")
        voters = tuple(voter(name) for name in names) if names else head.voters
        if kind == "back":
            record = back(head, max(0, head.version - 1), by, term)
        elif kind == "revote" and head.height:
            record = revote(head, by, term, voters=voters)
        else:
            record = commit(head, by, term, voters=voters)
        chain.append(record)
        records.append(record)
    return records


def heard(proven: ProvenRecords, chain: Chain, records: list[CommitRecord]) -> list[CommitRecord]:
    known = []
    for record in records:
        for one in proven.receive(record):
            chain.append(one)
            known.append(one)
    return known


def test_a_record_is_decided_if_one_follows_it_and_the_last_is_not_believed():
    records, chain = decided(["commit"] * 3), Chain(genesis())

    assert heard(ProvenRecords(chain, STRANGER), chain, records) == records[:2]


def test_the_last_is_believed_of_a_voter_that_it_names():
    records, chain = decided(["commit"] * 3), Chain(genesis())

    assert heard(ProvenRecords(chain, VOTER), chain, records) == records


def test_a_voter_of_former_records_is_not_believed():
    records, chain = decided(["commit", "commit", "commit abd"]), Chain(genesis())

    assert heard(ProvenRecords(chain, VOTER), chain, records) == records[:2]


def test_what_our_chain_knows_by_now_is_passed_over():
    records, chain = decided(["commit"] * 3), Chain(genesis())
    proven = ProvenRecords(chain, STRANGER)
    for record in records[:2]:
        chain.append(record)

    assert heard(proven, chain, records) == []


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(lambda r: replace(r, loss=1.0), id="its signature is wrong"),
        pytest.param(lambda r: replace(r, height=r.height + 1), id="it stands elsewhere"),
        pytest.param(lambda r: commit(Chain(genesis("ax")).head, "x"), id="no trainer signed it"),
    ],
)
def test_what_is_forged_is_refused_and_proves_nothing(forged):
    records, chain = decided(["commit"] * 2), Chain(genesis())
    proven = ProvenRecords(chain, VOTER)
    heard(ProvenRecords(chain, STRANGER), chain, records[:1])

    with pytest.raises(BrokenRecord):
        proven.receive(forged(records[0]))
    assert chain.head.height == 0


MAKERS = st.sampled_from(["commit", "back", "revote", *(f"commit {v}" for v in VOTERS[:2])])


@given(
    st.lists(MAKERS, min_size=1, max_size=8),
    st.integers(0, 8),
    st.lists(st.integers(0, 8), max_size=12),
)
def test_whatever_order_a_stranger_chooses_only_decided_records_are_learned(makers, known, order):
    """A rival of the last record was signed and never decided; the stranger mixes it in."""
    records = decided(makers)
    truth, chain = Chain(genesis()), Chain(genesis())
    for record in records[:-1]:
        truth.append(record)
    rival = commit(truth.head, "ab"[len(makers) % 2], len(makers), loss=9.0)
    for record in records[:known]:
        chain.append(record)
    proven = ProvenRecords(chain, STRANGER)

    learned = []
    for place in order:
        record = records[place] if place < len(records) else rival
        with contextlib.suppress(BrokenRecord):
            learned += heard(proven, chain, [record])
    assert all(record in records[:-1] for record in learned)


_, RECORDS = chain_of(4)
LEADER = peer("a")


def fresh() -> Learner:
    return Learner(Chain(genesis()))


def beat(height: int, record=None) -> Heartbeat:
    return Heartbeat(RUN, 1, height, digest(record or RECORDS[height - 1]))


def test_a_proposal_proves_that_the_record_before_it_is_decided():
    learner = fresh()

    learner.on_proposal(RECORDS[0], LEADER)
    assert learner.chain.head.height == 0
    learner.on_proposal(RECORDS[1], LEADER)

    assert learner.chain.last == RECORDS[0]
    assert learner.actions() == []


def test_a_heartbeat_proves_that_the_accepted_record_is_decided():
    learner = fresh()
    learner.on_proposal(RECORDS[0], LEADER)

    learner.on_heartbeat(beat(1), LEADER)

    assert learner.chain.last == RECORDS[0]
    assert learner.actions() == []


def test_what_is_missing_is_fetched():
    learner = fresh()

    learner.on_heartbeat(beat(2), LEADER)
    learner.on_proposal(RECORDS[3], LEADER)

    assert learner.actions() == [Fetch(LEADER, 0)] * 2


def test_fetched_records_go_to_the_disk_but_not_twice():
    learner = fresh()
    learner.on_proposal(RECORDS[1])

    assert learner.on_record(RECORDS[0])
    assert learner.on_record(RECORDS[1])

    assert learner.actions() == [Persist(RECORDS[0])]
    assert learner.chain.head.height == 2


def test_records_that_come_again_or_too_early_change_nothing():
    learner = fresh()
    learner.on_record(RECORDS[0])
    learner.actions()

    assert not learner.on_record(RECORDS[0])
    assert not learner.on_record(RECORDS[2])

    assert learner.actions() == []
    assert learner.chain.head.height == 1


def test_a_rival_that_was_accepted_but_not_decided_gives_way():
    learner = fresh()
    learner.on_proposal(commit(genesis().head(), "b"), LEADER)

    learner.on_heartbeat(beat(1), LEADER)
    learner.on_record(RECORDS[0])

    assert learner.chain.last == RECORDS[0]


def test_a_proposal_proves_nothing_of_a_record_that_it_does_not_follow():
    learner = fresh()
    learner.on_proposal(commit(genesis().head(), "b"), LEADER)

    learner.on_proposal(RECORDS[1], LEADER)

    assert learner.chain.head.height == 0
    assert learner.actions() == [Fetch(LEADER, 0)]


def test_a_known_record_that_is_proposed_again_changes_nothing():
    learner = fresh()
    learner.on_record(RECORDS[0])
    learner.on_record(RECORDS[1])

    learner.on_proposal(RECORDS[0], LEADER)

    assert learner.chain.head.height == 2


def test_a_heartbeat_with_another_head_is_a_fork():
    learner = fresh()
    learner.on_record(RECORDS[0])

    learner.on_heartbeat(beat(1), LEADER)
    with pytest.raises(Fork, match="place 0 of the run"):
        learner.on_heartbeat(beat(1, RECORDS[2]), LEADER)


def test_an_old_heartbeat_is_fine():
    learner = fresh()
    learner.on_record(RECORDS[0])

    learner.actions()

    learner.on_heartbeat(Heartbeat(RUN, 1, 0, bytes(32)), LEADER)

    assert learner.actions() == []


def test_a_fetched_record_that_does_not_follow_is_refused():
    learner = fresh()

    with pytest.raises(BrokenRecord):
        learner.on_record(commit(ChainHead.of(RECORDS[0]), height=0, step=0, first=0))

    assert learner.chain.head.height == 0


def test_a_decided_record_proves_that_the_accepted_one_before_it_is_decided():
    """So a file with a proposal, and the records that were fetched after it, is read whole."""
    learner = fresh()
    learner.on_proposal(RECORDS[0])

    assert learner.on_record(RECORDS[1])

    assert learner.chain.head.height == 2
    assert learner.actions() == [Persist(RECORDS[1])]
