"""What a server has measured of itself: a part of its load.

Units:   seconds, bytes, bytes per second; a number that is not known yet is missing.
Errors:  BadMessage on arrival when a field breaks its limit.
"""

import dataclasses
import operator
from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range
from p2pswarm.plan.capacity import Measured
from p2pswarm.run.messages.types import Seconds

Bytes = Annotated[int, Range(0, 2**62)]
MeanBytes = Annotated[float, Range(0.0, 1e15)]
BytesPerS = Annotated[float, Range(0.0, 1e15)]


@dataclass(frozen=True, slots=True)
class Capacity(Message):
    """The fields of `plan.capacity.Measured`, in their order."""

    forward_s: Seconds | None = None
    backward_s: Seconds | None = None
    error_s: Seconds | None = None
    queue_s: Seconds | None = None
    in_bytes: MeanBytes | None = None
    out_bytes: MeanBytes | None = None
    link_bytes_per_s: BytesPerS | None = None
    free_bytes: Bytes | None = None
    state_bytes: Bytes | None = None

    @classmethod
    def of(cls, measured: Measured) -> "Capacity":
        """What a server tells of what it has measured."""
        return cls(*_VALUES(measured))

    @property
    def measured(self) -> Measured:
        """What the sender has measured."""
        return Measured(**dict(zip(_NAMES, _VALUES(self), strict=True)))


_NAMES = tuple(field.name for field in dataclasses.fields(Capacity))
_VALUES = operator.attrgetter(*_NAMES)  # `asdict` takes ten times as long

NOT_MEASURED = Capacity()
