"""Going through groups from a place on."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.data.columnar_files import batches_from
from p2pswarm.data.rows import TextBatch

GROUPS = st.lists(st.lists(st.integers(0, 5), max_size=5), min_size=1, max_size=5)


@given(GROUPS, st.integers(0, 10**6), st.integers(1, 3))
def test_each_text_comes_once_and_places_only_grow(groups, place, together):
    """Groups of texts of these lengths; a number of texts make a batch."""
    begins = [0]
    for lengths in (*groups, [1]):
        begins.append(begins[-1] + sum(lengths))
    place %= begins[-1]
    read_from = []

    def read(number, base, needed):
        read_from.append((number, needed))
        lengths = (*groups, [1])[number]
        for start in range(0, len(lengths), together):
            ends = [base + sum(lengths[:stop]) for stop in range(start, len(lengths) + 1)]
            some = ends[: together + 1]
            yield TextBatch(some, [f"{number}:{start + k}".encode() for k in range(len(some) - 1)])

    found = [
        (batch.begins[k], batch.begins[k + 1], batch.texts[k])
        for batch in batches_from(begins, place, read)
        for k in range(len(batch.begins) - 1)
    ]
    with_length = [text for begin, end, text in found if begin < end]
    whole = {
        f"{n}:{k}".encode()
        for n, lengths in enumerate((*groups, [1]))
        for k, length in enumerate(lengths)
        if length
    }
    at = next(n for n, (begin, end, _) in enumerate(found) if begin <= place < end)
    after = [text for begin, end, text in found[at:] if begin < end]
    assert sorted(after) == sorted(whole)  # from the one at the place on; some come before it, too
    assert len(with_length) <= len(whole) + together
    assert [begin for begin, _, _ in found] == sorted(begin for begin, _, _ in found)
    assert read_from[0][1] == place
