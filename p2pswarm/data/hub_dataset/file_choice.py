"""Which files of a data set are read: by a pattern, by its card, or by the names of its files.

The rules are those of `load_dataset` of the library datasets, but that what is ambiguous is refused
with a list of what there is (docs/data.md).

Errors:  Unusable, one line, with what can be named.
Source:  huggingface.co/docs/hub/datasets-file-names-and-splits; datasets/data_files.py.
"""

import difflib
import fnmatch
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from p2pswarm.base.errors import Unusable
from p2pswarm.data.hub_dataset.card import DEFAULT, TRAIN, CardSubset, subsets_of
from p2pswarm.data.row_formats.compression import is_packed, row_ending
from p2pswarm.data.row_formats.endings import COMPRESSED, JSON, ROWS
from p2pswarm.settings.dataset_name import DatasetName

FILES_MAX = 10_000  # that are read: the hub itself asks for fewer in a folder
TRIED_CHARS_MAX = 30_000_000  # of names, by all patterns of a card: 15 s; a stranger wrote them
ANY_FOLDERS_MAX = 4  # in a pattern: each makes more places in it where a name may be
NAMES_SHOWN = 8
NEAREST_OF = 10_000  # names that the nearest is sought among: a second
PATH_BYTES_MAX, PART_BYTES_MAX = 1_000, 255  # below what a file system allows
ANY_FOLDERS = "**"
LAST = "\U0010ffff"  # comes after all that names have
WILDCARDS = frozenset("*?[")
TEXT = ".txt"
ARCHIVES = frozenset({".tar", ".tgz", ".7z", ".rar"})
IGNORED = frozenset(
    {"README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}
)
"""What lies beside data, and is none."""
SHARDS = re.compile(r"data/([\w.]+)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*")
WORDS = {"train": "train", "training": "train"} | {
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
"""Words in names of files and folders, and the split that each means."""
WORD = re.compile(rf"(?:^|(?<=[-._ 0-9]))({'|'.join(WORDS)})(?=$|[-._ 0-9])")


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Files of a repository that are read."""

    files: tuple[str, ...]
    """In the order of their paths."""
    note: str = ""
    """What was taken, where the name leaves it open."""


def chosen(asked: DatasetName, names: Sequence[str], card: bytes) -> FileChoice:
    """The files that a name means; `names` are all files of the repository."""
    sound = [name for name in names if is_sound(name)]
    odd = len(names) - len(sound)
    told = f"passed over: {odd:,} whose names have no place in a folder" if odd else ""
    try:
        choice = _chosen(asked, sound, card)
        _check(choice.files)
    except Unusable as error:
        raise Unusable(f"{asked}: {error}" + f"; {told}" * bool(told)) from error
    return FileChoice(choice.files, "; ".join(part for part in (choice.note, told) if part))


def _chosen(asked: DatasetName, names: Sequence[str], card: bytes) -> FileChoice:
    if asked.pattern:
        return FileChoice(_by_pattern(asked, names), "files by its pattern")
    subset = _subset(asked, subsets_of(card))
    if subset is not None and subset.data_files is not None:
        split = _split(asked, sorted(subset.splits))
        by_pattern = _each_matching(names, subset.patterns(split))
        found = sorted({name for each in by_pattern.values() for name in each})
        none = [pattern for pattern, there in by_pattern.items() if not there]
        missing = [each for each in none if WILDCARDS.isdisjoint(each) or not found]
        if missing:
            raise Unusable(
                f"its card names {missing[0]!r} for the split {split!r}, and there is no such "
                f"file: {_by_a_pattern(names)}"
            )
        note = f"subset {subset.name!r}, split {split!r}, as its card says"
        return FileChoice(tuple(found), note)
    folder = subset.folder if subset else ""
    by_split, how = _by_names(asked, names, folder)
    split = _split(asked, list(by_split))
    _refuse_several_kinds(by_split[split])
    said = f"subset {subset.name!r}, " if subset else ""
    return FileChoice(tuple(sorted(by_split[split])), f"{said}split {split!r}, {how}")


def _by_pattern(asked: DatasetName, names: Sequence[str]) -> tuple[str, ...]:
    found = matching(names, asked.pattern)
    if found:
        return found
    inside = [name for name in names if name.startswith(f"{asked.pattern}/")]
    if inside:
        raise Unusable(f"is a folder there: name its files, {_pattern_of(inside)}")
    near = difflib.get_close_matches(asked.pattern, names[:NEAREST_OF], 1, 0)
    there = f"the nearest is {near[0]}" if near else "there are none"
    raise Unusable(f"no file is found by that pattern: {there}")


def _subset(asked: DatasetName, there: Sequence[CardSubset]) -> CardSubset | None:
    """The subset that is meant; None if the card names none."""
    names = [each.name for each in there]
    if asked.subset:
        if asked.subset in names:
            return there[names.index(asked.subset)]
        if not there and asked.subset == DEFAULT:
            return None
        if not there:
            raise Unusable("its card names no subsets: leave it out, or name files by a pattern")
        near = difflib.get_close_matches(asked.subset, names, 1)
        guess = f" (did you mean {near[0]!r}?)" if near else ""
        raise Unusable(f"has no such subset{guess}; there are {_some(names)}")
    if len(there) <= 1:
        return there[0] if there else None
    default = [each for each in there if each.is_default] or [
        each for each in there if each.name == DEFAULT
    ]
    if len(default) != 1:
        raise Unusable(f"has several subsets: name one, #{names[0]}; there are {_some(names)}")
    return default[0]


def _split(asked: DatasetName, there: Sequence[str]) -> str:
    split = asked.split or TRAIN
    if split in there:
        return split
    if not there:
        raise Unusable("its card names no split that can be shown: name files by a pattern")
    first = f"#{asked.subset}:{next((name for name in there if TRAIN in name), there[0])}"
    raise Unusable(f"has no split {split!r}: name one, {first}; there are {_some(there)}")


def _by_names(
    asked: DatasetName, names: Sequence[str], folder: str
) -> tuple[dict[str, list[str]], str]:
    """The files of each split, and how they were told."""
    prefix = f"{folder}/" if folder else ""
    below = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    script = f"{asked.name.rpartition('/')[2]}.py"
    if not folder and script in names:
        raise Unusable(
            f"has only a loading script ({script}), and no code of it is run: name the hub's own "
            f"copy, hf:{asked.name}@refs/convert/parquet/SUBSET/train/*.parquet, or "
            f"{_by_a_pattern(names)}"
        )
    seen = [name for name in below if _is_visible(name)]
    rows = [name for name in seen if _has_rows(name)] or [
        name for name in seen if PurePosixPath(name).suffix.lower() == TEXT
    ]
    if not rows:
        endings = Counter(PurePosixPath(name).suffix or name for name in seen)
        there = _some([ending for ending, _ in endings.most_common()])
        raise Unusable(f"holds no files with rows: its files are {there or 'none'}")
    shards = [(found[1], name) for name in rows if (found := SHARDS.fullmatch(name))]
    folders = [(split, name) for name in rows for split in _words(_folder(name))]
    files = [(split, name) for name in rows for split in _words(_file(name))]
    for pairs, how in ((shards, "shards"), (folders, "folders"), (files, "files")):
        if pairs:
            by_split = _grouped((split, prefix + name) for split, name in pairs)
            return by_split, f"as the names of {how} say"
    return {TRAIN: [prefix + name for name in rows]}, "all files with rows"


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found = dict[str, list[str]]()
    for split, name in pairs:
        found.setdefault(split, []).append(name)
    return found


def _words(parts: Sequence[str]) -> set[str]:
    return {WORDS[word] for part in parts for word in WORD.findall(part)}


def _folder(name: str) -> tuple[str, ...]:
    return PurePosixPath(name).parts[:-1]


def _file(name: str) -> tuple[str, ...]:
    return PurePosixPath(name).parts[-1:]


def _has_rows(name: str) -> bool:
    return row_ending(PurePosixPath(name)) in ROWS | {JSON}


def _is_visible(name: str) -> bool:
    *folders, file = name.split("/")
    hidden = any(part.startswith((".", "__")) for part in folders) or file.startswith(".")
    return not hidden and not _is_beside(name)


def _is_beside(name: str) -> bool:
    return PurePosixPath(name).name in IGNORED


def _refuse_several_kinds(files: Sequence[str]) -> None:
    """One text may be there twice, as JSON lines and as parquet."""
    kinds = sorted({row_ending(PurePosixPath(name)) for name in files})
    if len(kinds) > 1:
        raise Unusable(f"has files of several kinds, {_some(kinds)}: {_by_a_pattern(files)}")


def _check(files: Sequence[str]) -> None:
    """Raise Unusable for what no text can be, before it is downloaded."""
    if len(files) > FILES_MAX:
        raise Unusable(f"means {len(files):,} files, {FILES_MAX:,} are allowed: name fewer")
    for name in files:
        path = PurePosixPath(name)
        ending = path.suffix.lower()
        packed_text = ending in COMPRESSED and not (is_packed(path) and _has_rows(name))
        if packed_text or ending in ARCHIVES:
            raise Unusable(f"{name} is an archive: unpack it on this machine, and name its files")
    others = [name for name in files if not _has_rows(name)]
    if 0 < len(others) < len(files):
        raise Unusable(f"finds files with rows, and {others[0]} without: name one kind")


def is_sound(name: str) -> bool:
    """Return whether a name from a list of files stays below a folder, and can be shown."""
    parts = name.split("/")
    fits = len(name.encode("utf-8", "replace")) <= PATH_BYTES_MAX and all(
        len(part.encode("utf-8", "replace")) <= PART_BYTES_MAX for part in parts
    )
    return fits and name.isprintable() and "\\" not in name and not {"", ".", ".."} & {*parts}


def literal_folder(pattern: str) -> str:
    """The folder that all files are in which a pattern finds; empty: the repository."""
    parts = pattern.split("/")[:-1]
    wild = [number for number, part in enumerate(parts) if not WILDCARDS.isdisjoint(part)]
    return "/".join(parts[: wild[0]] if wild else parts)


def matching(names: Sequence[str], pattern: str) -> tuple[str, ...]:
    """The names that a pattern finds, in their order."""
    return tuple(_each_matching(names, [pattern])[pattern])


def _each_matching(names: Sequence[str], patterns: Sequence[str]) -> dict[str, list[str]]:
    """The names that each pattern finds, in their order."""
    ordered, there = sorted(names), set(names)
    found = dict[str, list[str]]()
    tried_chars = 0
    for pattern in patterns:
        if WILDCARDS.isdisjoint(pattern):
            found[pattern] = [pattern] if pattern in there else []
            continue
        maybe = _beginning_alike(ordered, pattern)
        tried_chars += sum(map(len, maybe))
        if len(patterns) > 1 and tried_chars > TRIED_CHARS_MAX:
            raise Unusable("its card has too many patterns for its files: name one yourself")
        parts = _compiled(pattern)
        maybe = [name for name in maybe if not _is_beside(name) or _file(name)[0] == parts[-1][0]]
        found[pattern] = [name for name in maybe if _fits(name, parts)]
    return found


def _beginning_alike(ordered: Sequence[str], pattern: str) -> Sequence[str]:
    """The names that begin as a pattern does before its first wildcard."""
    plain = re.split(r"[*?[]", pattern, maxsplit=1)[0]
    return ordered[bisect_left(ordered, plain) : bisect_right(ordered, f"{plain}{LAST}")]


PatternParts = list[tuple[str, Any]]


def _compiled(pattern: str) -> PatternParts:
    """Each part of a pattern, and what matches a name; None for any folders."""
    parts = pattern.split("/")
    if parts[-1] == ANY_FOLDERS:
        parts.append("*")
    parts = [
        each
        for each, before in zip(parts, ["", *parts], strict=False)
        if not (each == before == ANY_FOLDERS)
    ]
    if parts.count(ANY_FOLDERS) > ANY_FOLDERS_MAX:
        raise Unusable(f"a pattern has more than {ANY_FOLDERS_MAX} of {ANY_FOLDERS}: use fewer")
    return [
        (part, None if part == ANY_FOLDERS else re.compile(fnmatch.translate(part)))
        for part in parts
    ]


def _fits(name: str, pattern: PatternParts) -> bool:
    """Return whether a name is found: all places in the pattern where one may be, part by part."""
    places, parts = _onward({0}, pattern), name.split("/")
    for number, part in enumerate(parts, 1):
        hidden = part.startswith("." if number == len(parts) else (".", "__"))
        after = set[int]()
        for place in places:
            if place == len(pattern):
                continue
            written, rule = pattern[place]
            if hidden and not written.startswith(part[0]):
                continue  # it has to be asked for
            if rule is None:
                after.add(place)
            elif rule.match(part):
                after.add(place + 1)
        places = _onward(after, pattern)
        if not places:
            return False
    return len(pattern) in places


def _onward(places: set[int], pattern: PatternParts) -> set[int]:
    """The places, and those behind `**`, which may stand for no folder."""
    found = set(places)
    for place in places:
        behind = place
        while behind < len(pattern) and pattern[behind][1] is None:
            behind += 1
            found.add(behind)
    return found


def _by_a_pattern(names: Sequence[str]) -> str:
    """What to do instead, with a pattern of files that are there."""
    rows = [name for name in names if _is_visible(name) and _has_rows(name)]
    there = f", as {_pattern_of(rows)}" if rows else ""
    return f"name files by a pattern behind OWNER/NAME{there}"


def _pattern_of(files: Sequence[str]) -> str:
    """A pattern that finds the first of some files, as it stands behind a name."""
    first = PurePosixPath(files[0])
    folder = "" if len(first.parts) == 1 else f"{first.parent}/"
    inside = PurePosixPath(first.stem).suffix if is_packed(first) else ""
    return f"/{folder}*{inside}{first.suffix}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
