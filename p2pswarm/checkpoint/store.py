"""Where checkpoints lie: a folder, or whatever fsspec knows, behind six calls.

All of them block: callers run them on a thread. Paths are FOLDER/NAME, relative to the target.

Errors:  OSError for whatever the place refuses, with a text of one line; Unusable for a target that
         cannot be understood.
"""

from typing import Protocol


class StoreFile(Protocol):
    """A file that is being written. It has its name only after `commit`."""

    def write(self, data: memoryview | bytes) -> None:
        """Add bytes."""
        ...

    def reread(self, offset: int, nbytes: int) -> bytes | None:
        """Bytes that were written; None where they cannot be read before `commit`."""
        ...

    def commit(self) -> None:
        """Put the file where it belongs, whole and for good."""
        ...

    def abandon(self) -> None:
        """Remove what was written, if that is possible."""
        ...


class CheckpointStore(Protocol):
    """A target of checkpoints."""

    place: str
    """Its name, for people."""

    def entries(self, folder: str = "") -> dict[str, int | None]:
        """What is in a folder: name and size, None for a folder; empty if it is not there."""
        ...

    def read(self, path: str, offset: int, nbytes: int) -> bytes:
        """Bytes of a file; fewer at its end."""
        ...

    def create(self, path: str, size: int) -> StoreFile:
        """Begin a file that will have `size` bytes. FileExistsError if there is one."""
        ...

    def remove(self, folder: str, names: list[str]) -> None:
        """Delete files of a folder, in this order, and the folder if it is then empty."""
        ...

    def written_s(self, path: str) -> float | None:
        """Return when a file was written, since 1970; None if the place does not say."""
        ...

    def free_bytes(self) -> int | None:
        """Return how many bytes fit; None if the place does not say."""
        ...
