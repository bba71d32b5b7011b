"""Where a program's text lies: a value, read when a trainer begins."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Bytes:
    """Text as bytes: 256 tokens, no tokenizer."""

    path: str | Path
    """A text file, or a folder of them."""
    suffixes: tuple[str, ...] = ()
    """Of a folder, only files that end so, as in `(".txt", ".md")`; empty: every text file."""
    held_out_share: float = 0.1
    """Of the files (of the bytes, if there is one file) that are never trained on: 0.001 to 0.5."""
