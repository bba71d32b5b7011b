"""Tests of `data/documents.py`."""

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.data import token_file as prepared_text
from p2pswarm.data.columnar_files import ArrowFiles, ParquetFiles
from p2pswarm.data.documents import (
    WITHOUT_TEXT_MAX,
    all_documents,
    documents,
    load_documents,
)
from p2pswarm.data.held_out import is_held_out_document
from p2pswarm.data.line_files import LineFiles
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.sources import files_of
from p2pswarm.data.text_stream import RowFiles
from p2pswarm.data.token_corpus import load_tokenised, sources_of
from p2pswarm.data.tokenizer import train_tokenizer
from p2pswarm.settings.train_config import TrainConfig

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


def test_what_becomes_a_question_mark_or_is_empty_is_said_once(tmp_path: Path, caplog):
    half = r'{"text": "a\ud800b"}'
    file = write_lines(tmp_path / "a.jsonl", half, half, '{"text": ""}')
    streamed = LineFiles([file], "text")
    caplog.clear()

    read = list(all_documents([file, file], "text"))
    assert read == [b"a?b"] * 4
    told = f"{file}: \\ud800 is half a character: such become question marks"
    assert caplog.messages == [told, told, "2 of 6 rows have an empty text: passed over"]
    caplog.clear()
    assert [batch.texts[0] for batch in streamed.batches_from(0)] == [b"a?b", b"a?b", b""]
    assert caplog.messages == [told]


def test_a_mark_of_utf8_before_the_first_row_is_no_part_of_it(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\n{"text": "two"}\n')

    assert list(documents(tmp_path / "a.jsonl", "text")) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "row 2: not JSON"),
        ("[" * 100_000, "row 2: not JSON"),
        ('"text"', "row 2: not an object"),
        ("[", "row 2: not JSON"),
        ('{"text": "\udcff"}', "row 2: not UTF-8: write the file in UTF-8"),
        (
            "\0" * 40,
            "row 2: has NUL bytes, as a file that a crash cut short, or UTF-16: remove",
        ),
        ('{"text": "a\0b"}', "row 2: has NUL bytes"),
        ('{"text": "a", "id": 1, "text": "b"}', "row 2: has two fields 'text': remove one of them"),
    ],
)
def test_a_row_that_is_none_is_named_in_one_line(tmp_path: Path, line: str, why: str):
    file = write_lines(tmp_path / "a.jsonl", '{"text": "fine"}', line)

    with pytest.raises(Unusable, match=why) as told:
        list(documents(file, "text"))
    assert "\n" not in str(told.value)
    assert str(file) in str(told.value)


@pytest.mark.parametrize("line", ['{"text": 3}', '{"text": null}', '{"texts": ""}', "{}"])
def test_rows_without_text_are_passed_over_and_counted(tmp_path: Path, caplog, line: str):
    file = write_lines(tmp_path / "a.jsonl", line, '{"text": "one"}', line, '{"text": "two"}')

    assert list(all_documents([file], "text")) == [b"one", b"two"]
    assert caplog.messages == ["2 of 4 rows have no text: passed over"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"text": 3}', "row 1: the field 'text' is no text: remove the row, or set"),
        ('{"texts": ""}', r"no field 'text' \(did you mean 'texts'\?\); there are: texts; set"),
        ("{}", "no field 'text'; there are: none"),
    ],
)
@pytest.mark.parametrize("more", [[], ['{"text": "late"}']], ids=["all rows", "the first 1,000"])
def test_a_field_that_no_row_has_is_one_line(tmp_path: Path, line: str, why: str, more: list[str]):
    file = write_lines(tmp_path / "a.jsonl", *[line] * WITHOUT_TEXT_MAX, *more)

    with pytest.raises(Unusable, match=why):
        list(documents(file, "text"))
    with pytest.raises(Unusable, match=why):
        LineFiles([file], "text")


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ('{"message": {"content": "a"}}', "message.content"),
        ('{"turns": [{"role": "user"}, {"content": {"text": "a"}}]}', "turns.1.content.text"),
        ('{"turns": ["b", "a"]}', "turns.1"),
        ('{"message.content": "a", "message": {"content": "b"}}', "message.content"),
        ('{"a.b": {"c": "a"}, "a": {"b": {"c": "b"}}}', "a.b.c"),
        ('{"content": "b", "message": {"content": "a"}}', "message.content"),
    ],
)
def test_a_field_may_be_a_path_through_nested_ones(tmp_path: Path, row: str, field: str):
    file = write_lines(tmp_path / "a.jsonl", row)

    assert list(documents(file, field)) == [b"a"]
    (batch,) = LineFiles([file], field).batches_from(0)
    assert batch.texts[0] == b"a"


