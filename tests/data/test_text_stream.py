"""Rows that are read as they are needed: what they hold, and what follows from the files alone."""

import dataclasses
import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise

import numpy as np
import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.held_out import is_held_out_document
from p2pswarm.data.rows import SHIPPED, PlaceLimits
from p2pswarm.data.samples.corpus import held_out_passes
from p2pswarm.data.samples.mixture import mixed
from p2pswarm.data.sources import files_of
from p2pswarm.data.text_files import read_sides
from p2pswarm.data.text_stream import streamed
from p2pswarm.data.tokenizer import train_tokenizer
from p2pswarm.settings.train_config import TrainConfig

SHAPE = 3, 40


def written(folder, *files, name="f"):
    """Files of JSON lines with these documents."""
    folder.mkdir(exist_ok=True)
    for number, documents in enumerate(files):
        lines = [json.dumps({"text": text}) + "\n" for text in documents]
        (folder / f"{name}{number}.jsonl").write_text("".join(lines))
    return TrainConfig(data=folder / "*.jsonl", held_out_share=0.3)


def numbered(count, first=0, length=30):
    return [f"<{number:04}>" + "x" * length for number in range(first, first + count)]


def read(train, tokenizer=None, seed=1, limits=SHIPPED):
    return streamed(train, tokenizer, seed=seed, shape=SHAPE, limits=limits)


def texts_of(rows):
    return [bytes(row).decode() for row in rows]


def test_a_row_is_filled_with_whole_documents_after_the_first(tmp_path):
    corpus = read(written(tmp_path, numbered(50), numbered(50, 50)))

    rows = texts_of(row for number in range(60) for row in corpus.microbatch(number))
    assert {len(row) for row in rows} == {41}
    assert corpus.microbatch(0).dtype == np.uint8
    begun = [row for row in rows if row.startswith("<")]
    assert 0 < len(begun) < len(rows) / 2  # others begin inside of a document
    for row in rows:
        _, *whole = row.split("\n")
        assert all(part.startswith("<") for part in whole if part)


def test_a_document_is_on_one_side_only(tmp_path):
    documents = numbered(200)
    train = written(tmp_path, documents)
    corpus = read(train)
    out = {text for text in documents if is_held_out_document(text.encode(), 0.3)}

    def seen(batches):
        joined = "\n".join(row for batch in batches for row in texts_of(batch))
        return {text for text in documents if text[:6] in joined}

    assert seen(corpus.microbatch(n) for n in range(150)) <= set(documents) - out
    held_out = seen(corpus.held_out_batch(n) for n in range(150))
    assert held_out <= out
    assert len(held_out) > len(out) / 2
    assert seen(chain(*held_out_passes(corpus, 400))) <= out


def test_samples_follow_from_files_seed_and_number(tmp_path):
    train = written(tmp_path, numbered(80))
    one, same, other = read(train), read(train), read(train, seed=2)

    for number in (7, 0, 10**9):
        assert np.array_equal(one.microbatch(number), same.microbatch(number))
    assert not np.array_equal(one.microbatch(0), other.microbatch(0))
    digest = one.digest()
    assert digest == same.digest() == other.digest()
    longer = dataclasses.replace(train, held_out_share=0.2)
    assert read(longer).digest() != digest
    written(tmp_path, [*numbered(79), "<0079>" + "y" * 30])
    assert read(train).digest() != digest


def test_tokens_are_those_of_the_tokenizer_with_its_end_between(tmp_path):
    train = written(tmp_path, numbered(80, length=90))
    tokenizer = train_tokenizer(300, [text.encode() for text in numbered(80)])
    corpus = read(train, tokenizer)

    rows = [row for number in range(40) for row in corpus.microbatch(number)]
    assert rows[0].dtype == np.int32
    assert any((row == tokenizer.end).any() for row in rows)
    assert 1.0 < corpus.bytes_per_token < 96.0
    text = "".join(tokenizer.decode(rows[0].tolist()))
    assert set(text) <= set("<>x0123456789")


def test_a_row_without_text_is_passed_over_and_told_once(tmp_path, caplog):
    train = written(tmp_path, numbered(40))
    with (tmp_path / "f0.jsonl").open("a") as file:
        file.write('{"text": 3}\n\nnonsense\n{"other": "x"}\n')
    corpus = read(train)
    with caplog.at_level(logging.WARNING):
        for number in range(60):
            corpus.microbatch(number)

    (told,) = caplog.messages
    assert "f0.jsonl: the row at byte " in told
    assert told.endswith("it is passed over, and so are others like it")


