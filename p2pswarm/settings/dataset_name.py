"""Names of data sets of the hub, as `train.data` has them.

    hf:OWNER/NAME  hf:OWNER/NAME#SUBSET:SPLIT  hf:OWNER/NAME@REVISION/data/train-*.parquet

A revision has no slash: it is written %2F, but for the hub's own references. So a slash begins a
pattern.

Errors:  ValueError, one line, for a name that is none.
Source:  huggingface_hub's `HfFileSystem` writes revisions alike, in hf://datasets/NAME@REVISION.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from p2pswarm.settings.config import HF
from p2pswarm.settings.limits import COMMIT, hub_name

SHOWN_CHARS = 80  # of what somebody typed, so that the message stays one line
NAMED = re.compile(r"([^/@#]+/[^/@#]+)(@(?:refs/(?:convert|pr)/[^/#]*|[^/#]*))?(.*)")
REFERENCE = re.compile(r"refs/convert/\w{1,60}|refs/pr/\d{1,9}", re.ASCII)
REVISION = re.compile(r"[\w.%-]{1,100}", re.ASCII)
SPLIT = re.compile(r"[\w.-]{1,100}", re.ASCII)
SUBSET_CHARS_MAX = 200
PATTERN_CHARS_MAX = 1_000
WANTED = '"hf:OWNER/NAME", "hf:OWNER/NAME#SUBSET:SPLIT", "hf:OWNER/NAME/data/train-*.parquet"'


@dataclass(frozen=True, slots=True)
class DatasetName:
    """A data set of the hub, and what of it is read."""

    name: str
    """OWNER/NAME."""
    revision: str = ""
    """A branch, a tag or a commit; empty: the newest."""
    subset: str = ""
    """Empty: the default one."""
    split: str = ""
    """Empty: the one to train on."""
    pattern: str = ""
    """Of files in the repository; empty: subset and split say which."""

    @property
    def is_pinned(self) -> bool:
        """Return whether it names the same files for ever."""
        return COMMIT.fullmatch(self.revision) is not None

    def at(self, commit: str) -> Self:
        """The same at one commit."""
        return replace(self, revision=commit)

    @property
    def path(self) -> Path:
        """As settings hold it in the place of a path."""
        return Path(str(self))

    def __str__(self) -> str:
        revision = self.revision
        if not REFERENCE.fullmatch(revision):
            revision = revision.replace("%", "%25").replace("/", "%2F")
        whole = f"{HF}{self.name}" + (f"@{revision}" if revision else "")
        if self.pattern:
            return f"{whole}/{self.pattern}"
        if not self.subset and not self.split:
            return whole
        return f"{whole}#{self.subset}" + (f":{self.split}" if self.split else "")


def is_dataset(data: Path | str) -> bool:
    """Return whether it stands for a data set of the hub, and is no path."""
    return str(data).startswith(HF)


def dataset_name(text: str) -> DatasetName:
    """Read the name of a data set; it begins with hf: and is not checked further than its form."""
    shown = repr(text[:SHOWN_CHARS])
    found = NAMED.fullmatch(text.removeprefix(HF))
    if found is None or hub_name(found[1]) is None or not text.isprintable():
        raise ValueError(f"{shown} names no data set: {_remedy(text)}")
    rest = found[3] if found[3] != "/" else ""
    revision = _revision(found[2][1:]) if found[2] else ""
    if revision is None:
        raise ValueError(f"{shown}: a revision is a branch, a tag or a commit; write %2F for /")
    if not rest:
        return DatasetName(found[1], revision)
    if rest.startswith("#"):
        subset, _, split = rest[1:].partition(":")
        wrong = split and not SPLIT.fullmatch(split)
        if wrong or len(subset) > SUBSET_CHARS_MAX or not (subset or split):
            raise ValueError(f"{shown}: behind # is SUBSET, SUBSET:SPLIT or :SPLIT")
        return DatasetName(found[1], revision, subset, split)
    pattern = rest[1:]
    parts = pattern.split("/")
    if len(pattern) > PATTERN_CHARS_MAX or not {"", ".", ".."}.isdisjoint(parts):
        raise ValueError(
            f"{shown}: behind the name is a pattern of files in the repository, as "
            "/data/train-*.parquet"
        )
    return DatasetName(found[1], revision, pattern=pattern)


def _revision(written: str) -> str | None:
    """The revision; None for what cannot be one."""
    if REFERENCE.fullmatch(written):
        return written
    revision = unquote(written)
    fine = REVISION.fullmatch(written) and hub_name(f"a/b@{revision}") is not None
    return revision if fine else None


def _remedy(text: str) -> str:
    """What to write in the place of something that people bring from elsewhere."""
    where = re.fullmatch(r"hf:/+datasets/(.+)", text)
    if where is not None:
        return f'write "{HF}{where[1][:SHOWN_CHARS]}"'
    if "/" not in text:
        return f"it has an owner: {WANTED}; a path on this machine is written without {HF}"
    return f"{WANTED}; a path on this machine is written without {HF}"
