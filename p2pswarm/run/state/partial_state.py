"""A newcomer's pieces in a file, so that another process can go on where this one was killed.

    file = head | slot 0 | slot 1 | ...      slot k = version u64 | hash of piece k | piece k

A slot counts only if its bytes have its hash. So nothing needs to be synced or renamed: whatever
moment a process is killed in, and whatever a disk loses, a torn slot is no slot. And a slot is not
believed: its hash is compared with those of the stage, as that of a piece from a donor is.

Every commit changes every element of the state. So a piece is of use while the stage is at the
piece's version, and pieces that have followed a commit in memory are written again.

Units:   bytes; version v = state after v commits.
Errors:  NotSaved, one line with the remedy; a file or a slot that is not what it should be has no
  pieces.
Source:  docs/state.md.
"""

import hashlib
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import FileIO
from pathlib import Path

from p2pswarm.base.errors import NotSaved
from p2pswarm.base.files import delete_file, private_opener

MAGIC = b"p2pswarm pieces 1\n"
_private_file = partial(FileIO, opener=private_opener)
_HEAD = struct.Struct(">Q32s")
SLOT_HEAD_BYTES = _HEAD.size
HASH_BYTES = 32
SUFFIX = ".partial"
SPARE_BYTES = 256 << 20
"""The voter's promises lie in the same folder: a run's whole chain is smaller than this."""
OLD_S = 86_400.0
"""Nobody restarts a newcomer a day later and finds its stage at the same version."""


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
        """Return where a piece's slot begins."""
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
        """Return what a person should know of a file that was here; empty if there was none."""
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


class PartialFile:
    """The pieces of one stage of one run that are on the disk. Its methods block.

    The file is opened for each piece, so nobody has to close it, whatever ends a download. It never
    takes the last space of a disk: other files of its folder hold what must not be lost.
    """

    def __init__(
        self,
        path: Path,
        layout: PartialLayout,
        open_file: Callable[[Path, str], FileIO] = _private_file,
        free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        """`open_file`: without a buffer, because pieces are large; `free`: bytes of a disk."""
        self.map = PartialMap({})
        self._path = path
        self._layout = layout
        self._open, self._free = open_file, free

    def begin(self) -> None:
        """Look which pieces are there; begin the file anew if it is not ours."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            ours = self._is_ours()
            self.map = PartialMap(self._found() if ours else {})
            if not ours:
                with self._open(self._path, "wb") as file:
                    file.write(self._layout.head)
        except OSError as error:
            raise self._refused(error) from error

    def read(self, piece: int) -> tuple[memoryview, bytes] | None:
        """A piece and its hash; None if it cannot be read as it was written."""
        try:
            with self._open(self._path, "rb") as file:
                file.seek(self._layout.offset(piece))
                head = _exactly(file, SLOT_HEAD_BYTES)
                data = _exactly(file, self._layout.sizes[piece])
        except OSError:  # a bad sector costs this piece: a donor is asked for it
            return None
        if len(head) < SLOT_HEAD_BYTES or (hashed := slot_hash(head, data)) is None:
            return None
        return memoryview(data), hashed

    def write(self, piece: int, version: int, data: memoryview) -> None:
        """Put a piece into its slot."""
        try:
            self._require_room(data.nbytes)
            with self._open(self._path, "r+b") as file:
                file.seek(self._layout.offset(piece))
                for part in (memoryview(slot_head(version, data)), data):
                    _write_all(file, part)
        except OSError as error:
            raise self._refused(error) from error
        self.map.written(piece, version)

    def remove(self) -> None:
        """Delete the file: it was used, or is of no use."""
        try:
            delete_file(self._path)
        except OSError as error:
            raise self._refused(error) from error

    def _require_room(self, nbytes: int) -> None:
        if self._free(self._path.parent) < SPARE_BYTES + nbytes:
            raise OSError(0, f"less than {SPARE_BYTES >> 20} MiB would be free on its disk")

    def _is_ours(self) -> bool:
        try:
            with self._open(self._path, "rb") as file:
                return _exactly(file, len(self._layout.head)) == self._layout.head
        except FileNotFoundError:
            return False

    def _found(self) -> dict[int, int]:
        found = {}
        with self._open(self._path, "rb") as file:
            for piece in range(len(self._layout.sizes)):
                file.seek(self._layout.offset(piece))
                version = slot_version(_exactly(file, SLOT_HEAD_BYTES))
                if version is not None:
                    found[piece] = version
        return found

    def _refused(self, error: OSError) -> NotSaved:
        return NotSaved(f"{self._path}: {error.strerror or error}")


class PartialFolder:
    """The folder of the setting `state`, as far as it holds pieces of newcomers' states."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.refused = False
        """Something could not be written; the user was told, and it is not tried again."""

    def file(self, run: bytes, stage: int, sizes: Sequence[int]) -> PartialFile:
        """The file of one stage of a run."""
        path = self._path / f"{run.hex()}-{stage}{SUFFIX}"
        return PartialFile(path, PartialLayout(run, stage, sizes))

    def remove_old(self, now_s: float) -> None:
        """Delete the files that nobody has written to for a day."""
        for path in sorted(self._path.glob(f"*{SUFFIX}")):
            try:
                if now_s - path.stat().st_mtime > OLD_S:
                    path.unlink(missing_ok=True)
            except OSError:  # it is in nobody's way: another day
                continue


def _exactly(file: FileIO, nbytes: int) -> bytearray:
    """So many bytes, or fewer at the end of the file; memory that torch may look at in place."""
    data, at = bytearray(nbytes), 0
    while at < nbytes and (count := file.readinto(memoryview(data)[at:])):
        at += count
    del data[at:]
    return data


def _write_all(file: FileIO, data: memoryview) -> None:
    while data.nbytes:
        data = data[file.write(data) :]
