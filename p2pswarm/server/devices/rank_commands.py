"""The commands of a node to the processes of its devices, and their answers.

Units:   bytes; frames have a length of 4 bytes before them.
"""

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, get_args

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
    parallel: str
    """`serve.parallel`."""
    places: tuple[SharedPlace, ...]


@dataclass(frozen=True, slots=True)
class RankCommand:
    """A call of your part of the stage.

    They are a program and its own children on pipes: nobody else can speak here. The tensors lie
    in memory that all of them map (`tensor_maps.py`).
    """

    method: str
    """Of `RankStage`."""
    arguments: Mapping[str, Any]
    half: int = 0
    """With a delay: the part that computes even steps, or odd ones."""


@dataclass(frozen=True, slots=True)
class CommandDone:
    """A command was carried out."""

    values: tuple[float, ...] = ()
    """Of a loss: this rank's share of it. Then, of a backward, the sums of squares of the gradient
    that goes back and of that of the weights."""
    graph_bytes: int = 0
    weight_bytes: int = 0
    """Of the first command: the weights on this device."""


@dataclass(frozen=True, slots=True)
class RankFailed:
    """It was not, and this process ends."""

    reason: str
    out_of_memory: bool
    refused: bool = False
    """The stage cannot be computed so, on whatever device."""


RankMessage = Begin | RankCommand | CommandDone | RankFailed
_KINDS: dict[str, Callable[..., RankMessage]] = {
    each.__name__: each for each in get_args(RankMessage)
}


def framed(message: RankMessage) -> bytes:
    """A message as it goes through a pipe."""
    packed: bytes = msgpack.packb((type(message).__name__, *astuple(message)))
    return len(packed).to_bytes(LENGTH_BYTES) + packed


def read_message(read: Callable[[int], bytes]) -> RankMessage:
    """The next message; `read(n)` gives at most n bytes, and none at the end."""
    length = int.from_bytes(_exactly(read, LENGTH_BYTES))
    name, *fields = msgpack.unpackb(_exactly(read, length), use_list=False)
    if name == Begin.__name__:
        *fields, places = fields
        fields.append(tuple(SharedPlace(*place) for place in places))
    return _KINDS[name](*fields)


def _exactly(read: Callable[[int], bytes], count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = read(count - len(found))
        if not part:
            raise EOFError("the other process is gone")
        found += part
    return found
