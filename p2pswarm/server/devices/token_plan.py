"""The rule by which devices of one host share the tokens of documents.

A short document is whole on one device, which exchanges nothing for it. A long one is cut into
twice as many parts as devices compute it, and each of them has a part of the beginning and one of
the end (zig-zag): early tokens see little, and late ones much. Keys and values of such a document
are then sent to those of its devices whose parts come later.

The plan is searched: the longest documents are split, each over the devices that are free first,
and the others go whole to where the time is least, longest first. Over how many devices each is
split is tried out by the share of a device's work that a part may be; the best of all counts.

Units:   tokens; the cost of a device in that of one token's matrix products.
Source:  FlashCP (arXiv 2606.08476) for the idea; zig-zag as in Llama 3 (arXiv 2407.21783), 3.3.2.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

TOKENS_UNEVEN_MAX = 1.1  # a device's tokens over the mean: memory follows them
SPLITS_PER_DEVICE = 4  # documents that are split at most, unless all are: more gain nothing
WORTH_SPLITTING = 0.02  # of a device's mean cost: a document below it never sets the time
GOOD_ENOUGH = 1.002  # times the mean: nothing better is looked for
FEW = 16  # documents, of which more ways are tried out: there is time for it
SPLITS = 4  # of the longest, in these ways
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1)
"""Of a device's mean cost: a document is split so that no part of it is more."""
PLANS_KEPT = 256  # one for each microbatch between its forward and its backward


@dataclass(frozen=True, slots=True)
class TokenCosts:
    """The costs beside a token's matrix products, which cost 1."""

    pair: float
    """Of a query that sees a key."""
    received: float
    """Of a token whose keys and values come from another device, and whose gradients go back."""


@dataclass(frozen=True, slots=True, order=True)
class DocumentPiece:
    """The tokens start..stop-1 of a document."""

    document: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """The tokens of each device."""

    whole: tuple[tuple[int, ...], ...]
    """The documents that each device has whole, in their order."""
    split: tuple[tuple[DocumentPiece, ...], ...]
    """Its pieces of documents that are split, in their order."""

    @property
    def exchanges(self) -> bool:
        """Return whether a document is split."""
        return any(self.split)


@dataclass(slots=True)
class _DeviceLoads:
    """The devices of a plan in the making."""

    costs: TokenCosts
    cost: list[float]
    tokens: list[int]
    whole: list[list[int]] = field(default_factory=list)
    split: list[list[DocumentPiece]] = field(default_factory=list)

    def split_over(self, document: int, length: int, count: int) -> None:
        """Cut a document over the `count` devices that are free first."""
        devices = sorted(range(len(self.cost)), key=self.cost.__getitem__)[:count]
        for place, device in enumerate(devices):
            for piece in zigzag(document, length, place, count):
                self.split[device].append(piece)
                self.tokens[device] += piece.stop - piece.start
                self.cost[device] += cost_of(piece.start, piece.stop, self.costs)
            self.cost[device] += self.costs.received * received(length, place, count)


def zigzag(document: int, length: int, place: int, count: int) -> Iterator[DocumentPiece]:
    """The parts of device `place` of `count`: one of the first half, and its mirror image."""
    for part in (place, 2 * count - 1 - place):
        start, stop = part * length // (2 * count), (part + 1) * length // (2 * count)
        if stop > start:
            yield DocumentPiece(document, start, stop)


def received(length: int, place: int, count: int) -> int:
    """The tokens before its last part that a device does not have itself."""
    pieces = list(zigzag(0, length, place, count))
    return pieces[-1].stop - sum(each.stop - each.start for each in pieces) if pieces else 0


def cost_of(start: int, stop: int, costs: TokenCosts) -> float:
    """The cost of tokens start..stop-1 of a document, of which each sees all before it."""
    pairs = (stop * (stop + 1) - start * (start + 1)) / 2
    return stop - start + costs.pair * pairs


def plan_cost(plan: TokenPlan, lengths: Sequence[int], costs: TokenCosts) -> list[float]:
    """The cost of each device."""
    found = []
    for whole, split in zip(plan.whole, plan.split, strict=True):
        cost = sum(cost_of(0, lengths[document], costs) for document in whole)
        ends: dict[int, int] = {}
        for piece in split:
            cost += cost_of(piece.start, piece.stop, costs)
            own = piece.stop - piece.start
            ends[piece.document] = piece.stop - own - _own_before(split, piece)
        found.append(cost + costs.received * sum(ends.values()))
    return found


