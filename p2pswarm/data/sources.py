"""The files that `train.data` and `train.tokenizer` mean, and those whose rows are documents.

What a text means is never guessed in silence: a folder that holds rows is refused with the pattern
that names them, and what is passed over, or read otherwise than its name tells, is a line before
the run.

Units:   bytes.
Errors:  Unusable when nothing is there, for files with and without rows together, and for a file
         that only stands for another, as those of Git LFS do.
"""

import codecs
import fnmatch
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import read_small, refuse_pointer
from p2pswarm.data.dataset_files import dataset_choice, dataset_files
from p2pswarm.data.row_formats.compression import is_packed, row_ending, unpacked
from p2pswarm.data.row_formats.endings import ARROW, COMPRESSED, JSON, JSON_LINES, PARQUET, ROWS
from p2pswarm.data.row_formats.json_rows import is_array
from p2pswarm.settings.dataset_name import DatasetName, dataset_name, is_dataset

DATASET_STATE = "state.json"  # `save_to_disk` of Hugging Face datasets writes it beside the arrows
DATASET_DICT = "dataset_dict.json"  # it writes this one above a folder for each split
STATE_BYTES_MAX = 16 << 20  # a name for each shard
TOKENIZER_FILE = "tokenizer.json"
WILDCARDS = frozenset("*?[")
BRACKET = frozenset("[")
ANY_FOLDERS = "**"
SKIPPED = frozenset({"__pycache__", "site-packages", "node_modules"})  # not the user's own text
HIDDEN, OWN, EMPTY = "hidden", "of a program's own folders", "empty"
CUSTOMARY = frozenset({HIDDEN, OWN, EMPTY})
"""Why something is passed over that nobody takes for text."""
PROBE_BYTES = 8192  # a file with a NUL in its first bytes is not text; git reads as many
WIDE = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32"} | {
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""How a file begins that no program here reads; the longer marks come first."""
CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\f\r")  # no text has them
ENDINGS_SHOWN = 8
LINE_PROBE_BYTES = 1 << 20  # of a line of JSON, to tell whether it is an object
FOLDER_LINES_MIN = 2  # objects in a .json of a folder, where one alone may be a program's settings


def check_there(data: Path, suffixes: tuple[str, ...] = ()) -> None:
    """Raise Unusable if `data` is no file, no folder and no pattern that finds a file.

    Of a data set of the hub only the list of files is asked for.
    """
    if is_dataset(data):
        dataset_choice(_named(data))
        return
    if is_pattern(data) and not found_files(data):
        raise Unusable(
            f"train.data: {data}: no file is found by that pattern (in a name, [[] is a bracket)"
        )
    files_of(data, suffixes)


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


@dataclass(frozen=True, slots=True)
class PassedOver:
    """What a text does not read."""

    path: Path
    why: str


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The files that a text means."""

    data: Path
    paths: tuple[Path, ...]
    """In the order in which they are read."""
    rows: bool = False
    """True if a row of a file is a document, and not a file."""
    passed_over: tuple[PassedOver, ...] = ()
    not_utf8: int = 0
    """How many files have bytes that a tokenizer reads as others."""
    json: int = 0
    """How many text files are JSON of programs."""
    base: Path | None = None
    """What the names of files are relative to; None: `data` says it."""
    note: str = ""
    """Which files of a data set were taken, where its name leaves it open."""

    def lines(self, *, tokenised: bool, all_passed: bool = False) -> list[str]:
        """What its owner should know before a run, a line each.

        all_passed: also what everybody passes over, such as hidden files.
        """
        told = [self.note, self.passed(all_passed=all_passed)]
        if self.not_utf8 and tokenised:
            told.append(
                f"{self.not_utf8} of {len(self.paths)} files are not UTF-8: the tokenizer reads "
                "their bytes as \ufffd; save them as UTF-8"
            )
        if self.json:
            told.append(
                f"{self.json} of {len(self.paths)} files are JSON, and read with all their braces"
            )
        return [f"{self.data}: {each}" for each in told if each]

    def passed(self, *, all_passed: bool = True) -> str:
        """How many are passed over for each reason; empty if none is."""
        by_reason = dict[str, list[Path]]()
        for each in self.passed_over:
            if each.why in CUSTOMARY and not all_passed:
                continue
            by_reason.setdefault(each.why, []).append(each.path)
        told = [
            f"{len(paths)} {why} ({self.name_of(paths[0])}{', ...' if len(paths) > 1 else ''})"
            for why, paths in by_reason.items()
        ]
        return f"passed over: {', '.join(told)}" if told else ""

    def name_of(self, file: Path) -> str:
        """The name of a file, relative to the text."""
        base = self.base
        if base is None:
            base = before_wildcards(self.data) if is_pattern(self.data) else self.data
        return file.relative_to(base).as_posix() if file != base else file.name


def in_order(files: Iterable[Path]) -> list[Path]:
    """Files in the order of their names, which is the same on all systems.

    Windows compares paths without regard to case, and the order of files is that of a run's text.
    """
    return sorted(files, key=lambda file: file.parts)


