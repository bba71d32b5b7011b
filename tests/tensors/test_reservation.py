"""Memory for announced tensors: what a grant says, and what is worth a thread."""

import pytest
import torch
from tensors.harness import pair

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import PeerId
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.codecs.meta import TENSORS_MAX, Grant
from p2pswarm.tensors.codecs.registry import encode
from p2pswarm.tensors.codecs.tensor_pool import TensorPool
from p2pswarm.tensors.reservation import THREAD_BYTES, Reservation, granted, worth_a_thread

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
