"""Tests of `sim/swarm_run.py`."""

from dataclasses import replace

import pytest
from run.chain.harness import RUN, commit, genesis, peer, voter

from p2pswarm.run.chain.chain import Chain
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.messages import Propose
from p2pswarm.run.member_view import Incarnation
from p2pswarm.sim.swarm_run import (
    ChainDisk,
    MachineRecord,
    may_die,
    may_lose_disk,
    may_lose_memory,
    result_of,
)
from p2pswarm.trainer.reports.reports import MemberLost, Replayed, RunFinished, StepDone


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


PEER = Incarnation(b"a" * 32, 1)


def machine(
    *, stage: int | None = 0, version: int | None = 3, born_s: float = 0.0, died_s=None
) -> MachineRecord:
    return MachineRecord(born_s, died_s, 2.0, stage, version)


def test_nobody_dies_that_holds_the_last_weights_of_its_stage() -> None:
    machines = [
        machine(),
        machine(stage=1),
        machine(stage=1),
        machine(version=None),
        machine(died_s=5.0),
        machine(stage=2),
        machine(stage=2, died_s=5.0),
    ]

    assert may_die(machines) == [1, 2, 3]


HOLDER = replace(machine(), newest=4, member=True)


@pytest.mark.parametrize(
    ("other", "may"),
    [
        pytest.param(replace(machine(), newest=4), True, id="it has reduced the step, too"),
        pytest.param(replace(machine(), newest=3, member=True), True, id="the step needs it"),
        pytest.param(replace(machine(), newest=3), False, id="it was out of the step"),
        pytest.param(replace(machine(version=2), newest=3, member=True), False, id="it is behind"),
        pytest.param(replace(machine(stage=1), newest=4), False, id="it serves another stage"),
        pytest.param(replace(machine(died_s=1.0), newest=4), False, id="it is dead"),
    ],
)
def test_the_only_one_that_can_make_the_next_version_keeps_its_memory(other, may) -> None:
    assert may_lose_memory([other, HOLDER], 1) is may
    assert may_lose_memory([HOLDER, other], 1) is (other.stage == 0)


@pytest.mark.parametrize(
    ("record", "there_s"),
    [
        (machine(), 10.0),
        (machine(born_s=14.0), 6.0),
        (machine(died_s=12.0), 2.0),
        (machine(died_s=8.0), 0.0),
    ],
)
def test_a_machine_is_counted_while_the_run_and_it_were_there(record, there_s) -> None:
    assert record.there_s(10.0, 20.0) == there_s


def test_a_record_adds_up() -> None:
    ended = RunFinished("all steps are done", failed=False)
    result = result_of(
        ended=ended,
        reports=[
            StepDone(0, 2.0, 1.0, 0.1, 6),
            Replayed(1, (6, 7), "late"),
            MemberLost(PEER, 0, "gone", 1),
            StepDone(1, 1.0, 1.0, 0.1, 6),
        ],
        machines=[machine(), machine(died_s=15.0)],
        begun_s=10.0,
        ended_s=20.0,
        trainer_bytes=5,
        moved_bytes=12,
        world_digest="d",
    )

    assert (result.ended, result.steps, result.seconds) == (ended, 2, 10.0)
    assert (result.microbatches_per_s, result.replayed, result.lost) == (1.2, 2, 1)
    assert result.busy_share == pytest.approx(4.0 / 15.0)
    assert (result.trainer_bytes, result.moved_bytes) == (5, 12)
    assert len(result.digest) == 64
