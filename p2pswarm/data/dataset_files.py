"""Data sets of the hub, downloaded: the files that a name means, all of one commit.

What was chosen is kept beside the library's own files of the data set, once all of it is there. So
a commit that is kept is not asked for again, and a hub that is silent gives way to what is kept.

Units:   bytes.
Errors:  Unusable, one line with the remedy, as `data/hub.py`.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import POINTER_BYTES, POINTERS, read_small, write_durably
from p2pswarm.data.hub import (
    DATASET,
    NEWEST,
    HubFile,
    HubSilent,
    NoSuchFile,
    Pinned,
    cache_folder,
    commit_of,
    kept_file,
    listed,
    small_file,
    whole_file,
)
from p2pswarm.data.hub_dataset.file_choice import (
    FILES_MAX,
    chosen,
    is_sound,
    literal_folder,
    matching,
)
from p2pswarm.settings.dataset_name import DatasetName
from p2pswarm.settings.limits import COMMIT

log = logging.getLogger(__name__)

CARD = "README.md"
CARD_BYTES_MAX = 4 << 20  # those of a thousand subsets have 1 MB, and take two seconds to read
LISTED_MAX = 100_000  # files and folders: the hub's own advice for a repository
KNOWN_MAX = 128  # names: a mixture has 64 texts
KEPT = "p2pswarm"  # our folder in the library's cache
KEPT_BYTES_MAX = 16 << 20  # of a list of 10,000 names
COMMIT_BYTES_MAX = 64
DIGITS = 16  # of a hash, in the name of a file
SHARED = 0o644  # as the library's own files: several people may share a cache
LARGE_BYTES = 64 << 20  # to download: seconds, and people want to see that it goes on
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True, slots=True)
class DatasetChoice:
    """The files of a data set that are read."""

    name: DatasetName
    """With its commit."""
    files: tuple[HubFile, ...]
    note: str
    """What was taken, where the name leaves it open."""


@dataclass(frozen=True, slots=True)
class DatasetFiles:
    """The same on this machine."""

    name: DatasetName
    folder: Path
    """That of the commit in the library's cache."""
    paths: tuple[Path, ...]
    note: str


def pinned_dataset(asked: DatasetName) -> DatasetName:
    """The same at the commit that its revision is now; where nobody can say, at the last known."""
    if asked.is_pinned:
        return asked
    kept = _kept_folder(asked) / f"{_mark(asked.revision or NEWEST)}.commit"
    try:
        commit = commit_of(asked.name, asked.revision, DATASET, _instead(asked))
    except HubSilent:
        if not kept.is_file():
            raise
        commit = read_small(kept, COMMIT_BYTES_MAX, "it is no commit").decode("ascii", "replace")
        if not COMMIT.fullmatch(commit):
            raise
        log.warning("%s: the hub is silent: its commit is the last one known, %s", asked, commit)
        return asked.at(commit)
    _keep(kept, commit.encode())
    return asked.at(commit)


def dataset_choice(asked: DatasetName) -> DatasetChoice:
    """The files that a name means; nothing but the card and their list is downloaded."""
    return _choice_at(pinned_dataset(asked))


def dataset_files(asked: DatasetName) -> DatasetFiles:
    """The same, downloaded; one file after the other, unless it is here."""
    choice = dataset_choice(asked)
    repository = _repository(choice.name)
    missing = [file for file in choice.files if kept_file(repository, file.path) is None]
    if missing:
        _announce(choice.name, missing)
    whole_bytes = sum(file.size_bytes for file in missing)
    instead = _instead(choice.name)
    for number, file in enumerate(missing, 1):
        if whole_bytes >= LARGE_BYTES and len(missing) > 1:
            log.warning(
                "%s: %d of %d: %s (%s)",
                *(choice.name, number, len(missing), file.path, _written(file.size_bytes)),
            )
        whole_file(repository, file, instead)
    paths = [_whole(choice.name, repository, file) for file in choice.files]
    _keep_choice(choice)
    depth = len(PurePosixPath(choice.files[0].path).parts)
    return DatasetFiles(choice.name, paths[0].parents[depth - 1], tuple(paths), choice.note)


@lru_cache(maxsize=KNOWN_MAX)
def _choice_at(asked: DatasetName) -> DatasetChoice:
    """The same of a commit, which never changes: a start asks several times."""
    return _kept_choice(asked) or _choose(asked)


