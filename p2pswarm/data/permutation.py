"""An order of 0..n-1 in which any place can be asked for, without a table.

A Feistel network of four rounds permutes numbers of 2k bits; what lands past n goes round again
(cycle walking). Every machine gets the same order from the same key.

Source:  Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002; the round function
         is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

from collections import OrderedDict

from p2pswarm.data.corpus import stable_hash

ROUNDS = 4
ORDERS_KEPT = 2  # a microbatch may lie over the end of one
WORD = (1 << 64) - 1
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64's multipliers


class Permutation:
    """The numbers below `count`, in an order that `key` fixes."""

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
    """What stands at a place in the order of a key; `orders` keeps the last ones."""
    if key not in orders:
        orders[key] = Permutation(count, key)
        while len(orders) > ORDERS_KEPT:
            orders.popitem(last=False)
    return orders[key][place]


def _mixed(word: int) -> int:
    word = ((word ^ word >> 30) * FIRST) & WORD
    word = ((word ^ word >> 27) * SECOND) & WORD
    return word ^ word >> 31
