import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.data.samples.corpus import stacked
from p2pswarm.data.samples.target_marks import IDS, targets_in, with_marks

ROWS = st.lists(st.lists(st.tuples(st.integers(0, IDS), st.booleans()), min_size=4, max_size=4))


@given(ROWS.filter(len))
def test_marks_change_no_id_and_all_but_first_tokens_count(rows):
    tokens = np.array([[token for token, _ in row] for row in rows], dtype=np.int64)
    targets = np.array([[target for _, target in row] for row in rows])

    marked = with_marks(tokens, targets)

    assert marked.dtype == np.int32
    assert np.array_equal(marked & IDS, tokens)
    assert targets_in(marked) == int(targets[:, 1:].sum())


def test_rows_of_bytes_take_marks_and_without_marks_all_are_targets():
    text = np.frombuffer(b"question? answer.", dtype=np.uint8)

    marked = with_marks(text, np.arange(len(text)) >= 10)

    assert targets_in(text[np.newaxis]) == len(text) - 1
    assert targets_in(stacked([marked, with_marks(text, np.zeros(len(text), dtype=bool))])) == 7
