"""Every parser of what peers, files and records say, by name.

Used by tests/fuzzing/test_corpus.py, which replays tests/corpus, and by bench/fuzz.py. A new parser
is a function in one of the files that are imported here, with valid inputs in `seeds.py`.
"""

from fuzzing import access_parsers, link_parsers, nat_parsers, text_parsers
from fuzzing.base import PARSERS

__all__ = ["PARSERS", "access_parsers", "link_parsers", "nat_parsers", "text_parsers"]
