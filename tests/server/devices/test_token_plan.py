"""The plan by which devices share tokens: whole, even, quick to find, and near to the ideal."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.server.devices.token_plan import (
    TOKENS_UNEVEN_MAX,
    DocumentPiece,
    TokenCosts,
    cost_of,
    ideal_cost,
    plan_cost,
    received,
    token_plan,
    zigzag,
)

COSTS = TokenCosts(pair=4.4e-5, received=0.056)
"""Of a layer of an 8B model on cards of PCIe 4."""
LENGTHS = st.lists(st.integers(1, 5_000), min_size=1, max_size=40)
DEVICES = st.sampled_from([1, 2, 3, 4, 8])


def tokens_of(plan, lengths):
    pieces = (sum(each.stop - each.start for each in split) for split in plan.split)
    whole = (sum(lengths[document] for document in each) for each in plan.whole)
    return [a + b for a, b in zip(pieces, whole, strict=True)]


@given(LENGTHS, DEVICES)
def test_every_token_is_on_one_device(lengths, devices):
    plan = token_plan(tuple(lengths), devices, COSTS)

    there = [DocumentPiece(d, 0, lengths[d]) for whole in plan.whole for d in whole]
    there = sorted([*there, *(piece for split in plan.split for piece in split)])
    for document, length in enumerate(lengths):
        own = [each for each in there if each.document == document]
        assert [own[0].start, own[-1].stop] == [0, length]
        assert all(a.stop == b.start for a, b in pairwise(own))


@given(LENGTHS, DEVICES)
def test_no_device_has_many_more_tokens_than_another(lengths, devices):
    found = tokens_of(token_plan(tuple(lengths), devices, COSTS), lengths)

    parts = 2 * len(lengths)  # each of two parts of a document may have a token more
    assert max(found) <= TOKENS_UNEVEN_MAX * sum(lengths) / devices + parts


@given(LENGTHS, st.sampled_from([2, 4, 8]))
def test_it_is_never_slower_than_splitting_every_document(lengths, devices):
    plan = token_plan(tuple(lengths), devices, COSTS)
    each = [
        sum(
            sum(cost_of(p.start, p.stop, COSTS) for p in zigzag(0, length, place, devices))
            + COSTS.received * received(length, place, devices)
            for length in lengths
        )
        for place in range(devices)
    ]

    assert max(plan_cost(plan, lengths, COSTS)) <= 1.01 * max(each) + 2 * len(lengths)


def test_one_long_document_is_split_over_all_and_its_parts_cost_the_same():
    plan = token_plan((64_000,), 4, COSTS)
    pairs = [sum(cost_of(p.start, p.stop, COSTS) for p in each) for each in plan.split]

    assert plan.exchanges
    assert [len(each) for each in plan.split] == [2] * 4
    assert max(pairs) == pytest.approx(min(pairs))
    assert plan.split[0] == (DocumentPiece(0, 0, 8_000), DocumentPiece(0, 56_000, 64_000))
    assert [received(64_000, place, 4) for place in range(4)] == [48_000, 40_000, 32_000, 24_000]


def test_documents_that_go_whole_exchange_nothing():
    plan = token_plan((500,) * 8, 4, COSTS)

    assert not plan.exchanges
    assert [len(each) for each in plan.whole] == [2] * 4


def test_the_plan_is_the_same_wherever_it_is_made():
    lengths = tuple(random.Random(4).choices(range(1, 4_000), k=30))

    assert token_plan.__wrapped__(lengths, 4, COSTS) == token_plan.__wrapped__(lengths, 4, COSTS)


def test_log_normal_lengths_are_planned_near_to_the_ideal():
    rng = random.Random(1)
    over = []
    for median, sigma, tokens in ((800, 1.3, 32_768), (800, 1.3, 131_072), (4_000, 1.5, 131_072)):
        for _ in range(5):
            lengths = []
            while sum(lengths) < tokens:
                drawn = int(rng.lognormvariate(math.log(median), sigma))
                lengths.append(max(1, min(drawn, tokens - sum(lengths))))
            plan = token_plan(tuple(lengths), 4, COSTS)
            over.append(max(plan_cost(plan, lengths, COSTS)) / ideal_cost(lengths, 4, COSTS))

    assert sum(over) / len(over) <= 1.05
