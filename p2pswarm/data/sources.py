"""Which files `train.data` and `train.tokenizer` mean; whether rows of them are documents.

Errors:  Unusable when nothing is there, or for a mixture of files with and without rows.
"""

import glob
from pathlib import Path

from p2pswarm.errors import Unusable

JSON_LINES = frozenset({".jsonl", ".ndjson"})
PARQUET = frozenset({".parquet"})
ARROW = frozenset({".arrow"})
ROWS = JSON_LINES | PARQUET | ARROW
DATASET_STATE = "state.json"  # `save_to_disk` of Hugging Face datasets writes it beside the arrows
TOKENIZER_FILE = "tokenizer.json"
WILDCARDS = frozenset("*?[")


def check_there(data: Path) -> None:
    """Raise Unusable if `data` is no file, no folder and no pattern that finds a file."""
    if data.exists():
        return
    if not is_pattern(data):
        raise Unusable(f"train.data: {data}: there is no such file or folder to train on")
    if not _found(data):
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
    """Whether a path that is not there is a pattern, such as corpus/*.jsonl."""
    return not data.exists() and not WILDCARDS.isdisjoint(str(data))


def row_files(data: Path) -> list[Path]:
    """The files whose rows are documents, in the order of their paths; empty: `data` is text."""
    if data.is_dir():
        if not (data / DATASET_STATE).is_file():
            return []
        shards = sorted(data.glob("*.arrow"))
        if not shards:
            raise Unusable(f"{data}: a dataset without .arrow files: copy the folder whole")
        return shards
    files = _found(data) if is_pattern(data) else [data]
    with_rows = [file for file in files if file.suffix in ROWS]
    if with_rows and len(with_rows) < len(files):
        other = next(file for file in files if file.suffix not in ROWS)
        raise Unusable(f"{data}: finds files with rows, and {other.name} without: name one kind")
    return with_rows


def text_files(data: Path) -> list[Path]:
    """The text files that a pattern finds, in the order of their paths."""
    return _found(data)


def _found(data: Path) -> list[Path]:
    found = (Path(name) for name in glob.glob(str(data), recursive=True))  # noqa: PTH207
    return sorted(file for file in found if file.is_file())
