"""The pace of a channel: large chunks on fast roads, small ones where others would wait."""

import pytest

from p2pswarm.net.bulk.chunk_sizer import CHUNK_BYTES_LEAST, ChunkSizer

MOST = 1024 * 1024


def paced(rate_bytes_per_s: float, chunks: int = 100) -> int:
    pace = ChunkSizer(MOST)
    for _ in range(chunks):
        length = pace.chunk_bytes
        pace.note(length, length / rate_bytes_per_s)
    return pace.chunk_bytes


@pytest.mark.parametrize(
    ("rate_bytes_per_s", "chunk_bytes"),
    [(2e9, MOST), (25e6, 7 * CHUNK_BYTES_LEAST), (1e6, CHUNK_BYTES_LEAST)],
)
def test_a_chunk_is_what_leaves_in_twenty_milliseconds(rate_bytes_per_s, chunk_bytes):
    assert paced(rate_bytes_per_s) == chunk_bytes


def test_an_unknown_road_counts_as_fast():
    assert ChunkSizer(MOST).chunk_bytes == MOST


def test_what_the_kernels_buffer_swallowed_at_once_is_soon_outweighed():
    pace = ChunkSizer(MOST)
    pace.note(4 * MOST, 0.001)
    for _ in range(500):
        pace.note(MOST // 4, MOST / 4 / 25e6)

    assert pace.chunk_bytes == 7 * CHUNK_BYTES_LEAST


def test_a_road_that_became_fast_is_noticed():
    pace = ChunkSizer(MOST)
    for _ in range(20):
        pace.note(MOST, 1.0)
    for _ in range(2000):
        pace.note(MOST, MOST / 2e9)

    assert pace.chunk_bytes == MOST
