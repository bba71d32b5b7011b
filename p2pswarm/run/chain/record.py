"""The record of a decided step: what was added to the weights, by whom, and who decides next.

A record is a message, so there is one way to write it; its digest is over these bytes, and the next
record names it. A coordinator signs all that stands before the signature. Each microbatch of the
step has one byte in every stage, the place of the member that counted it, so a record cannot count
one twice. A microbatch that was not finite on any path has `QUARANTINED` there, in all stages.

Units:   bytes; steps, versions and heights count from 0. Version v = weights after v commits.
Source:  docs/chain.md; RFC 8032 for the signature.
"""

import functools
import hashlib
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Annotated

from p2pswarm.base.ids import PeerId
from p2pswarm.net.crypto.identity import SIGNATURE_BYTES, Identity, verify
from p2pswarm.net.wire.message import Message, Range, Size, Trailing, encode, message
from p2pswarm.run.messages.field_limits import (
    CODES_MAX,
    GROUP_MAX,
    MICROBATCHES_MAX,
    STAGES_MAX,
    TRAINERS_MAX,
    VOTERS_MAX,
    Height,
    IncarnationNumber,
    Microbatch,
    Peer,
    RunId,
    Step,
    SumScale,
    Targets,
    Term,
)

QUARANTINED = 255  # instead of a place: no stage counts this microbatch; no group is so large
TERM_BITS = 32  # a term has room for so many incarnations, and for so many generations
RECORD_BYTES_MAX = 128_000  # 1,024 members, 10 stages, 8,000 microbatches; docs/chain.md has more
CARRIER_BYTES_MAX = RECORD_BYTES_MAX + 128  # of a message with a record and a few numbers
RECORD_TAG = b"p2pswarm-record-1:"
SIGNED_END = -(SIGNATURE_BYTES + 2)  # msgpack writes c4 40 and the 64 bytes, at the very end
DIGEST_BYTES = 32
MEMORY_BYTES = 8  # enough that no two files of one voter have the same
NO_DIGEST = bytes(DIGEST_BYTES)  # `prev` of the first record
FIXED_BYTES = 1_280  # the fields that do not grow with stages, members and microbatches
STAGE_BYTES = 80  # a stage's digests and headers
CONTRIBUTOR_BYTES = 44  # a peer id and an incarnation
CACHED = 64  # records whose digest and signature were computed a moment ago

Sha256 = Annotated[bytes, Size(DIGEST_BYTES, DIGEST_BYTES)]
Memory = Annotated[bytes, Size(MEMORY_BYTES, MEMORY_BYTES)]


class RecordKind(IntEnum):
    """What a record decides."""

    COMMIT = 0
    """The gradient of a step is applied."""
    BACK = 1
    """The weights are those of a checkpoint again; the steps since are done anew."""
    VOTERS = 2
    """Others vote from now on, and may lead; weights and steps are what they were."""


@dataclass(frozen=True, slots=True, order=True)
class VoterId(Message):
    """A voter: a peer with the file that it keeps its promises in.

    A peer whose file is lost begins another one, and is another voter: nobody takes the word of
    the new one for what the old one promised.
    """

    peer: Peer
    memory: Memory
    """Drawn when the file was made."""


@dataclass(frozen=True, slots=True)
class Contributor(Message):
    """A member whose sum is in the step."""

    peer: Peer
    incarnation: IncarnationNumber


@dataclass(frozen=True, slots=True)
class StageCommit(Message):
    """What one stage adds to the step."""

    members: Annotated[tuple[Contributor, ...], Size(GROUP_MAX)]
    """In the order of the group that averaged; none but in a COMMIT."""
    holders: Annotated[bytes, Size(MICROBATCHES_MAX)]
    """One byte a microbatch, in order: the index in `members` of the one that counted it.

    QUARANTINED, in all stages alike, for one that is not finite: it counts as zeros.
    """
    state: Sha256
    """Of weights and moments of version `step`, which the step was computed with.

    Zeros in a VOTERS: nobody may know it yet, and the next COMMIT names it.
    """
    gradient: Annotated[bytes, Size(DIGEST_BYTES)]
    """Of the reduced gradient, before clipping; empty but in a COMMIT."""
    codecs: Annotated[bytes, Size(CODES_MAX), Trailing()] = b""
    """The codes of what goes up and of what comes down over the boundary above the stage.

    They hold from a later step on (`CodecChoices`). Empty: as the manifest says.
    """
    targets: Annotated[Targets | None, Trailing()] = None
    """Of the last stage, in a run whose rows tell their targets: how many the step has."""


