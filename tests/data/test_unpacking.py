"""Compressed files with rows, and tables."""

import bz2
import gzip
import json
import lzma
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.data.documents import all_documents, documents
from p2pswarm.data.row_formats.tables import DELIMITERS_MAX
from p2pswarm.data.sources import files_of
from p2pswarm.data.text_stream import streamed
from p2pswarm.settings.train_config import TrainConfig

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
LINES = b'{"text": "one"}\n{"text": "two"}\n'


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.JSON", "a.csv"])
def test_rows_of_a_compressed_file_are_those_inside(tmp_path: Path, ending: str, name: str):
    content = LINES if "json" in name.lower() else b"id,text\n1,one\n2,two\n"
    file = tmp_path / f"{name}{ending}"
    file.write_bytes(PACKERS[ending](content))

    found = files_of(file)

    assert found.rows
    assert list(all_documents(found.paths, "text")) == [b"one", b"two"]


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_two_packed_files_in_one_are_read_one_after_the_other(tmp_path: Path, ending: str):
    file = tmp_path / f"a.jsonl{ending}"
    file.write_bytes(2 * PACKERS[ending](LINES))

    assert list(documents(file, "text")) == [b"one", b"two"] * 2


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("harm", ["cut", "other", "flipped"])
def test_what_cannot_be_unpacked_is_one_line(tmp_path: Path, ending: str, harm: str):
    file = tmp_path / f"a.jsonl{ending}"
    packed = PACKERS[ending](LINES * 1000)
    middle = len(packed) // 2
    flipped = packed[:middle] + bytes([packed[middle] ^ 0xFF]) + packed[middle + 1 :]
    file.write_bytes({"cut": packed[:-9], "other": LINES, "flipped": flipped}[harm])

    with pytest.raises(Unusable, match=r"a\.jsonl") as told:
        list(documents(file, "text"))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("frames", [1, 2])
