"""A folder of a tokenizer, as the library `transformers` reads it.

Its `AutoTokenizer` makes more of a folder than tokenizer.json says: many classes build the
tokenizer anew from the vocabulary, files beside it add tokens, and one of five files says what ends
a text. So the library itself reads the folder, and what it makes is written as a tokenizer.json
again: a value that needs no library but `tokenizers`. No code of the folder is run, and nothing is
fetched.

Errors:  Unusable where the library is missing or cannot read the folder, and for a class that does
         in Python what no tokenizer.json can say.
"""

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from p2pswarm.base.errors import SwarmError, Unusable, missing_extra, one_line
from p2pswarm.base.files import read_small
from p2pswarm.data.sources import TOKENIZER_FILE

LIBRARY = "transformers"
TOKENS_MAX = 1 << 22  # more than any vocabulary has
PANIC = "PanicException"  # of pyo3, which has no module to import it from
CONFIG_FILE = "tokenizer_config.json"
MODEL_FILE, GENERATION_FILE = "config.json", "generation_config.json"
TEMPLATE_FILE = "chat_template.jinja"
BESIDE = (CONFIG_FILE, MODEL_FILE, "special_tokens_map.json", "added_tokens.json")
"""What `AutoTokenizer` reads beside a tokenizer.json."""
CONFIG_BYTES_MAX = 16 << 20  # some list every token that was added
REASON_CHARS_MAX = 300  # some errors hold a part of the file
TRIED = (
    "The cat, THE CATS: 12,345.67 sat;\n\n\t on_mats  and\u00a0sofas. \u00c9t\u00e9 stra\u00dfe "
    "\ufb01ne e\u0301 \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \U0001f600 don't you're <b>bold</b>\r\n"
)
"""A text in which a class that does something of its own to text shows it."""


@dataclass(frozen=True, slots=True)
class LibraryReading:
    """A tokenizer as the library has made it."""

    text: str
    """Its tokenizer.json."""
    end: int | None
    """The token that ends a text, if a file or the class says so."""
    remarks: tuple[str, ...]
    """What its owner should know before a run, a line each."""


def is_for_library(file: Path) -> bool:
    """Return whether a tokenizer.json has files beside it that the library reads with it."""
    return file.name == TOKENIZER_FILE and any(file.with_name(name).is_file() for name in BESIDE)


def read_by_library(folder: Path) -> LibraryReading:
    """The tokenizer of a folder with a tokenizer.json."""
    tables = {name: _table(folder / name) for name in (*BESIDE, GENERATION_FILE)}
    with _library_errors(folder, tables[CONFIG_FILE]):
        found = _loaded(folder)
        made = found.backend_tokenizer
        text = made.to_str()
        if getattr(made.model, "dropout", None):
            made.model.dropout = None  # as in a run (`tokenizer.py`): it is chance
        theirs = found(TRIED, add_special_tokens=False)["input_ids"]
        same = theirs == made.encode(TRIED, add_special_tokens=False).ids
    if not same:
        raise Unusable(
            f"{folder}: {type(found).__name__} of transformers does more to a text than its "
            f"{TOKENIZER_FILE} says: name another tokenizer"
        )
    end, remarks = _end(folder, tables, found.eos_token_id, made)
    return LibraryReading(text, end, tuple(remarks))


def library_tokenizer(folder: Path) -> Any:
    """The library's own tokenizer of a folder."""
    with _library_errors(folder, _table(folder / CONFIG_FILE)):
        return _loaded(folder)


def _loaded(folder: Path) -> Any:
    return _library(folder).AutoTokenizer.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True
    )


@contextmanager
def _library_errors(folder: Path, config: Mapping[str, Any]) -> Iterator[None]:
    """Inside, the library reads a folder: it raises as many kinds as it has classes."""
    try:
        yield
    except BaseException as error:
        if not is_of_library(error):
            raise
        if "auto_map" in config:
            raise Unusable(
                f"{folder}: its tokenizer is code of the folder, which is not run: name another"
            ) from error
        raise Unusable(
            f"{folder}: transformers cannot read its tokenizer: "
            f"{one_line(error, REASON_CHARS_MAX)}: name another, or {TOKENIZER_FILE} alone in a "
            "folder"
        ) from error


def is_of_library(error: BaseException) -> bool:
    """Return whether an error is the library's own: a panic of Rust is no Exception."""
    if isinstance(error, SwarmError | AssertionError):
        return False
    return isinstance(error, Exception) or type(error).__name__ == PANIC


def _library(folder: Path) -> ModuleType:
    try:
        found = importlib.import_module(LIBRARY)
    except ImportError as error:
        what = f"{folder}: what lies beside {TOKENIZER_FILE} changes it, which takes transformers"
        raise missing_extra(what, "hf") from error
    found.logging.set_verbosity_error()
    return found


def _end(
    folder: Path, tables: Mapping[str, dict[str, Any]], named: int | None, made: Any
) -> tuple[int | None, list[str]]:
    """The token that ends a text, and what is odd about it."""
    by_model = {
        name: ends
        for name in (MODEL_FILE, GENERATION_FILE)
        if (ends := [end for end in _ends(tables[name]) if made.id_to_token(end)])
    }
    if named is None:
        return next((ends[0] for ends in by_model.values()), None), []
    for name, ends in by_model.items():
        if named not in ends:
            ours, other = made.id_to_token(named), made.id_to_token(ends[0])
            remark = (
                f"{folder}: its tokenizer ends a text with {ours!r}, and {name} with {other!r}: "
                f"{ours!r} is taken"
            )
            return named, [remark]
    return named, []


def _ends(config: Mapping[str, Any]) -> list[int]:
    """The tokens that end a text, as a config of a model has them."""
    found = config.get("eos_token_id")
    if found is None and isinstance(text := config.get("text_config"), dict):
        found = text.get("eos_token_id")
    several = found if isinstance(found, list) else [found]
    return [end for end in several if type(end) is int and 0 <= end < TOKENS_MAX]


def _table(file: Path) -> dict[str, Any]:
    """A file of JSON beside the tokenizer; empty if it is not there."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(read_small(file, CONFIG_BYTES_MAX, "it is no config of a tokenizer"))
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{file} is not JSON: {one_line(error, REASON_CHARS_MAX)}") from error
    if not isinstance(found, dict):
        raise Unusable(f"{file} is no JSON object: copy it again")
    return found
