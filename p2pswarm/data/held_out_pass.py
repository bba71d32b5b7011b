"""One pass over the held-out text: every token of it is predicted at most once.

Shapes:  tokens_BS: B rows of S = sequence length + 1 tokens.
"""

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
        yield from _pass_over(part.corpus, round(most * part.share))


def _pass_over(corpus: Corpus, tokens_max: int) -> Iterator[Tokens]:
    length = corpus.sequence_length
    windows = (len(corpus.held_out) - 1) // length
    taken = min(windows, max(1, tokens_max // length))
    begins = [number * windows // taken * length for number in range(taken)]
    for first in range(0, taken, corpus.rows):
        rows = begins[first : first + corpus.rows]
        yield stacked([corpus.held_out[begin : begin + length + 1] for begin in rows])