@pytest.mark.parametrize("change", ["grown", "cut", "gone"])
def test_files_that_change_under_a_run_end_it_in_one_line(tmp_path, change):
    corpus = read(written(tmp_path, numbered(40)))
    file = tmp_path / "f0.jsonl"
    text = file.read_text()
    match change:
        case "grown":
            file.write_text(text + text)
        case "cut":
            file.write_text(text[:100])
        case "gone":
            file.unlink()
    with pytest.raises(Unusable, match=r"f0\.jsonl: (changed while|cannot be read: No such file)"):
        corpus.microbatch(7)


@pytest.mark.parametrize(
    ("name", "lines", "part"),
    [
        ("a.jsonl", "nonsense\n", "row 1: not JSON"),
        ("a.jsonl", '{"body": "x"}\n', "no field 'text'"),
        ("a.jsonl", "", "has no rows"),
        ("a.jsonl", '{"text": "one"}\n', "no document is "),
        ("a.txt", "", "there is no text; passed over: 1 empty (a.txt)"),
        ("a.txt", "x", "no text is held out: name more text"),
    ],
)
def test_what_cannot_be_streamed_is_one_line(tmp_path, name, lines, part):
    (tmp_path / name).write_text(lines)
    with pytest.raises(Unusable) as caught:
        read(TrainConfig(data=tmp_path / name))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_texts_that_are_streamed_can_be_mixed(tmp_path):
    one = read(written(tmp_path / "a", numbered(50)))
    two = read(written(tmp_path / "b", numbered(50, 5000)))
    whole = mixed([one, two], [3.0, 1.0])
    rows = texts_of(row for number in range(100) for row in whole.microbatch(number))

    of_two = sum("<50" in row for row in rows) / sum("<" in row for row in rows)
    assert 0.15 < of_two < 0.35
    assert whole.blocks
    assert sum(len(batch) for batch in chain(*held_out_passes(whole, 400))) >= 8