def test_a_torn_file_is_not_taken_for_a_shorter_one(tmp_path: Path, ending: str, frames: int):
    """Wherever it is torn, also where what is unpacked so far ends with a row."""
    file = tmp_path / f"a.jsonl{ending}"
    rng = random.Random(1)
    lines = "".join(json.dumps({"text": str(rng.random())}) + "\n" for _ in range(3000)).encode()
    packed = PACKERS[ending](lines)
    for length in (*range(len(packed) - 40, len(packed)), 20, len(packed) // 2):
        file.write_bytes(packed * (frames - 1) + packed[:length])
        with pytest.raises(Unusable, match=r"a\.jsonl"):
            list(documents(file, "text"))


@pytest.mark.parametrize("ending", PACKERS)
def test_a_spoilt_file_is_refused_where_its_first_lines_are_looked_at(tmp_path: Path, ending: str):
    """A .json has rows or not as its first lines say."""
    file = tmp_path / f"a.json{ending}"
    packed = PACKERS[ending](LINES)
    file.write_bytes(packed[: len(packed) // 2] + b"spoilt" * 9)

    with pytest.raises(
        Unusable, match=r"a\.json\..*: cannot be unpacked, copy it again, or"
    ) as told:
        files_of(file)
    assert "None" not in str(told.value)


def with_window(packed: bytes, size: int) -> bytes:
    """An .xz whose block asks for another dictionary; `size` as the format writes it."""
    length = (packed[12] + 1) * 4 - 4
    header = bytearray(packed[12 : 12 + length])
    header[header.index(b"\x21\x01") + 2] = size
    check = zlib.crc32(header).to_bytes(4, "little")
    return packed[:12] + bytes(header) + check + packed[12 + length + 4 :]


@pytest.mark.parametrize(("size", "fits"), [(30, True), (38, False), (40, False)])
def test_an_xz_that_asks_for_gigabytes_is_refused(tmp_path: Path, size: int, *, fits: bool):
    file = tmp_path / "a.jsonl.xz"
    file.write_bytes(with_window(lzma.compress(LINES), size))

    if fits:
        assert list(documents(file, "text")) == [b"one", b"two"]
    else:
        with pytest.raises(Unusable, match=r"a\.jsonl\.xz: cannot be unpacked.*[Mm]emory"):
            list(documents(file, "text"))


def test_xz_files_may_have_padding_between_them(tmp_path: Path):
    file = tmp_path / "a.jsonl.xz"
    file.write_bytes(lzma.compress(LINES) + bytes(8) + lzma.compress(LINES) + bytes(4))

    assert list(documents(file, "text")) == [b"one", b"two"] * 2


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".CSV"])
def test_each_row_of_a_table_is_a_document(tmp_path: Path, ending: str):
    file = tmp_path / f"a{ending}"
    cells = [["text", "id"], ['"say ""a"", b\nc"', "1"], ["", "2"], ["ü", "3"], []]
    between = "\t" if ending == ".tsv" else ","
    file.write_text("\ufeff" + "\r\n".join(between.join(row) for row in cells), newline="")

    assert list(documents(file, "text")) == [b'say "a", b\nc', "ü".encode()]


def test_a_row_of_a_table_that_ends_early_is_passed_over_and_counted(tmp_path: Path, caplog):
    file = tmp_path / "a.csv"
    file.write_text("id,text\n1\n2,two\n\n3,three,more\n")

    assert list(all_documents([file], "text")) == [b"two", b"three"]
    assert caplog.messages == ["1 of 3 rows have no text: passed over"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "has no rows"),
        (b"text\n", "has no rows"),
        (b"id,texts\n1,a\n", r"no field 'text' \(did you mean 'texts'\?\)"),
        (b"text,text\na,b\n", "has two columns 'text'"),
        (b'text\n"a\n', "no table after row 1, save it anew as CSV or JSON lines"),
        (b'text\n"a"b\n', "no table after row 1"),
        (b"text\na\n\xff\n", "not UTF-8 after row"),
        (b"text\na\0b\n", "row 1: has NUL bytes"),
        (b"text\n" + b"a" * 200 + b"\n", "row after row 1 is longer than 100 bytes: split it"),
        (b"text,id\n1,2\n" + b"a," * 200 + b"\n", "row after row 2 is longer than 100 bytes"),
        (b'text\n"' + b"a\n" * 200 + b'"\n', "row after row 1 is longer than 100 bytes"),
    ],
)
def test_what_is_no_table_is_one_line(tmp_path: Path, content: bytes, why: str):
    file = tmp_path / "a.csv"
    file.write_bytes(content)

    with pytest.raises(Unusable, match=why) as told:
        list(documents(file, "text", line_bytes_max=100))
    assert "\n" not in str(told.value)


def test_a_row_of_too_many_fields_is_refused_before_it_is_made(tmp_path: Path):
    file = tmp_path / "a.csv"
    file.write_bytes(b"text,other\na,b\n" + b"," * (DELIMITERS_MAX + 1) + b"\n")

    with pytest.raises(Unusable, match="the row after row 2 has over 1,048,576 commas or tabs"):
        list(documents(file, "text"))


@given(content=st.binary(max_size=200), ending=st.sampled_from([*PACKERS, ".csv", ".tsv"]))
def test_whatever_is_in_such_a_file_is_read_or_refused(tmp_path_factory, content, ending):
    table = ending in {".csv", ".tsv"}
    file = tmp_path_factory.mktemp("rows") / (f"a{ending}" if table else f"a.csv{ending}")
    for written in (content, b"text\n" + content, PACKERS.get(ending, bytes)(b"text\n" + content)):
        file.write_bytes(written)
        try:
            texts = list(documents(file, "text"))
        except Unusable as error:
            assert "\n" not in str(error)  # noqa: PT017 - some are read
        else:
            assert all(text.decode() for text in texts)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv"])
def test_what_is_only_read_from_its_beginning_is_not_streamed(tmp_path: Path, name: str):
    file = tmp_path / name
    file.write_bytes(gzip.compress(LINES) if name.endswith(".gz") else b"text\na\n")

    with pytest.raises(Unusable, match=r"only be read from its beginning.*run\.batch\.samples"):
        streamed(TrainConfig(data=file), None, seed=1, shape=(1, 4))
