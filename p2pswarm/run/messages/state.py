"""Pieces of weights and optimizer state on their way to a newcomer.

A newcomer asks, and its donor answers in the order of what was asked: `StateOffer`, and then the
bytes into the memory that was granted.

Source:  docs/state.md.
"""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range, message
from p2pswarm.run.messages.field_limits import RunId, Stage, Step

Transfer = Annotated[int, Range(0, 2**62)]
"""Memory that the sender of the message has set aside."""


@message(88)
@dataclass(frozen=True, slots=True)
class FetchPieces(Message):
    """Opens the stream on which a newcomer asks a donor."""

    run: RunId
    stage: Stage


@message(118)
@dataclass(frozen=True, slots=True)
class FetchSaved(Message):
    """Opens the stream on which a member asks the coordinator for what the run begins with.

    It follows `Assigned` with `loads`, where the member may not open the checkpoint itself.
    """

    run: RunId
    stage: Stage


@message(140)
@dataclass(frozen=True, slots=True)
class FetchBase(Message):
    """Opens the stream on which a newcomer asks for the frozen weights of a stage.

    Their pieces have no version, which is 0 in all that is said of them.
    """

    run: RunId
    stage: Stage


@message(89)
@dataclass(frozen=True, slots=True)
class AskPiece(Message):
    """Asks for a piece: its part of the weights, of the first and of the second moments."""

    piece: Annotated[int, Range(0, 2**32)]
    at_least: Step
    """The donor waits until it has this version."""
    transfer: Transfer


@message(90)
@dataclass(frozen=True, slots=True)
class AskHashes(Message):
    """Asks for the hashes of all pieces of a version, 32 bytes each."""

    version: Step
    transfer: Transfer


@message(91)
@dataclass(frozen=True, slots=True)
class StateOffer(Message):
    """Answers one question; the bytes follow."""

    version: Step
    """What the bytes are of."""
    known: bool
    """False: the donor does not know the hashes of that version; no bytes follow."""
