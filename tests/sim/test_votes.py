"""Which machines a simulated run cannot do without: those whose votes or leading it needs."""

import pytest
from run.chain.harness import RUN, commit, genesis, peer, voter

from p2pswarm.run.chain.chain import Chain
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.messages import Propose
from p2pswarm.sim.votes import ChainDisk, may_lose_disk


def disk(name: str, *entries, memory: int = 0) -> ChainDisk:
    chain = MemoryChain(voter(name, memory).memory)
    for entry in entries:
        chain.append(entry)
    return ChainDisk(peer(name), chain)


@pytest.mark.parametrize(
    ("trainers", "voters", "disks", "victim", "may"),
    [
        ("ab", "abc", "abcd", "c", True),
        ("ab", "abc", "abcd", "a", True),
        ("ab", "abc", "abcd", "d", True),
        ("ab", "abc", "abd", "a", False),
        ("ab", "abc", "bcd", "b", False),
        ("a", "abc", "abcd", "a", False),
        ("ab", "a", "abcd", "a", False),
    ],
)
def test_a_majority_of_the_voters_and_a_trainer_must_be_left(trainers, voters, disks, victim, may):
    origin = genesis(trainers, voters)
    left = [disk(name) for name in disks]
    (one,) = [each for each in left if each.peer == peer(victim)]

    assert may_lose_disk(left, one, origin) is may


def test_a_voter_that_comes_back_with_another_disk_is_not_the_voter():
    left = [disk("a"), disk("b", memory=1), disk("c")]

    assert not may_lose_disk(left, left[2], genesis("ab", "abc"))


def test_the_voters_of_a_record_that_is_only_accepted_count_too():
    origin = genesis("ab", "a")
    record = commit(Chain(origin).head, voters=(voter("a"), voter("b"), voter("c")))
    proposed = disk("a", Propose(RUN, 1, record))

    assert may_lose_disk([proposed, disk("b"), disk("c")], disk("c"), origin)
    assert not may_lose_disk([proposed, disk("c")], disk("c"), origin)


def test_the_newest_chain_counts():
    origin = genesis("ab", "abc")
    record = commit(Chain(origin).head, voters=(voter("a"), voter("b"), voter("d")))
    disks = [disk("a", record), disk("b"), disk("c"), disk("d")]

    assert may_lose_disk(disks, disks[2], origin)
    assert not may_lose_disk([disks[0], disks[1], disks[2]], disks[1], origin)
