"""The corpus of files whose rows are chats, prompts with completions, or pairs of answers.

It is prepared on disk once. A pair is two documents, one after the other: the chosen answer, then
the rejected one, each behind its prompt.

Errors:  Unusable for a row that cannot be learnt from, with its file and number.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from p2pswarm.base.errors import Unusable, one_line
from p2pswarm.data.chats.conversation import (
    COMPLETION,
    EXTRAS,
    MESSAGES,
    PROMPT,
    SHARE_GPT,
    Completion,
    Conversation,
    is_chat,
    row_of,
)
from p2pswarm.data.chats.preference import CHOSEN, REJECTED, is_preference, preference_of
from p2pswarm.data.chats.targets import TokenisedRow, tokens_of_chat, tokens_of_completion
from p2pswarm.data.chats.template import ChatTemplate
from p2pswarm.data.chats.whole_text import DTYPE, stored_corpus
from p2pswarm.data.documents import (
    LINE_BYTES_MAX,
    HalfCharacters,
    arrow_batches,
    column_rows,
    json_text,
    parquet_batches,
)
from p2pswarm.data.held_out import is_held_out_document
from p2pswarm.data.row_formats.compression import row_ending
from p2pswarm.data.row_formats.endings import ARROW, JSON, JSON_LINES, PARQUET
from p2pswarm.data.row_formats.field_path import (
    JsonObject,
    TwiceError,
    object_once,
    require_once,
)
from p2pswarm.data.row_formats.json_rows import json_rows
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.sources import FoundFiles
from p2pswarm.data.token_file import PreparedDocument
from p2pswarm.data.tokenizer import Tokenizer
from p2pswarm.settings.train_config import TrainConfig

RULE = "chats 4"  # rises when a row becomes other tokens
PAIRS = "pairs 4"  # the same of pairs
CHAT_FIELDS = (MESSAGES, SHARE_GPT, PROMPT, COMPLETION, *EXTRAS)
PAIR_FIELDS = (PROMPT, CHOSEN, REJECTED, *EXTRAS)
FIELDS = (*CHAT_FIELDS, CHOSEN, REJECTED)
REASON_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class ChatSource:
    """The files of one text, and what writes their chats."""

    train: TrainConfig
    found: FoundFiles
    tokenizer: Tokenizer | None
    """The run's, which reads the names of special tokens in texts as the settings say."""
    template: ChatTemplate | None
    """None if no row needs one, or there is none."""
    paired: bool = False
    """Its rows are pairs of answers."""

    @property
    def settings(self) -> str:
        """Return what decides which tokens there are, and on which side."""
        tokens = "bytes" if self.tokenizer is None else self.tokenizer.mark
        template = "" if self.template is None else self.template.as_json
        rule = PAIRS if self.paired else RULE
        return f"{rule} {self.train.held_out_share!r} {tokens} {template!r}"

    def documents(self) -> Iterator[PreparedDocument]:
        """Each row as it is stored."""
        reading = self.tokenizer.reading_special() if self.tokenizer else None
        for file in self.found.paths:
            halves = HalfCharacters(file)
            for number, row in rows_of(file):
                try:
                    yield from self._documents(row, reading, halves)
                except Unusable as error:
                    raise Unusable(f"{file}: row {number}: {error}") from error

    def _documents(
        self, row: Mapping[str, Any], reading: Tokenizer | None, halves: HalfCharacters
    ) -> Iterator[PreparedDocument]:
        """Of a row; `reading`: the tokenizer that reads special tokens, which templates write."""
        text = _bytes_of(row, paired=self.paired)
        held_out = is_held_out_document(text, self.train.held_out_share)
        if not self.paired:
            said = [row_of(row)]
        else:
            pair = preference_of(row)
            said = [pair.chosen, pair.rejected]
        made = [self._tokens(_without_halves(each, halves), reading) for each in said]
        if self.paired and np.array_equal(made[0].tokens, made[1].tokens):
            raise Unusable("its answers are the same tokens: there is nothing to prefer")
        for each in made:
            yield PreparedDocument(held_out, each.tokens.astype(DTYPE).tobytes(), each.text_bytes)

    def _tokens(self, said: Conversation | Completion, reading: Tokenizer | None) -> TokenisedRow:
        if not isinstance(said, Conversation):
            return tokens_of_completion(said, self.tokenizer)
        if reading is None:
            raise Unusable("it is a chat, whose template needs a tokenizer: set train.tokenizer")
        if self.template is None:
            raise Unusable(
                "it is a chat, and the tokenizer has no template: name one in train.chat_template"
            )
        return tokens_of_chat(said, self.template, reading)


