"""What leaders and voters say to each other. Each is a unary call, but `FetchRecords`, a stream.

Calls:   `Prepare` -> `Promise` | `Denied`; `Propose` -> `Accepted` | `Denied`;
         `Heartbeat` and `HandOver` -> `Accepted` | `Denied`;
         `FetchRecords` -> `CommitRecord`, `CommitRecord` ...
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range, Size, message
from p2pswarm.run.chain.record import CARRIER_BYTES_MAX, CommitRecord, Memory, Sha256
from p2pswarm.run.messages.field_limits import Height, Peer, RunId, Term

ATTEMPT_BYTES = 16  # drawn for each attempt, so that no two attempts are taken for one


TERM_JUMP_MAX = 2**20  # at once: what 16 trainers without a majority take in nine days
TERM_EVERY_S = 0.5  # on average: of 16 trainers each takes one in 12 s, when nobody can lead


class Denial(IntEnum):
    """Why a voter said no."""

    TERM = 0
    """It has promised a term as high, or a higher one."""
    CALM = 1
    """It hears from its coordinator."""
    STRANGER = 2
    """The sender may not lead this run, or the voter does not vote."""
    CONFLICT = 3
    """It has accepted another record in this place under the same term: somebody lies."""
    INVALID = 4
    """The record is not signed by a trainer, or breaks a rule."""
    JUMP = 5
    """The term, or the height, is further above what the voter knows than trainers can have come.

    It fetches the records that it lacks.
    """


@message(81)
@dataclass(frozen=True, slots=True)
class Prepare(Message):
    """A trainer asks a voter to follow it in a new term."""

    run: RunId
    term: Term
    attempt: Annotated[bytes, Size(ATTEMPT_BYTES, ATTEMPT_BYTES)]
    """Drawn for this attempt: asked again, a voter promises again, but never a second attempt."""


@message(82, bytes_max=CARRIER_BYTES_MAX)
@dataclass(frozen=True, slots=True)
class Promise(Message):
    """The voter accepts nothing of a lower term any more; this is the last that it accepted."""

    run: RunId
    memory: Memory
    """With the sender it is the voter's `VoterId`; so it is in every answer."""
    term: Term
    attempt: Annotated[bytes, Size(ATTEMPT_BYTES, ATTEMPT_BYTES)]
    accepted_term: Term
    """Under which it accepted `accepted`; not the term in which that record was made."""
    accepted: CommitRecord | None


@message(83, bytes_max=CARRIER_BYTES_MAX)
@dataclass(frozen=True, slots=True)
class Propose(Message):
    """The leader of a term asks a voter to accept a record."""

    run: RunId
    term: Term
    record: CommitRecord


@message(84)
@dataclass(frozen=True, slots=True)
class Accepted(Message):
    """The last record that the voter accepted, now on its disk."""

    run: RunId
    memory: Memory
    term: Term
    """Under which it accepted."""
    height: Height
    digest: Sha256
    """Zeros if it has accepted none."""


@message(85)
@dataclass(frozen=True, slots=True)
class Denied(Message):
    """The voter says no."""

    run: RunId
    memory: Memory
    asked: Term
    """The term of the message that is answered."""
    promised: Term
    """The highest term that the voter has promised."""
    why: Annotated[int, Range(0, 15)]
    """A `Denial`; numbers that are not known are taken as INVALID."""


@message(86)
@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """The leader of a term lives; this is its head."""

    run: RunId
    term: Term
    height: Height
    """How many records are decided."""
    digest: Sha256
    """Of the last of them; zeros if there is none."""


@message(104)
@dataclass(frozen=True, slots=True)
class HandOver(Message):
    """The leader of a term leads no more, because another trainer reaches more of the run.

    A voter need not be calm any longer; the trainer that is named stands at once, others wait.
    """

    run: RunId
    term: Term
    to: Peer


@message(87)
@dataclass(frozen=True, slots=True)
class FetchRecords(Message):
    """Opens a stream of decided records, from `height` on, in order."""

    run: RunId
    height: Height
