"""Which files `train.data` means."""

from pathlib import Path

import pytest

from p2pswarm.data.sources import check_there, row_files
from p2pswarm.errors import Unusable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.jsonl", "a.jsonl", "c.txt"):
        (tmp_path / name).write_text('{"text": "x"}\n')
    return tmp_path


def test_a_pattern_finds_files_in_the_order_of_their_names(folder: Path):
    assert [file.name for file in row_files(folder / "*.jsonl")] == ["a.jsonl", "b.jsonl"]


def test_a_pattern_searches_below_folders(folder: Path):
    (folder / "deep").mkdir()
    (folder / "deep" / "d.jsonl").write_text("{}")

    assert [file.name for file in row_files(folder / "**" / "d*.jsonl")] == ["d.jsonl"]


def test_a_folder_is_text_unless_a_dataset_was_saved_in_it(folder: Path):
    assert row_files(folder) == []
    (folder / "state.json").write_text("{}")
    with pytest.raises(Unusable, match=r"without \.arrow files"):
        row_files(folder)
    (folder / "data-00000-of-00001.arrow").touch()
    assert [file.suffix for file in row_files(folder)] == [".arrow"]


def test_text_has_no_rows(folder: Path):
    assert row_files(folder / "c.txt") == []
    assert row_files(folder / "*.txt") == []


def test_files_with_and_without_rows_are_not_mixed(folder: Path):
    with pytest.raises(Unusable, match=r"c\.txt without: name one kind"):
        row_files(folder / "*")


@pytest.mark.parametrize(("name", "why"), [("gone", "no such file"), ("*.gz", "no file is found")])
def test_what_is_not_there_is_said_in_one_line(folder: Path, name: str, why: str):
    with pytest.raises(Unusable, match=why):
        check_there(folder / name)


def test_a_file_whose_name_has_a_wildcard_is_itself(tmp_path: Path):
    odd = tmp_path / "a[1].jsonl"
    odd.write_text("{}")

    check_there(odd)
    assert row_files(odd) == [odd]
