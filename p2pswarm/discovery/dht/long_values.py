"""Values that are longer than a record: their parts, and what names them.

A record has room for 4 KiB, because one node keeps those of many. A longer value is cut into parts,
each a record of its own under the hash of its bytes. So anybody may keep and give a part, and who
reads it needs no signature to know that it is the right one. Under the value's own key lies a
`LongValue`, which names the parts.

Errors:  ValueError for a value of ours that is too long.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from p2pswarm.base.errors import BadMessage
from p2pswarm.discovery.dht.messages import VALUE_BYTES_MAX
from p2pswarm.net.wire.message import LONG_BYTES_MAX, Message, Size, class_at, decode, message

PART_TAG = b"p2pswarm-dht-part-1:"
PARTS_MAX = -(-LONG_BYTES_MAX // VALUE_BYTES_MAX)
START_BYTES = 6  # of a message, which tell its class

PartKey = Annotated[bytes, Size(32, 32)]


@message(137)
@dataclass(frozen=True, slots=True)
class LongValue(Message):
    """A value that lies in parts."""

    parts: Annotated[tuple[PartKey, ...], Size(2, PARTS_MAX)]
    """The key of each, in their order."""


def part_key(part: bytes) -> bytes:
    """The DHT's key of a part: a hash of its bytes."""
    return hashlib.sha256(PART_TAG + part).digest()


def parts_of(value: bytes) -> Sequence[bytes]:
    """Cut a value: all parts but the last are full."""
    if len(value) > LONG_BYTES_MAX:
        raise ValueError(f"a value has {LONG_BYTES_MAX} bytes at most, not {len(value)}")
    return [value[i : i + VALUE_BYTES_MAX] for i in range(0, len(value), VALUE_BYTES_MAX)]


def keys_in(value: bytes) -> Sequence[bytes]:
    """The keys of the parts that a record's value names; none if it is a value itself."""
    try:
        if class_at(value[:START_BYTES]) is not LongValue:
            return ()
        named = decode(value)
    except BadMessage:  # whoever reads the value complains of it
        return ()
    assert isinstance(named, LongValue), "it is of this class"
    return named.parts


def part_among(values: Iterable[bytes], key: bytes) -> bytes | None:
    """The part of this key among the values that were found there; anybody may put others."""
    return next((value for value in values if part_key(value) == key), None)