@message(80, bytes_max=CARRIER_BYTES_MAX)
@dataclass(frozen=True, slots=True)
class CommitRecord(Message):
    """A decided step, signed by its coordinator; an answer to `FetchRecords`, too."""

    run: RunId
    prev: Sha256
    """The digest of the record before; zeros in the first."""
    term: Term
    """Under which it was made; it may be decided under a later one."""
    height: Height
    """How many records stand before it."""
    step: Step
    """COMMIT: the step, which makes version `step` + 1. BACK: the version that is current again.

    VOTERS: the version that is current, and stays so.
    """
    kind: Annotated[int, Range(0, max(RecordKind))]
    generation: IncarnationNumber
    """Of the reduction that is applied; 0 but in a COMMIT."""
    scale: SumScale
    """The factor of the sums: clipping by the global norm, times tokens per target."""
    learning_rate: Annotated[float, Range(0.0, 1e3)]
    loss: float | None
    """Mean nats per target; None if nobody knows it any more."""
    gradient_norm: float | None
    """Over all stages, before clipping."""
    first: Microbatch
    """The first microbatch of the step."""
    count: Annotated[int, Range(0, MICROBATCHES_MAX)]
    """How many microbatches; 0 but in a COMMIT."""
    stages: Annotated[tuple[StageCommit, ...], Size(1, STAGES_MAX)]
    trainers: Annotated[tuple[Peer, ...], Size(1, TRAINERS_MAX)]
    """Who may lead after this record; the place is the rank."""
    voters: Annotated[tuple[VoterId, ...], Size(1, VOTERS_MAX)]
    """Who votes on this record and on the next."""
    voters_before: Annotated[tuple[VoterId, ...], Size(1, VOTERS_MAX)]
    """The voters of the record before: this record alone tells who had to accept it."""
    saved: Step
    """The newest version of which every stage has a checkpoint; 0 is drawn from the seed."""
    key: Annotated[bytes, Size(32, 32)]
    """The coordinator's Ed25519 key."""
    signature: Annotated[bytes, Size(SIGNATURE_BYTES, SIGNATURE_BYTES)]
    """With RECORD_TAG, over the encoding without its last 66 bytes, which are this field."""

    @property
    def version(self) -> int:
        """The version of the weights once this record is applied."""
        return self.step + 1 if self.kind == RecordKind.COMMIT else self.step

    @property
    def coordinator(self) -> bytes:
        """The peer id of the trainer that made it."""
        return PeerId.of_key(self.key).raw

    @property
    def electorates(self) -> tuple[tuple[VoterId, ...], tuple[VoterId, ...]]:
        """The two sets of voters of which a majority each must have accepted this record."""
        return self.voters_before, self.voters

    def name(self) -> str:
        """Return who it is, for people."""
        return f"record {self.height} of term {self.term} ({digest(self).hex()[:8]})"


def sign(record: CommitRecord, identity: Identity) -> CommitRecord:
    """Sign a record as its coordinator; ValueError if it, or a field, breaks its limit."""
    bare = replace(record, key=identity.public_key, signature=bytes(SIGNATURE_BYTES))
    data = encode(bare)
    if len(data) > RECORD_BYTES_MAX:
        raise ValueError(
            f"a record of {len(data)} bytes, over {RECORD_BYTES_MAX}: "
            "fewer members or microbatches a step"
        )
    return replace(bare, signature=identity.sign(RECORD_TAG, data[:SIGNED_END]))


@functools.lru_cache(maxsize=CACHED)
def digest(record: CommitRecord) -> bytes:
    """SHA-256 of the record's encoding."""
    return hashlib.sha256(encode(record)).digest()


@functools.lru_cache(maxsize=CACHED)
def authentic(record: CommitRecord) -> bool:
    """Return whether the signature is that of the key in the record, and the size is allowed."""
    data = encode(record)
    if len(data) > RECORD_BYTES_MAX:
        return False
    return verify(record.key, RECORD_TAG, data[:SIGNED_END], record.signature)


def members_that_fit(stages: int, microbatches: int) -> int:
    """Return how many members a record has room for, all stages together; negative if for none.

    A run that begins with more is refused when it is set up; who comes later is declined.
    """
    left = RECORD_BYTES_MAX - FIXED_BYTES - stages * (STAGE_BYTES + microbatches)
    return left // CONTRIBUTOR_BYTES


def about_bytes(record: CommitRecord) -> int:
    """About how long a record is, without encoding it; never less than it is."""
    counts = sum(
        STAGE_BYTES + len(stage.holders) + CONTRIBUTOR_BYTES * len(stage.members)
        for stage in record.stages
    )
    return FIXED_BYTES + counts


def first_number(term: int) -> int:
    """The first incarnation, and the first generation, that a leader of `term` gives out."""
    return term << TERM_BITS


def term_of(number: int) -> int:
    """The term in which an incarnation or generation was numbered."""
    return number >> TERM_BITS
