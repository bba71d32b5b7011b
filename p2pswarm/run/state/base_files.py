"""Blocks of frozen weights in files, so that a restarted process need not fetch them again.

A file is one block's bytes, named by what they are made of. Its content is believed no more than a
donor's: the stage's hashes prove each piece. So nothing is synced: a torn file costs its pieces.

Errors:  NotSaved, one line with the remedy; a file that cannot be read is none.
Source:  docs/bases.md.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from p2pswarm.base.errors import NotSaved
from p2pswarm.base.files import delete_file, private_opener, replace_file
from p2pswarm.run.state.partial_state import SPARE_BYTES

SUFFIX = ".base"
DRAFT = ".draft"
OLD_S = 30 * 86_400.0
"""A model that nobody here has trained on for a month is fetched again."""
DRAFT_OLD_S = 86_400.0  # of a process that was killed while it wrote


class BaseFolder:
    """The folder of the setting `state`, as far as it holds frozen weights. Its methods block."""

    def __init__(
        self,
        path: Path,
        free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        """`free`: bytes of a folder's disk."""
        self._path = path
        self._free = free
        self.refused = False
        """Something could not be written; the user was told, and it is not tried again."""

    def read(self, key: str, sizes: Sequence[int]) -> Iterator[memoryview]:
        """The pieces of a block, in order; fewer of a file that is damaged, none without one."""
        place = self._place(key)
        try:
            if place.stat().st_size != sum(sizes):
                return
            place.touch()  # it is of use: not old
            with place.open("rb") as file:
                for size in sizes:
                    data = file.read(size)
                    if len(data) == size:
                        yield memoryview(bytearray(data))
        except OSError:  # missing, or a bad sector: a donor is asked
            return

    def write(self, key: str, pieces: Iterable[memoryview], nbytes: int) -> None:
        """Put a block of `nbytes` in its place."""
        place = self._place(key)
        draft = place.with_suffix(DRAFT)
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._require_room(nbytes)
            with open(draft, "wb", opener=private_opener) as file:
                file.writelines(pieces)
            replace_file(draft, place)
        except OSError as error:
            delete_file(draft)
            raise NotSaved(f"{place}: {error.strerror or error}") from error

    def remove_old(self, now_s: float) -> None:
        """Delete blocks that nobody has read for a month, and drafts of a day ago."""
        for suffix, limit_s in ((SUFFIX, OLD_S), (DRAFT, DRAFT_OLD_S)):
            for path in self._path.glob(f"*{suffix}"):
                with suppress(OSError):  # it is in nobody's way: another day
                    if now_s - path.stat().st_mtime > limit_s:
                        path.unlink(missing_ok=True)

    def _require_room(self, nbytes: int) -> None:
        if self._free(self._path) < SPARE_BYTES + nbytes:
            raise OSError(0, f"less than {SPARE_BYTES >> 20} MiB would be free on its disk")

    def _place(self, key: str) -> Path:
        return self._path / f"{key}{SUFFIX}"
