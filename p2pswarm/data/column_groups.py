"""Going through groups of rows from a place on: row groups of parquet, record batches of arrow.

A group has as many places as bytes are known of it without reading it. Its texts lie at these
places in proportion to their length.

Units:   places count through all groups.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from p2pswarm.data.row_filling import TextBatch

ReadGroup = Callable[[int, int, int], Iterator[TextBatch]]
"""The batches of a group: its number, the place where it begins, and the place from which on they
are needed. They may begin before that."""


def batches_from(begins: Sequence[int], place: int, read: ReadGroup) -> Iterator[TextBatch]:
    """All texts once, from the one at a place on; after the last group places go on.

    begins: the place where each group begins, and where the last one ends.
    """
    total = begins[-1]
    first = bisect_right(begins, place) - 1
    for batch in read(first, begins[first], place):
        if batch.begins[-1] > place:
            yield batch
    for number in range(first + 1, len(begins) - 1):
        yield from read(number, begins[number], begins[number])
    for number in range(first):
        yield from read(number, begins[number] + total, begins[number] + total)
    for batch in read(first, begins[first] + total, begins[first] + total):
        before = bisect_right(batch.begins, place + total) - 1
        yield TextBatch(batch.begins[: before + 1], batch.texts)
        if before < len(batch.begins) - 1:
            return
