"""What a node and the processes of its devices say to each other: commands and answers.

They are a program and its own children on pipes: nobody else can speak here. The tensors lie in
memory that all of them map (`shared_tensors.py`).

Units:   bytes; frames have a length of 4 bytes before them.
Errors:  EOFError when the other end is gone.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass

import msgpack  # type: ignore[import-untyped]

LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """A tensor in memory that several processes map."""

    name: str
    descriptor: int
    """Of the file in memory; it has the same number in every process."""
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """The first command: make your part of the stage."""

    run: bytes
    """The settings of the run, as JSON."""
    stage: int
    rank: int
    devices: tuple[str, ...]
    """Of all ranks, in order."""
    rendezvous: str
    """A file through which the ranks find each other."""
    packages: tuple[str, ...]
    graph_mib: int
    """For graphs, on this device; 0: by what it has free. The answer says how many bytes."""
    by_block: bool
    """Make one block's graph at a time."""
    tensors: bool
    """TensorShare tensors and not rows."""
    places: tuple[SharedPlace, ...]


@dataclass(frozen=True, slots=True)
class TakeWeights:
    """Copy your part of the weights: they have changed."""


@dataclass(frozen=True, slots=True)
class EmptySums:
    """Set the gradient sum to zero."""


@dataclass(frozen=True, slots=True)
class RunForward:
    """Compute what the tokens and the bundle that lie there give; the answer has its bytes."""

    microbatch: int
    attempt: int
    keep: bool
    """True if to keep the graph for the backward."""


@dataclass(frozen=True, slots=True)
class RunBackward:
    """From the gradient that lies there to that of the weights, which waits to be settled."""

    microbatch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class RunLast:
    """Compute the loss of the tokens and the bundle that lie there."""

    differentiate: bool


@dataclass(frozen=True, slots=True)
class RunOnce:
    """As `RunForward`, or the loss in the last stage; keep nothing."""


@dataclass(frozen=True, slots=True)
class Settle:
    """What becomes of the gradient that waits."""

    add: bool


@dataclass(frozen=True, slots=True)
class ForgetGraphs:
    """Free these graphs; the backward computes them again."""

    keys: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget all that is kept under these keys."""

    keys: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class GiveSums:
    """Write your part of the gradient sum where all see it."""


@dataclass(frozen=True, slots=True)
class CommandDone:
    """A command was carried out."""

    values: tuple[float, ...] = ()
    """Of a loss: this rank's share of it. Then, of a backward, the sums of squares of the gradient
    that goes back and of that of the weights."""
    graph_bytes: int = 0
    weight_bytes: int = 0
    """Of the first command: what lies on this device of the weights."""


@dataclass(frozen=True, slots=True)
class RankFailed:
    """It was not, and this process ends."""

    reason: str
    out_of_memory: bool
    refused: bool = False
    """The stage cannot be computed so, on whatever device."""


Command = (
    Begin
    | TakeWeights
    | EmptySums
    | RunForward
    | RunBackward
    | RunLast
    | RunOnce
    | Settle
    | ForgetGraphs
    | Forget
    | GiveSums
)
Answer = CommandDone | RankFailed
_KINDS = {
    kind.__name__: kind
    for kind in (
        *(Begin, TakeWeights, EmptySums, RunForward, RunBackward, RunLast, RunOnce),
        *(Settle, ForgetGraphs, Forget, GiveSums, CommandDone, RankFailed),
    )
}


def framed(message: Command | Answer) -> bytes:
    """A message as it goes through a pipe."""
    packed: bytes = msgpack.packb((type(message).__name__, *astuple(message)))
    return len(packed).to_bytes(LENGTH_BYTES) + packed


def read_message(read: Callable[[int], bytes]) -> Command | Answer:
    """The next message; `read(n)` gives at most n bytes, and none at the end."""
    length = int.from_bytes(_exactly(read, LENGTH_BYTES))
    name, *fields = msgpack.unpackb(_exactly(read, length), use_list=False)
    if name == Begin.__name__:
        *fields, places = fields
        fields.append(tuple(SharedPlace(*place) for place in places))
    message: Command | Answer = _KINDS[name](*fields)
    return message


def _exactly(read: Callable[[int], bytes], count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = read(count - len(found))
        if not part:
            raise EOFError("the other process is gone")
        found += part
    return found
