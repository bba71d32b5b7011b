"""Equal bytes have equal digests, and no other do."""

import hashlib

import pytest
import torch

from p2pswarm.compute.digest import digest_of
from p2pswarm.compute.flat_parameters import host_bytes

PIECE_BYTES = 1024


@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 1000])
def test_it_is_the_hash_of_the_hashes_of_the_pieces(length):
    numbers = torch.randn(length, dtype=torch.float64)
    data = bytes(host_bytes(numbers))

    pieces = [data[i : i + 1024] for i in range(0, max(1, len(data)), 1024)]

    hashes = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
    assert digest_of(numbers, PIECE_BYTES) == hashlib.sha256(hashes).digest()


@pytest.mark.parametrize("place", [0, 255, 256, 999])
def test_any_bit_changes_it(place):
    numbers = torch.randn(1000)
    before = digest_of(numbers, PIECE_BYTES)

    numbers.view(torch.int32)[place] ^= 1

    assert digest_of(numbers, PIECE_BYTES) != before


def test_it_does_not_matter_where_the_bytes_lie():
    whole = torch.randn(2000)

    part = whole[500:1500]
    assert digest_of(part, PIECE_BYTES) == digest_of(part.clone(), PIECE_BYTES)


def test_the_places_of_pieces_count():
    numbers = torch.cat((torch.zeros(256), torch.ones(256)))

    assert digest_of(numbers, PIECE_BYTES) != digest_of(numbers.flip(0), PIECE_BYTES)
