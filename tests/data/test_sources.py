"""Which files `train.data` means."""

import glob
import json
from pathlib import Path

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.sources import check_there, found_files, row_files


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
    assert [file.suffix for file in row_files(dataset(folder, "d.arrow"))] == [".arrow"]


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


def test_a_pattern_finds_what_the_library_finds(folder: Path):
    for name in (
        "deep/er/d.jsonl",
        "deep/e.jsonl",
        ".hidden/f.jsonl",
        "deep/.g.jsonl",
        "[x]/h.jsonl",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()

    patterns = ["*", "**", "**/*", "*/*", "**/*.jsonl", "**/deep/*.jsonl", "*/e.jsonl", "**/**/*"]
    for pattern in [
        *patterns,
        "[!a]*",
        "?.jsonl",
        ".*/*",
        "deep/.*",
        "[[]x]/*",
        "gone/*",
        "a.jsonl/*",
    ]:
        found = glob.glob(str(folder / pattern), recursive=True)  # noqa: PTH207
        expected = sorted({Path(name) for name in found if Path(name).is_file()})
        assert found_files(folder / pattern) == expected, pattern


def dataset(folder: Path, *names: str, **more: object) -> Path:
    """A dataset as `save_to_disk` lays it, with files of no content."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()
    state = {"_data_files": [{"filename": name} for name in names]} | more
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def test_a_dataset_has_the_files_that_it_says_in_its_order(tmp_path: Path):
    there = dataset(tmp_path, "b.arrow", "a.arrow")
    (there / "cache-1234.arrow").touch()  # where `map` of a dataset that was loaded writes

    assert [file.name for file in row_files(there)] == ["b.arrow", "a.arrow"]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("{}", "does not say which files"),
        ("[]", "does not say which files"),
        ('{"_data_files": []}', r"without its \.arrow files"),
        ('{"_data_files": [{"filename": "gone.arrow"}]}', r"without its \.arrow files"),
    ],
)
def test_a_dataset_that_is_not_whole_is_one_line(tmp_path: Path, state: str, why: str):
    (tmp_path / "state.json").write_text(state)

    with pytest.raises(Unusable, match=why):
        check_there(tmp_path)


def test_a_dataset_with_an_order_beside_its_files_is_refused(tmp_path: Path):
    moved = dataset(tmp_path, "a.arrow", _indices_data_files=[{"filename": "indices.arrow"}])

    with pytest.raises(Unusable, match=r"save what flatten_indices\(\) gives"):
        row_files(moved)


def test_of_several_datasets_one_has_to_be_named(tmp_path: Path):
    dataset(tmp_path / "train", "a.arrow")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')

    with pytest.raises(Unusable, match=r"several datasets: name one .* such as .*train"):
        check_there(tmp_path)


def test_compressed_rows_are_refused_and_archives_beside_text_passed_over(folder: Path):
    for name in ("d.jsonl.gz", "e.zip"):
        (folder / name).touch()

    for what in ("*.gz", "d.jsonl.gz", "*.zip", "*"):
        with pytest.raises(Unusable, match="is compressed: unpack it"):
            row_files(folder / what)
    assert row_files(folder / "[ce].*") == []


def test_a_link_to_a_folder_above_brings_no_file_twice(folder: Path):
    (folder / "deep").mkdir()
    (folder / "deep" / "up").symlink_to("..")
    (folder / "here").symlink_to(folder)
    other = folder.parent / f"{folder.name}-other"
    other.mkdir()
    (other / "d.jsonl").write_text("{}")
    (folder / "link").symlink_to(other)

    found = [str(file.relative_to(folder)) for file in row_files(folder / "**" / "*.jsonl")]
    assert found == ["a.jsonl", "b.jsonl", "link/d.jsonl"]


def test_a_pattern_in_what_cannot_be_read_is_one_line(folder: Path):
    long = "x" * 300
    for data in (folder / long, folder / long / "*.jsonl", folder / "*" / long):
        with pytest.raises(Unusable, match=r"cannot be read|no such file|no file is found") as told:
            check_there(data)
        assert "\n" not in str(told.value)
    (folder / "deep").mkdir()
    with pytest.raises(Unusable, match=r"cannot be read|no file is found"):
        found_files(folder / "d*" / long)
