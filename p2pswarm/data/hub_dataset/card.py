"""The card of a data set: the subsets and splits that the YAML at the head of README.md names.

A card is written by strangers. Its scalars are read as texts and nothing is made of tags or merges;
of what it holds only a few levels are looked at, so that what aliases repeat is never copied.

Errors:  Unusable, one line, for a card that cannot be read.
Source:  huggingface.co/docs/hub/datasets-manual-configuration.
"""

import importlib
from dataclasses import dataclass
from typing import Any

from p2pswarm.base.errors import Unusable, missing_extra, one_line

LIBRARY = "yaml"  # huggingface_hub brings it
FENCE = "---"
DEFAULT = "default"
TRAIN = "train"
SUBSETS_MAX = 10_000  # those of the largest collections, in some hundred languages, have 1,000
SPLITS_MAX = 1_000
PATTERNS_MAX = 10_000  # of a split; as many as files are read
NAME_CHARS_MAX = 200
PATTERN_CHARS_MAX = 1_000
REASON_CHARS_MAX = 100  # of what yaml says


@dataclass(frozen=True, slots=True)
class CardSubset:
    """A subset that a card names."""

    name: str
    is_default: bool
    folder: str
    """Its files are below it; empty: anywhere."""
    data_files: object
    """As the card has it; None: names of files say the splits."""

    @property
    def splits(self) -> dict[str, object]:
        """The patterns of each split, as the card has them."""
        found = self.data_files
        if isinstance(found, list) and all(isinstance(each, dict) for each in found):
            pairs = [(each.get("split"), each.get("path")) for each in found[:SPLITS_MAX]]
        elif isinstance(found, dict):
            pairs = list(found.items())[:SPLITS_MAX]
        else:
            pairs = [(TRAIN, found)]
        return {name: paths for name, paths in pairs if _is_name(name)}

    def patterns(self, split: str) -> list[str]:
        """The patterns of a split, below the folder of the subset."""
        found = self.splits[split]
        paths = found if isinstance(found, list) else [found]
        if len(paths) > PATTERNS_MAX:
            raise Unusable(f"its card names more than {PATTERNS_MAX:,} files for {split!r}")
        return [self._below(each) for each in paths]

    def _below(self, path: object) -> str:
        if not isinstance(path, str) or not path.isprintable() or len(path) > PATTERN_CHARS_MAX:
            raise Unusable("its card names files by something else than a short text")
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if "://" in path or "::" in path or path.startswith("/") or ".." in parts:
            raise Unusable(f"its card names files that are elsewhere, {path!r}")
        return "/".join([self.folder, *parts] if self.folder else parts)


def subsets_of(card: bytes) -> list[CardSubset]:
    """The subsets that a README.md names, in its order; none without `configs`."""
    head = _head(card.decode("utf-8-sig", "replace"))
    found = _read(head) if head else None
    configs = found.get("configs") if isinstance(found, dict) else None
    if not configs:
        return []
    if not isinstance(configs, list) or not all(isinstance(each, dict) for each in configs):
        raise Unusable("its card has configs that are no list of subsets")
    if len(configs) > SUBSETS_MAX:
        raise Unusable(f"its card names more than {SUBSETS_MAX:,} subsets")
    return [_subset(each) for each in configs]


def _subset(config: dict[str, object]) -> CardSubset:
    name, folder = config.get("config_name", DEFAULT), config.get("data_dir") or ""
    if not _is_name(name):
        raise Unusable("its card has a subset without a name that can be shown")
    whole = CardSubset(str(name), config.get("default") in ("true", "True"), "", None)
    below = whole._below(folder)  # noqa: SLF001 - a folder is checked as the files in it are
    return CardSubset(whole.name, whole.is_default, below, config.get("data_files"))


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 1 <= len(name) <= NAME_CHARS_MAX and name.isprintable()


def _head(text: str) -> str:
    """The YAML between the first line of --- and the next; empty without any."""
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != FENCE:
        return ""
    for number, line in enumerate(lines[1:], 1):
        if line.rstrip() == FENCE:
            return "\n".join(lines[1:number])
    return ""


def _read(head: str) -> object:
    try:
        yaml: Any = importlib.import_module(LIBRARY)
    except ImportError as error:
        raise missing_extra("the card of a data set needs pyyaml", "hf") from error
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        found: object = yaml.load(head, Loader=loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = one_line(error, REASON_CHARS_MAX)
        raise Unusable(f"its card is not YAML ({reason})") from error
    return found
