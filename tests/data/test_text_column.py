"""Columns of text as pyarrow holds them."""

import logging
from pathlib import Path

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.columnar_files import MissingTexts, TextColumn, arrow_errors, require_text

arrow = pytest.importorskip("pyarrow")
TEXTS = ["one", "", "zwölf", None, "last"]
KINDS = [
    arrow.string(),
    arrow.large_string(),
    arrow.string_view(),
    arrow.dictionary(arrow.int32(), arrow.string()),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_texts_of_each_kind_of_column(kind):
    require_text(Path("a.parquet"), "text", kind)
    column = TextColumn(arrow.array(TEXTS).cast(kind))

    assert [column[number].decode() for number in range(len(column))] == [x or "" for x in TEXTS]
    assert column.text_bytes == len("onezwölflast".encode())
    assert column.missing == 1


def test_some_rows_of_a_column_are_where_they_were():
    column = TextColumn(arrow.array(TEXTS)).rows(1, 5).rows(1, 4)

    assert [column[number] for number in range(3)] == ["zwölf".encode(), b"", b"last"]
    assert column.text_bytes == 10
    assert [column.row_at(byte) for byte in (0, 5, 6, 9)] == [0, 0, 2, 2]


def test_a_column_without_rows_has_no_bytes():
    assert TextColumn(arrow.array([], arrow.string())).text_bytes == 0
    assert TextColumn(arrow.array([None, None], arrow.string())).text_bytes == 0


def test_texts_lie_at_places_in_proportion_to_their_length():
    batch = TextColumn(arrow.array(TEXTS)).rows(2, 5).batch(1000, 10, (40, 20))

    assert batch.begins == [1020, 1032, 1032, 1040]
    assert batch.texts[2] == b"last"
    assert batch.ended


@pytest.mark.parametrize(
    "kind",
    [arrow.int64(), arrow.binary(), arrow.list_(arrow.string()), arrow.struct([("a", "string")])],
    ids=str,
)
def test_a_column_that_is_no_text_is_named_with_its_type(kind):
    with pytest.raises(Unusable) as caught:
        require_text(Path("a.parquet"), "id", kind)
    assert str(caught.value) == f"a.parquet: the column 'id' is no text but {kind}: set train.field"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (arrow.ArrowInvalid("no page.\nstack"), "no page: copy"),
        (OSError("disk"), "disk: copy"),
        (EOFError(), "EOFError: copy"),
    ],
)
def test_an_error_of_pyarrow_is_one_line(error, said):
    with (
        pytest.raises(Unusable, match=f"^a.arrow: cannot be read: {said}"),
        arrow_errors(Path("a.arrow")),
    ):
        raise error


def test_missing_texts_are_told_once(caplog):
    missing = MissingTexts("text")
    with caplog.at_level(logging.WARNING):
        missing.note(Path("a"), TextColumn(arrow.array(["x"])))
        missing.note(Path("b"), TextColumn(arrow.array(TEXTS)))
        missing.note(Path("c"), TextColumn(arrow.array(TEXTS)))
    assert caplog.messages == ["b: a row has no text: it is passed over, and so are others like it"]