def files_of(data: Path, suffixes: tuple[str, ...] = ()) -> FoundFiles:
    """The files that `data` means; `suffixes` declares which of a folder's are its text."""
    if is_dataset(data):
        there = dataset_files(_named(data))
        found = _of_names(there.name.path, list(there.paths), suffixes)
        return replace(found, base=there.folder, note=there.note)
    if data.is_dir():
        if (data / DATASET_DICT).is_file():
            raise Unusable(
                f"{data}: holds several datasets: name one of its folders, such as {data / 'train'}"
            )
        if (data / DATASET_STATE).is_file():
            return FoundFiles(data, tuple(_whole(_shards(data))), rows=True)
        return _of_folder(data, suffixes)
    if is_pattern(data):
        return _of_names(data, found_files(data), suffixes)
    if _exists(data):
        if not data.is_file():  # reading a pipe would wait, and a run reads its text several times
            raise Unusable(
                f"train.data: {data}: is a pipe or a device: write what it gives to a file, and "
                "name that"
            )
        return _of_names(data, [data], ())
    raise Unusable(f"train.data: {data}: there is no such file or folder to train on")


def _named(data: Path) -> DatasetName:
    try:
        return dataset_name(str(data))
    except ValueError as error:  # settings are checked, and this is no setting
        raise Unusable(f"train.data: {error}") from error


def has_rows(file: Path, lines_min: int = 1) -> bool:
    """Return whether a file's rows are documents: by its ending; of .json, by its first lines."""
    ending = row_ending(file)
    return ending in ROWS or (ending == JSON and _object_lines(file) >= lines_min)


def _of_names(data: Path, files: list[Path], suffixes: tuple[str, ...]) -> FoundFiles:
    """The files that a name or a pattern means."""
    compressed = [f for f in files if f.suffix.lower() in COMPRESSED and not has_rows(f)]
    if compressed and len(compressed) == len(files):
        raise Unusable(f"{compressed[0]}: is compressed: unpack it, and name what was in it")
    _refuse_compressed_rows(files)
    with_rows = [file for file in files if has_rows(file)]
    if with_rows and len(with_rows) < len(files):
        other = next(file for file in files if file not in with_rows)
        raise Unusable(f"{data}: finds files with rows, and {other.name} without: name one kind")
    if with_rows:
        return FoundFiles(data, tuple(_whole(with_rows)), rows=True)
    if files and all(file.suffix.lower() == JSON for file in files):
        raise Unusable(
            f"{files[0]}: is JSON that has no object a line: write each document as "
            '{"text": "..."} in a line of its own'
        )
    return _texts(FoundFiles(data, tuple(_ending(files, suffixes))), suffixes)


def _of_folder(data: Path, suffixes: tuple[str, ...]) -> FoundFiles:
    """The text files below a folder, or those that end as is asked."""
    passed_over = list[PassedOver]()
    try:
        below = in_order(_below(data, passed_over))
    except OSError as error:
        raise Unusable(f"{error.filename}: cannot be read: {error.strerror}") from error
    files = _ending(below, suffixes)
    if not suffixes:
        _refuse_rows(data, files)
    passed_over.sort(key=lambda each: each.path)
    return _texts(FoundFiles(data, tuple(files), passed_over=tuple(passed_over)), suffixes)


def _refuse_rows(data: Path, files: list[Path]) -> None:
    """Raise Unusable for a folder that would be read as plain text, rows and all."""
    _refuse_compressed_rows(files)
    with_rows = [file for file in files if has_rows(file, FOLDER_LINES_MIN)]
    if not with_rows:
        return
    named = {file.parent for file in with_rows}
    where = named.pop() if len(named) == 1 else data / ANY_FOLDERS
    first = with_rows[0]
    ending = first.suffix if not is_packed(first) else Path(first.stem).suffix + first.suffix
    pattern = f"{where}/*{ending}"
    others = _text_endings(files, with_rows)
    if len(with_rows) == len(files) or not others:
        raise Unusable(
            f"{data}: a folder is read as plain text, and its files have rows: name them by a "
            f"pattern, {pattern}"
        )
    raise Unusable(
        f"{data}: holds files with rows ({with_rows[0].relative_to(data)}) beside text: name the "
        f"rows by a pattern, {pattern}, or the text by train.suffixes = {json.dumps(others)}"
    )


def _refuse_compressed_rows(files: list[Path]) -> None:
    for file in files:
        inside, readable = Path(file.stem).suffix.lower(), is_packed(file)
        if readable and inside not in PARQUET | ARROW:
            continue
        if file.suffix.lower() in COMPRESSED and inside in ROWS | {JSON}:
            raise Unusable(f"{file}: is compressed: unpack it, and name what was in it")


def _text_endings(files: list[Path], others: list[Path]) -> list[str]:
    """Return the endings of the files that are text, but for those of others."""
    known = {file.suffix.lower() for file in others} | {""}
    unknown = (file for file in files if file.suffix.lower() not in known)
    endings = {file.suffix for file in unknown if not _why_no_text(_probe(file))}
    return sorted(endings)[:ENDINGS_SHOWN]


