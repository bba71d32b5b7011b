import gzip
import itertools
import json
import tracemalloc
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.data.documents import documents
from p2pswarm.data.row_formats import json_rows as module
from p2pswarm.data.row_formats.json_rows import is_array, json_rows
from p2pswarm.data.sources import files_of, has_array

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.lists(st.dictionaries(st.text(), VALUES, max_size=3), max_size=6)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("rows")


@given(OBJECTS, st.sampled_from([None, 1, "\t"]), st.integers(1, 40))
def test_an_array_has_the_rows_that_lines_have_however_it_is_read(place, found, indent, read_bytes):
    lines, array = place / "a.jsonl", place / "a.json"
    lines.write_text("".join(json.dumps(each) + "\n" for each in found))
    array.write_text(json.dumps(found, indent=indent, ensure_ascii=False) + "\n")
    before, module.READ_BYTES = module.READ_BYTES, read_bytes
    try:
        both = [[json.loads(row) for _, row in json_rows(f, 10_000)] for f in (lines, array)]
    finally:
        module.READ_BYTES = before

    assert both == [found, found]


def written(tmp_path: Path, text: str, name: str = "a.json") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_an_array_of_objects_is_rows_and_other_json_is_not(tmp_path):
    assert files_of(written(tmp_path, '\n [ {"text": "a"},\n{"text": "b"}]')).rows
    with pytest.raises(Unusable, match="JSON that has no object a line"):
        files_of(written(tmp_path, "[1, 2]"))
    assert is_array(b'\xef\xbb\xbf[\n{"a": 1}')
    assert not is_array(b"[[1]]")


def test_documents_come_out_of_an_array(tmp_path):
    path = written(tmp_path, '[{"text": "a"}, {"text": "b\\u00e9"}, {"other": 1}]')

    assert list(documents(path, "text")) == [b"a", "bé".encode()]


def test_an_array_may_be_compressed_and_is_not_streamed(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'[{"text": "a"}]'))

    assert list(documents(path, "text")) == [b"a"]
    assert has_array(path)
    assert not has_array(written(tmp_path, '{"text": "a"}\n'))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[{"text": "a"}', "row 2: not JSON"),
        ('[{"text": "a"} {"text": "b"}]', "row 2: not JSON"),
        ('[{"text": "a"}, ', "row 2: not JSON"),
        ('[{"text": "a"}, {"text": ]', "row 2: not JSON"),
        ('[{"text": "a"}] []', "goes on after its array"),
        ('[{"text": "' + "a" * 500 + '"}, {"text": "a"}', "row 1: longer than 100 bytes"),
    ],
)
def test_a_broken_array_is_refused_at_its_row(tmp_path, text, why):
    with pytest.raises(Unusable, match=why):
        list(json_rows(written(tmp_path, text), 100))


def test_an_array_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"text": "\xff"}]')

    with pytest.raises(Unusable, match="not UTF-8"):
        list(json_rows(path, 100))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "b.json"])
def test_a_row_of_too_many_values_is_refused_before_it_is_made(tmp_path, monkeypatch, name):
    monkeypatch.setattr(module, "VALUES_MAX", 5000)
    monkeypatch.setattr(module, "READ_BYTES", 1000)
    texts = ['{"a": "' + "b" * 4000 + '"}'] * 9
    rows = [*texts, *('{"a": [1' + ", 1" * count + "]}" for count in (4900, 6000))]
    between = ", \n" if name == "b.json" else ", "
    array = f"[{between.join(rows)}]"
    found = json_rows(
        written(tmp_path, array if name.endswith(".json") else "\n".join(rows), name), 10**5
    )

    assert [number for number, _ in itertools.islice(found, 10)] == list(range(1, 11))
    with pytest.raises(Unusable, match="row 11: has over 5,000 commas and brackets: split it"):
        next(found)


@pytest.mark.parametrize(
    ("begin", "much", "end", "why"),
    [
        ('[{"a": 1}', " ", ', {"b": 2}]', None),
        ('[{"a": 1}, ', "\n", '{"b": 2}]', None),
        ('[{"a": 1}, {"b": 2}', "\t", "]", None),
        ('[{"a": 1}, {"b": 2}]', "\r", "", None),
        ('[{"a": 1}, 1.', "0", "]", "row 2: longer than 100,000 bytes"),
        ('[{"a": 1}, "', "é", '"]', "row 2: longer than 100,000 bytes"),
    ],
)
def test_an_array_takes_no_more_memory_than_a_row_may_have(tmp_path, begin, much, end, why):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(f"{begin}{much * (24 << 20)}{end}".encode(), 1))

    tracemalloc.start()
    try:
        with nullcontext() if why is None else pytest.raises(Unusable, match=why):
            assert [json.loads(row) for _, row in json_rows(path, 100_000)] == [{"a": 1}, {"b": 2}]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 12 << 20, f"{peak:,} bytes"
