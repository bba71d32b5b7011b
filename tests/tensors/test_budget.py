"""Tests of `tensors/budget.py`."""

import contextlib
import random

import pytest
import torch
from tensors.harness import pair

from p2pswarm.base.errors import BadMessage, Busy, TooLarge
from p2pswarm.base.ids import PeerId
from p2pswarm.tensors.budget import (
    FREE_SHARE,
    THREAD_BYTES,
    Budget,
    Reservation,
    granted,
    worth_a_thread,
)
from p2pswarm.tensors.codecs.meta import TENSORS_MAX, Grant
from p2pswarm.tensors.codecs.registry import encode
from p2pswarm.tensors.codecs.tensor_pool import TensorPool

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


PEER = PeerId(b"p" * 32)


def test_a_grant_names_a_transfer_for_what_does_not_ride_inline():
    budget = Budget()
    metas = [encode(torch.zeros(9), "raw", inline).meta for inline in (0, 100, 0)]
    reservation = Reservation(PEER, metas, budget)
    reservation.open(TensorPool(), pair()[0].expect)

    assert reservation.grant == Grant((1, 0, 2))
    assert budget.held_bytes == 3 * 36
    reservation.close()
    reservation.close()
    assert (budget.held_bytes, reservation.tensors) == (0, [])


def test_only_long_work_is_decoded_on_a_thread():
    values = THREAD_BYTES // 4
    tensors = [torch.zeros(values), torch.zeros(values + 1)]
    metas = [encode(x, codec, 0).meta for codec in ("raw", "int8") for x in tensors]
    reservation = Reservation(PEER, metas, Budget())
    reservation.open(TensorPool(), pair()[0].expect)

    assert [each.on_thread for each in reservation.tensors] == [False, False, False, True]


def test_what_comes_to_a_gpu_is_decoded_on_a_thread_and_whole_numbers_stay_on_the_host():
    tensors = [("raw", torch.zeros(9)), ("int8", torch.zeros(9)), ("raw", torch.arange(9))]
    metas = [encode(x, codec, 0).meta for codec, x in tensors]
    reservation = Reservation(PEER, metas, Budget())
    reservation.open(TensorPool(torch.device("meta")), pair()[0].expect)

    assert [each.on_thread for each in reservation.tensors] == [True, True, False]


def test_what_is_on_a_gpu_is_encoded_on_a_thread():
    pool = TensorPool(torch.device("meta"))

    assert worth_a_thread([("raw", torch.zeros(1, device="meta"))], pool)
    assert not worth_a_thread([("raw", torch.zeros(THREAD_BYTES))], pool)


@pytest.mark.parametrize(
    ("tensors", "worth"),
    [
        ([], False),
        ([("raw", THREAD_BYTES * 9)], False),
        ([("int8", THREAD_BYTES)], False),
        ([("int8", THREAD_BYTES), ("raw", 1)], False),
        ([("int8", THREAD_BYTES), ("bf16", 1)], True),
    ],
)
def test_only_long_work_is_encoded_on_a_thread(tensors, worth):
    of_bytes = [(codec, torch.zeros(size, dtype=torch.uint8)) for codec, size in tensors]

    assert worth_a_thread(of_bytes, TensorPool()) is worth


def test_more_tensors_than_an_announcement_holds_are_the_peers_fault():
    meta = encode(torch.zeros(1), "raw").meta

    Reservation(PEER, [meta] * TENSORS_MAX, Budget())
    with pytest.raises(BadMessage, match="are the most"):
        Reservation(PEER, [meta] * (TENSORS_MAX + 1), Budget())


def test_what_was_granted_is_sent_and_what_rode_inline_is_not():
    encoded = [encode(torch.zeros(9), "raw", inline) for inline in (0, 100)]

    assert granted(Grant((7, 0)), encoded) == [(7, encoded[0].data)]
    for transfers in ((), (7, 7), (0, 0), (7,)):
        with pytest.raises(BadMessage, match="does not fit"):
            granted(Grant(transfers), encoded)
