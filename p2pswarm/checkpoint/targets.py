"""Targets of checkpoints: a folder, or any file system of fsspec.

Errors:  OSError, also for errors of foreign libraries; Unusable for a URL that fsspec cannot use, a
  user that does not exist, and a target that cannot be written.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import fsspec  # type: ignore[import-untyped]

from p2pswarm.base.errors import Unusable, one_line
from p2pswarm.base.files import delete_file, sync_folder
from p2pswarm.checkpoint.names import part_name
from p2pswarm.checkpoint.store import CheckpointStore

Opener = Callable[[Path], BinaryIO]


def open_new(path: Path) -> BinaryIO:
    """A file for writing, without a buffer: pieces are large."""
    return path.open("wb", buffering=0)


class PartFile:
    """Implements `StoreFile` in a folder.

    A file has a temporary name until it is whole and on the disk. Then it is given its name, which
    fails if the name is taken, and the folder is synced. So neither a crash nor a power cut ever
    leaves a name on half a file.
    """

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
        sync_folder(self._final.parent)

    def abandon(self) -> None:
        """Remove the part."""
        try:
            self._file.close()
        finally:
            delete_file(self._part)


class LocalFolder:
    """Implements `CheckpointStore` in a folder of this machine, or one that it has mounted."""

    def __init__(self, folder: Path, writer: str, open_file: Opener = open_new) -> None:
        """`writer` is in temporary names: several may write here at once."""
        self.place = str(folder)
        self._folder = folder
        self._writer = writer
        self._open_file = open_file

    def entries(self, folder: str = "") -> dict[str, int | None]:
        """Return what is in a folder."""
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
        sync_folder(self._folder)
        if final.exists():
            raise FileExistsError(0, "it is there already", str(final))
        return PartFile(final, self._writer, self._open_file)

    def remove(self, folder: str, names: list[str]) -> None:
        """Delete files, and the folder if it is empty."""
        place = self._folder / folder
        if not place.exists():
            return
        for name in names:
            delete_file(place / name)
            sync_folder(place)  # in this order on the disk, too
        if not any(place.iterdir()):
            place.rmdir()

    def written_s(self, path: str) -> float:
        """Return what the file system says."""
        return (self._folder / path).stat().st_mtime

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
        delete_file(part)


REASON_CHARS_MAX = 200  # of what a store's library says: some print a whole answer
BLOCK_BYTES = 8 << 20  # one call of an upload; S3 takes 5 MiB or more
BLOCKS_MAX = 9_000  # S3 takes 10,000 in an upload


class FsspecFile:
    """Implements `StoreFile`: what fits one block is uploaded in one call.

    An object appears under its name when its upload is complete. Some file systems show it earlier;
    so it is the manifest, small and uploaded in one call, that makes a checkpoint.
    """

    def __init__(self, files: Any, path: str, size: int) -> None:
        self._files = files
        self._path = path
        self._block_bytes = max(BLOCK_BYTES, -(-size // BLOCKS_MAX))
        self._small = bytearray() if size <= BLOCK_BYTES else None
        self._open: Any = None
        if self._small is None:
            with _as_os_error():
                self._open = files.open(path, "wb", block_size=self._block_bytes, autocommit=False)

    def write(self, data: memoryview | bytes) -> None:
        """Add bytes."""
        if self._small is not None:
            self._small += data
            return
        with _as_os_error():
            self._open.write(data)

    def reread(self, offset: int, nbytes: int) -> None:
        """An upload cannot be read before it is complete."""

    def commit(self) -> None:
        """Complete the upload."""
        with _as_os_error():
            if self._small is not None:
                self._files.pipe_file(self._path, bytes(self._small))
            else:
                self._open.close()
                self._open.commit()

    def abandon(self) -> None:
        """Break the upload off; remove what a file system has shown already."""
        if self._small is not None:
            return
        with _as_os_error():
            try:
                self._open.close()
            finally:
                self._open.discard()
            if self._files.exists(self._path):
                self._files.rm_file(self._path)


class FsspecStore:
    """Implements `CheckpointStore` on a file system of fsspec: object stores, SFTP, memory."""

    def __init__(self, url: str) -> None:
        self.place = url
        try:
            with _as_os_error():
                self._files, self._root = fsspec.core.url_to_fs(url)
        except OSError as error:
            raise Unusable(
                f"{url}: fsspec cannot use this: {error.strerror or error}; install what it names, "
                "or name another target"
            ) from error

    def entries(self, folder: str = "") -> dict[str, int | None]:
        """Return what is in a folder; a listing that was kept from before is not used."""
        place = self._path(folder)
        with _as_os_error():
            self._files.invalidate_cache()
            try:
                found = self._files.ls(place, detail=True)
            except FileNotFoundError:
                return {}
        return {
            entry["name"].rstrip("/").rpartition("/")[2]: (
                None if entry["type"] == "directory" else int(entry["size"] or 0)
            )
            for entry in found
            if entry["name"].rstrip("/") != place.rstrip("/")  # some list the folder itself
        }

    def read(self, path: str, offset: int, nbytes: int) -> bytes:
        """Bytes of a file."""
        with _as_os_error():
            return bytes(self._files.cat_file(self._path(path), offset, offset + nbytes))

    def create(self, path: str, size: int) -> FsspecFile:
        """Begin an upload."""
        final = self._path(path)
        with _as_os_error():
            if self._files.exists(final):
                raise FileExistsError(0, "it is there already", final)
            self._files.makedirs(final.rpartition("/")[0], exist_ok=True)
        return FsspecFile(self._files, final, size)

    def remove(self, folder: str, names: list[str]) -> None:
        """Delete files, and the folder if the file system has folders."""
        place = self._path(folder)
        with _as_os_error():
            for name in names:
                if self._files.exists(f"{place}/{name}"):
                    self._files.rm_file(f"{place}/{name}")
            self._files.invalidate_cache()
        if not self.entries(folder):
            with _as_os_error():
                if self._files.isdir(place):
                    self._files.rmdir(place)

    def written_s(self, path: str) -> float | None:
        """Return what the file system says; some keep no times."""
        with _as_os_error():
            try:
                return float(self._files.modified(self._path(path)).timestamp())
            except NotImplementedError:
                return None

    def free_bytes(self) -> None:
        """Object stores have no limit that they tell."""
        return

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else str(self._root)


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Raise every error of a foreign library as an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # each library has a tree of errors of its own
        raise OSError(0, one_line(error, REASON_CHARS_MAX)) from error


READER = "readonly"
"""Stands for the writer's name where nothing is written."""
LOCAL_SCHEMES = ("file://", "local://")
UNRESOLVED = ("/../", "/./", "::", "?", "#", "%", "\\")
"""In a URL: parts that lead elsewhere, another file system, a query, an escape."""