@pytest.mark.parametrize(
    "row",
    [
        '{"message": {"content": "a"}, "message": {"content": "b"}}',
        '{"message": {"content": "a", "content": "b"}}',
    ],
)
def test_of_two_nested_fields_of_one_name_none_is_taken(tmp_path: Path, row: str):
    file = write_lines(tmp_path / "a.jsonl", row)

    with pytest.raises(Unusable, match=r"has two fields 'message\.content'"):
        list(documents(file, "message.content"))


@pytest.mark.parametrize("row", ['{"a": "b"}', '{"a": {"c": 1}}', '{"a": []}', '{"a": {"b": []}}'])
def test_a_path_that_a_row_does_not_have_to_its_end_is_no_text(tmp_path: Path, row: str):
    file = write_lines(tmp_path / "a.jsonl", '{"a": {"b": {"c": "text"}}}', row)

    assert list(documents(file, "a.b.c")) == [b"text"]


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_a_column_may_be_a_field_of_a_struct(tmp_path: Path, ending: str):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    ipc = pytest.importorskip("pyarrow.ipc")
    rows = [{"inner": {"text": "one"}}, None, {"inner": None}, {"inner": {"text": "two"}}]
    table = arrow.table({"id": [1, 2, 3, 4], "message": rows, "a.b": list("wxyz")})
    file = tmp_path / f"a{ending}"
    if ending == ".parquet":
        parquet.write_table(table, file)
    else:
        with ipc.new_stream(str(file), table.schema) as writer:
            writer.write_table(table)
    reader = ParquetFiles if ending == ".parquet" else ArrowFiles

    assert list(documents(file, "message.inner.text")) == [b"one", b"two"]
    batch = next(reader([file], "message.inner.text").batches_from(0))
    assert [batch.texts[row] for row in range(4)] == [b"one", b"", b"", b"two"]
    assert list(documents(file, "a.b")) == [b"w", b"x", b"y", b"z"]
    for wrong in ("message.inner", "message"):
        with pytest.raises(Unusable, match="is no text"):
            list(documents(file, wrong))
        with pytest.raises(Unusable, match="is no text"):
            reader([file], wrong)
    near = r"no field 'message.iner.text' \(did you mean 'message.inner.text'\?\)"
    with pytest.raises(Unusable, match=near):
        list(documents(file, "message.iner.text"))
    with pytest.raises(Unusable, match=near):
        reader([file], "message.iner.text")


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
    with pytest.raises(Unusable, match=r"pip install '\.\[data\]' in the clone"):
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


def test_utf16_is_named_and_not_half_read(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes('{"text": "one"}\n'.encode("utf-16"))
    (tmp_path / "b.jsonl").write_bytes('{"text": "one"}\n'.encode("utf-16-le"))

    for name, why in (("a.jsonl", "not UTF-8: write the file in UTF-8"), ("b.jsonl", "UTF-16")):
        with pytest.raises(Unusable, match=why):
            list(documents(tmp_path / name, "text"))


PIECES = [
    b'{"text": ',
    b'"text"',
    b'"a"',
    b"}",
    b"{",
    b"[",
    b"]",
    b":",
    b",",
    b"\n",
    b"\0",
    b"\xff",
]
PIECES += [b"\xef\xbb\xbf", b"1e999", b"9" * 5_000, b"\\ud800", b'"\\u0000"', b"null", b" ", b"NaN"]


@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join) | st.binary(max_size=60))
def test_whatever_is_in_a_file_of_rows_is_read_or_refused_in_one_line(tmp_path_factory, content):
    place = tmp_path_factory.mktemp("rows")
    for name in ("a.jsonl", "a.json"):
        (place / name).write_bytes(content)
        try:
            found = files_of(place / name)
            texts = list(all_documents(found.paths, "text")) if found.rows else []
        except Unusable as error:
            assert "\n" not in str(error)  # noqa: PT017 - some are read
        else:
            assert all(text.decode() for text in texts)


def test_a_field_of_an_object_inside_is_not_the_rows(tmp_path: Path):
    file = write_lines(tmp_path / "a.jsonl", '{"about": {"text": "b", "text": "c"}, "text": "a"}')

    assert list(documents(file, "text")) == [b"a"]