def _own_before(pieces: Sequence[DocumentPiece], last: DocumentPiece) -> int:
    same = (each for each in pieces if each.document == last.document and each.stop <= last.start)
    return sum(each.stop - each.start for each in same)


def ideal_cost(lengths: Sequence[int], devices: int, costs: TokenCosts) -> float:
    """The cost of each device if all were equal and nothing was exchanged."""
    return sum(cost_of(0, length, costs) for length in lengths) / devices


@lru_cache(maxsize=PLANS_KEPT)
def token_plan(lengths: tuple[int, ...], devices: int, costs: TokenCosts) -> TokenPlan:
    """The best plan that is found for documents of these lengths."""
    order = sorted(range(len(lengths)), key=lambda document: (-lengths[document], document))
    ideal = ideal_cost(lengths, devices, costs)
    most_tokens = TOKENS_UNEVEN_MAX * sum(lengths) / devices
    best: tuple[float, _DeviceLoads] | None = None
    for load, rest in _candidates(order, lengths, devices, costs, ideal):
        if best is not None and max(load.cost) >= best[0]:
            continue
        _place_whole(load, rest, lengths, most_tokens)
        longest = max(load.cost)
        if max(load.tokens) <= most_tokens and (best is None or longest < best[0]):
            best = longest, load
            if longest <= GOOD_ENOUGH * ideal:
                break
    split = ideal + costs.received * sum(received(length, 0, devices) for length in lengths)
    if best is None or best[0] > split:  # all in equal parts, which is always even
        load = _empty(devices, costs)
        for document in order:
            load.split_over(document, lengths[document], devices)
        best = max(load.cost), load
    found = best[1]
    return TokenPlan(
        tuple(tuple(sorted(each)) for each in found.whole),
        tuple(tuple(sorted(each)) for each in found.split),
    )


def _empty(devices: int, costs: TokenCosts) -> _DeviceLoads:
    lists: list[list[list[int]]] = [[[] for _ in range(devices)] for _ in range(2)]
    return _DeviceLoads(
        costs, [0.0] * devices, [0] * devices, lists[0], [[] for _ in range(devices)]
    )


def _candidates(
    order: Sequence[int], lengths: Sequence[int], devices: int, costs: TokenCosts, ideal: float
) -> Iterator[tuple[_DeviceLoads, Sequence[int]]]:
    """Devices with the longest documents split, and the documents that are left."""
    yield _empty(devices, costs), order
    own = [cost_of(0, lengths[document], costs) for document in order]
    splittable = [cost for cost in own if cost >= WORTH_SPLITTING * ideal]
    splittable = splittable[: SPLITS_PER_DEVICE * devices]
    seen: set[tuple[int, ...]] = {()}
    for share in SHARES:
        counts = [min(devices, math.ceil(cost / (share * ideal))) for cost in splittable]
        counts = counts[: sum(count > 1 for count in counts)]
        if tuple(counts) not in seen:
            seen.add(tuple(counts))
            yield _split(order, lengths, counts, _empty(devices, costs)), order[len(counts) :]
    if len(order) <= FEW:
        for count, splits in product((2, 4, devices), range(1, min(len(splittable), SPLITS) + 1)):
            counts = [min(count, devices)] * splits
            if tuple(counts) not in seen:
                seen.add(tuple(counts))
                yield _split(order, lengths, counts, _empty(devices, costs)), order[splits:]


def _split(
    order: Sequence[int], lengths: Sequence[int], counts: Sequence[int], load: _DeviceLoads
) -> _DeviceLoads:
    for document, count in zip(order, counts, strict=False):
        load.split_over(document, lengths[document], count)
    return load


def _place_whole(
    load: _DeviceLoads, documents: Sequence[int], lengths: Sequence[int], most_tokens: float
) -> None:
    """Give each to the device that is free first and has room for it, or else just the first."""
    heap = [(cost, device) for device, cost in enumerate(load.cost)]
    heapq.heapify(heap)
    for document in documents:
        length = lengths[document]
        passed = []
        while heap and load.tokens[heap[0][1]] + length > most_tokens:
            passed.append(heapq.heappop(heap))
        cost, device = heapq.heappop(heap) if heap else passed.pop(0)
        cost += cost_of(0, length, load.costs)
        load.cost[device] = cost
        load.tokens[device] += length
        load.whole[device].append(document)
        for each in (*passed, (cost, device)):
            heapq.heappush(heap, each)
