"""Plain text of any size: which parts are on which side, and reading them from any place on."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.data import text_files as plain_files
from p2pswarm.data.immutable_files import ImmutableFiles
from p2pswarm.data.sources import files_of
from p2pswarm.data.text_files import FileSpan, PlainText, plain_sides


def sides_of(path, share=0.3):
    return plain_sides(files_of(path), share)


def test_a_folder_with_binary_and_empty_files_has_its_text(tmp_path):
    (tmp_path / "a.txt").write_text("some text " * 9)
    (tmp_path / "b.bin").write_bytes(b"\0" * 99)
    (tmp_path / "c.txt").touch()
    train, held_out = sides_of(tmp_path)

    assert len(train) + len(held_out) == 90
    assert len(train.files.paths) == 1


@given(st.integers(0, 10**6), st.integers(5, 50))
def test_all_of_a_side_comes_once_from_any_place_on(tmp_path_factory, place, chunk):
    folder = tmp_path_factory.mktemp("t")
    texts = [b"one line\nand another one", b"z" * 70, b"\n\n", b"x"]
    for number, text in enumerate(texts):
        (folder / str(number)).write_bytes(text)
    files = ImmutableFiles([folder / str(number) for number in range(4)])
    spans = [FileSpan(number, 0, size) for number, size in enumerate(files.sizes)]
    side = PlainText(files, spans, "to train on", chunk_bytes=chunk)
    place %= len(side)

    batches = list(side.batches_from(place))
    assert batches[0].begins[0] == place
    assert all(a.begins[1] == b.begins[0] for a, b in pairwise(batches))
    assert all(len(batch.texts[0]) <= chunk for batch in batches)
    joined = b"".join(texts)
    assert b"".join(batch.texts[0] for batch in batches) == joined[place:] + joined[:place]
    assert sum(batch.ended for batch in batches) == 4


def test_a_chunk_ends_with_a_line_or_else_a_character(tmp_path):
    (tmp_path / "a").write_text("line one\nline two\n" + "ä" * 40)
    files = ImmutableFiles([tmp_path / "a"])
    side = PlainText(files, [FileSpan(0, 0, files.sizes[0])], "to train on", chunk_bytes=15)

    texts = [batch.texts[0].decode() for batch in side.batches_from(0)]
    assert texts[:3] == ["line one\n", "line two\n", "ä" * 7]
    inside = next(side.batches_from(19))  # of the first ä the second byte
    assert inside.texts[0].decode() == "ä" * 7


def test_a_file_larger_than_a_chunk_is_cut_at_the_shipped_size(tmp_path):
    (tmp_path / "a.txt").write_text("word " * 40_000)
    train, held_out = sides_of(tmp_path)

    sizes = [len(batch.texts[0]) for batch in train.batches_from(0)]
    assert max(sizes) <= plain_files.CHUNK_BYTES
    assert sum(sizes) == len(train) == 200_000 - len(held_out)
    assert 54_000 < len(held_out) < 66_000
    assert held_out.holds(b"anything")


def test_a_side_without_text_is_one_line(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(Unusable, match="no text is held out: name more text") as caught:
        sides_of(tmp_path)
    assert "\n" not in str(caught.value)
