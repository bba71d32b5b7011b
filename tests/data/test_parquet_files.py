"""Parquet files from any place on, a group of rows at a time."""

import logging

import numpy as np
import pytest
from core import examples
from data.harness import TEXTS, assert_each_comes_once, texts_from
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.data import columnar_files as parquet_files
from p2pswarm.data.columnar_files import ParquetFiles

arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")


def write(path, texts, group_rows=5, **options):
    table = arrow.table({"id": range(len(texts)), "text": arrow.array(texts, arrow.string())})
    parquet.write_table(table, path, row_group_size=group_rows, **options)
    return path


@settings(max_examples=examples(40))
@given(st.lists(TEXTS, min_size=1, max_size=3), st.floats(0, 1, exclude_max=True), st.booleans())
def test_each_text_comes_once_from_the_one_at_a_place_on(tmp_path_factory, each, at, held):
    folder = tmp_path_factory.mktemp("p")
    paths = [write(folder / f"{n}.parquet", texts) for n, texts in enumerate(each)]
    files = ParquetFiles(paths, "text", held_bytes=10**6 if held else 0)
    place = int(at * len(files))

    assert_each_comes_once(files, place, each)


def test_a_group_is_read_again_from_memory_if_it_is_small(tmp_path):
    path = write(tmp_path / "a.parquet", [str(n) * 50 for n in range(100)], group_rows=100)
    small, large = ParquetFiles([path], "text"), ParquetFiles([path], "text", held_bytes=100)

    assert texts_from(small, 900) == texts_from(large, 900) != []
    path.write_bytes(bytes(path.stat().st_size))
    assert len(texts_from(small, 0)) == 100
    with pytest.raises(Unusable, match=r"a\.parquet: cannot be read"):
        texts_from(large, 0)


def test_texts_that_repeat_have_places_too(tmp_path):
    """A dictionary makes the column much shorter than its texts."""
    path = write(tmp_path / "a.parquet", ["first" * 9] * 300 + ["last" * 9] * 300, group_rows=600)
    files = ParquetFiles([path], "text")
    assert len(files) < 1000

    begun = [
        next(text for begin, text in reversed(texts_from(files, p)) if begin <= p)
        for p in range(0, len(files), max(1, len(files) // 20))
    ]
    assert 0.3 < np.mean([text.startswith(b"first") for text in begun]) < 0.7


def test_rows_without_text_are_passed_over_and_told_once(tmp_path, caplog):
    path = write(tmp_path / "a.parquet", ["one", None, "", "two", None, None, None], group_rows=2)
    with caplog.at_level(logging.WARNING):
        found = [text for _, text in texts_from(ParquetFiles([path], "text"), 0) if text]
    assert found == [b"one", b"two"]
    assert len(caplog.messages) == 1


def test_many_files_are_read_with_few_of_their_ends_in_memory(tmp_path, monkeypatch):
    paths = [write(tmp_path / f"{n}.parquet", [f"text {n}"] * 3) for n in range(20)]
    files = ParquetFiles(paths, "text")

    assert parquet_files.FILES_KEPT < 20
    found = [text for _, text in texts_from(files, 0)]
    assert sorted(found) == sorted(f"text {n}".encode() for n in range(20) for _ in range(3))


@pytest.mark.parametrize(
    ("field", "texts", "cut", "part"),
    [
        ("text", ["x" * 99], 9, "cannot be read: Parquet magic bytes not found in footer"),
        ("text", ["x" * 99], 150, "cannot be read: "),
        ("text", [], 0, "has no rows: remove it, or copy it again"),
        ("txt", ["x"], 0, "no field 'txt' (did you mean 'text'?); there are: id, text"),
        ("id", ["x"], 0, "the column 'id' is no text but int64: set train.field"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, field, texts, cut, part):
    path = write(tmp_path / "a.parquet", texts)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])

    with pytest.raises(Unusable) as caught:
        ParquetFiles([path], field)
    assert part in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_broken_inside_ends_the_run_in_one_line(tmp_path):
    path = write(tmp_path / "a.parquet", [str(n) * 200 for n in range(50)], compression="zstd")
    whole = bytearray(path.read_bytes())
    whole[200:2000] = bytes(1800)
    path.write_bytes(whole)

    with pytest.raises(Unusable, match=r"a\.parquet: cannot be read") as caught:
        texts_from(ParquetFiles([path], "text"), 0)
    assert "\n" not in str(caught.value)


def test_a_file_that_changes_under_a_run_is_named(tmp_path):
    path = write(tmp_path / "a.parquet", ["one", "two"])
    files = ParquetFiles([path], "text")
    write(path, ["one", "two", "three" * 9])

    with pytest.raises(Unusable, match=r"a\.parquet: changed while the run reads it"):
        texts_from(files, 0)
