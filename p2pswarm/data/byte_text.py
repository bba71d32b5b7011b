"""The text that a program names: a value; the trainer reads the files when it begins."""

from dataclasses import dataclass
from pathlib import Path

from p2pswarm.config import HELD_OUT_SHARE


@dataclass(frozen=True, slots=True)
class Bytes:
    """Text as bytes: 256 tokens, no tokenizer."""

    path: str | Path
    """A text file, a folder of them, or what else `train.data` may be (docs/data.md)."""
    suffixes: tuple[str, ...] = ()
    """The endings of the files to read in a folder, as `(".txt", ".md")`; empty: all text files."""
    held_out_share: float = HELD_OUT_SHARE
    """Share of files (of bytes, if it is one; of rows) never trained on: 0.001 to 0.5."""
    field: str = "text"
    """Which field of a row is the document."""
