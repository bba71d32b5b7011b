"""A file that long work writes at its end: tried when the work begins, never lost when it is done.

A disk fills and folders go while a run lasts. So a place is tried twice: before the run, with the
space that will be needed, and again at the end, where a place that has become impossible is
replaced by another name in the same folder, or by the folder for temporary files.

Units:   bytes.
Errors:  Unusable, one line with the place and the reason.
"""

import itertools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.errors import Unusable

BESIDE = ".part"  # what is not whole yet stands beside its place under this suffix


@dataclass(frozen=True, slots=True)
class Written:
    """A file that lies where it was asked for, or elsewhere."""

    path: Path
    size_bytes: int
    refusals: tuple[str, ...]
    """The places that could not be written, each with its reason; empty: all is as asked."""

    def __str__(self) -> str:
        instead = "".join(f"; {refusal}" for refusal in self.refusals)
        return f"{self.path}, {self.size_bytes:,} bytes{instead}"


def check_target(path: Path, needs_bytes: int = 0) -> None:
    """Raise Unusable if `path` could not be written now, or has too little space."""
    try:
        _refuse_what_is_no_file(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = _beside(path)
        beside.write_bytes(b"\0")
        beside.unlink()
        free_bytes = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise Unusable(f"{_refusal(path, error)}; name another place") from error
    if free_bytes < needs_bytes:
        raise Unusable(
            f"{path} takes {needs_bytes:,} bytes, and {free_bytes:,} are free there: "
            "name another place, or make room"
        )


def write_target(path: Path, write: Callable[[Path], None]) -> Written:
    """Let `write` make a file, and put it whole at `path` or where it is possible."""
    refusals: list[str] = []
    for choose in (_itself, _other_name, _temporary):
        place = path
        try:
            place = choose(path)
            return Written(place, _write(place, write), tuple(refusals))
        except OSError as error:
            refusals.append(_refusal(place, error))
    raise Unusable("; ".join(refusals))


def _itself(path: Path) -> Path:
    return path


def _other_name(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}-{i}{path.suffix}") for i in itertools.count(2))
    return next(name for name in names if not name.exists())


def _temporary(path: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="p2pswarm-")) / path.name


def _write(place: Path, write: Callable[[Path], None]) -> int:
    """Write beside `place`, then replace it; its size."""
    _refuse_what_is_no_file(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(place)
    try:
        write(beside)
        beside.replace(place)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    return place.stat().st_size


def _refuse_what_is_no_file(path: Path) -> None:
    """Keep folders, and devices most of all, from being replaced."""
    if path.is_dir():
        raise IsADirectoryError(0, "it is a folder")
    if path.exists() and not path.is_file():
        raise OSError(0, "it is a device or a pipe, not a file")


def _beside(path: Path) -> Path:
    return path.with_name(path.name + BESIDE)


def _refusal(place: Path, error: OSError) -> str:
    return f"{place} cannot be written: {error.strerror or error}"
