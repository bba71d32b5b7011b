"""Arrow files from any place on, mapped into memory."""

import logging

import numpy as np
import pytest
from core import examples
from data.harness import TEXTS, assert_each_comes_once, texts_from
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.data.columnar_files import ArrowFiles
from p2pswarm.data.documents import documents

arrow, ipc = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.ipc")


def write(path, texts, *, kind="new_stream", rows=5, compression=None):
    table = arrow.table({"id": range(len(texts)), "text": arrow.array(texts, arrow.string())})
    options = ipc.IpcWriteOptions(compression=compression)
    with getattr(ipc, kind)(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


KINDS = st.sampled_from(["new_stream", "new_file"])


@settings(max_examples=examples(40))
@given(
    st.lists(TEXTS, min_size=1, max_size=3),
    st.floats(0, 1, exclude_max=True),
    KINDS,
    st.sampled_from([None, "lz4"]),
)
def test_each_text_comes_once_from_the_one_at_a_place_on(
    tmp_path_factory, each, at, kind, compression
):
    folder = tmp_path_factory.mktemp("a")
    paths = [
        write(folder / f"{n}.arrow", texts, kind=kind, compression=compression)
        for n, texts in enumerate(each)
    ]
    files = ArrowFiles(paths, "text")
    place = int(at * len(files))

    assert_each_comes_once(files, place, each)


def test_a_text_in_a_large_batch_is_found_at_once(tmp_path):
    texts = [f"<{number:05}>" for number in range(3000)]
    files = ArrowFiles([write(tmp_path / "a.arrow", texts, rows=3000)], "text")

    for place in range(0, len(files), 997):
        batch = next(files.batches_from(place))
        assert len(batch.begins) <= 257
        assert batch.begins[0] <= place < batch.begins[2]
        assert batch.texts[0] == texts[place * 3000 // len(files)].encode()


def test_only_batches_that_are_compressed_are_made_whole(tmp_path):
    texts = ["some text " * 9] * 20
    plain = ArrowFiles([write(tmp_path / "a.arrow", texts)], "text")
    packed = ArrowFiles([write(tmp_path / "b.arrow", texts, compression="zstd")], "text")

    assert plain.groups == ()
    assert len(packed.groups) == 5
    assert packed.groups[-1] == len(packed)


def test_rows_without_text_are_passed_over_and_told_once(tmp_path, caplog):
    path = write(tmp_path / "a.arrow", ["one", None, "", "two", None, None, None], rows=2)
    with caplog.at_level(logging.WARNING):
        found = [text for _, text in texts_from(ArrowFiles([path], "text"), 0) if text]
    assert found == [b"one", b"two"]
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("kind", ["new_stream", "new_file"])
@pytest.mark.parametrize("kept", [0, 3, 30, 500, -3])
def test_a_file_that_is_cut_off_is_one_line(tmp_path, kind, kept):
    path = write(tmp_path / "a.arrow", ["some text"] * 40, kind=kind)
    path.write_bytes(path.read_bytes()[:kept])

    with pytest.raises(Unusable, match=r"a\.arrow: (cannot be read: .*|ends too early): copy it"):
        ArrowFiles([path], "text")


def test_a_stream_that_ends_between_batches_ends_too_early(tmp_path):
    path = write(tmp_path / "a.arrow", ["some text"] * 40)
    path.write_bytes(path.read_bytes()[:-8])

    with pytest.raises(Unusable, match=r"a\.arrow: ends too early"):
        ArrowFiles([path], "text")


@pytest.mark.parametrize(
    ("field", "texts", "part"),
    [
        ("text", [], "has no rows: remove it, or copy it again"),
        ("txt", ["x"], "no field 'txt' (did you mean 'text'?); there are: id, text"),
        ("id", ["x"], "the column 'id' is no text but int64: set train.field"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, field, texts, part):
    path = write(tmp_path / "a.arrow", texts)
    with pytest.raises(Unusable) as caught:
        ArrowFiles([path], field)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_by_dictionary_are_refused(tmp_path):
    texts = arrow.array(["a", "b", "a"]).dictionary_encode()
    table = arrow.table({"text": texts})
    with ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)

    with pytest.raises(Unusable, match="numbers of a dictionary: write them plainly"):
        ArrowFiles([tmp_path / "a.arrow"], "text")


def test_a_file_that_changes_under_a_run_is_named(tmp_path):
    path = write(tmp_path / "a.arrow", ["one", "two"])
    files = ArrowFiles([path], "text")
    write(path, ["one", "two", "three" * 99])

    with pytest.raises(Unusable, match=r"a\.arrow: changed while the run reads it"):
        texts_from(files, 0)


@pytest.mark.parametrize("torn", [-1, 7, 1 << 20, -(1 << 20)])
def test_lengths_that_point_out_of_the_file_are_one_line(tmp_path, torn):
    path = write(tmp_path / "a.arrow", ["one", "two", "three"])
    whole, offsets = path.read_bytes(), np.array([0, 3, 6, 11], dtype="<i4")
    changed = offsets.copy()
    changed[1:3] = torn, 6
    assert whole.count(offsets.tobytes()) == 1
    path.write_bytes(whole.replace(offsets.tobytes(), changed.tobytes()))

    with pytest.raises(Unusable, match="copy it again"):
        list(documents(path, "text"))
    with pytest.raises(Unusable, match="copy it again"):
        texts_from(ArrowFiles([path], "text"), 0)


def test_a_file_that_begins_with_rows_is_one_line(tmp_path):
    """Pyarrow reads whatever message comes first as a schema, and may crash."""
    path = write(tmp_path / "a.arrow", ["one", "two"])
    with arrow.memory_map(str(path)) as source:
        ipc.read_message(source)
        begin = source.tell()
    path.write_bytes(path.read_bytes()[begin:])

    with pytest.raises(Unusable, match="does not begin with a schema"):
        ArrowFiles([path], "text")
