"""Equal bytes have equal digests, and no other do."""

import hashlib

import pytest
import torch

from p2pswarm.models.compute.digest import digest_of, piece_hashes
from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.state_tree import piece_spans, root_of

PIECE_VALUES = 128


def digest(*tensors):
    return digest_of(tensors, spans_of(tensors))


def spans_of(tensors):
    return piece_spans(len(tensors[0]), PIECE_VALUES)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 1000])
def test_it_is_the_hash_of_the_hashes_of_the_pieces(length, count):
    tensors = [torch.randn(length, dtype=torch.float64) for _ in range(count)]
    whole = [bytes(bytes_of(x)) for x in tensors]

    size = 8 * PIECE_VALUES
    pieces = [
        b"".join(data[i : i + size] for data in whole) for i in range(0, max(1, 8 * length), size)
    ]

    hashes = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
    assert digest(*tensors) == hashlib.sha256(hashes).digest()


@pytest.mark.parametrize("tensor", [0, 1, 2])
@pytest.mark.parametrize("place", [0, 255, 256, 999])
def test_any_bit_changes_it(place, tensor):
    tensors = [torch.randn(1000) for _ in range(3)]
    before = digest(*tensors)

    tensors[tensor].view(torch.int32)[place] ^= 1

    assert digest(*tensors) != before


def test_a_changed_bit_changes_the_hash_of_its_own_piece_only():
    tensors = [torch.randn(1000) for _ in range(3)]
    before = piece_hashes(tensors, spans_of(tensors))

    tensors[2].view(torch.int32)[300] ^= 1

    after = piece_hashes(tensors, spans_of(tensors))
    assert [k for k in range(8) if before[k] != after[k]] == [2]
    assert root_of(after) == digest(*tensors)


def test_it_does_not_matter_where_the_bytes_lie():
    whole = torch.randn(2000)

    part = whole[500:1500]
    assert digest(part) == digest(part.clone())


def test_the_places_of_pieces_and_of_tensors_count():
    zeros, ones = torch.zeros(256), torch.ones(256)
    numbers = torch.cat((zeros, ones))

    assert digest(numbers) != digest(numbers.flip(0))
    assert digest(zeros, ones) != digest(ones, zeros)