def as_parquet(folder, *files, group_rows=5):
    """Parquet files with these documents; groups of few rows."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder.mkdir(exist_ok=True)
    for number, documents in enumerate(files):
        table = arrow.table({"id": range(len(documents)), "text": documents})
        parquet.write_table(table, folder / f"f{number}.parquet", row_group_size=group_rows)
    return TrainConfig(data=folder / "*.parquet", held_out_share=0.3)


def as_dataset(folder, *files):
    """A dataset as `save_to_disk` writes it."""
    arrow, ipc = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.ipc")
    folder.mkdir(exist_ok=True)
    names = [{"filename": f"data-{number}.arrow"} for number in range(len(files))]
    (folder / "state.json").write_text(json.dumps({"_data_files": names}))
    for number, documents in enumerate(files):
        table = arrow.table({"text": documents})
        with ipc.new_stream(str(folder / f"data-{number}.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    return TrainConfig(data=folder, held_out_share=0.3)


def as_text(folder, *files):
    """A folder of text files, one of each group of documents."""
    folder.mkdir(exist_ok=True)
    for number, documents in enumerate(files):
        (folder / f"f{number}.txt").write_text("\n".join(documents))
    return TrainConfig(data=folder, held_out_share=0.3)


KINDS = [written, as_parquet, as_dataset, as_text]
OFTEN = PlaceLimits(read_bytes=40, open_bytes=600, kept_bytes=10**6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limits", [SHIPPED, OFTEN])
def test_samples_of_each_kind_follow_from_files_seed_and_number(tmp_path, kind, limits):
    train = kind(tmp_path / "t", numbered(60), numbered(60, 60), numbered(60, 120))
    one, other = read(train, limits=limits), read(train, limits=limits)
    order = [19, 3, 3, 0, 700, 19, 4]

    expected = {number: one.microbatch(number) for number in sorted(set(order))}
    for number in order:  # as a run asks that resumed, or does a microbatch again
        assert np.array_equal(other.microbatch(number), expected[number])
        assert expected[number].shape == (3, 41)
    assert one.digest() == other.digest()
    elsewhere = kind(tmp_path / "u", numbered(60), numbered(60, 60), numbered(60, 120))
    moved = read(elsewhere, limits=limits)
    assert moved.digest() == one.digest()
    assert np.array_equal(moved.held_out_batch(5), one.held_out_batch(5))


@pytest.mark.parametrize("kind", [written, as_parquet, as_dataset])
def test_a_document_of_any_kind_is_on_the_side_that_its_hash_says(tmp_path, kind):
    documents = numbered(200, length=8)
    corpus = read(kind(tmp_path / "t", documents[:90], documents[90:]), limits=OFTEN)
    out = {text[:6] for text in documents if is_held_out_document(text.encode(), 0.3)}

    def seen(batch_of):
        rows = texts_of(row for number in range(200) for row in batch_of(number))
        return set(re.findall("<[0-9]{4}>", "\n".join(rows)))

    assert seen(corpus.microbatch) == {text[:6] for text in documents} - out
    assert seen(corpus.held_out_batch) == out


def test_rows_of_text_files_are_of_one_side(tmp_path):
    train = as_text(tmp_path / "t", *(numbered(20, 100 * part) for part in range(9)))
    corpus, sides = read(train), read_sides(files_of(train.data), 0.3)

    def seen(batch_of):
        rows = texts_of(row for number in range(200) for row in batch_of(number))
        return set(re.findall("<[0-9]{4}>", "\n".join(rows)))

    def there(side):
        return set(re.findall("<[0-9]{4}>", b"".join(side).decode()))

    for batch_of, side in zip((corpus.microbatch, corpus.held_out_batch), sides, strict=True):
        assert seen(batch_of) <= there(side)
        assert len(seen(batch_of)) > 0.9 * len(there(side)) > 10


@pytest.mark.parametrize("kind", KINDS)
def test_documents_of_each_kind_end_with_the_tokenizers_end(tmp_path, kind):
    files = [numbered(2, 2 * part, length=60) for part in range(30)]
    tokenizer = train_tokenizer(300, [text.encode() for text in numbered(80)])
    corpus = read(kind(tmp_path / "t", *files), tokenizer)

    rows = np.concatenate([corpus.microbatch(number) for number in range(40)])
    assert rows.dtype == np.int32
    texts = [
        "".join(tokenizer.decode(part.tolist()))
        for row in rows
        for part in whole_parts(row, tokenizer)
    ]
    assert texts
    documents = {document for each in files for document in each}
    if kind is as_text:
        documents = {"\n".join(each) for each in files}
    assert set(texts) <= documents
    assert 1.0 < corpus.bytes_per_token < 130.0


def whole_parts(row, tokenizer):
    """What stands between two ends in a row."""
    (ends,) = np.nonzero(row == tokenizer.end)
    return [row[start + 1 : stop] for start, stop in pairwise(ends)]


@pytest.mark.parametrize("kind", KINDS)
def test_documents_of_one_token_fill_rows_too(tmp_path, kind):
    corpus = read(kind(tmp_path / "t", *(list("abcdefghij") for _ in range(8))))

    assert set(b"".join(bytes(row) for row in corpus.microbatch(0))) <= set(b"abcdefghij\n")


def test_kinds_are_not_mixed_in_one_text_but_in_a_mixture(tmp_path):
    train = as_parquet(written(tmp_path, numbered(9)).data.parent, numbered(9))
    with pytest.raises(Unusable) as caught:
        read(dataclasses.replace(train, data=tmp_path / "f0.*"))
    assert "several kinds (.jsonl, .parquet)" in str(caught.value)
    assert "\n" not in str(caught.value)

    texts = [kind(tmp_path / kind.__name__, *(numbered(40),) * 5) for kind in KINDS]
    whole = mixed([read(each) for each in texts], [4.0, 3.0, 2.0, 1.0])
    assert whole.microbatch(11).shape == (3, 41)
    assert not whole.counted
    assert whole.blocks
    assert len(list(chain(*held_out_passes(whole, 900)))) >= 4


def test_bytes_per_token_are_measured_on_a_part_of_the_text(tmp_path):
    long = [" ".join(map(str, range(first, first + 2000))) for first in range(40)]
    train = written(tmp_path, long)
    tokenizer = train_tokenizer(300, [text.encode() for text in numbered(80)])

    assert 1.0 < read(train, tokenizer).bytes_per_token < 96.0
    assert read(train).bytes_per_token == 1.0


def test_an_unread_text_has_no_tokens_by_number(tmp_path):
    corpus = read(written(tmp_path, numbered(40)))
    with pytest.raises(TypeError, match="no tokens by number"):
        corpus.train[0:1]


@pytest.mark.parametrize("kind", KINDS)
def test_two_threads_get_the_rows_that_one_gets(tmp_path, kind):
    train = kind(tmp_path / "t", numbered(60), numbered(60, 60), numbered(60, 120))
    alone, shared = read(train, limits=OFTEN), read(train, limits=OFTEN)
    expected = [[alone.microbatch(n), alone.held_out_batch(n)] for n in range(40)]

    with ThreadPoolExecutor(2) as threads:
        asked = [shared.microbatch, shared.held_out_batch]
        found = [list(threads.map(batch_of, range(40))) for batch_of in asked]
    for number, batches in enumerate(expected):
        assert all(
            np.array_equal(side[number], one) for side, one in zip(found, batches, strict=True)
        )
