"""The files that `train.data` and `train.tokenizer` mean, and those whose rows are documents.

Errors:  Unusable when nothing is there, or for a mixture of files with and without rows.
"""

import fnmatch
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import read_small

JSON_LINES = frozenset({".jsonl", ".ndjson"})
PARQUET = frozenset({".parquet"})
ARROW = frozenset({".arrow"})
ROWS = JSON_LINES | PARQUET | ARROW
COMPRESSED = frozenset({".gz", ".zst", ".bz2", ".xz", ".zip", ".lz4"})
DATASET_STATE = "state.json"  # `save_to_disk` of Hugging Face datasets writes it beside the arrows
DATASET_DICT = "dataset_dict.json"  # it writes this one above a folder for each split
STATE_BYTES_MAX = 16 << 20  # a name for each shard
TOKENIZER_FILE = "tokenizer.json"
WILDCARDS = frozenset("*?[")
ANY_FOLDERS = "**"


def check_there(data: Path) -> None:
    """Raise Unusable if `data` is no file, no folder and no pattern that finds a file."""
    if not _exists(data) and not is_pattern(data):
        raise Unusable(f"train.data: {data}: there is no such file or folder to train on")
    row_files(data)
    if is_pattern(data) and not found_files(data):
        raise Unusable(f"train.data: {data}: no file is found by that pattern")


def tokenizer_file(place: Path) -> Path:
    """The tokenizer.json of a folder, or the file itself; Unusable if it is not there."""
    file = place / TOKENIZER_FILE if place.is_dir() else place
    if file.is_file():
        return file
    there = f"there is no {TOKENIZER_FILE} in it" if place.is_dir() else "there is no such folder"
    raise Unusable(
        f"train.tokenizer: {place}: {there}: name a folder that has one, as save_pretrained of "
        'transformers writes it, or "bytes", or "train:32000"'
    )


def is_pattern(data: Path) -> bool:
    """Return whether a path that is not there is a pattern, such as corpus/*.jsonl."""
    return not _exists(data) and not WILDCARDS.isdisjoint(str(data))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a folder that this user may not enter, a name that is too long
        raise Unusable(f"{path}: cannot be read: {error.strerror}") from error


def row_files(data: Path) -> list[Path]:
    """The files whose rows are documents, in the order of their paths; empty: `data` is text."""
    if data.is_dir():
        if (data / DATASET_DICT).is_file():
            raise Unusable(
                f"{data}: holds several datasets: name one of its folders, such as {data / 'train'}"
            )
        return _shards(data) if (data / DATASET_STATE).is_file() else []
    files = found_files(data) if is_pattern(data) else [data]
    compressed = [file for file in files if file.suffix in COMPRESSED]
    with_rows = [file for file in compressed if Path(file.stem).suffix in ROWS]
    if with_rows or (compressed and len(compressed) == len(files)):
        first = (with_rows or compressed)[0]
        raise Unusable(f"{first}: is compressed: unpack it, and name what was in it")
    with_rows = [file for file in files if file.suffix in ROWS]
    if with_rows and len(with_rows) < len(files):
        other = next(file for file in files if file.suffix not in ROWS)
        raise Unusable(f"{data}: finds files with rows, and {other.name} without: name one kind")
    return with_rows


def before_wildcards(pattern: Path) -> Path:
    """The folder that a pattern searches: names of files are relative to it."""
    return Path(*itertools.takewhile(WILDCARDS.isdisjoint, pattern.parts))


def _shards(dataset: Path) -> list[Path]:
    """The files of a dataset in their order; others, such as what `map` keeps there, are not."""
    state = dataset / DATASET_STATE
    try:
        found = json.loads(read_small(state, STATE_BYTES_MAX, "it is no dataset's"))
        names = [each["filename"] for each in found["_data_files"]]
        moved = found.get("_indices_data_files")
        files = [dataset / Path(name).name for name in names]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise Unusable(
            f"{state}: does not say which files the dataset has: save it anew"
        ) from error
    if moved:
        raise Unusable(
            f"{dataset}: its rows are in another order than its files (select, shuffle): save what "
            "flatten_indices() gives"
        )
    if not files or not all(file.is_file() for file in files):
        raise Unusable(f"{dataset}: a dataset without its .arrow files: copy the folder whole")
    return files


def found_files(data: Path) -> list[Path]:
    """The files that a pattern finds, in the order of their paths."""
    base = before_wildcards(data)
    try:
        found = set(_matching(base, data.parts[len(base.parts) :]))
        return sorted(file for file in found if file.is_file())
    except OSError as error:
        raise Unusable(f"{error.filename}: cannot be read: {error.strerror}") from error


def _matching(place: Path, pattern: tuple[str, ...]) -> Iterator[Path]:
    """Yield what a pattern finds below a place, as `glob` does, which hangs where links loop.

    A link to a folder above itself is passed over: the files there come without it.
    """
    if not pattern:
        yield place
        return
    first, *others = pattern
    rest = tuple(others)
    if WILDCARDS.isdisjoint(first):
        yield from _matching(place / first, rest)
    elif place.is_dir():
        inside = [one for one in place.iterdir() if _is_meant(one, first)]
        if first != ANY_FOLDERS:
            for one in inside:
                yield from _matching(one, rest)
            return
        yield from _matching(place, rest) if rest else inside
        for folder in inside:
            if folder.is_dir() and not _leads_back(folder):
                yield from _matching(folder, pattern)


def _is_meant(one: Path, part: str) -> bool:
    """Return whether a name fits a part of a pattern; hidden ones have to be asked for."""
    hidden = one.name.startswith(".") and not part.startswith(".")
    return not hidden and (part == ANY_FOLDERS or fnmatch.fnmatchcase(one.name, part))


def _leads_back(folder: Path) -> bool:
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())