def open_store(target: str, writer: str = READER) -> CheckpointStore:
    """The store at `target`; `writer` is the short form of our peer id."""
    folder = _folder_of(target)
    return FsspecStore(target) if folder is None else LocalFolder(folder, writer)


def may_use(target: str, allowed: Iterable[str]) -> bool:
    """Return whether a target is one of those that a machine's owner allows, or lies in one.

    A folder counts by where it really is: neither `..` nor a link leads out of what is allowed. Of
    a URL nothing is resolved, so one that has something to resolve is allowed by its exact text
    alone. Raises Unusable for a folder of a user that does not exist.
    """
    folder = _folder_of(target)
    if folder is None:
        return any(target == each or _url_below(target, each) for each in allowed)
    real = Path(os.path.realpath(folder))
    folders = (_folder_of(each) for each in allowed)
    return any(real.is_relative_to(os.path.realpath(each)) for each in folders if each is not None)


def _url_below(url: str, allowed: str) -> bool:
    """Return whether a URL is a place below another one, and says so plainly."""
    place, base = f"{url}/", f"{allowed.rstrip('/')}/"
    plain = not any(mark in place for mark in UNRESOLVED)
    return plain and "://" in allowed.rstrip("/") and place.startswith(base)


def _folder_of(target: str) -> Path | None:
    """The folder of this machine that a target names; None for a URL of fsspec."""
    for scheme in LOCAL_SCHEMES:
        if target.startswith(scheme):
            return Path(target.removeprefix(scheme))
    if "://" in target or "::" in target:
        return None
    try:
        return Path(target).expanduser()
    except RuntimeError as error:
        raise Unusable(f"{target}: there is no such user: name another target") from error


def require_writable(store: CheckpointStore, writer: str) -> None:
    """Raise Unusable unless a small file can be written to the target, and removed. Blocks."""
    folder, name = f"trial.{writer}", "trial"
    try:
        store.remove(folder, [name])  # of a process that died here
        file = store.create(f"{folder}/{name}", 1)
        file.write(b"0")
        file.commit()
        store.remove(folder, [name])
    except OSError as error:
        raise Unusable(
            f"checkpoint.target: {store.place} cannot be written: {error.strerror or error}: name "
            "another target, or mend it"
        ) from error


def places_beside(target: str) -> tuple[str, str]:
    """Where files beside checkpoints may lie: `target` is of all checkpoints, or a single one."""
    return target, target.rstrip("/").rpartition("/")[0] or "."


def keep_beside(store: CheckpointStore, name: str, data: bytes) -> None:
    """Write a file beside checkpoints unless it is there; its name says what is in it. OSError."""
    try:
        if name not in store.entries():
            file = store.create(name, len(data))
            file.write(data)
            file.commit()
    except FileExistsError:
        return  # another trainer of the run was faster
