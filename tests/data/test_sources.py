"""Which files `train.data` means."""

import glob
import json
import os
import re
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.sources import check_there, files_of, found_files, in_order

INPUT = '{"text": "some text"}\n'


def row_files(data: Path) -> list[Path]:
    """The files with rows that `data` means; none if it means text."""
    found = files_of(data)
    return list(found.paths) if found.rows else []


def plain_files(data: Path, *suffixes: str) -> list[str]:
    """The names of the text files that `data` means."""
    found = files_of(data, suffixes)
    assert not found.rows
    return [found.name_of(path) for path in found.paths]


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
    assert plain_files(folder, ".txt") == ["c.txt"]
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
        (folder / name).write_bytes(b"ARROW1")
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


def test_archives_of_rows_are_refused_and_archives_beside_text_passed_over(folder: Path):
    for name in ("d.jsonl.zip", "e.zip", "f.parquet.gz"):
        (folder / name).touch()

    for what in ("*.zip", "d.jsonl.zip", "*.gz", "*"):
        with pytest.raises(Unusable, match="is compressed: unpack it"):
            row_files(folder / what)
    (folder / "e.zip").write_bytes(b"PK\x03\x04\0\0")
    assert plain_files(folder / "[ce].*") == ["c.txt"]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.ndjson.zst", "a.CSV.GZ", "a.tsv.xz"])
def test_rows_that_are_compressed_are_found_by_name_and_not_read_as_text(tmp_path: Path, name: str):
    place = tree(tmp_path, README_md="# Card of a dataset")
    (place / name).write_bytes(b"\x1f\x8b\0\0")
    pattern = name.replace("a", "*", 1)

    with pytest.raises(Unusable, match=rf"rows by a pattern, .*{re.escape(pattern)}, or the text"):
        check_there(place)
    assert row_files(place / pattern) == [place / name]
    assert plain_files(place, ".md") == ["README.md"]


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


def tree(folder: Path, **files: str | bytes) -> Path:
    """Files of a folder, by their names with `__` for a slash and `_` for a dot."""
    for name, text in files.items():
        file = folder / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


ROWS = INPUT * 3


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("data__train_parquet", "data/*.parquet"),
        ("data__train_arrow", "data/*.arrow"),
        ("data__train_jsonl", "data/*.jsonl"),
        ("train_JSONL", "*.JSONL"),
        ("train_ndjson", "*.ndjson"),
        ("train_json", "*.json"),
    ],
)
def test_rows_beside_a_card_are_never_passed_over_for_the_card(tmp_path, name, pattern):
    place = tree(tmp_path / "clone", README_md="# Card of a dataset", **{name: ROWS})

    with pytest.raises(Unusable) as told:
        check_there(place)
    assert f"name the rows by a pattern, {place}/{pattern}, or the text by" in str(told.value)
    assert str(told.value).endswith('train.suffixes = [".md"]')
    assert len(row_files(place / pattern)) == 1
    assert plain_files(place, ".md") == ["README.md"]


def test_rows_in_several_folders_are_named_by_one_pattern(tmp_path):
    place = tree(tmp_path, a__x_jsonl=ROWS, b__y_jsonl=ROWS, README_md="card")

    with pytest.raises(Unusable, match=r"\*\*/\*\.jsonl, or the text by"):
        check_there(place)
    assert len(row_files(place / "**/*.jsonl")) == 2


def test_a_folder_of_files_with_rows_is_named_by_a_pattern(tmp_path: Path):
    tree(tmp_path, a_jsonl=ROWS)

    with pytest.raises(Unusable, match=r"its files have rows: name them by a pattern, .*/\*.jsonl"):
        check_there(tmp_path)
    assert plain_files(tmp_path, ".jsonl") == ["a.jsonl"]


@pytest.mark.parametrize("name", ["a_csv", "a_TSV", "deep__a_csv"])
def test_a_table_is_not_trained_on_with_its_commas(tmp_path, name):
    place = tree(tmp_path, **{name: "a,b\n1,2\n"}, c_txt="text")
    file = next(path for path in place.rglob("a.*"))

    with pytest.raises(Unusable, match=r"holds files with rows .*: name the rows by a pattern"):
        check_there(place)
    assert row_files(file) == row_files(file.with_name("a.*")) == [file]
    assert plain_files(file.parent, ".CSV", ".tsv") == [file.name]


def test_json_is_rows_if_its_lines_are_objects_and_else_refused_by_name(tmp_path):
    tree(tmp_path, a_json=ROWS, b_json='{\n  "text": "one"\n}', c_json='[{"text": "one"}]')

    for name in ("a.json", "c.json"):
        assert row_files(tmp_path / name) == [tmp_path / name]
    with pytest.raises(Unusable, match=r"has no object a line: write each document as"):
        check_there(tmp_path / "b.json")


def test_an_array_in_a_folder_of_text_stays_text(tmp_path):
    tree(tmp_path, a_txt="some text", c_json='[{"text": "one"}, {"text": "two"}]')

    assert not files_of(tmp_path).rows


def test_json_of_programs_beside_text_is_read_and_that_is_said(tmp_path):
    found = files_of(tree(tmp_path, a_py="x = 1", package_json='{"name": "x"}\n'))

    assert [path.name for path in found.paths] == ["a.py", "package.json"]
    assert found.lines(tokenised=False) == [
        f"{tmp_path}: 1 of 2 files are JSON, and read with all their braces"
    ]


