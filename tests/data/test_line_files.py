"""Lines of JSON from any byte on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.data.line_files import LineFiles


def lines_of(folder, *files):
    """Files of JSON lines with these documents, the last of which is followed by a blank line."""
    paths = [folder / f"f{number}.jsonl" for number in range(len(files))]
    for path, documents in zip(paths, files, strict=True):
        rows = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in documents]
        path.write_text("".join(rows) + "\n")
    return LineFiles(paths, "text")


TEXTS = st.lists(st.text(st.characters(codec="ascii"), max_size=9), max_size=5)


@given(st.lists(TEXTS, max_size=4), st.integers(0, 10**6))
def test_each_document_comes_once_from_any_byte_on(tmp_path_factory, files, place):
    files = [[*each, "last"] for each in (*files, [])]
    lines = lines_of(tmp_path_factory.mktemp("t"), *files)
    place %= len(lines)
    found = list(lines.batches_from(place))

    texts = [batch.texts[0].decode() for batch in found]
    assert sorted(text for text in texts if text) == sorted(
        text for each in files for text in each if text
    )
    assert found[0].begins[0] <= place < found[0].begins[1]
    assert all(batch.begins[0] > place for batch in found[1:])


def test_a_text_of_several_bytes_a_character_comes_whole(tmp_path):
    lines = lines_of(tmp_path, ["ä€" * 40] * 9)
    for place in range(0, len(lines) - 1, 37):
        batch = next(lines.batches_from(place))
        assert batch.texts[0].decode() == "ä€" * 40


@pytest.mark.parametrize(
    ("line", "part"),
    [("nonsense\n", "row 1: not JSON"), ('{"body": 1}\n', "no field 'text'"), ("", "has no rows")],
)
def test_a_file_whose_first_row_has_no_text_is_refused(tmp_path, line, part):
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(Unusable, match=part):
        LineFiles([tmp_path / "a.jsonl"], "text")
