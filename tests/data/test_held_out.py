"""What is held out: the share of the bytes, by the text alone, whatever else there is."""

import random
from itertools import pairwise

import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.data.held_out import BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Part, parts_of_file
from p2pswarm.data.sources import files_of
from p2pswarm.data.text_files import plain_sides, read_sides, remarks_on_split

SHARES = st.floats(0.02, 0.5)


def prose(seed: int, size: int, line_max: int = 120) -> bytes:
    """Lines of words, all different."""
    chance = random.Random(seed)
    lines, length = [], 0
    while length < size:
        words = chance.randbytes(chance.randint(1, line_max) // 2).hex().replace("9", "\u65e5")
        lines.append(f"{seed}.{length} {words}\n".encode())
        length += len(lines[-1])
    return b"".join(lines)[:size]


def parts_of(text: bytes, share: float) -> list[Part]:
    return parts_of_file(len(text), share, lambda start, stop: text[start:stop])


def held_out_bytes(parts: list[Part]) -> int:
    return sum(part.stop - part.start for part in parts if part.held_out)


@settings(max_examples=examples(60))
@given(st.integers(), st.integers(1, 300_000), SHARES, st.sampled_from([3, 120, 6_000, 40_000]))
def test_the_parts_of_a_file_are_all_of_it_on_sides_by_turns(seed, size, share, line_max):
    text = prose(seed, size, line_max)
    parts = parts_of(text, share)

    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == len(text)
    assert all(a.held_out is not b.held_out for a, b in pairwise(parts))
    for part in parts[:-1]:
        torn = text[: part.stop].decode("utf-8", "replace").endswith("\ufffd")
        assert text[part.stop - 1 : part.stop] == b"\n" or not torn


@settings(max_examples=examples(60))
@given(st.integers(), st.integers(150_000, 1_000_000), st.floats(0.05, 0.5))
def test_of_each_file_the_share_of_its_bytes_is_held_out(seed, size, share):
    found = held_out_bytes(parts_of(prose(seed % 50, size), share)) / size

    assert abs(found - share) < 0.035


def test_of_many_small_files_the_share_of_their_bytes_is_held_out():
    texts = [prose(seed, 200 + seed % 900) for seed in range(3_000)]
    out = sum(held_out_bytes(parts_of(text, 0.1)) for text in texts)

    assert 0.08 < out / sum(map(len, texts)) < 0.12


@settings(max_examples=examples(60))
@given(st.integers(), st.integers(1, 200_000), SHARES, SHARES)
def test_a_larger_share_only_adds_to_what_is_held_out(seed, size, one, other):
    text, (less, more) = prose(seed, size), sorted((one, other))
    wider = parts_of(text, more)

    for part in parts_of(text, less):
        if part.held_out:
            assert any(w.held_out and w.start <= part.start < part.stop <= w.stop for w in wider)


@settings(max_examples=examples(40))
@given(st.integers(), st.integers(80_000, 300_000), st.integers(1, 300_000), SHARES)
def test_a_file_that_grows_keeps_its_earlier_blocks(seed, size, more, share):
    text = prose(seed, size)
    text = text[: text.rfind(b"\n") + 1]
    before, after = parts_of(text, share), parts_of(text + prose(seed + 1, more), share)

    for part in before:
        assert any(a.held_out is part.held_out and a.start == part.start for a in after)


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_a_block_is_short_in_a_small_file_and_long_in_a_large_one(share: float):
    line = b"x" * 99 + b"\n"

    def read(start: int, stop: int) -> bytes:
        return (line * ((stop - start) // 100 + 2))[start % 100 :][: stop - start]

    parts = parts_of_file(1 << 30, share, read)
    out = [part.stop - part.start for part in parts if part.held_out]

    assert min(out) >= BLOCK_BYTES_MIN - len(line)
    assert max(out) <= (2 if share < 0.2 else 4) * BLOCK_BYTES_MAX
    assert abs(sum(out) / (1 << 30) - share) < 0.01
    assert len(parts) < 3_000  # places where 1 GiB is torn apart


FILES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 60_000), min_size=2)


def sides_in(folder, texts: dict[str, bytes], share: float) -> list[set[bytes]]:
    """The lines of each side of a folder with these files, alike whether streamed or in memory."""
    for name, text in texts.items():
        (folder / f"{name}.txt").write_bytes(text)
    found = files_of(folder)
    sides = read_sides(found, share)
    for side, streamed in zip(sides, plain_sides(found, share), strict=True):
        batches = list(streamed.batches_from(0))
        assert b"".join(batch.texts[0] for batch in batches) == b"".join(side)
        assert sum(batch.ended for batch in batches) == len(side)
    return [{line for piece in side for line in piece.splitlines() if line} for side in sides]


@settings(max_examples=examples(30))
@given(st.integers(0, 10**6), FILES, FILES, SHARES)
def test_files_that_are_added_or_renamed_move_nothing(tmp_path_factory, seed, sizes, added, share):
    texts = {name: prose(seed + n, size + 40_000) for n, (name, size) in enumerate(sizes.items())}
    before = sides_in(tmp_path_factory.mktemp("before"), texts, share)
    renamed = {f"z-{name}": text for name, text in texts.items()}
    renamed |= {name: prose(seed + 50 + n, size) for n, (name, size) in enumerate(added.items())}
    after = sides_in(tmp_path_factory.mktemp("after"), renamed, share)

    assert before[0] <= after[0]
    assert before[1] <= after[1]


def test_a_small_file_beside_a_large_one_is_not_all_that_is_trained_on(tmp_path):
    large, small = prose(1, 400_000), prose(2, 3_000)
    for names in (("a", "b"), ("b", "a"), ("x", "y"), ("corpus", "notes")):
        folder = tmp_path / "-".join(names)
        folder.mkdir()
        for name, text in zip(names, (large, small), strict=True):
            (folder / f"{name}.txt").write_bytes(text)
        train, held_out = (sum(map(len, side)) for side in read_sides(files_of(folder), 0.1))

        assert train + held_out == 403_000
        assert 0.08 < held_out / 403_000 < 0.12


def test_of_too_little_text_the_end_is_held_out_and_that_is_said(tmp_path):
    (tmp_path / "only.txt").write_text("a" * 900 + "z" * 100)

    assert read_sides(files_of(tmp_path), 0.1) == ([b"a" * 900], [b"z" * 100])
    (told,) = remarks_on_split(files_of(tmp_path), 0.1)
    assert told.startswith(f"{tmp_path}: too little text to hold out blocks of it")
    (tmp_path / "more.txt").write_bytes(prose(1, 90_000))
    assert remarks_on_split(files_of(tmp_path), 0.1) == []
