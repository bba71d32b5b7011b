"""Small files that a user names, and files that are written at the end of long work.

While a run lasts, a disk may fill up or a folder may be deleted. So `check_target` tries the path
before the run, with the space that the file will need. `write_target` writes it at the end. If the
path can no longer be written, it takes another name in the same folder, or else the folder for
temporary files. A file that is there is kept, and ours gets another name.

What has to outlive a crash of the machine is on the disk before its name is, and then its name is,
too.

A program reads the file that it named, and no other. What it asks for by a flag such as `--json`,
`write_answer` writes there, or refuses.
"""

import errno
import itertools
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.base.errors import Unusable

POINTERS = {b"version https://git-lfs.github.com/spec/": "git lfs pull"} | {
    b"/annex/objects/": "git annex get"
}
"""How a file begins in a clone that lacks its large files, and what brings them."""
POINTER_BYTES = max(map(len, POINTERS))
BESIDE = ".part"  # added to the name of a file that is not complete yet
PRIVATE = 0o600
"""The mode of a file that its owner alone may read: keys, and what a closed run is about."""
CAN_SYNC_FOLDERS = sys.platform != "win32"  # Windows does it by itself
TRIES = 5 if sys.platform == "win32" else 1
"""There a file stays while anybody has it open: a scanner for viruses, or who reads a piece."""
BETWEEN_TRIES_S = 0.1
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)  # some networks' folders, or unreadable


def private_opener(path: str, flags: int) -> int:
    """For `open`: a file that is made is its owner's alone, whatever the umask."""
    return os.open(path, flags, PRIVATE)


def replace_file(file: Path, place: Path) -> None:
    """Move a file to a name, which another may have; on Windows, as soon as nobody reads that."""
    patiently(lambda: file.replace(place))


def delete_file(file: Path) -> None:
    """Delete a file if it is there; on Windows, as soon as nobody has it open."""
    patiently(lambda: file.unlink(missing_ok=True))


def patiently(
    change: Callable[[], object], tries: int = TRIES, between_s: float = BETWEEN_TRIES_S
) -> None:
    """Change a name in a folder, and try again while somebody has the file open."""
    for _ in range(tries - 1):
        try:
            change()
        except PermissionError:
            time.sleep(between_s)
        else:
            return
    change()


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where its file system can be asked for that."""
    if not CAN_SYNC_FOLDERS:
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise


def sync_files(folder: Path) -> None:
    """Have all files of a folder on the disk, and their names."""
    for file in folder.iterdir():
        _sync_file(file)
    sync_folder(folder)


def write_durably(file: Path, data: bytes, mode: int = PRIVATE) -> None:
    """Replace a file; the new one is on the disk under its name when this returns."""
    draft = file.with_name(f"{file.name}.new")
    _put_new(draft, data, mode)
    replace_file(draft, file)
    sync_folder(file.parent)


def create_durably(file: Path, data: bytes, mode: int = PRIVATE) -> None:
    """Make a file that is whole whenever its name is there; FileExistsError if it is taken."""
    draft = file.with_name(f".{file.name}.{os.getpid()}.new")  # another process may make it, too
    try:
        _put_new(draft, data, mode)
        _give_name(draft, file)
    finally:
        delete_file(draft)
    sync_folder(file.parent)


def _put_new(draft: Path, data: bytes, mode: int) -> None:
    delete_file(draft)  # one of before a crash may have another mode
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())


def require_file(path: Path) -> None:
    """Raise Unusable for a path that is not there, or no file; nothing is opened."""
    try:
        if stat.S_ISDIR(refuse_pipe(path).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error.strerror}; name another file") from error


def refuse_pipe(path: Path) -> os.stat_result:
    """Raise Unusable for a pipe or a device: opening or reading it may wait for ever.

    Raises OSError for a path that is not there; returns its status.
    """
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise Unusable(
            f"{path} is a pipe or a device: write what it gives to a file, and name that"
        )
    return status


def read_small(path: Path, bytes_max: int, instead: str) -> bytes:
    """All bytes of a file; `instead` tells what a larger one cannot be: "it is no trace"."""
    try:
        if refuse_pipe(path).st_size > bytes_max:
            raise Unusable(f"{path} is larger than {bytes_max:,} bytes: {instead}")
        found = path.read_bytes()
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error.strerror}; name another file") from error
    refuse_pointer(path, found)
    return found


def refuse_pointer(path: Path, head: bytes | None = None) -> None:
    """Raise Unusable if a file's first bytes tell that it only stands for another file.

    `head`: these bytes; None: they are read, if they can be.
    """
    if head is None:
        try:
            with path.open("rb") as file:
                head = file.read(POINTER_BYTES)
        except OSError:
            return  # whoever reads the file tells why it cannot be read
    for mark, remedy in POINTERS.items():
        if head.startswith(mark):
            raise Unusable(f"{path} stands for a file that was not fetched: run {remedy} there")


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written, at the path that was asked for or at another."""

    path: Path
    size_bytes: int
    refusals: tuple[str, ...]
    """The paths that could not be written, each with its reason; empty if the first one could."""

    def __str__(self) -> str:
        instead = "".join(f"; {refusal}" for refusal in self.refusals)
        return f"{self.path}, {self.size_bytes:,} bytes{instead}"


