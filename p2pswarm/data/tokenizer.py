"""Tokenizers: text to tokens and back, as the library `tokenizers` reads a tokenizer.json.

Units:   bytes; tokens are numbers below `size`.
"""

import copy
import functools
import hashlib
import importlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from p2pswarm.base.errors import Unusable, missing_extra, one_line
from p2pswarm.base.files import read_small
from p2pswarm.data.hub import pinned_file, small_file
from p2pswarm.data.samples.corpus import Tokens
from p2pswarm.data.sources import TOKENIZER_FILE, tokenizer_file
from p2pswarm.data.tokenizer_folder import (
    BESIDE,
    CONFIG_BYTES_MAX,
    CONFIG_FILE,
    GENERATION_FILE,
    TEMPLATE_FILE,
    TOKENS_MAX,
    is_for_library,
    is_of_library,
    read_by_library,
)

log = logging.getLogger(__name__)

LIBRARY = "tokenizers"
FILE_BYTES_MAX = 128 << 20  # that of a vocabulary of 262,144 has 33 MB
END = "<|endoftext|>"
ENDS = (END, "</s>", "<eos>", "<|end_of_text|>", "[SEP]")
"""What ends a document where no file says so, the first that is there: GPT-2, Llama 2, Gemma,
Llama 3, BERT."""
INSTEAD = (
    f"put its {TOKENIZER_FILE} and {CONFIG_FILE} into a folder, and set train.tokenizer to that"
)
UNUSED = ("truncation", "padding")
MARKS = ("post_processor",)
"""What only adds the tokens that mark the beginning and end of a text, which no run asks for."""
UNWRITTEN = ': name one that has a token for each byte or one for the unknown, as "train:32000"'
LINE_CHARS_MAX = 300  # some errors hold a part of the file
PROBE = "a b"  # a text, before which some tokenizers put a token
SPECIAL_MARK = "\nspecial tokens are read"  # in the digest: the same text gives other tokens
SMALL_TOKENS = 1 << 16  # below it a token fits two bytes
HALF = "\ufffd"  # bytes that are no character (yet)
AROUND_BYTES = 16  # shown of a text on both sides of what is odd in it
WAITING_MAX = 16  # tokens of which none ends a character: those bytes are no text


