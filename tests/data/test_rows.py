"""Documents out of files with rows, and what is said of rows that are none."""

import json
import sys
from pathlib import Path

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.rows import documents

TEXTS = ["one", "two äö", "", "four\nlines"]
READ = [text.encode() for text in TEXTS if text]


def write_lines(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", "utf-8", "surrogateescape")
    return path


def test_each_json_line_is_a_document(tmp_path: Path):
    lines = [json.dumps({"id": number, "text": text}) for number, text in enumerate(TEXTS)]
    file = write_lines(tmp_path / "a.jsonl", *lines, "", "  ")

    assert list(documents(file, "text")) == READ


def test_half_a_surrogate_pair_does_not_stop_the_reading(tmp_path: Path):
    file = write_lines(tmp_path / "a.jsonl", r'{"text": "a\ud800b"}')

    assert list(documents(file, "text")) == [b"a?b"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "row 2: not JSON"),
        ("[" * 100_000, "row 2: not JSON"),
        ('"text"', "row 2: not an object"),
        ('{"text": 3}', "row 2: the field 'text' is no text: remove the row, or set"),
        ('{"text": null}', "row 2: the field 'text' is no text: remove the row, or set"),
        ('{"texts": ""}', r"no field 'text' \(did you mean 'texts'\?\); there are: texts; set"),
        ("{}", "no field 'text'; there are: none"),
        ("[", "not JSON: it is one array: write an object a line"),
        ('{"text": "\udcff"}', "row 2: not UTF-8: write the file in UTF-8"),
    ],
)
def test_a_row_that_is_none_is_named_in_one_line(tmp_path: Path, line: str, why: str):
    file = write_lines(tmp_path / "a.jsonl", '{"text": "fine"}', line)

    with pytest.raises(Unusable, match=why) as told:
        list(documents(file, "text"))
    assert "\n" not in str(told.value)
    assert str(file) in str(told.value)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path):
    file = write_lines(tmp_path / "a.jsonl", json.dumps({"text": "x" * 200}))

    with pytest.raises(Unusable, match="row 1: longer than 100 bytes"):
        list(documents(file, "text", line_bytes_max=100))


def test_a_shard_without_rows_is_named(tmp_path: Path):
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(Unusable, match=r"a\.jsonl: has no rows"):
        list(documents(tmp_path / "a.jsonl", "text"))


def test_a_damaged_page_is_one_line_with_the_remedy(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    file = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": [f"some text {n}" for n in range(500)]}), file)
    damaged = bytearray(file.read_bytes())
    damaged[10:60] = bytes(50)
    file.write_bytes(damaged)

    with pytest.raises(Unusable, match=r"a\.parquet: .*remove it") as told:
        list(documents(file, "text"))
    assert "\n" not in str(told.value)


def test_a_file_that_vanished_is_said_in_one_line(tmp_path: Path):
    with pytest.raises(Unusable, match="cannot be read"):
        list(documents(tmp_path / "gone.jsonl", "text"))


def test_without_pyarrow_the_remedy_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.lib", None)
    with pytest.raises(Unusable, match=r"pip install 'p2pswarm\[data\]'"):
        list(documents(tmp_path / "a.parquet", "text"))


@pytest.fixture
def table():
    arrow = pytest.importorskip("pyarrow")
    return arrow.table({"id": list(range(len(TEXTS))), "text": TEXTS})


def test_each_row_of_parquet_is_a_document(tmp_path: Path, table):
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(table, tmp_path / "a.parquet")

    assert list(documents(tmp_path / "a.parquet", "text")) == READ
    with pytest.raises(Unusable, match=r"no field 'txt' \(did you mean 'text'\?\)"):
        list(documents(tmp_path / "a.parquet", "txt"))
    with pytest.raises(Unusable, match="row 1: the field 'id' is no text: remove"):
        list(documents(tmp_path / "a.parquet", "id"))


@pytest.mark.parametrize("kind", ["new_stream", "new_file"])
def test_each_row_of_an_arrow_file_is_a_document(tmp_path: Path, table, kind: str):
    ipc = pytest.importorskip("pyarrow.ipc")
    with getattr(ipc, kind)(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)

    assert list(documents(tmp_path / "a.arrow", "text")) == READ
    with pytest.raises(Unusable, match="no field 'body'; there are: id, text"):
        list(documents(tmp_path / "a.arrow", "body"))


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize("content", [b"", b"nothing of the kind" * 9])
def test_what_only_has_the_ending_is_said_in_one_line(tmp_path: Path, name: str, content: bytes):
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)

    with pytest.raises(Unusable) as told:
        list(documents(tmp_path / name, "text"))
    assert "\n" not in str(told.value)
