"""The digest of a file and of its pieces, made while the bytes pass."""

import hashlib
import itertools

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.checkpoint.digests import PIECES_MAX, FileHasher, piece_bytes_for


@given(st.binary(max_size=200), st.integers(1, 40), st.lists(st.integers(0, 200), max_size=5))
def test_however_the_bytes_come_the_digest_is_that_of_the_file(data, piece_bytes, cuts):
    hasher = FileHasher(piece_bytes)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]

    for start, stop in itertools.pairwise(edges):
        hasher.update(data[start:stop])

    digest = hasher.finish()
    pieces = [data[i : i + piece_bytes] for i in range(0, len(data), piece_bytes)]
    assert digest.size == len(data)
    assert digest.sha256 == hashlib.sha256(data).digest()
    assert len(digest.pieces) == len(pieces)
    assert all(digest.matches(i, piece) for i, piece in enumerate(pieces))


@given(st.integers(1, 2**40))
def test_a_large_file_has_larger_pieces_and_never_too_many(size):
    piece_bytes = piece_bytes_for(size)

    assert -(-size // piece_bytes) <= PIECES_MAX
    assert piece_bytes == piece_bytes_for(1) or size > piece_bytes * PIECES_MAX // 2