def check_target(path: Path, needs_bytes: int = 0) -> None:
    """Raise Unusable if `path` cannot be written now, or `needs_bytes` are not free there."""
    try:
        _refuse_what_is_no_file(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = _beside(path)
        delete_file(beside)  # after a crash it may be another name of a finished file
        beside.write_bytes(b"\0")
        beside.unlink()
        free_bytes = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise Unusable(f"{_refusal(path, error)}; name another file") from error
    if free_bytes < needs_bytes:
        raise Unusable(
            f"{path} takes {needs_bytes:,} bytes, and {free_bytes:,} are free there: "
            "name another file, or free some space"
        )


def write_target(path: Path, write: Callable[[Path], None], *, replace: bool = False) -> Written:
    """Have `write` make a file, and move it to `path` or to the first path that works.

    `replace`: a file at `path` is replaced, as that of a picture that is drawn anew. Raises
    Unusable if no path can be written.
    """
    refusals: list[str] = []
    for choose in (_itself, _other_name, _temporary):
        place = path
        try:
            place = choose(path)
            return Written(place, _write(place, write, replace=replace), tuple(refusals))
        except OSError as error:
            refusals.append(_refusal(place, error))
    raise Unusable("; ".join(refusals))


def write_text(path: Path, text: str) -> Written:
    """Write a text to `path`, in place of what is there, or to the first path that works."""
    return write_target(path, lambda place: _put(place, text), replace=True)


def write_answer(path: Path, text: str) -> Written:
    """Write what a program asked for to `path`, and to no other name.

    A file that is there is written anew where it is: the program may have it open, or a link to it.
    Raises Unusable if that fails, and says where the text is instead.
    """
    try:
        _refuse_what_is_no_file(path)
        if not path.exists():
            size_bytes = _write(path, lambda place: _put(place, text), replace=False)
            return Written(path, size_bytes, ())
        _put(path, text)
        return Written(path, path.stat().st_size, ())
    except OSError as error:
        instead = write_target(_other_name(path), lambda place: _put(place, text))
        raise Unusable(f"{_refusal(path, error)}; it is in {instead.path}") from error


def _put(place: Path, text: str) -> None:
    place.write_text(text, encoding="utf-8")


def _itself(path: Path) -> Path:
    return path


def _other_name(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}-{i}{path.suffix}") for i in itertools.count(2))
    return next(name for name in names if not name.exists())


def _temporary(path: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="p2pswarm-")) / path.name


def _write(place: Path, write: Callable[[Path], None], *, replace: bool) -> int:
    """Write a file beside `place`, then move it there; returns its size."""
    _refuse_what_is_no_file(place)
    if not replace:
        _refuse_what_is_there(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(place)
    try:
        delete_file(beside)  # as in check_target
        write(beside)
        _sync_file(beside)
        if replace:
            replace_file(beside, place)
        else:
            _give_name(beside, place)
        sync_folder(place.parent)
    except OSError:
        delete_file(beside)
        raise
    return place.stat().st_size


def _sync_file(path: Path) -> None:
    with path.open("rb+") as written:
        os.fsync(written.fileno())


def _refuse_what_is_no_file(path: Path) -> None:
    """Raise OSError for a folder, a device or a pipe: none of them may be replaced."""
    if path.is_dir():
        raise IsADirectoryError(0, "it is a folder")
    if path.exists() and not path.is_file():
        raise OSError(0, "it is a device or a pipe, not a file")


def _refuse_what_is_there(path: Path) -> None:
    if path.exists():
        raise FileExistsError(0, "it is there already, and is kept")


def _give_name(beside: Path, place: Path) -> None:
    """Move a file to a name that is free; another process may have taken it meanwhile."""
    try:
        place.hardlink_to(beside)
    except OSError:  # taken, or a file system without links
        _refuse_what_is_there(place)
        beside.rename(place)
    else:
        delete_file(beside)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + BESIDE)


def _refusal(place: Path, error: OSError) -> str:
    return f"{place} cannot be written: {error.strerror or error}"
