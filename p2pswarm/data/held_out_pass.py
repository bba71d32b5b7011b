"""One pass over the held-out text: every byte of it is predicted at most once.

Shapes:  tokens_BS: B rows of S = sequence length + 1 bytes.
"""

from collections.abc import Iterator

import numpy as np

from p2pswarm.data.corpus import Bytes, Corpus


def held_out_pass(corpus: Corpus, tokens_max: int) -> Iterator[Bytes]:
    """Batches of consecutive windows; about `tokens_max` tokens, spread evenly over the text."""
    length = corpus.sequence_length
    windows = (len(corpus.held_out) - 1) // length
    taken = min(windows, max(1, tokens_max // length))
    begins = [number * windows // taken * length for number in range(taken)]
    for first in range(0, taken, corpus.rows):
        rows = begins[first : first + corpus.rows]
        yield np.stack([corpus.held_out[begin : begin + length + 1] for begin in rows])
