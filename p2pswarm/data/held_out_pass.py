"""One pass over the held-out text: every token of it is predicted at most once.

Shapes:  tokens_BS: B rows of S = sequence length + 1 tokens.
"""

import itertools
from collections.abc import Iterator

from p2pswarm.data.corpus import Corpus
from p2pswarm.data.tokens import Tokens, stacked


def held_out_passes(corpus: Corpus, tokens_max: int) -> list[Iterator[Tokens]]:
    """Batches of consecutive windows, for each text of a mixture, or for the only one.

    About `tokens_max` tokens in all, spread evenly over each; texts have their shares of them, as
    far as all have so many.
    """
    whole = [len(part.corpus.held_out) / part.share for part in corpus.parts]
    most = min(float(tokens_max), *whole)
    return [_batches(part.corpus, round(most * part.share)) for part in corpus.parts]


def _batches(corpus: Corpus, tokens_max: int) -> Iterator[Tokens]:
    rows = corpus.held_out_rows(tokens_max)
    while batch := list(itertools.islice(rows, corpus.rows)):
        yield stacked(batch)
