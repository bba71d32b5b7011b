"""Any file system of fsspec as a target: object stores, SFTP, memory.

An object appears under its name when its upload is complete. Some file systems show it earlier; so
it is the manifest, small and uploaded in one call, that makes a checkpoint.

Units:   bytes.
Errors:  OSError: those libraries raise errors of their own, which are translated here. Unusable for
         a URL that fsspec cannot use.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import fsspec  # type: ignore[import-untyped]

from p2pswarm.base.errors import Unusable, one_line

REASON_CHARS_MAX = 200  # of what a store's library says: some print a whole answer
BLOCK_BYTES = 8 << 20  # one call of an upload; S3 takes 5 MiB or more
BLOCKS_MAX = 9_000  # S3 takes 10,000 in an upload


class FsspecFile:
    """Implements `StoreFile`: what fits one block is uploaded in one call."""

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
    """Implements `CheckpointStore` on a file system of fsspec."""

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
        """What is in a folder; a listing that was kept from before is not used."""
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
