"""Which graphs are made whole, which block by block, and what is kept of them."""

import math

import pytest

from p2pswarm.models.compute.graph_budget import GraphBudget, GraphKind, GraphLimits

SHAPE, OTHER = (4, 33), (2, 33)


def budget(keep_bytes=100, room_bytes=50.0, recompute="auto"):
    return GraphBudget(GraphLimits(keep_bytes, room_bytes, recompute))


def kinds(of, shape=SHAPE):
    return of.kind_to_keep(shape), of.kind_at_once(shape)


def test_a_graph_of_unknown_size_is_made_whole_up_to_the_limits():
    rules = budget()

    assert kinds(rules) == (GraphKind.WHOLE, GraphKind.WHOLE)
    assert rules.most_to_keep(GraphKind.WHOLE) == 100
    assert rules.most_at_once(GraphKind.WHOLE) == 50


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (50, (GraphKind.WHOLE, GraphKind.WHOLE)),
        (51, (GraphKind.WHOLE, GraphKind.BLOCKS)),
        (101, (GraphKind.BLOCKS, GraphKind.BLOCKS)),
    ],
)
def test_a_graph_that_was_measured_is_whole_where_it_fits(size_bytes, expected):
    rules = budget()
    rules.measured(SHAPE, GraphKind.WHOLE, size_bytes)

    assert kinds(rules) == expected
    assert kinds(rules, OTHER) == (GraphKind.WHOLE, GraphKind.WHOLE)


def test_a_graph_that_was_broken_off_is_made_block_by_block_up_to_that_limit():
    rules = budget(keep_bytes=50, room_bytes=100)
    rules.broken_off(SHAPE, 50)
    assert kinds(rules) == (GraphKind.BLOCKS, GraphKind.WHOLE)

    rules.broken_off(SHAPE, 100)
    assert kinds(rules) == (GraphKind.BLOCKS, GraphKind.BLOCKS)


def test_what_is_made_block_by_block_is_never_broken_off():
    rules = budget()

    assert rules.most_to_keep(GraphKind.BLOCKS) == rules.most_at_once(GraphKind.BLOCKS) == math.inf


@pytest.mark.parametrize(
    ("recompute", "kind"), [("stage", GraphKind.WHOLE), ("block", GraphKind.BLOCKS)]
)
def test_what_was_set_is_done_whatever_fits(recompute, kind):
    rules = budget(0, 0.0, recompute)
    rules.measured(SHAPE, GraphKind.WHOLE, 1)

    assert kinds(rules) == (kind, kind)
    assert rules.most_to_keep(kind) == rules.most_at_once(kind) == math.inf
    assert not rules.make_smaller()
    assert rules.always_by_block == (recompute == "block")


def test_each_way_has_a_size_of_its_own():
    rules = budget()
    rules.measured(SHAPE, GraphKind.BLOCKS, 7)

    assert rules.size_bytes(SHAPE, GraphKind.BLOCKS) == 7
    assert rules.size_bytes(SHAPE, GraphKind.WHOLE) is None


def test_graphs_are_kept_up_to_the_limit():
    rules = budget()
    rules.kept_bytes = 60

    assert rules.fits(40)
    assert not rules.fits(41)


def test_without_memory_half_of_what_was_held_is_kept_from_then_on():
    rules = budget()
    rules.kept_bytes = 60
    rules.given_up(60)
    assert (rules.keep_bytes, rules.kept_bytes) == (30, 0)

    rules.given_up(1_000)
    assert rules.keep_bytes == 30


def test_without_memory_for_a_whole_graph_none_is_made_any_more():
    rules = budget()
    rules.measured(SHAPE, GraphKind.WHOLE, 1)

    assert rules.make_smaller()
    assert kinds(rules) == kinds(rules, OTHER) == (GraphKind.BLOCKS, GraphKind.BLOCKS)
    assert not rules.make_smaller()