def _without_halves(
    said: Conversation | Completion, halves: HalfCharacters
) -> Conversation | Completion:
    """The same with question marks for halves of surrogate pairs, as documents have them."""
    found = dataclasses.asdict(said)
    text = json.dumps(found, ensure_ascii=False)
    whole = halves.encoded(text).decode()
    return said if whole == text else dataclasses.replace(said, **json.loads(whole))


def _bytes_of(row: Mapping[str, Any], *, paired: bool) -> bytes:
    """All that a row says, whichever file it is in: it decides which side the row is on."""
    fields = PAIR_FIELDS if paired else CHAT_FIELDS
    said = _without_nulls({name: row.get(name) for name in fields})  # columns have more of them
    return json.dumps(said, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")


def sides_of(
    found: FoundFiles, share: float, *, paired: bool = False
) -> Iterator[tuple[bool, bytes]]:
    """Each row, and whether it is held out."""
    for file in found.paths:
        for _, row in rows_of(file):
            text = _bytes_of(row, paired=paired)
            yield is_held_out_document(text, share), text


def load_chats(source: ChatSource, *, cache: Path, seed: int, shape: tuple[int, int]) -> Corpus:
    """The corpus of the source, tokenised once into `cache`; `shape` is rows, sequence length."""
    share, documents = source.train.held_out_share, source.documents()
    return stored_corpus(source.found, share, source.settings, documents, cache, seed, shape)


def has_chats(found: FoundFiles, field: str) -> bool:
    """Return whether rows are chats, or prompts with completions: the first one of all tells.

    Rows that have the text `field` are documents, whatever else they have.
    """
    first = _first_fields(found)
    return field not in first and is_chat([name for name, there in first.items() if there])


def has_pairs(found: FoundFiles, field: str | None = None) -> bool:
    """Return whether rows are pairs of answers without `field`: the first one of all tells."""
    first = _first_fields(found)
    return field not in first and is_preference([name for name, there in first.items() if there])


def _first_fields(found: FoundFiles) -> dict[str, bool]:
    """The fields of the first row of all, and whether each has a value."""
    if not found.rows or row_ending(found.paths[0]) not in PARQUET | ARROW | JSON_ROWS:
        return {}
    _, first = next(rows_of(found.paths[0]), (0, {}))
    return {name: value is not None for name, value in first.items()}


JSON_ROWS = JSON_LINES | {JSON}


def rows_of(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file, each with its number."""
    ending = row_ending(file)
    try:
        if ending in PARQUET | ARROW:
            batches = parquet_batches if ending in PARQUET else arrow_batches
            yield from column_rows(file, batches(file, _wanted), _rows_of_batch)
        else:
            yield from _lines(file)
    except OSError as error:
        reason = error.strerror or one_line(error, REASON_CHARS_MAX)
        raise Unusable(f"{file}: cannot be read, mend or remove it: {reason}") from error


def _rows_of_batch(batch: Any) -> list[dict[str, Any]]:
    """Rows without nulls: a column has all fields of all its objects, also those of others."""
    return [_without_nulls(row) for row in batch.to_pylist()]


def _without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_nulls(each) for key, each in value.items() if each is not None}
        case list():
            return [_without_nulls(each) for each in value]
    return value


def _lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in json_rows(file, LINE_BYTES_MAX):
        text = json_text(row, file, f"row {number}")
        try:
            found = _object_of(text)
        except TwiceError as error:
            raise Unusable(f"{file}: row {number}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise Unusable(f"{file}: row {number}: not JSON: remove or mend it") from error
        if not isinstance(found, dict):
            raise Unusable(f"{file}: row {number}: not an object")
        yield number, found


def _object_of(text: str) -> Any:
    """A row, in which no field that is read stands twice."""
    try:
        return json.loads(text, object_pairs_hook=object_once)
    except TwiceError:
        require_once(json.loads(text, object_pairs_hook=JsonObject), FIELDS)
        return json.loads(text)


def _wanted(schema: Any) -> list[str]:
    """The fields that a row is read by; all where none of them is there.

    A name that two columns have is no field: arrow selects neither by it.
    """
    counts = Counter(schema.names)
    once = [name for name in schema.names if counts[name] == 1]
    return [name for name in FIELDS if name in once] or once
