"""One pass over the held-out text."""

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.data.corpus import Corpus
from p2pswarm.data.held_out_pass import held_out_passes


@given(
    length=st.integers(2, 9), rows=st.integers(1, 5), extra=st.integers(1, 60), most=st.integers(1)
)
def test_no_byte_is_predicted_twice(length: int, rows: int, extra: int, most: int):
    text = np.arange(length + extra, dtype=np.uint8)
    corpus = Corpus(text, text, 1, 1, rows, length)

    targets = [
        token for batch in chain(*held_out_passes(corpus, most)) for token in batch[:, 1:].ravel()
    ]

    assert len(set(targets)) == len(targets) >= length
    assert len(targets) <= max(most, length)
    if most >= len(text):
        assert targets == list(range(1, len(targets) + 1))
        assert len(text) - len(targets) <= length
