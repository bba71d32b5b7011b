"""Every parser of what peers, files and records say, by name.

Used by tests/fuzzing/test_corpus.py, which replays tests/corpus, and by bench/fuzz.py. A new parser
is a function in one of the files that are imported here, with valid inputs in `seeds.py` or beside
it.
"""

from fuzzing import (
    access_parsers,
    data_parsers,
    file_parsers,
    link_parsers,
    model_parsers,
    nat_parsers,
    text_parsers,
)
from fuzzing.base import PARSERS, SLOW

__all__ = [
    "PARSERS",
    "SLOW",
    "access_parsers",
    "data_parsers",
    "file_parsers",
    "link_parsers",
    "model_parsers",
    "nat_parsers",
    "text_parsers",
]
