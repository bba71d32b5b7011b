"""Keys, records and heads for the tests of the chain."""

import functools
from dataclasses import replace

from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.chain.chain import Chain, ChainHead, Genesis
from p2pswarm.run.chain.record import (
    NO_DIGEST,
    CommitRecord,
    Contributor,
    RecordKind,
    StageCommit,
    VoterId,
    digest,
    first_number,
    sign,
)

RUN = b"r" * 16
MICROBATCHES = 2
STAGES = 1


@functools.cache
def key(name: str) -> Identity:
    return Identity.generate(name.encode())


def peer(name: str) -> bytes:
    return key(name).peer_id.raw


def voter(name: str, memory: int = 0) -> VoterId:
    return VoterId(peer(name), memory.to_bytes(8, "big"))


def genesis(trainers: str = "ab", voters: str = "abc") -> Genesis:
    return Genesis(
        RUN,
        STAGES,
        MICROBATCHES,
        tuple(peer(name) for name in trainers),
        tuple(voter(name) for name in voters),
    )


def state_of(version: int, stage: int = 0) -> bytes:
    return bytes([stage]) + version.to_bytes(31, "big")


def stage_commit(version: int, term: int, stage: int = 0, **changes) -> StageCommit:
    members = tuple(
        Contributor(peer(f"server {stage} {i}"), first_number(term) + i) for i in range(2)
    )
    commit = StageCommit(members, bytes([0, 1]), state_of(version, stage), bytes(32))
    return replace(commit, **changes)


def unsigned(head: ChainHead, term: int, **changes) -> CommitRecord:
    record = CommitRecord(
        run=RUN,
        prev=head.digest,
        term=term,
        height=head.height,
        step=head.version,
        kind=RecordKind.COMMIT,
        generation=first_number(term) + head.height,
        scale=1.0,
        learning_rate=0.1,
        loss=2.5,
        gradient_norm=1.5,
        first=head.version * MICROBATCHES,
        count=MICROBATCHES,
        stages=tuple(stage_commit(head.version, term, stage) for stage in range(STAGES)),
        trainers=head.trainers,
        voters=head.voters,
        voters_before=head.voters,
        saved=head.saved,
        key=bytes(32),
        signature=bytes(64),
    )
    return replace(record, **changes)


def commit(head: ChainHead, by: str = "a", term: int = 1, **changes) -> CommitRecord:
    """The record that `by` makes in `term` after `head`."""
    return sign(unsigned(head, term, **changes), key(by))


def back(head: ChainHead, version: int, by: str = "a", term: int = 1, **changes) -> CommitRecord:
    """The record with which `by` goes back to `version`."""
    stages = tuple(StageCommit((), b"", state_of(version, stage), b"") for stage in range(STAGES))
    fields = {
        "kind": RecordKind.BACK,
        "step": version,
        "stages": stages,
        "generation": 0,
        "scale": 0.0,
        "first": 0,
        "count": 0,
        "saved": 0,
    }
    return sign(unsigned(head, term, **{**fields, **changes}), key(by))


def revote(head: ChainHead, by: str = "a", term: int = 1, **changes) -> CommitRecord:
    """The record with which `by` changes the voters, and nothing else."""
    blank = StageCommit((), b"", NO_DIGEST, b"")
    fields = {
        "kind": RecordKind.VOTERS,
        "step": head.version,
        "stages": (blank,) * STAGES,
        "generation": 0,
        "scale": 0.0,
        "first": 0,
        "count": 0,
    }
    return sign(unsigned(head, term, **{**fields, **changes}), key(by))


def chain_of(length: int, origin: Genesis | None = None) -> tuple[Chain, list[CommitRecord]]:
    """A chain of `length` commits by trainer a in term 1."""
    chain = Chain(origin or genesis())
    records = []
    for _ in range(length):
        records.append(commit(chain.head))
        chain.append(records[-1])
    return chain, records


def short(record: CommitRecord) -> str:
    return digest(record).hex()[:8]


LONG_MICROBATCHES = 65_000
"""So many counts make a record longer than a frame."""


def long_genesis(trainers: str = "ab", voters: str = "abc") -> Genesis:
    return replace(genesis(trainers, voters), microbatches=LONG_MICROBATCHES)


def long_commit(head: ChainHead, by: str = "a", term: int = 1) -> CommitRecord:
    """A record of so many counts, all of them of two members in turns."""
    counts = bytes([0, 1]) * (LONG_MICROBATCHES // 2)
    stage = stage_commit(head.version, term, holders=counts)
    first = head.version * LONG_MICROBATCHES
    return commit(head, by, term, count=LONG_MICROBATCHES, first=first, stages=(stage,))


def long_chain(length: int) -> list[CommitRecord]:
    """The records of a chain that `a` has made."""
    chain = Chain(long_genesis())
    records = []
    for _ in range(length):
        records.append(long_commit(chain.head))
        chain.append(records[-1])
    return records
