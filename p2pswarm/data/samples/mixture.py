"""Several texts with weights: which row of a run comes from which of them.

Each 10,000 rows have as many of each text as its weight says, in an order that the run's seed
fixes. So shares are exact to a row, any prefix comes near them, and where row N comes from is known
without the rows before it.

Units:   rows; weights are of any size, and count by their share of the sum.
"""

import hashlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from p2pswarm.data.samples.corpus import Corpus, Tokens, TokenText, WeightedCorpus, stable_hash

ROUNDS = 4
ORDERS_KEPT = 2  # a microbatch may lie over the end of one
WORD = (1 << 64) - 1
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64's multipliers


class Permutation:
    """The numbers below `count`, in an order that `key` fixes, on every machine; without a table.

    A Feistel network of four rounds permutes numbers of 2k bits; what lands past `count` goes round
    again (cycle walking).

    Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002; the round
    function is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    """

    def __init__(self, count: int, key: str) -> None:
        self._count = count
        self._half_bits = ((count - 1).bit_length() + 1) // 2
        self._mask = (1 << self._half_bits) - 1
        self._keys = [stable_hash(f"permutation:{number}:{key}") for number in range(ROUNDS)]

    def __getitem__(self, place: int) -> int:
        """The number at a place, 0 <= place < count."""
        found = self._once(place)
        while found >= self._count:
            found = self._once(found)
        return found

    def _once(self, number: int) -> int:
        left, right = number >> self._half_bits, number & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right ^ key) & self._mask)
        return left << self._half_bits | right


Orders = OrderedDict[str, Permutation]


def order_of(orders: Orders, key: str, place: int, count: int) -> int:
    """Return what stands at a place in the order of a key; `orders` keeps the last ones."""
    if key not in orders:
        orders[key] = Permutation(count, key)
        while len(orders) > ORDERS_KEPT:
            orders.popitem(last=False)
    return orders[key][place]


def _mixed(word: int) -> int:
    word = ((word ^ word >> 30) * FIRST) & WORD
    word = ((word ^ word >> 27) * SECOND) & WORD
    return word ^ word >> 31


PERIOD = 10_000  # rows: a weight counts in ten-thousandths


class MixtureOrder:
    """Where each row comes from: a text, and the number of the row among those of that text."""

    def __init__(self, weights: Sequence[Fraction | float], key: str) -> None:
        """`key`: what fixes the order besides the weights."""
        self.counts = shares(weights)
        self._ends = list(accumulate(self.counts))
        self._key = key
        self._orders: Orders = OrderedDict()

    def __getitem__(self, row: int) -> tuple[int, int]:
        """The text of a row, and its number there; each number comes once."""
        if len(self.counts) == 1:
            return 0, row
        period, place = divmod(row, PERIOD)
        number = order_of(self._orders, f"mixture:{self._key}:{period}", place, PERIOD)
        part = bisect_right(self._ends, number)
        count = self.counts[part]
        return part, period * count + number - (self._ends[part] - count)


def shares(weights: Sequence[Fraction | float]) -> list[int]:
    """The rows of each text in `PERIOD`: at least one, and by its weight but for rounding."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    wished = [weight * PERIOD / total for weight in exact]
    counts = [max(1, int(each)) for each in wished]
    missing = PERIOD - sum(counts)
    by_remainder = sorted(range(len(counts)), key=lambda part: counts[part] - wished[part])
    for part in by_remainder[: max(0, missing)]:
        counts[part] += 1
    counts[counts.index(max(counts))] += PERIOD - sum(counts)
    return counts


class JoinedText:
    """Texts one after another, as one."""

    def __init__(self, texts: Sequence[TokenText]) -> None:
        self._texts = tuple(texts)
        self.begins = [0, *accumulate(len(text) for text in texts)]
        """Where each begins; the last number is the length of all."""

    def __len__(self) -> int:
        return self.begins[-1]

    def __getitem__(self, part: slice, /) -> Tokens:
        start, stop, _ = part.indices(len(self))
        found: list[NDArray[np.integer]] = []
        for text, begin in zip(self._texts, self.begins, strict=False):
            inside = slice(max(0, start - begin), max(0, min(len(text), stop - begin)))
            if inside.start < inside.stop or not found:
                found.append(text[inside])
        return found[0] if len(found) == 1 else np.concatenate(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedCorpus(Corpus):
    """Rows of several texts, by their weights."""

    texts: tuple[Corpus, ...]
    order: MixtureOrder

    def digest(self) -> bytes:
        """SHA-256 of all texts and of their shares."""
        digest = hashlib.sha256(b"mixture")
        for part in self.parts:
            digest.update(part.corpus.digest())
        digest.update(repr(self.order.counts).encode())
        return digest.digest()

    def sample(self, number: int) -> Tokens:
        """A row to train on."""
        part, among = self.order[number]
        return self.texts[part].sample(among)

    def held_out_sample(self, number: int) -> Tokens:
        """A held-out row, in the same shares."""
        part, among = self.order[number]
        return self.texts[part].held_out_sample(among)

    def sample_targets(self, number: int) -> int:
        """How many targets a row to train on has."""
        part, among = self.order[number]
        return self.texts[part].sample_targets(among)

    def held_out_sample_targets(self, number: int) -> int:
        """How many targets a held-out row has."""
        part, among = self.order[number]
        return self.texts[part].held_out_sample_targets(among)

    @property
    def blocks(self) -> bool:
        """As any of its texts."""
        return any(each.blocks for each in self.texts)

    @property
    def counted(self) -> bool:
        """As all of its texts."""
        return all(each.counted for each in self.texts)

    @property
    def parts(self) -> tuple[WeightedCorpus, ...]:
        """The texts, and their shares of the rows."""
        pairs = zip(self.texts, self.order.counts, strict=True)
        return tuple(WeightedCorpus(each, count / PERIOD) for each, count in pairs)


def mixed(texts: Sequence[Corpus], weights: Sequence[float]) -> Corpus:
    """Texts of one run as one corpus; the only one stays what it is."""
    first = texts[0]
    if len(texts) == 1:
        return first
    return MixedCorpus(
        train=JoinedText([each.train for each in texts]),
        held_out=JoinedText([each.held_out for each in texts]),
        files=sum(each.files for each in texts),
        seed=first.seed,
        rows=first.rows,
        sequence_length=first.sequence_length,
        held_out_bytes=sum(each.held_out_bytes for each in texts),
        texts=tuple(texts),
        order=MixtureOrder(weights, str(first.seed)),
    )
