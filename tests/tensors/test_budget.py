"""The receiving budget: what fits, what will fit later, what never will."""

import contextlib
import random

import pytest

from p2pswarm.base.errors import Busy, TooLarge
from p2pswarm.base.ids import PeerId
from p2pswarm.tensors.budget import FREE_SHARE, Budget

ANN, BOB, EVE = (PeerId(bytes([i]) * 32) for i in range(3))


def test_tensor_over_a_peers_share_never_fits():
    budget = Budget(peer_bytes=100, process_bytes=150)

    with pytest.raises(TooLarge, match="101 bytes announced"):
        budget.reserve(ANN, 101)

    assert budget.held_bytes == 0


def test_peer_that_has_its_share_is_told_to_come_back():
    budget = Budget(peer_bytes=100, process_bytes=1000)
    budget.reserve(ANN, 60)

    with pytest.raises(Busy) as refusal:
        budget.reserve(ANN, 41)

    assert refusal.value.retry_after_s > 0
    budget.release(ANN, 60)
    budget.reserve(ANN, 41)
    assert budget.held_bytes == 41


def test_full_share_of_one_peer_leaves_room_for_another():
    budget = Budget(peer_bytes=100, process_bytes=175)
    budget.reserve(ANN, 100)

    budget.reserve(BOB, 50)

    with pytest.raises(Busy):
        budget.reserve(EVE, 20)
    assert budget.held_bytes == 150


@pytest.mark.parametrize("count", [4, 5, 20])
def test_peers_that_take_all_they_can_leave_something_to_the_next(count):
    """However small the pieces in which they ask for it; ids are free."""
    budget = Budget(peer_bytes=10_000, process_bytes=40_000)
    greedy = [PeerId(bytes([9, number]) * 16) for number in range(count)]
    taken = dict.fromkeys(greedy, 0)
    for _ in range(10_000 // 10):
        for peer in greedy:
            with contextlib.suppress(Busy):
                budget.reserve(peer, 10)
                taken[peer] += 10

    budget.reserve(ANN, 40_000 // (2 * count + 1) // 2)

    assert sum(taken.values()) >= 40_000 * 2 * count // (2 * count + 1) - 100
    assert max(taken.values()) - min(taken.values()) <= 20


def test_peer_that_is_alone_may_have_its_whole_share():
    budget = Budget(peer_bytes=100, process_bytes=100)

    budget.reserve(ANN, 60)
    budget.reserve(ANN, 40)

    assert budget.held_bytes == 100


def test_tensor_without_bytes_always_fits():
    budget = Budget(peer_bytes=1, process_bytes=1)
    budget.reserve(ANN, 1)

    budget.reserve(BOB, 0)
    budget.release(BOB, 0)

    assert budget.held_bytes == 1


@pytest.mark.parametrize(("peer_bytes", "process_bytes"), [(0, 10), (-1, 10), (11, 10)])
def test_impossible_budget_is_refused(peer_bytes, process_bytes):
    with pytest.raises(ValueError, match="share"):
        Budget(peer_bytes, process_bytes)


def test_negative_bytes_cannot_be_reserved():
    with pytest.raises(ValueError, match="reserve -1"):
        Budget().reserve(ANN, -1)


@pytest.mark.parametrize("size_bytes", [6, -1])
def test_release_of_what_is_not_held_is_our_own_mistake(size_bytes):
    budget = Budget()
    budget.reserve(ANN, 5)

    with pytest.raises(ValueError, match="not held"):
        budget.release(ANN, size_bytes)


@pytest.mark.parametrize("seed", range(20))
def test_any_history_keeps_within_the_limits(seed):
    rng = random.Random(seed)
    budget = Budget(peer_bytes=100, process_bytes=170)
    held = []
    for _ in range(500):
        if held and rng.random() < 0.5:
            budget.release(*held.pop(rng.randrange(len(held))))
        else:
            ask = (rng.choice((ANN, BOB, EVE)), rng.randrange(60))
            fits = sum(n for p, n in held if p == ask[0]) + ask[1] <= 100
            free = 170 - sum(n for _, n in held) - ask[1]
            mine = sum(n for p, n in held if p == ask[0]) + ask[1]
            alone = all(p == ask[0] or not n for p, n in held)
            fits = fits and free >= 0 and (alone or mine <= FREE_SHARE * free)
            fits = fits or not ask[1]
            if fits:
                budget.reserve(*ask)
                held.append(ask)
            else:
                with pytest.raises(Busy):
                    budget.reserve(*ask)
        assert budget.held_bytes == sum(n for _, n in held)
