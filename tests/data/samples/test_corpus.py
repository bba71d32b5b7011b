"""Tests of `data/samples/corpus.py`."""

import os
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.data.samples.corpus import Corpus, held_out_passes
from p2pswarm.data.sources import files_of
from p2pswarm.data.text_files import load_corpus

SHAPE = 4, 16


def load(path: Path, suffixes=(), **options) -> Corpus:
    values = {"held_out_share": 0.1, "seed": 1, "shape": SHAPE, **options}
    return load_corpus(files_of(path, suffixes), **values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(40):
        (tmp_path / f"f{number}.txt").write_text(f"<{number}>" * 40)
    return tmp_path


def text(part: np.ndarray) -> str:
    return part.tobytes().decode()


def test_a_small_file_is_either_trained_on_or_held_out(folder: Path):
    loaded = load(folder, held_out_share=0.3)

    for number in range(40):
        mark = f"<{number}>"
        assert (mark in text(loaded.held_out)) is not (mark in text(loaded.train))
    assert loaded.files == 40


def test_a_pattern_reads_the_files_it_finds_as_their_folder_would(folder: Path):
    (folder / "other.md").write_text("OTHER" * 50)
    corpus = load(folder / "*.txt", held_out_share=0.3)

    assert corpus.files == 40
    assert "OTHER" not in text(corpus.train) + text(corpus.held_out)
    (folder / "other.md").unlink()
    assert corpus.digest() == load(folder, held_out_share=0.3).digest()


def test_a_grown_folder_moves_no_file_across(folder: Path):
    before = load(folder, held_out_share=0.3)
    (folder / "new.txt").write_text("new" * 100)
    after = load(folder, held_out_share=0.3)

    assert set(text(before.held_out).split("\n")) <= set(text(after.held_out).split("\n"))
    assert set(text(before.train).split("\n")) <= set(text(after.train).split("\n"))


def test_binary_hidden_and_foreign_files_are_no_text(folder: Path):
    (folder / "image.txt").write_bytes(b"BINARY\0" * 50)
    (folder / ".hidden.txt").write_text("HIDDEN" * 50)
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "a.txt").write_text("FOREIGN" * 50)

    loaded = load(folder)

    everything = text(loaded.train) + text(loaded.held_out)
    assert not any(word in everything for word in ("BINARY", "HIDDEN", "FOREIGN"))
    assert loaded.files == 40


def test_suffixes_choose_among_the_files(folder: Path):
    (folder / "notes.md").write_text("NOTES" * 50)

    assert "NOTES" not in text(load(folder, suffixes=(".txt",)).train)


def test_of_a_single_file_the_end_is_held_out(tmp_path: Path):
    file = tmp_path / "book.txt"
    file.write_text("a" * 900 + "z" * 100)

    loaded = load(file, held_out_share=0.1)

    assert text(loaded.train) == "a" * 900
    assert text(loaded.held_out) == "z" * 100


def test_a_microbatch_depends_on_seed_and_number_alone(folder: Path):
    one, again, other = load(folder), load(folder), load(folder, seed=2)

    assert one.microbatch(7).shape == (4, 17)
    assert one.microbatch(7).dtype == np.uint8
    assert (one.microbatch(7) == again.microbatch(7)).all()
    assert (one.microbatch(7) != one.microbatch(8)).any()
    assert (one.microbatch(7) != other.microbatch(7)).any()
    assert (one.held_out_batch(0) != one.held_out_batch(1)).any()


def test_the_digest_tells_texts_apart_and_where_the_held_out_part_begins():
    def digest(train: bytes, held_out: bytes) -> bytes:
        texts = [np.frombuffer(text, np.uint8) for text in (train, held_out)]
        return Corpus(*texts, 1, 0, 1, 4).digest()

    assert len(digest(b"abcdef", b"gh")) == 32
    assert digest(b"abcdef", b"gh") == digest(b"abcdef", b"gh")
    assert digest(b"abcdef", b"gh") != digest(b"abcdeF", b"gh")
    assert digest(b"abcdef", b"gh") != digest(b"abcde", b"fgh")


def test_every_row_is_a_run_of_the_text(folder: Path):
    loaded = load(folder)

    for row in loaded.microbatch(3):
        assert text(row) in text(loaded.train)
    for row in loaded.held_out_batch(3):
        assert text(row) in text(loaded.held_out)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("missing", None, "no such file or folder"),
        ("empty.txt", b"", r"there is no text; passed over: 1 empty"),
        ("short.txt", b"abc", "3 bytes of training text, a sequence has 17"),
        ("binary.bin", b"\0" * 1000, r"there is no text; passed over: 1 binary"),
        ("thin.txt", b"a" * 60, "6 bytes of held-out text"),
    ],
)
def test_too_little_text_is_one_line_with_the_remedy(tmp_path: Path, name, content, complaint):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(Unusable, match=complaint) as caught:
        load(file)

    assert "\n" not in str(caught.value)


def test_files_that_are_no_text_are_counted_when_the_text_is_too_short(tmp_path: Path):
    (tmp_path / "short.txt").write_text("abc")
    for i in range(3):
        (tmp_path / f"{i}.bin").write_bytes(bytes(100))

    with pytest.raises(Unusable, match=r"3 bytes of training .* \(passed over: 3 binary \(0.bin"):
        load(tmp_path)


def test_a_folder_without_text_names_the_suffixes_that_were_asked_for(tmp_path: Path):
    with pytest.raises(Unusable, match=r"text files \(\.py\)"):
        load(tmp_path, suffixes=(".py",))


def test_a_file_that_does_not_fit_in_memory_is_refused(folder: Path):
    with pytest.raises(Unusable, match="larger than 10 bytes: split it"):
        load(folder, file_bytes_max=10)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")

    with pytest.raises(Unusable, match="no such file"):
        load(tmp_path / "loop.txt")


def test_names_of_files_need_not_be_utf8(tmp_path: Path):
    (tmp_path / os.fsdecode(b"\xff.txt")).write_bytes(b"some text")
    (tmp_path / "b.txt").write_bytes(b"other text")

    assert load(tmp_path, shape=(1, 1)).files == 2


@given(
    length=st.integers(2, 9), rows=st.integers(1, 5), extra=st.integers(1, 60), most=st.integers(1)
)
def test_no_byte_is_predicted_twice(length: int, rows: int, extra: int, most: int):
    text = np.arange(length + extra, dtype=np.uint8)
    corpus = Corpus(text, text, 1, 1, rows, length)

    targets = [
        token for batch in chain(*held_out_passes(corpus, most)) for token in batch[:, 1:].ravel()
    ]

    assert len(set(targets)) == len(targets) >= length
    assert len(targets) <= max(most, length)
    if most >= len(text):
        assert targets == list(range(1, len(targets) + 1))
        assert len(text) - len(targets) <= length
