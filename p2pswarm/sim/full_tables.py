"""Routing tables as they would be after a while, for simulations of thousands of nodes.

If 10,000 nodes joined one after another, that would take longer than the measurement. So their
tables are filled directly: each bucket gets `k` random peers of those that belong into it, or all
if they are fewer.

Units:   none.
Shapes:  `own` (tables,), `ascending` and `order` (ids,), living and dead; `shares` (tables, draws).
Source:  Maymounkov and Mazieres, "Kademlia" (2002), 2.2, for the contents of a table.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2pswarm.discovery.dht.routing_table import Neighbour, Table

PREFIX_BITS = 64  # bits of an id that we compare: a machine word; 10,000 ids differ within 27
DRAWS_SPARE = 12  # more draws than a bucket's k members, since some are doubles


def fill_tables(tables: Sequence[Table], everybody: Sequence[Neighbour], seed: int) -> None:
    """Fill the tables of the first peers of `everybody`, in their order."""
    prefixes = np.array(
        [each.number >> 8 * len(each.raw) - PREFIX_BITS for each in everybody], np.uint64
    )
    order = np.argsort(prefixes)
    ascending = prefixes[order]
    own = prefixes[: len(tables)]
    members = [everybody[place] for place in order.tolist()]
    level = 0
    alone = False
    while not alone and level < PREFIX_BITS:
        first, end = _range_of_bucket(own, ascending, level)
        alone = not np.any(_count_in_prefix(own, ascending, level) > 1)
        _fill_level(level, tables, members, np.stack((first, end), axis=1), seed)
        level += 1


def _fill_level(
    level: int,
    tables: Sequence[Table],
    members: Sequence[Neighbour],
    ranges: NDArray[np.int64],
    seed: int,
) -> None:
    k = tables[0].config.k
    chance = np.random.Generator(np.random.PCG64([seed, level]))
    shares = chance.random((len(tables), k + DRAWS_SPARE))
    for table, (first, end), share in zip(tables, ranges.tolist(), shares, strict=True):
        count = end - first
        if count > k:
            drawn = dict.fromkeys((first + (share * count).astype(int)).tolist())
            places = list(drawn)[:k]
        else:
            places = list(range(first, end))
        if places:
            table.fill(level, [members[place] for place in places])


def _range_of_bucket(
    own: NDArray[np.uint64], ascending: NDArray[np.uint64], level: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The range of sorted ids that share exactly `level` leading bits with each of `own`."""
    free = np.uint64(PREFIX_BITS - 1 - level)
    sibling = ((own >> free) ^ np.uint64(1)) << free
    last = sibling | ((np.uint64(1) << free) - np.uint64(1))
    return (
        np.searchsorted(ascending, sibling, side="left"),
        np.searchsorted(ascending, last, side="right"),
    )


def _count_in_prefix(
    own: NDArray[np.uint64], ascending: NDArray[np.uint64], level: int
) -> NDArray[np.int64]:
    """How many ids share `level` leading bits or more with each of `own`, itself included."""
    free = np.uint64(PREFIX_BITS - level) if level else np.uint64(0)
    if not level:
        return np.full(len(own), len(ascending))
    first = (own >> free) << free
    last = first | ((np.uint64(1) << free) - np.uint64(1))
    left = np.searchsorted(ascending, first, side="left")
    return np.searchsorted(ascending, last, side="right") - left
