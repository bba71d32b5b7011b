"""Rows that are read as they are needed: what they hold, and what follows from the files alone."""

import dataclasses
import json
import logging
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.data.held_out_pass import held_out_passes
from p2pswarm.data.mixture import mixed
from p2pswarm.data.prepared_text import is_held_out_document
from p2pswarm.data.sources import row_files
from p2pswarm.data.streamed import LineFiles, streamed
from p2pswarm.data.tokenizer import train_tokenizer
from p2pswarm.errors import Unusable
from p2pswarm.train_config import TrainConfig

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


def read(train, tokenizer=None, seed=1):
    return streamed(train, row_files(train.data), tokenizer, seed=seed, shape=SHAPE)


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


def test_a_large_text_is_known_by_blocks_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr("p2pswarm.data.streamed.BLOCK_BYTES", 512)
    monkeypatch.setattr("p2pswarm.data.streamed.DIGEST_BLOCKS", 16)
    train = written(tmp_path, numbered(400))
    before = read(train).digest()
    assert read(train).digest() == before
    written(tmp_path, numbered(401))
    assert read(train).digest() != before


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


def test_a_text_of_characters_of_several_bytes_is_cut_between_them(tmp_path):
    (tmp_path / "f.jsonl").write_text(
        "".join(json.dumps({"text": "ä€" * 40}, ensure_ascii=False) + "\n" for _ in range(9))
    )
    train = TrainConfig(data=tmp_path / "f.jsonl", held_out_share=0.5)
    lines = LineFiles([train.data], "text")
    for place in range(0, len(lines), 37):
        document, into = next(lines.from_byte(place))
        assert document.decode() == "ä€" * 40
        assert 0.0 <= into < 1.0


@given(
    st.lists(st.lists(st.text(st.characters(codec="ascii"), max_size=9), max_size=5), max_size=4),
    st.integers(0, 10**6),
)
def test_each_document_comes_once_from_any_byte_on(tmp_path_factory, files, place):
    train = written(tmp_path_factory.mktemp("t"), *files, ["last"])
    paths = row_files(train.data)
    lines = LineFiles(paths, "text")
    found = [document.decode() for document, _ in lines.from_byte(place % len(lines))]

    assert sorted(found) == sorted(text for each in (*files, ["last"]) for text in each if text)


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
        ("a.txt", "text", 'samples = "streamed" takes files of JSON lines (.jsonl, .ndjson)'),
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
