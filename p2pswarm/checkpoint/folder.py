"""A folder as a target of checkpoints.

A file has a temporary name until it is whole and on the disk. Then it is given its name, which
fails if the name is taken, and the folder is synced. So neither a crash nor a power cut ever leaves
a name on half a file.

Units:   bytes.
Errors:  OSError.
"""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from p2pswarm.checkpoint.names import part_name

CAN_SYNC_FOLDERS = os.name == "posix"

Opener = Callable[[Path], BinaryIO]


def open_new(path: Path) -> BinaryIO:
    """A file for writing, without a buffer: pieces are large."""
    return path.open("wb", buffering=0)


class PartFile:
    """Implements `StoreFile` in a folder."""

    def __init__(self, final: Path, writer: str, open_file: Opener) -> None:
        self._final = final
        self._part = final.with_name(part_name(final.name, writer))
        self._part.unlink(missing_ok=True)  # after a crash it may be another name of a whole file
        self._file = open_file(self._part)

    def write(self, data: memoryview | bytes) -> None:
        """Add bytes."""
        view = memoryview(data).cast("B")
        while view.nbytes:
            view = view[self._file.write(view) :]

    def reread(self, offset: int, nbytes: int) -> bytes:
        """Bytes that were written: most often they are still in memory."""
        return _read_at(self._part, offset, nbytes)

    def commit(self) -> None:
        """Sync the file, give it its name, sync the folder."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        give_name(self._part, self._final)
        _sync_folder(self._final.parent)

    def abandon(self) -> None:
        """Remove the part."""
        try:
            self._file.close()
        finally:
            self._part.unlink(missing_ok=True)


class LocalFolder:
    """Implements `CheckpointStore` in a folder of this machine, or one that it has mounted."""

    def __init__(self, folder: Path, writer: str, open_file: Opener = open_new) -> None:
        """`writer` is in temporary names: several may write here at once."""
        self.place = str(folder)
        self._folder = folder
        self._writer = writer
        self._open_file = open_file

    def entries(self, folder: str = "") -> dict[str, int | None]:
        """What is in a folder."""
        try:
            places = sorted((self._folder / folder).iterdir())
        except FileNotFoundError:
            return {}
        sizes: dict[str, int | None] = {}
        for place in places:
            try:
                status = place.stat()
            except FileNotFoundError:  # removed since, or given another name
                continue
            if stat.S_ISDIR(status.st_mode):
                sizes[place.name] = None
            elif stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
                sizes[place.name] = status.st_size
        return sizes

    def read(self, path: str, offset: int, nbytes: int) -> bytes:
        """Bytes of a file."""
        return _read_at(self._folder / path, offset, nbytes)

    def create(self, path: str, size: int) -> PartFile:  # noqa: ARG002 - a folder grows as it must
        """Begin a file, and make its folder."""
        final = self._folder / path
        final.parent.mkdir(parents=True, exist_ok=True)
        if CAN_SYNC_FOLDERS:
            _sync_folder(self._folder)
        if final.exists():
            raise FileExistsError(0, "it is there already", str(final))
        return PartFile(final, self._writer, self._open_file)

    def remove(self, folder: str, names: list[str]) -> None:
        """Delete files, and the folder if it is empty."""
        place = self._folder / folder
        if not place.exists():
            return
        for name in names:
            (place / name).unlink(missing_ok=True)
            _sync_folder(place)  # in this order on the disk, too
        if not any(place.iterdir()):
            place.rmdir()

    def free_bytes(self) -> int:
        """The free space of the disk below the folder, or below where it will be."""
        place = self._folder.absolute()
        while not place.exists():
            place = place.parent
        return shutil.disk_usage(place).free


def _read_at(path: Path, offset: int, nbytes: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        parts = []
        while nbytes and (part := file.read(nbytes)):
            parts.append(part)
            nbytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def give_name(part: Path, final: Path, link: Callable[[Path, Path], None] = os.link) -> None:
    """Name a file; FileExistsError if the name is taken, so that nothing is ever replaced."""
    try:
        link(part, final)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if final.exists():
            raise FileExistsError(0, "it is there already", str(final)) from None
        part.rename(final)
    else:
        part.unlink()


def _sync_folder(folder: Path) -> None:
    if not CAN_SYNC_FOLDERS:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