def _ending(files: Iterable[Path], suffixes: tuple[str, ...]) -> list[Path]:
    wanted = {suffix.lower() for suffix in suffixes}
    return [file for file in files if not wanted or file.suffix.lower() in wanted]


def _whole(files: Sequence[Path]) -> Iterator[Path]:
    """Files with rows; Unusable for one that only stands for another."""
    for file in files:
        _probe(file)
        yield file


def _texts(found: FoundFiles, suffixes: tuple[str, ...]) -> FoundFiles:
    """Those that are text; Unusable if none is."""
    texts, passed_over = list[Path](), list(found.passed_over)
    not_utf8 = braces = 0
    for file in found.paths:
        head = _probe(file)
        if why := _why_no_text(head):
            passed_over.append(PassedOver(file, why))
            continue
        texts.append(file)
        not_utf8 += not _is_utf8(head)
        braces += file.suffix.lower() == JSON
    whole = replace(
        found,
        paths=tuple(texts),
        passed_over=tuple(passed_over),
        not_utf8=not_utf8,
        json=braces,
    )
    if not texts:
        told = f"; {whole.passed()}" if passed_over else ""
        ending = f" ({' '.join(suffixes)})" if suffixes else ""
        raise Unusable(
            f"{found.data}: there is no text{told}: name a larger text file or a folder with text "
            f"files{ending}"
        )
    return whole


def _probe(file: Path) -> bytes:
    """The first bytes of a file; Unusable if it only stands for another."""
    with _opened(file) as opened:
        head = opened.read(PROBE_BYTES)
    refuse_pointer(file, head)
    return head


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    try:
        with file.open("rb") as opened:
            yield opened
    except OSError as error:
        raise Unusable(f"{file}: cannot be read: {error.strerror}") from error


def _why_no_text(head: bytes) -> str:
    """Return why a file that begins so is not read; empty if it is text."""
    if not head:
        return EMPTY
    for mark, name in WIDE.items():
        if head.startswith(mark):
            return f"in {name}, to be saved as UTF-8"
    if b"\0" not in head:
        return ""
    halves = head[0::2], head[1::2]
    letters, zeros = sorted(halves, key=lambda half: half.count(0))
    # as Latin letters lie there; a few others are among them
    if zeros.count(0) > len(head) // 4 and not CONTROLS.intersection(letters):
        return "in UTF-16, to be saved as UTF-8"
    return "binary"


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _object_lines(file: Path) -> int:
    """Return how many of a file's first two lines are objects of JSON; one for an array of them.

    In a folder an array may be any program's: it is named, or stays text.
    """
    with _opened(file), unpacked(file) as opened:
        lines = [opened.readline(LINE_PROBE_BYTES) for _ in range(2)]
    if is_array(b"".join(lines)):
        return 1
    return sum(_is_object(line.removeprefix(codecs.BOM_UTF8)) for line in lines)


def has_array(file: Path) -> bool:
    """Return whether the rows of a file are the objects of one array."""
    if row_ending(file) not in JSON_LINES | {JSON}:
        return False
    with _opened(file), unpacked(file) as opened:
        return is_array(opened.readline(LINE_PROBE_BYTES) + opened.readline(LINE_PROBE_BYTES))


def _is_object(line: bytes) -> bool:
    if len(line) == LINE_PROBE_BYTES:
        return line.startswith(b"{")
    try:
        return isinstance(json.loads(line.decode("utf-8", "replace")), dict)
    except (ValueError, RecursionError):
        return False


def before_wildcards(pattern: Path) -> Path:
    """The folder that a pattern searches: names of files are relative to it."""
    parts = list[str]()
    for part in pattern.parts:
        if not WILDCARDS.isdisjoint(part) and not _is_a_name(Path(*parts), part):
            return Path(*parts)
        parts.append(part)
    return pattern


def _is_a_name(folder: Path, part: str) -> bool:
    """Return whether a part with brackets, and no other wildcard, is a folder's name."""
    return WILDCARDS.intersection(part) == BRACKET and _exists(folder / part)


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
        return in_order(file for file in found if file.is_file())
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
    if WILDCARDS.isdisjoint(first) or _is_a_name(place, first):
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


def _below(folder: Path, passed_over: list[PassedOver]) -> Iterator[Path]:
    """The files below a folder; what is passed over is added."""
    for one in folder.iterdir():
        if one.name.startswith("."):
            passed_over.append(PassedOver(one, HIDDEN))
        elif one.name in SKIPPED:
            passed_over.append(PassedOver(one, OWN))
        elif one.is_file():
            yield one
        elif one.is_dir() and one.is_symlink():  # it could lead back up
            passed_over.append(PassedOver(one, "links to folders"))
        elif one.is_dir():
            yield from _below(one, passed_over)
        else:
            passed_over.append(PassedOver(one, "no files, such as pipes and broken links"))