def test_what_is_passed_over_is_said_with_the_reason(tmp_path):
    place = tree(
        tmp_path / "here",
        a_txt="text",
        b_txt="",
        c_bin=b"\0\1" * 50,
        d_txt="wide".encode("utf-16"),
        e_txt="wide without a mark".encode("utf-16-le"),
        f_txt="wider".encode("utf-32"),
    )
    (place / ".git").mkdir()
    (place / "node_modules").mkdir()
    (place / "up").symlink_to("..")
    found = files_of(place)

    assert [path.name for path in found.paths] == ["a.txt"]
    (line,) = found.lines(tokenised=False, all_passed=True)
    (told,) = found.lines(tokenised=False)
    for part in (
        "1 hidden (.git)",
        "1 of a program's own folders (node_modules)",
        "1 links to folders (up)",
        "1 empty (b.txt)",
        "1 binary (c.bin)",
        "2 in UTF-16, to be saved as UTF-8 (d.txt, ...)",
        "1 in UTF-32, to be saved as UTF-8 (f.txt)",
    ):
        assert part in line
        assert (part in told) is not part.endswith(("(.git)", "(node_modules)", "(b.txt)"))


def test_what_is_no_file_is_passed_over_in_a_folder_and_refused_by_name(tmp_path):
    place = tree(tmp_path, a_txt="text")
    (place / "gone.txt").symlink_to("nowhere")
    os.mkfifo(place / "b.jsonl")
    os.mkfifo(place / "c.json")

    (line,) = files_of(place).lines(tokenised=False)
    assert (
        line == f"{place}: passed over: 3 no files, such as pipes and broken links (b.jsonl, ...)"
    )
    for name in ("b.jsonl", "c.json"):
        with pytest.raises(Unusable, match="is a pipe or a device: write what it gives to a file"):
            check_there(place / name)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="nothing that fails when read")
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json"])
def test_a_file_that_fails_when_it_is_read_is_named(tmp_path, name):
    (tmp_path / name).symlink_to("/proc/self/mem")

    with pytest.raises(Unusable, match=rf"{name}: cannot be read: ") as told:
        check_there(tmp_path / name)
    assert "\n" not in str(told.value)


def test_a_folder_that_may_not_be_read_is_one_line(tmp_path, monkeypatch):
    def denied(folder: Path):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(Unusable, match=rf"^{tmp_path}: cannot be read: Permission denied$"):
        files_of(tmp_path)


def test_a_long_line_of_json_is_rows_if_it_begins_as_an_object(tmp_path):
    long = '{"text": "' + "x" * (1 << 20) + '"}\n'
    tree(tmp_path, a_json=long * 2, b_json=long[1:] * 2)

    assert row_files(tmp_path / "a.json") == [tmp_path / "a.json"]
    with pytest.raises(Unusable, match="has no object a line"):
        check_there(tmp_path / "b.json")


def test_text_that_is_not_utf8_is_read_and_that_is_said(tmp_path):
    place = tree(tmp_path, a_txt="Zürich".encode("latin-1"), b_txt="né à l'été " * 2000)

    (line,) = files_of(place).lines(tokenised=True)
    assert line.startswith(f"{place}: 1 of 2 files are not UTF-8: the tokenizer reads their bytes")
    assert files_of(place).lines(tokenised=False) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "1 empty"),
        (b"\0" * 9, "1 binary"),
        ("x".encode("utf-16"), "1 in UTF-16, to be saved as UTF-8"),
    ],
)
def test_a_file_without_text_is_refused_with_the_reason(tmp_path, text: bytes, why: str):
    for data in (tree(tmp_path, a_txt=text), tmp_path / "a.txt", tmp_path / "*.txt"):
        with pytest.raises(
            Unusable, match=rf"there is no text; passed over: {why} \(a.txt\): name a"
        ):
            check_there(data)


@pytest.mark.parametrize(
    ("head", "remedy"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n", "git lfs pull"),
        ("/annex/objects/SHA256E-s9--12.txt\n", "git annex get"),
    ],
)
@pytest.mark.parametrize("name", ["a_txt", "a_jsonl", "a_parquet", "a_arrow"])
def test_a_pointer_to_a_large_file_is_no_text(tmp_path, head: str, remedy: str, name: str):
    place = tree(tmp_path, **{name: head})

    with pytest.raises(Unusable, match=rf"stands for a file that was not fetched: run {remedy}"):
        check_there(next(place.iterdir()))
    if name == "a_txt":
        tree(tmp_path, b_txt="text")
        with pytest.raises(Unusable, match=remedy):
            check_there(place)


def test_brackets_in_a_folder_that_is_there_are_its_name(tmp_path):
    place = tree(tmp_path, **{"[old] texts__a_txt": "text", "[old] texts__deep [1]__b_txt": "more"})
    tree(tmp_path, o__c_txt="another")

    assert plain_files(place / "[old] texts" / "*.txt") == ["a.txt"]
    assert plain_files(place / "[old] texts" / "**" / "*.txt") == ["a.txt", "deep [1]/b.txt"]
    assert plain_files(place / "*" / "deep [1]" / "*.txt") == ["[old] texts/deep [1]/b.txt"]
    assert plain_files(place / "[old]" / "*.txt") == ["o/c.txt"]


def test_a_pattern_that_finds_nothing_says_how_a_bracket_is_written(tmp_path):
    with pytest.raises(Unusable, match=r"no file is found by that pattern \(in a name, \[\[\] is"):
        check_there(tmp_path / "[gone]" / "*.txt")


@pytest.mark.parametrize("kind", [PurePosixPath, PureWindowsPath])
def test_files_have_one_order_on_all_systems(kind):
    """Else a run would begin again with another text where its next trainer is on Windows."""
    names = ["a/b.txt", "B.txt", "a.txt", "a/B.txt", "A/c.txt"]

    ordered = [file.as_posix() for file in in_order(map(kind, names))]

    assert ordered == ["A/c.txt", "B.txt", "a/B.txt", "a/b.txt", "a.txt"]