class Tokenizer:
    """One tokenizer, as its JSON text describes it; `end` is the token that ends a document.

    A tokenizer is a value: its JSON text, from which every machine makes the same tokens. What a
    run's identity holds of it is a digest of that text, without white space and without what a run
    never uses (truncation, padding). The library is loaded when a tokenizer is asked for.
    """

    def __init__(
        self, text: str, where: str, end: str = "", *, reads_special: bool = False
    ) -> None:
        """`reads_special`: the name of a special token is that token, and not its letters."""
        self._where = where
        with _told(f"{where}: no tokenizer that can be read"):
            found = json.loads(text)
            assert_table(found)
            bare = {key: value for key, value in found.items() if key not in UNUSED}
            self.remarks = tuple(_without_chance(bare, where))
            """What its owner should know before a run, a line each."""
            self.text = json.dumps(bare, ensure_ascii=False, indent=1)
            canonical = json.dumps(bare, sort_keys=True, separators=(",", ":"))
            whole = json.dumps(dict.fromkeys(UNUSED) | bare)
            self._tokenizer = library().Tokenizer.from_str(whole)
        self._tokenizer.encode_special_tokens = not reads_special
        marked = canonical + SPECIAL_MARK if reads_special else canonical
        self.digest = hashlib.sha256(marked.encode()).hexdigest()
        self.size = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if self.size < 1:
            raise Unusable(f"{where}: a tokenizer without tokens: name another")
        names = (end,) if end else ENDS
        known = (self._tokenizer.token_to_id(name) for name in names)
        self.end: int | None = next((number for number in known if number is not None), None)
        self.begin: int | None = None
        """The token that documents of text begin with; a run says if one does."""
        self._is_told = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return how tokens lie on disk."""
        return np.dtype("<u2" if self.size <= SMALL_TOKENS else "<u4")

    @property
    def end_text(self) -> str | None:
        """Return how the token that ends a document is written; None without one."""
        return None if self.end is None else str(self._tokenizer.id_to_token(self.end))

    def ending_with(self, end: int) -> "Tokenizer":
        """The same with another token that ends a document; -1: none does."""
        other = copy.copy(self)
        other.end = None if end < 0 else end
        return other

    @functools.cached_property
    def own_begin(self) -> int | None:
        """The token that it puts before each text if it is left to itself (BOS); None without."""
        with _told(f"{self._where}: it cannot write the text", UNWRITTEN):
            bare, whole = (
                self._tokenizer.encode(PROBE, add_special_tokens=adds).ids for adds in (False, True)
            )
        return whole[0] if bare and whole[1 : len(bare) + 1] == bare else None

    def beginning_with(self, begin: int) -> "Tokenizer":
        """The same with a token before each document of text; -1: none."""
        other = copy.copy(self)
        other.begin = None if begin < 0 else begin
        return other

    @property
    def mark(self) -> str:
        """Return what decides which tokens documents have."""
        begin = "" if self.begin is None else f" {self.begin}"
        return f"{self.digest} {self.end}{begin}"

    def reading_special(self) -> "Tokenizer":
        """The same, that reads the names of special tokens in a text as those tokens."""
        other = Tokenizer(self.text, "train.special_tokens", reads_special=True)
        other.end, other.begin, other.remarks = self.end, self.begin, self.remarks
        return other

    def with_remarks(self, *remarks: str) -> "Tokenizer":
        """The same, about which its owner should know something."""
        other = copy.copy(self)
        other.remarks = (*self.remarks, *remarks)
        return other

    def makes_tokens_as(self, other: "Tokenizer") -> bool:
        """Return whether both have the same tokens for every text."""
        return self.unmarked == other.unmarked

    @property
    def unmarked(self) -> dict[str, Any]:
        """Everything that decides which tokens a text has."""
        whole = json.loads(self._tokenizer.to_str())
        return {key: value for key, value in whole.items() if key not in MARKS}

    def encode(self, texts: Sequence[bytes]) -> list[Tokens]:
        """The tokens of each text, without any that its beginning or end would be marked by."""
        read = [self._read(text) for text in texts]
        with _told(f"{self._where}: it cannot write the text", UNWRITTEN):
            found = self._tokenizer.encode_batch_fast(read, add_special_tokens=False)
        return [np.array(each.ids, dtype=self.dtype) for each in found]

    def encode_with_places(self, text: str) -> tuple[Tokens, list[tuple[int, int]]]:
        """The tokens of one text, and the characters that each stands for."""
        with _told(f"{self._where}: it cannot write the text", UNWRITTEN):
            found = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(found.ids, dtype=self.dtype), found.offsets

    @functools.cached_property
    def special_names(self) -> dict[str, int]:
        """The special tokens, as they are written."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: number for number, token in sorted(added.items()) if token.special}

    def _read(self, text: bytes) -> str:
        """A text, in which bytes that are not UTF-8 are replaced; that is told once."""
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            if not self._is_told:
                around = text[max(0, error.start - AROUND_BYTES) : error.end + AROUND_BYTES]
                log.warning(
                    "the text has bytes that are not UTF-8, first in %r: each becomes %s; save the "
                    "text as UTF-8",
                    around,
                    HALF,
                )
                self._is_told = True
            return text.decode("utf-8", "replace")

    def decode(self, tokens: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
        """The text of tokens, in pieces, each as soon as its characters are whole.

        `after`: the tokens before them, whose text was shown: some decoders put a space between two
        tokens and none before the first, and some make a character of several tokens.
        """
        before, waiting = list(after), list[int]()
        for token in tokens:
            waiting.append(token)
            piece = self._piece(before, waiting)
            if (not piece or piece.endswith(HALF)) and len(waiting) < WAITING_MAX:
                continue
            if piece:
                yield piece
            before, waiting = waiting, []
        if waiting:
            yield self._piece(before, waiting)

    def written(self, tokens: Sequence[int]) -> str:
        """The text of tokens, with the names of special ones."""
        with _told(f"{self._where}: it cannot read tokens"):
            return str(self._tokenizer.decode(tokens, skip_special_tokens=False))

    def _piece(self, before: Sequence[int], waiting: Sequence[int]) -> str:
        """Return what tokens add to the text of those before them."""
        shown = self._text([*before])
        text = self._text([*before, *waiting])
        if text.startswith(shown):
            return text[len(shown) :]
        return self._text(waiting)  # bytes that are no text spoil those before them

    def _text(self, tokens: Sequence[int]) -> str:
        with _told(f"{self._where}: it cannot read tokens"):
            return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


@contextmanager
def _told(what: str, remedy: str = "") -> Iterator[None]:
    """Inside, the library is called: it raises bare Exceptions."""
    try:
        yield
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise Unusable(f"{what}: {one_line(error, LINE_CHARS_MAX)}{remedy}") from error


def _without_chance(tokenizer: dict[str, Any], where: str) -> Iterator[str]:
    """Have a text get the same tokens each time; yields what that leaves out."""
    model = tokenizer.get("model")
    if isinstance(model, dict) and (dropout := model.get("dropout")):
        tokenizer["model"] = model | {"dropout": None}
        yield (
            f"{where}: its BPE dropout of {dropout} is left out: a microbatch that is made again "
            "has the same tokens"
        )


def library() -> ModuleType:
    """The module; Unusable where it is not installed."""
    try:
        return importlib.import_module(LIBRARY)
    except ImportError as error:
        raise missing_extra("a tokenizer needs tokenizers", "data") from error


def assert_table(found: object) -> None:
    """Raise ValueError for JSON that is no object."""
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - the user's, not ours


def read_tokenizer(place: Path) -> Tokenizer:
    """The tokenizer of a folder, or of a tokenizer.json, as transformers reads it."""
    file = tokenizer_file(place)
    plain = kept_tokenizer(file)
    if not is_for_library(file):
        return plain.with_remarks(_guess(plain, file))
    if plain.size > TOKENS_MAX:  # the library writes a line for each number below
        raise Unusable(
            f"{file}: has tokens up to number {plain.size - 1:,}, {TOKENS_MAX:,} are allowed: name "
            "another"
        )
    found = read_by_library(file.parent)
    made = Tokenizer(found.text, str(file.parent))
    if not plain.makes_tokens_as(made):
        plain = made
    if found.end is None:
        return plain.with_remarks(*found.remarks, _guess(plain, file))
    return plain.ending_with(found.end).with_remarks(*found.remarks)


def kept_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer in a file of ours: nothing beside it has a say."""
    text = read_small(file, FILE_BYTES_MAX, "it is no tokenizer")
    return Tokenizer(text.decode("utf-8", "replace"), str(file))


def _guess(tokenizer: Tokenizer, file: Path) -> str:
    end = tokenizer.end_text
    taken = "a line break" if end is None else repr(end)
    return (
        f"{file}: no file beside it says what ends a document: {taken} is taken; eos_token in "
        f"{CONFIG_FILE} would say it"
    )


def hub_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model of the hub."""
    return read_tokenizer(hub_tokenizer_folder(name) / TOKENIZER_FILE)


def hub_tokenizer_folder(name: str) -> Path:
    """The files of a model of the hub that its tokenizer is read from, all of one commit."""
    try:
        model, path = pinned_file(name, TOKENIZER_FILE, FILE_BYTES_MAX, INSTEAD)
        for beside in (*BESIDE, GENERATION_FILE, TEMPLATE_FILE):  # those that there are
            small_file(model, beside, CONFIG_BYTES_MAX, INSTEAD)
    except Unusable as error:
        raise Unusable(f"train.tokenizer: there is no such folder, and {error}") from error
    return path.parent


def tokenizer_of_run(file: Path, digest: str, end: int) -> Tokenizer | None:
    """The tokenizer in a file, as the run read it whose settings have this digest and this end.

    None if the file has another one. What lies beside it may be another model's: it is read only
    if the file alone is not the run's.
    """
    plain = kept_tokenizer(file)
    if not _fits(plain, digest) and is_for_library(file):
        plain = read_tokenizer(file)
    fitting = _fits(plain, digest)
    return fitting.ending_with(end) if fitting else None


def _fits(tokenizer: Tokenizer, digest: str) -> Tokenizer | None:
    """The tokenizer, reading special tokens or not, if one of both has the digest."""
    both = (tokenizer, tokenizer.reading_special())
    return next((each for each in both if each.digest == digest), None)


def tokenizer_beside(weights: Path) -> Path:
    """The name of the tokenizer's file that belongs to a file of weights."""
    return weights.with_name(f"{weights.stem}.{TOKENIZER_FILE}")


def train_tokenizer(size: int, texts: Iterable[bytes]) -> Tokenizer:
    """Byte-level BPE of `size` tokens, learnt from texts; the same texts give the same tokenizer.

    Every text can be written in it: the 256 bytes are tokens, too. The first token ends documents.
    """
    module = library()
    tokenizer = module.Tokenizer(module.models.BPE())
    tokenizer.pre_tokenizer = module.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = module.decoders.ByteLevel()
    trainer = module.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=module.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    read = (text.decode("utf-8", "replace") for text in texts)
    with _told(f"train.tokenizer: {size} tokens cannot be learnt"):
        tokenizer.train_from_iterator(read, trainer)
    return Tokenizer(tokenizer.to_str(), f"train.tokenizer: train:{size}", END)
