"""The text that a program names: values; the trainer reads the files when it begins."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.settings.limits import BYTES
from p2pswarm.settings.train_config import HELD_OUT_SHARE

SHOWN_CHARS = 60  # of a wrong value, so that the message stays one line
WANTED = 'a path or pattern, or Bytes, Tokenised, or for several texts Mixture({"a.txt": 1, ...})'


@dataclass(frozen=True, slots=True)
class Bytes:
    """Text as bytes: 256 tokens, no tokenizer."""

    path: str | Path
    """A text file, a folder of them, "hf:OWNER/NAME", or what else `train.data` may be
    (docs/data.md)."""
    suffixes: tuple[str, ...] = ()
    """The endings of the files to read in a folder, as `(".txt", ".md")`; empty: all text files."""
    held_out_share: float = HELD_OUT_SHARE
    """Share of the bytes of text files, or of rows, that is never trained on: 0.001 to 0.5."""
    field: str = "text"
    """Which field of a row is the document."""

    @property
    def tokenizer(self) -> str:
        """As that of `Tokenised`: a token is a byte."""
        return BYTES


@dataclass(frozen=True, slots=True)
class Tokenised:
    """Text as the tokens of a tokenizer."""

    path: str | Path
    """As that of `Bytes`."""
    tokenizer: str | Path
    """A folder with a tokenizer.json; or "OWNER/NAME" of the hub; or "train:32000": as many are
    learnt from the text."""
    suffixes: tuple[str, ...] = ()
    held_out_share: float = HELD_OUT_SHARE
    field: str = "text"
    special_tokens: str = "text"
    """What <|im_end|> in a document is: "text", its letters; "tokens", for chat templates' text."""
    chat_template: str | Path | None = None
    """A file with the template that writes chats, instead of the tokenizer's (docs/chats.md)."""
    document_begin: str = "auto"
    """Begin documents with the tokenizer's token for that (BOS): "token", "none"; "auto": if the
    run starts from pretrained weights."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Several texts with weights (docs/data.md)."""

    weights: Mapping[str, float]
    """Of each text, named as the path of `Bytes`: its share is this over the sum of all."""
    tokenizer: str | Path = BYTES
    """As that of `Tokenised`; a token is a byte, if it is left out."""
    suffixes: tuple[str, ...] = ()
    held_out_share: float = HELD_OUT_SHARE
    field: str = "text"
    """Which field of a row is the document, in all of them."""
    special_tokens: str = "text"
    """As that of `Tokenised`."""
    chat_template: str | Path | None = None
    """As that of `Tokenised`."""
    document_begin: str = "auto"
    """As that of `Tokenised`."""


TrainedText = Bytes | Tokenised | Mixture


def text_of(data: TrainedText | str | Path) -> TrainedText:
    """The text that a program names by a path or by one of the values; ValueError for others."""
    if isinstance(data, str | Path):
        return Bytes(data)
    if not isinstance(data, TrainedText):
        raise ValueError(f"data is {WANTED}, not {_shown(data)}")  # noqa: TRY004 - a setting's value
    if isinstance(data, Mixture) and not isinstance(data.weights, Mapping):
        raise ValueError(f'weights is {{"a.txt": 1, ...}}, not {_shown(data.weights)}')  # noqa: TRY004
    for path in data.weights if isinstance(data, Mixture) else [data.path]:
        if not isinstance(path, str | Path):
            raise ValueError(f"path is a text, not {_shown(path)}")  # noqa: TRY004
    template = None if isinstance(data, Bytes) else data.chat_template
    if not isinstance(template, str | Path | None):
        raise ValueError(f"chat_template is a file, not {_shown(template)}")  # noqa: TRY004
    return data


def settings_of(data: TrainedText | str | Path) -> dict[str, object]:
    """Return what `[train]` would say of it."""
    text = text_of(data)
    values: dict[str, object] = {
        "tokenizer": str(text.tokenizer),
        "suffixes": text.suffixes,
        "held_out_share": text.held_out_share,
        "field": text.field,
    }
    if not isinstance(text, Bytes):
        values["special_tokens"] = text.special_tokens
        values["document_begin"] = text.document_begin
        if text.chat_template is not None:
            values["chat_template"] = Path(text.chat_template)
    if isinstance(text, Mixture):
        parts = [{"data": str(path), "weight": weight} for path, weight in text.weights.items()]
        return values | {"mixture": parts}
    return values | {"data": Path(text.path)}


def _shown(value: object) -> str:
    return repr(value)[:SHOWN_CHARS]
