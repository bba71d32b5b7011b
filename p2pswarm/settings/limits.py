"""The limits of settings, written beside each setting's type in `settings/config.py`."""

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True, slots=True)
class Between:
    """A number lies in low..high, both included."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"

    @property
    def whole(self) -> str:
        """The limits of a setting that counts something, every digit written out."""
        if self.low == self.high:
            return f"{int(self.low)}; nothing else is possible yet"
        return f"a whole number from {int(self.low)} to {int(self.high)}"


class OneOf:
    """A text is one of `choices`."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __str__(self) -> str:
        return "one of " + ", ".join(self.choices)


@dataclass(frozen=True, slots=True)
class Text:
    """A text has `least`..`longest` printable characters: other people's terminals show it."""

    longest: int
    least: int = 1

    def __str__(self) -> str:
        length = f"{self.least} to {self.longest}" if self.least else f"at most {self.longest}"
        return f"{length} printable characters"


HUB_NAME = re.compile(
    r"((?:[a-zA-Z0-9][\w.-]{0,95}/)?[a-zA-Z0-9][\w.-]{0,95})(?:@([\w./-]{1,100}))?", re.ASCII
)
HUB_NAME_CHARS_MAX = 96  # the hub's own limit, of owner and name together
HUB_CHARS_MAX = HUB_NAME_CHARS_MAX + 101  # and a revision
COMMIT = re.compile("[0-9a-f]{40}")


def hub_name(text: str) -> tuple[str, str] | None:
    """The name and the revision (empty: the newest) of NAME or NAME@REVISION; None for a path."""
    found = HUB_NAME.fullmatch(text)
    if found is None or len(found[1]) > HUB_NAME_CHARS_MAX or "--" in found[1] or ".." in text:
        return None
    return found[1], found[2] or ""


def is_pinned(text: str) -> bool:
    """Return whether it is NAME@COMMIT, which names the same files for ever."""
    found = hub_name(text)
    return found is not None and COMMIT.fullmatch(found[1]) is not None


NAME_BYTES_MAX = 255  # of every file system; to ask for a longer one raises where a folder is tried
LONG_NAME = f"a name of more than {NAME_BYTES_MAX} bytes, which no file system has"


def names_fit(path: str) -> bool:
    """Return whether no part of a path is longer than names of files may be."""
    return all(
        len(part.encode("utf-8", "replace")) <= NAME_BYTES_MAX for part in PurePath(path).parts
    )


class TextPlace:
    """A path, or the name of a data set of the hub, which no folder is put before."""


PRICE_PER_HOUR_MAX = 1_000.0  # ten times the largest machine that clouds rent


class Currency:
    """A text is the code of a currency: three capital letters, as of ISO 4217."""

    def allows(self, text: str) -> bool:
        """Return whether it is."""
        return re.fullmatch("[A-Z]{3}", text) is not None

    def __str__(self) -> str:
        return 'a currency in three capital letters, as "USD"'


BYTES = "bytes"
"""The tokenizer that is none: a byte is a token."""
TRAIN = "train:"
TRAINED_TOKENS = Between(300, 1_000_000)  # 256 bytes, and something learnt


@dataclass(frozen=True, slots=True)
class Tokenizing:
    """A text names a tokenizer: "bytes", a folder, a name of the hub, or "train:" and a number."""

    longest: int = 1_000

    def allows(self, text: str) -> bool:
        """Return whether it does."""
        if text.startswith(TRAIN):
            number = trained_tokens(text) or 0
            return TRAINED_TOKENS.low <= number <= TRAINED_TOKENS.high
        return 1 <= len(text) <= self.longest and text.isprintable() and names_fit(text)

    def __str__(self) -> str:
        number = TRAINED_TOKENS.whole.removeprefix("a whole number ")
        return (
            '"bytes", a folder with a tokenizer.json, "hf:NAME" of the hub, or "train:N", '
            f"N {number}"
        )


@dataclass(frozen=True, slots=True)
class Wandb:
    """A text is empty, a project of wandb, or PROJECT/NAME; without what wandb refuses in names."""

    longest: int = 128

    def allows(self, text: str) -> bool:
        """Return whether it is."""
        parts = text.split("/", 1) if text else []
        usable = (re.fullmatch(r"[^/\\#?%:]+", part) and part.strip() for part in parts)
        short = all(len(part) <= self.longest for part in parts)
        return short and all(usable) and text.isprintable()

    def __str__(self) -> str:
        characters = "printable characters without / \\ # ? % :"
        return f'a project of wandb or "PROJECT/NAME", each 1 to {self.longest} {characters}'


WORDS_MAX = 64  # of a command: more belongs into a script


class Notice:
    """A command as one text or as a list of words, a URL of http or https, or nothing."""

    longest = 2_000

    def allows(self, value: str | tuple[str, ...]) -> bool:
        """Return whether it is."""
        words = (value,) if isinstance(value, str) else value
        if not all(word.isprintable() for word in words) or sum(map(len, words)) > self.longest:
            return False
        if not isinstance(value, str):
            return 1 <= len(words) <= WORDS_MAX and bool(words[0])
        scheme, there, rest = value.partition("://")
        if there and scheme.isalnum():
            return is_web(value) and bool(rest)
        try:
            return not value or 1 <= len(shlex.split(value)) <= WORDS_MAX
        except ValueError:  # a quote that is not closed
            return False

    def __str__(self) -> str:
        return (
            f'a command of up to {WORDS_MAX} words, its quotes closed, or a URL "https://..." or '
            f'"http://...", {self.longest} printable characters at most'
        )


def is_web(notice: str) -> bool:
    """Return whether it is a URL that a message is posted to, and no command."""
    return notice.lower().startswith(("https://", "http://"))


def trained_tokens(text: str) -> int | None:
    """Return how many tokens are to be learnt; None if it is not "train:" and a number."""
    if not text.startswith(TRAIN):
        return None
    digits = text.removeprefix(TRAIN)
    return int(digits) if re.fullmatch("[0-9]{1,9}", digits) else None


def check_entries(name: str, entries: tuple[str, ...], allowed: OneOf, most: int) -> None:
    """Raise ValueError unless each entry is KEY=CODEC and there are at most `most`."""
    if len(entries) > most:
        raise ValueError(f"{name} has more than {most} entries")
    for entry in entries:
        key, _, codec = entry.partition("=")
        if not key.isidentifier() or codec not in allowed.choices:
            raise ValueError(f"{name}: {entry!r} is not KEY=CODEC, CODEC {allowed}")


NAMES_MAX = 4_096  # modules of a model that are named one by one
PATTERNS_MAX = 64  # each is tried on all names of a model
PATTERN_CHARS_MAX = 500  # a regular expression over a dozen names


def check_patterns(name: str, entries: tuple[str, ...], most: int = PATTERNS_MAX) -> None:
    """Raise ValueError unless there are few entries, and each is a short text that is printable."""
    if len(entries) > most:
        raise ValueError(f"{name} has more than {most:,} entries")
    for entry in entries:
        if not 1 <= len(entry) <= PATTERN_CHARS_MAX or not entry.isprintable():
            raise ValueError(f"{name}: an entry has 1 to {PATTERN_CHARS_MAX} printable characters")


def entry_for(key: str, entries: tuple[str, ...]) -> str | None:
    """Return what was set for a key, if anything."""
    pairs = (entry.partition("=") for entry in entries)
    return next((value for name, _, value in pairs if name == key), None)
