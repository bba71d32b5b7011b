"""Text files: which are read, which are held out, and how they become a corpus.

A hash of its name decides whether a file is held out. So the same folder splits alike everywhere,
and when a folder grows, its old files stay where they were.

Units:   bytes.
Errors:  Unusable when there is no text, or too little.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from p2pswarm.base.errors import Unusable
from p2pswarm.data.corpus import Corpus, stable_hash
from p2pswarm.data.sources import ROWS, before_wildcards, is_pattern, text_files
from p2pswarm.settings.train_config import HELD_OUT_SHARE

FILE_BYTES_MAX = 8 << 30  # it is held in memory
PROBE_BYTES = 8192  # a file with a NUL in its first bytes is not text; git reads as many
SKIPPED = frozenset({"__pycache__", "site-packages", "node_modules"})  # not the user's own text
SEPARATOR = b"\n"


def load_corpus(
    path: Path,
    *,
    suffixes: tuple[str, ...] = (),
    held_out_share: float = HELD_OUT_SHARE,
    seed: int,
    shape: tuple[int, int],
    file_bytes_max: int = FILE_BYTES_MAX,
) -> Corpus:
    """Read a file, all text files below a folder, or those of a pattern.

    `shape` is rows, sequence length.
    """
    files = files_of_text(path, suffixes)
    texts = read_texts(path, files, file_bytes_max)
    train, held_out = (SEPARATOR.join(side) for side in split_texts(texts, held_out_share))
    rows, sequence_length = shape
    for kind, text in (("training", train), ("held-out", held_out)):
        if len(text) <= sequence_length:
            raise Unusable(
                f"{path}: {len(text)} bytes of {kind} text, a sequence has {sequence_length + 1}"
                f"{_passed_over(len(files), len(texts))}: "
                f"name a larger text file or a folder with text files{_of(suffixes)}"
            )
    as_bytes = [np.frombuffer(text, dtype=np.uint8) for text in (train, held_out)]
    return Corpus(as_bytes[0], as_bytes[1], len(texts), seed, rows, sequence_length)


def files_of_text(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files that `path` means, in the order of their paths, text or not."""
    if is_pattern(path):
        return [file for file in text_files(path) if not suffixes or file.suffix in suffixes]
    if path.is_file():
        return [path]
    if path.is_dir():
        files = list(_files(path, suffixes))
        if not suffixes and files and all(file.suffix in ROWS for file in files):
            raise Unusable(
                f"{path}: a folder is read as plain text, and its files have rows: name them by a "
                f"pattern, {path}/*{files[0].suffix}"
            )
        return files
    raise Unusable(f"{path}: there is no such file or folder to train on")


def read_texts(
    path: Path, files: list[Path], file_bytes_max: int = FILE_BYTES_MAX
) -> dict[str, bytes]:
    """The files of `path` that are text, by their names relative to it."""
    return {
        name: text
        for file, name in zip(files, names_of(path, files), strict=True)
        if (text := _read(file, file_bytes_max)) and b"\0" not in text[:PROBE_BYTES]
    }


def names_of(path: Path, files: Sequence[Path]) -> list[str]:
    """The names of the files that `path` means, relative to it."""
    base = before_wildcards(path) if is_pattern(path) else path
    return [file.relative_to(base).as_posix() for file in files]


def is_held_out(name: str, share: float) -> bool:
    """Whether a file of this name, relative to the folder, is kept from training."""
    return stable_hash(f"file:{name}") / 2**64 < share


def _files(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """The files to read, in the order of their paths; folders that are passed over are not read."""
    try:
        found = sorted(_below(folder))
    except OSError as error:
        raise Unusable(f"{error.filename}: cannot be read: {error.strerror}") from error
    return (file for file in found if not suffixes or file.suffix in suffixes)


def _below(folder: Path) -> Iterator[Path]:
    for one in folder.iterdir():
        if _is_skipped(one.name):
            continue
        if one.is_file():
            yield one
        elif one.is_dir() and not one.is_symlink():  # a link could lead back up
            yield from _below(one)


def _is_skipped(name: str) -> bool:
    return name in SKIPPED or name.startswith(".")


def _read(file: Path, bytes_max: int) -> bytes:
    try:
        if file.stat().st_size > bytes_max:
            raise Unusable(f"{file}: larger than {bytes_max:,} bytes: split it")
        text = file.read_bytes()
    except OSError as error:
        raise Unusable(f"{file}: cannot be read: {error.strerror}") from error
    return text


def split_texts(
    texts: Mapping[str, bytes], held_out_share: float
) -> tuple[list[bytes], list[bytes]]:
    """The texts to train on and those that are held out, files in their order."""
    out = {name for name in texts if is_held_out(name, held_out_share)}
    train = [text for name, text in texts.items() if name not in out]
    held_out = [texts[name] for name in texts if name in out]
    if train and held_out:
        return train, held_out
    whole = SEPARATOR.join(texts.values())  # too few files for a hash to split: the end is held out
    cut = round(len(whole) * (1.0 - held_out_share))
    return [whole[:cut]], [whole[cut:]]


def _passed_over(files: int, texts: int) -> str:
    """Why fewer files were used than the user sees."""
    if files == texts:
        return ""
    if files == 1:
        return " (the file is empty or binary)"
    return f" ({files - texts} of {files} files are empty or binary and were passed over)"


def _of(suffixes: tuple[str, ...]) -> str:
    return f" ({' '.join(suffixes)})" if suffixes else ""