@pytest.mark.parametrize("ending", [".parquet", ".PARQUET", ".arrow", ".Arrow"])
@pytest.mark.parametrize("names", [["text", "text"], ["id", "text", "text"], ["id", "id", "text"]])
def test_of_two_columns_of_one_name_none_is_taken(tmp_path: Path, ending: str, names: list[str]):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    ipc = pytest.importorskip("pyarrow.ipc")
    file = tmp_path / f"a{ending}"
    values = [arrow.array([f"{number}-{row}" for row in range(3)]) for number in range(len(names))]
    table = arrow.Table.from_arrays(values, names=names)
    if ending.lower() == ".parquet":
        parquet.write_table(table, file)
    else:
        with ipc.new_stream(str(file), table.schema) as writer:
            writer.write_table(table)
    reader = ParquetFiles if ending.lower() == ".parquet" else ArrowFiles

    if names.count("text") > 1:
        with pytest.raises(Unusable, match="has two columns 'text': give one of them another name"):
            list(documents(file, "text"))
        with pytest.raises(Unusable, match="has two columns 'text': give one of them another name"):
            reader([file], "text")
        return
    texts = [f"2-{row}".encode() for row in range(3)]
    assert list(documents(file, "text")) == texts
    batch = next(reader([file], "text").batches_from(0))
    assert [batch.texts[row] for row in range(3)] == texts


SHARE = 0.3
DOCUMENTS = [f"<{number}>" * 20 for number in range(40)]


def write(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def load(data: Path, cache: Path, seed: int = 1) -> Corpus:
    train = TrainConfig(data=data, held_out_share=SHARE)
    return load_documents(train, files_of(data).paths, cache=cache, seed=seed, shape=(4, 16))


def text(part) -> str:
    return part[0 : len(part)].tobytes().decode()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path / "a.jsonl", DOCUMENTS[:20])
    write(tmp_path / "b.jsonl", DOCUMENTS[20:])
    return tmp_path / "*.jsonl"


def test_each_document_is_either_trained_on_or_held_out(data: Path, tmp_path: Path):
    corpus = load(data, tmp_path / "cache")

    train, held_out = (text(part).splitlines() for part in (corpus.train, corpus.held_out))
    assert sorted(train + held_out) == sorted(DOCUMENTS)
    assert held_out == [x for x in DOCUMENTS if is_held_out_document(x.encode(), SHARE)]
    assert corpus.files == 2


def test_the_same_samples_and_digest_wherever_it_was_prepared(data: Path, tmp_path: Path):
    first, other = load(data, tmp_path / "cache"), load(data, tmp_path / "other")

    assert first.digest() == other.digest()
    for number in (0, 7, 10**9):
        assert np.array_equal(first.microbatch(number), other.microbatch(number))
        assert np.array_equal(first.held_out_batch(number), other.held_out_batch(number))


def test_samples_are_those_of_the_same_text_in_memory(data: Path, tmp_path: Path):
    stored = load(data, tmp_path / "cache")
    train, held_out = (part[0 : len(part)] for part in (stored.train, stored.held_out))
    in_memory = Corpus(train, held_out, 2, 1, 4, 16)

    assert in_memory.digest() == stored.digest()
    assert np.array_equal(in_memory.microbatch(5), stored.microbatch(5))


def test_a_second_start_reads_what_was_prepared(data: Path, tmp_path: Path, monkeypatch):
    digest = load(data, tmp_path / "cache").digest()
    (made,) = (tmp_path / "cache").iterdir()
    before = made.stat().st_mtime_ns, made.stat().st_ino

    assert load(data, tmp_path / "cache").digest() == digest
    assert (made.stat().st_mtime_ns, made.stat().st_ino) == before


def test_a_changed_source_is_prepared_anew_in_the_same_place(data: Path, tmp_path: Path):
    digest = load(data, tmp_path / "cache").digest()
    write(tmp_path / "b.jsonl", [*DOCUMENTS[20:], "new" * 20])

    assert load(data, tmp_path / "cache").digest() != digest
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_torn_file_is_prepared_anew(data: Path, tmp_path: Path):
    digest = load(data, tmp_path / "cache").digest()
    (made,) = (tmp_path / "cache").iterdir()
    os.truncate(made, made.stat().st_size - 1)

    assert load(data, tmp_path / "cache").digest() == digest


