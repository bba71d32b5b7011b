"""Parts of a document that are tokenised alone, and what follows a document.

Units:   bytes.
"""

from collections.abc import Iterator

import numpy as np

from p2pswarm.data.tokenizer import Tokenizer
from p2pswarm.data.tokens import Tokens

PART_BYTES = 1 << 20  # of a document, tokenised at once
LINE = b"\n"
FOLLOWING_MAX = 3  # bytes of a character after its first, in UTF-8 (RFC 3629)
FOLLOWING = range(0x80, 0xC0)


def end_of(tokenizer: Tokenizer | None) -> Tokens:
    """What follows a document: the token that ends it, or else a line break."""
    if tokenizer is None:
        return np.frombuffer(LINE, dtype=np.uint8)
    if tokenizer.end is None:
        return tokenizer.encode([LINE])[0]
    return np.array([tokenizer.end], dtype=tokenizer.dtype)


def parts_of(document: bytes, bytes_max: int = PART_BYTES) -> Iterator[bytes]:
    """A document in parts of at most `bytes_max`, cut after a line, or else before a character.

    `bytes_max` is more than `FOLLOWING_MAX`, or a part could be empty.
    """
    start = 0
    while len(document) - start > bytes_max:
        cut = document.rfind(LINE, start, start + bytes_max) + 1
        if cut == 0:
            cut = start + bytes_max
            while cut > start + bytes_max - FOLLOWING_MAX and document[cut] in FOLLOWING:
                cut -= 1
        yield document[start:cut]
        start = cut
    yield document[start:]
