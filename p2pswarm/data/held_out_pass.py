"""One pass over the held-out text: every token of it is predicted at most once.

Shapes:  tokens_BS: B rows of S = sequence length + 1 tokens.
"""

import itertools
from collections.abc import Iterator

from p2pswarm.data.corpus import Corpus
from p2pswarm.data.tokens import Tokens, stacked


def held_out_pass(corpus: Corpus, tokens_max: int) -> Iterator[Tokens]:
    """Batches of consecutive windows; about `tokens_max` tokens, spread evenly over the text.

    Each text of a mixture has its share of them, as far as it has so many.
    """
    whole = [len(part.corpus.held_out) / part.share for part in corpus.parts]
    most = min(float(tokens_max), *whole)
    for part in corpus.parts:
        rows = part.corpus.held_out_rows(round(most * part.share))
        while batch := list(itertools.islice(rows, corpus.rows)):
            yield stacked(batch)
