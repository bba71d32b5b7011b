"""Snapshots that a donor holds still."""

import pytest

from p2pswarm.errors import BadMessage, Busy
from p2pswarm.state.held_snapshots import SNAPSHOTS_MAX, HeldSnapshots, piece_wanted
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.swarm.messages.state import FetchPiece, StateOffer


def snapshot(version):
    return Snapshot(version, b"d", memoryview(b"x" * 100))


def test_a_snapshot_is_lent_to_all_who_need_it_or_an_older_one():
    held = HeldSnapshots()
    assert held.lend(3) is None
    copy = held.hold(snapshot(3))

    assert held.lend(3) is copy
    assert held.lend(1) is copy
    assert held.lend(4) is None


def test_the_newest_is_lent():
    held = HeldSnapshots()
    held.hold(snapshot(1))
    newest = held.hold(snapshot(2))

    assert held.lend(1) is newest


def test_a_snapshot_is_forgotten_with_its_last_fetcher():
    held = HeldSnapshots()
    held.hold(snapshot(3))
    held.lend(3)

    held.give_back(3)
    assert len(held) == 1
    held.give_back(3)

    assert len(held) == 0
    assert held.lend(3) is None


def test_no_more_versions_are_held_than_there_is_memory_for():
    held = HeldSnapshots()
    for version in range(SNAPSHOTS_MAX):
        held.hold(snapshot(version))

    with pytest.raises(Busy):
        held.lend(SNAPSHOTS_MAX)
    assert held.lend(SNAPSHOTS_MAX - 1) is not None


@pytest.mark.parametrize("piece", [FetchPiece(0, 10, 1), FetchPiece(90, 10, 1)])
def test_a_piece_inside_the_snapshot_is_served(piece):
    assert piece_wanted(piece, 100, piece_bytes=10) is piece


def test_a_fetcher_that_says_no_more_has_enough():
    assert piece_wanted(None, 100) is None


@pytest.mark.parametrize(
    "message", [FetchPiece(91, 10, 1), FetchPiece(0, 11, 1), StateOffer(0, b"", 1)]
)
def test_no_honest_fetcher_asks_for_anything_else(message):
    with pytest.raises(BadMessage):
        piece_wanted(message, 100, piece_bytes=10)
