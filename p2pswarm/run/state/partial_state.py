"""A newcomer's pieces in a file, so that another process can go on where this one was killed.

    file = head | slot 0 | slot 1 | ...      slot k = version u64 | hash of piece k | piece k

A slot counts only if its bytes have its hash. So nothing needs to be synced or renamed: whatever
moment a process is killed in, and whatever a disk loses, a torn slot is no slot. And a slot is not
believed: its hash is compared with those of the stage, as that of a piece from a donor is.

Every commit changes every element of the state. So a piece is of use while the stage is at the
piece's version, and pieces that have followed a commit in memory are written again.

Units:   bytes; version v = state after v commits.
Errors:  none; a file or a slot that is not what it should be has no pieces.
Source:  docs/state.md.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence

MAGIC = b"p2pswarm pieces 1\n"
_HEAD = struct.Struct(">Q32s")
SLOT_HEAD_BYTES = _HEAD.size
HASH_BYTES = 32


class PartialLayout:
    """Where the pieces of one stage of one run lie in their file."""

    def __init__(self, run: bytes, stage: int, sizes: Sequence[int]) -> None:
        """`sizes`: of each piece."""
        self.sizes = tuple(sizes)
        shape = struct.pack(f">{len(sizes) + 1}Q", stage, *sizes)
        self.head = MAGIC + hashlib.sha256(run + shape).digest()
        """A file that begins otherwise is of another run, stage, cut or program."""
        self._stride = SLOT_HEAD_BYTES + max(self.sizes, default=0)

    def offset(self, piece: int) -> int:
        """Where a piece's slot begins."""
        return len(self.head) + piece * self._stride


def slot_head(version: int, data: memoryview) -> bytes:
    """The bytes before a piece in its slot."""
    return _HEAD.pack(version, hashlib.sha256(data).digest())


def slot_version(head: bytes | bytearray) -> int | None:
    """The version that a slot says; None if nothing was ever written there."""
    if len(head) < SLOT_HEAD_BYTES:
        return None
    version, hashed = _HEAD.unpack(head)
    return None if hashed == bytes(HASH_BYTES) else int(version)


def slot_hash(head: bytes | bytearray, data: bytes | bytearray) -> bytes | None:
    """The hash of a slot's piece; None if these bytes are not the ones that were written."""
    _, hashed = _HEAD.unpack(head)
    return bytes(hashed) if hashlib.sha256(data).digest() == hashed else None


class PartialMap:
    """Which pieces the file has, of which version, and which to write next."""

    def __init__(self, found: Mapping[int, int]) -> None:
        """`found`: the version of each piece in the file."""
        self._versions = dict(found)

    def usable(self, version: int) -> list[int]:
        """The pieces that the file has at a version."""
        return sorted(piece for piece, kept in self._versions.items() if kept == version)

    def remark(self, restored: int, version: int) -> str:
        """What a person should know of a file that was here; empty if there was none."""
        usable, all_ = len(self.usable(version)), len(self._versions)
        found = []
        if usable:
            found.append(f"pieces of the weights taken from the folder `state`: {restored}")
        if usable < all_:
            found.append(f"older than step {version} and fetched again: {all_ - usable}")
        return "; ".join(found)

    def written(self, piece: int, version: int) -> None:
        """A slot was written."""
        self._versions[piece] = version

    def due(self, held: Mapping[int, int]) -> int | None:
        """The piece to write next, of those that are `held` in memory; None: nothing is due.

        Those that the file lacks come first: they are on no disk at all.
        """
        stale = [piece for piece, version in held.items() if self._versions.get(piece) != version]
        return min(stale, key=lambda piece: (self._versions.get(piece, -1), piece), default=None)