def test_a_file_that_is_cut_short_under_a_run_is_said_in_one_line(data: Path, tmp_path: Path):
    corpus = load(data, tmp_path / "cache")
    (made,) = (tmp_path / "cache").iterdir()
    os.truncate(made, 0)

    with pytest.raises(Unusable, match="was cut short"):
        corpus.digest()


def test_a_row_that_cannot_be_read_leaves_nothing_behind(data: Path, tmp_path: Path):
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write("{")

    with pytest.raises(Unusable, match=r"b\.jsonl: row 21: not JSON"):
        load(data, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_full_disk_is_one_line_with_a_remedy(data: Path, tmp_path: Path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepared_text.shutil, "copyfileobj", full)
    with pytest.raises(Unusable, match=r"No space left on device: free some space, or set train"):
        load(data, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_is_a_file_is_one_line(data: Path, tmp_path: Path):
    (tmp_path / "cache").touch()
    with pytest.raises(Unusable, match="cache"):
        load(data, tmp_path / "cache")


def test_too_little_text_is_refused(tmp_path: Path):
    write(tmp_path / "a.jsonl", ["a"])
    with pytest.raises(Unusable, match=r"bytes of (training|held-out) text, a sequence has 17"):
        load(tmp_path / "a.jsonl", tmp_path / "cache")


@given(st.binary(), st.floats(0.001, 0.5), st.floats(0.001, 0.5))
def test_a_larger_share_only_adds_documents(document: bytes, one: float, other: float):
    less, more = sorted((one, other))
    assert is_held_out_document(document, less) <= is_held_out_document(document, more)


@pytest.mark.parametrize("tokenizer", [None, train_tokenizer(300, [b"some text"])], ids=bool)
def test_a_share_of_rows_that_is_another_one_of_bytes_is_told(tmp_path, caplog, tokenizer):
    out = next(n for n in range(99) if is_held_out_document(b"%d " % n * 9_000, SHARE))
    write(tmp_path / "a.jsonl", [*DOCUMENTS, f"{out} " * 9_000])

    def loaded(name):
        train = TrainConfig(data=tmp_path / name, held_out_share=SHARE)
        cache, shape = tmp_path / "cache", (4, 16)
        if tokenizer is not None:
            return load_tokenised(sources_of(train), tokenizer, cache=cache, seed=1, shape=shape)
        return load_documents(train, [tmp_path / name], cache=cache, seed=1, shape=shape)

    loaded("a.jsonl")
    (told,) = caplog.messages
    assert told.startswith(f"{tmp_path}/a.jsonl: 9")
    assert "% of its bytes are held out, and 30.0% was asked: its documents are few or" in told
    caplog.clear()
    write(tmp_path / "b.jsonl", DOCUMENTS)
    loaded("b.jsonl")
    assert caplog.messages == []


def test_about_the_share_is_held_out():
    out = sum(is_held_out_document(b"%d" % number, 0.1) for number in range(10_000))
    assert 900 < out < 1_100


def test_a_row_that_is_nested_to_the_last_level_is_one_line(tmp_path: Path):
    """The row is read again if the field's name comes twice in it, which takes more levels."""
    for levels in range(800, 1000):
        nested = '{"text": "x", "more": ' + "[" * levels + '"text"' + "]" * levels + "}"
        file = write_lines(tmp_path / "a.jsonl", nested)

        with contextlib.suppress(Unusable):
            assert list(documents(file, "text")) == [b"x"]


def read_all(files: RowFiles) -> None:
    for batch in files.batches_from(0):
        assert len(batch.begins) > 1


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_column_whose_bytes_are_no_text_is_one_line(tmp_path: Path, ending: str):
    arrow = pytest.importorskip("pyarrow")
    importlib.import_module("pyarrow.parquet")
    offsets, letters = arrow.py_buffer(np.array([0, 2], dtype="<i4")), arrow.py_buffer(b"\xff\xfe")
    column = arrow.Array.from_buffers(arrow.string(), 1, [None, offsets, letters])
    table = arrow.table({"text": column})
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        arrow.parquet.write_table(table, path)
    else:
        with arrow.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)

    with pytest.raises(Unusable, match="Invalid UTF8"):
        list(documents(path, "text"))
    with pytest.raises(Unusable, match="Invalid UTF8"):
        read_all((ParquetFiles if ending == "parquet" else ArrowFiles)([path], "text"))