def _choose(asked: DatasetName) -> DatasetChoice:
    repository, instead = _repository(asked), _instead(asked)
    card = None
    if not asked.pattern:
        card = small_file(repository, CARD, CARD_BYTES_MAX, instead)
    sizes = {file.path: file.size_bytes for file in _listed(asked, repository, instead)}
    found = chosen(asked, sorted(sizes), b"" if card is None else card.read_bytes())
    files = tuple(HubFile(path, sizes[path]) for path in found.files)
    return DatasetChoice(asked, files, found.note)


def _listed(asked: DatasetName, repository: Pinned, instead: str) -> list[HubFile]:
    """All files of a data set; of a pattern those of the folder that it is in, if it finds any."""
    if asked.pattern:
        folder = literal_folder(asked.pattern)
        inside = asked.pattern.removeprefix(f"{folder}/")
        with suppress(NoSuchFile):  # the nearest name is elsewhere
            there = listed(repository, folder, LISTED_MAX, instead, deep="/" in inside)
            if matching([file.path for file in there], asked.pattern):
                return there
    return listed(repository, "", LISTED_MAX, instead)


def _announce(name: DatasetName, missing: Sequence[HubFile]) -> None:
    """Say what is downloaded; Unusable if the disk has no room for it."""
    folder = _kept_folder(name)
    there = next(place for place in (folder, *folder.parents) if place.exists())
    whole_bytes = sum(file.size_bytes for file in missing)
    free_bytes = shutil.disk_usage(there).free
    if whole_bytes > free_bytes:
        raise Unusable(
            f"{name}: {_written(whole_bytes)} are to be downloaded, and {there} has room for "
            f"{_written(free_bytes)}: set HF_HOME to a folder on another disk, or name fewer files"
        )
    files = "1 file" if len(missing) == 1 else f"{len(missing):,} files"
    log.warning("%s: downloading %s, %s", name, files, _written(whole_bytes))


def _whole(name: DatasetName, repository: Pinned, file: HubFile) -> Path:
    """A file in the cache; Unusable for one that its owner has not uploaded."""
    path = kept_file(repository, file.path)
    if path is None:
        raise Unusable(f"{name}: {file.path} was removed while it was read: start again")
    try:
        there_bytes = path.stat().st_size
        with path.open("rb") as opened:
            head = opened.read(POINTER_BYTES)
    except OSError as error:
        raise Unusable(f"{path}: cannot be read: {error.strerror}") from error
    if there_bytes != file.size_bytes:
        raise Unusable(
            f"{path}: has {there_bytes:,} bytes, and {file.size_bytes:,} in the list of {name}: "
            "remove it, and start again"
        )
    if any(head.startswith(mark) for mark in POINTERS):
        raise Unusable(
            f"{name}: {file.path} only stands for a file that its owner has not uploaded: name "
            "other files, or another revision"
        )
    return path


def _kept_choice(asked: DatasetName) -> DatasetChoice | None:
    """What was chosen before, if it is kept here and readable."""
    place = _choice_file(asked)
    if not place.is_file():
        return None
    try:
        found = json.loads(read_small(place, KEPT_BYTES_MAX, "it is no list of files"))
        files = tuple(HubFile(str(path), int(size)) for path, size in found["files"])
        note = str(found["note"])
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        log.warning("%s: is no list of files (%s): it is made anew", place, type(error).__name__)
        return None
    if not 1 <= len(files) <= FILES_MAX or not all(is_sound(file.path) for file in files):
        return None
    return DatasetChoice(asked, files, note)


def _keep_choice(choice: DatasetChoice) -> None:
    place = _choice_file(choice.name)
    if not place.is_file():
        said = {"files": [list(file) for file in choice.files], "note": choice.note}
        _keep(place, json.dumps(said).encode())


def _keep(place: Path, data: bytes) -> None:
    """Write a small file; a cache that is read only keeps none, and the hub is asked again."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_durably(place, data, SHARED)
    except OSError as error:
        log.info("%s: not kept: %s", place, error.strerror)


def _choice_file(name: DatasetName) -> Path:
    return _kept_folder(name) / f"{_mark(str(name))}.json"


def _mark(text: str) -> str:
    """A text in the name of a file."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _kept_folder(name: DatasetName) -> Path:
    return cache_folder(name.name, DATASET) / KEPT


def _repository(name: DatasetName) -> Pinned:
    return Pinned(name.name, name.revision, DATASET)


def _instead(name: DatasetName) -> str:
    return (
        f"download its files (hf download --repo-type dataset {name.name}), and name them by their "
        "path, without hf:"
    )


def _written(size_bytes: int) -> str:
    for unit, name in UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} bytes"
