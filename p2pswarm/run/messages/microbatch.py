"""A microbatch on its way: the push from server to server, and notes about it to the trainer."""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range, Size, Trailing, message
from p2pswarm.run.messages.field_limits import (
    STAGES_MAX,
    Attempt,
    IncarnationNumber,
    Microbatch,
    Obstacle,
    Peer,
    Reason,
    RunId,
    Seconds,
    Stage,
    Step,
)
from p2pswarm.settings.objective import PAIR_ROWS_MAX
from p2pswarm.tensors.codecs.bundle import BUNDLE_KEYS_MAX
from p2pswarm.tensors.codecs.meta import TensorMeta

CHECK_BASE = 2**60  # a microbatch that is computed again to compare has its number plus this


def number_of(microbatch: int) -> int:
    """The number of the microbatch that is computed, also where it is computed to compare."""
    return microbatch - CHECK_BASE if CHECK_BASE <= microbatch < 2 * CHECK_BASE else microbatch


Keeper = Annotated[bytes, Size(0, 32)]
"""A peer, or nobody."""

SketchNumbers = Annotated[tuple[float, ...], Size(16)]
"""As `models/compute/sketch.py` makes them; empty where there is no tensor."""


@message(56)
@dataclass(frozen=True, slots=True)
class Handed(Message):
    """The next server took a microbatch from this one, or has yet to say whether it does."""

    step: Step
    microbatch: Microbatch
    attempt: Attempt
    peer: Peer
    incarnation: IncarnationNumber
    granted: Annotated[bool, Trailing()] = True
    """False: it is computed here, and has waited for the next server's grant for a moment."""


@message(57)
@dataclass(frozen=True, slots=True)
class Counted(Message):
    """A microbatch is in this server's gradient sum, or its backward has passed through."""

    step: Step
    microbatch: Microbatch
    attempt: Attempt
    counted: bool
    """False where another member of the stage had counted it already."""
    loss: float | None
    """Mean nats per token; only from the last stage."""


@message(58)
@dataclass(frozen=True, slots=True)
class Undelivered(Message):
    """This server could not hand a microbatch on, or cannot work on it."""

    step: Step
    microbatch: Microbatch
    attempt: Attempt
    reason: Reason
    obstacle: Annotated[int, Range(0, 2)] = Obstacle.ROAD


@message(59)
@dataclass(frozen=True, slots=True)
class Evaluated(Message):
    """The loss of a held-out batch, from the last stage."""

    step: Step
    microbatch: Microbatch
    loss: float
    scores: Annotated[tuple[float, ...], Size(PAIR_ROWS_MAX), Trailing()] = ()
    """Of pairs, for each row: its log probability over its reference; or its mean, without one."""


@message(96)
@dataclass(frozen=True, slots=True)
class Sketch(Message):
    """A note to the trainer of a run with spot checks: what a server took, and what it gave.

    The last stage tells one, as FORWARD: the activation that it took and the gradient that it gave.
    """

    step: Step
    microbatch: Microbatch
    attempt: Attempt
    work: Annotated[int, Range(0, 1)]
    took: SketchNumbers
    gave: SketchNumbers
    size: float
    """The loss in the last stage; else the norm of the gradient of the weights, 0 forward."""


@message(72)
@dataclass(frozen=True, slots=True)
class Push(Message):
    """Opens the stream that hands a microbatch to the next server, or its gradient back.

    Then: `Grant` from the receiver (or a refusal), the tensors' bytes, and a `Receipt`.
    """

    run: RunId
    step: Step
    microbatch: Microbatch
    attempt: Attempt
    work: Annotated[int, Range(0, 2)]
    stage: Stage
    """The receiver's stage."""
    incarnation: IncarnationNumber
    """The receiver's incarnation in the sender's view: a push to a former one is refused."""
    counting: Annotated[tuple[Stage, ...], Size(STAGES_MAX)]
    """The stages that are to count this attempt."""
    tensors: Annotated[tuple[TensorMeta, ...], Size(1 + BUNDLE_KEYS_MAX)]
    """FORWARD, EVALUATE: tokens, then the bundle that the stage below gave; BACKWARD: its gradient.

    The model and the manifest fix a bundle's keys and their order (docs/bundle.md).
    """
    keepers: Annotated[tuple[Keeper, ...], Size(STAGES_MAX)] = ()
    """By stage, who has counted the microbatch and need not compute it again; empty: nobody."""


@message(73)
@dataclass(frozen=True, slots=True)
class Receipt(Message):
    """The receiver has computed the pushed microbatch; the sender's router learns from it."""

    queue_s: Seconds
    """From the arrival of its bytes until it was taken up."""
    compute_s: Seconds
    gradient_s: Seconds = 0.0
    """How long gradients take to come back to the receiver from further on; 0: unknown."""
