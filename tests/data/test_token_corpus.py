"""Text as tokens on disk: whole documents, the same everywhere, any size of vocabulary."""

import gzip
import json
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.held_out import is_held_out_document
from p2pswarm.data.samples.corpus import Corpus, held_out_passes
from p2pswarm.data.token_corpus import load_tokenised, sources_of, texts_to_learn, tokenised
from p2pswarm.data.tokenizer import Tokenizer, train_tokenizer
from p2pswarm.settings.train_config import TrainConfig

SHARE = 0.3
DOCUMENTS = [f"document {number} says: " + "some words " * (number % 7 + 1) for number in range(60)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(320, [Path(__file__).read_bytes()])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = "".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS)
    (tmp_path / "a.jsonl").write_text(rows)
    return tmp_path / "a.jsonl"


def load(data: Path, cache: Path, tokenizer: Tokenizer, seed: int = 1, length: int = 8) -> Corpus:
    sources = sources_of(TrainConfig(data=data, held_out_share=SHARE))
    return load_tokenised(sources, tokenizer, cache=cache, seed=seed, shape=(4, length))


def documents_in(part, tokenizer: Tokenizer) -> list[str]:
    tokens = part[0 : len(part)].tolist()
    found, text = [], []
    for token in tokens:
        if token == tokenizer.end:
            found.append(tokenizer._tokenizer.decode(text))
            text = []
        else:
            text.append(token)
    assert text == []  # the last one is ended, too
    return found


def test_each_document_is_tokenised_alone_and_ended(data, tmp_path, tokenizer):
    corpus = load(data, tmp_path / "cache", tokenizer)
    out = [text for text in DOCUMENTS if is_held_out_document(text.encode(), SHARE)]

    assert documents_in(corpus.held_out, tokenizer) == out
    assert documents_in(corpus.train, tokenizer) == [text for text in DOCUMENTS if text not in out]
    assert corpus.held_out_bytes == sum(len(text.encode()) for text in out)


def test_the_same_samples_and_digest_wherever_it_was_made(data, tmp_path, tokenizer):
    first, other = (load(data, tmp_path / name, tokenizer) for name in ("one", "two"))

    assert first.digest() == other.digest()
    for number in (0, 7, 10**9):
        assert first.microbatch(number).dtype == np.int32  # which travels
        assert np.array_equal(first.microbatch(number), other.microbatch(number))
        assert not np.array_equal(first.microbatch(number), first.microbatch(number + 1))
    assert next(chain(*held_out_passes(first, 100))).dtype == np.int32


def test_another_tokenizer_is_another_text_beside_it(data, tmp_path, tokenizer):
    other = train_tokenizer(270, [Path(__file__).read_bytes()])
    digests = {load(data, tmp_path / "c", each).digest() for each in (tokenizer, other, tokenizer)}

    assert len(digests) == 2
    assert len(list((tmp_path / "c").iterdir())) == 2


def test_a_second_start_reads_what_was_made(data, tmp_path, tokenizer):
    load(data, tmp_path / "c", tokenizer)
    (made,) = (tmp_path / "c").iterdir()
    before = made.stat().st_ino
    load(data, tmp_path / "c", tokenizer)

    assert [each.stat().st_ino for each in (tmp_path / "c").iterdir()] == [before]


def test_text_files_are_documents_and_split_by_name(tmp_path, tokenizer):
    (tmp_path / "text").mkdir()
    for number, text in enumerate(DOCUMENTS):
        (tmp_path / "text" / f"{number}.txt").write_text(text)
    corpus = load(tmp_path / "text", tmp_path / "cache", tokenizer)
    found = [documents_in(part, tokenizer) for part in (corpus.train, corpus.held_out)]

    assert sorted(found[0] + found[1]) == sorted(DOCUMENTS)
    assert all(found)


def test_one_file_holds_out_its_end(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text(" ".join(DOCUMENTS))
    corpus = load(tmp_path / "a.txt", tmp_path / "cache", tokenizer)
    (train,), (held_out,) = (
        documents_in(part, tokenizer) for part in (corpus.train, corpus.held_out)
    )

    assert train + held_out == " ".join(DOCUMENTS)


def test_too_little_text_is_refused(data, tmp_path, tokenizer):
    with pytest.raises(Unusable, match=r"tokens of training text, a sequence has 5001"):
        load(data, tmp_path / "cache", tokenizer, length=5_000)


def test_a_tokenizer_without_an_end_parts_documents_by_a_line_break(tokenizer):
    found = json.loads(tokenizer.text)
    found["added_tokens"] = []
    found["model"]["vocab"]["<other>"] = found["model"]["vocab"].pop("<|endoftext|>")
    endless = Tokenizer(json.dumps(found), "here")
    (line,) = endless.encode([b"\n"])
    (one,) = tokenised([(False, b"some words")], endless)

    assert endless.end is None
    assert one.written.endswith(line.tobytes())


def test_it_learns_from_what_is_trained_on_alone(data):
    sources = sources_of(TrainConfig(data=data, held_out_share=SHARE))
    texts = list(texts_to_learn(sources))
    fewer = list(texts_to_learn(sources, data.stat().st_size // 3))

    assert not any(is_held_out_document(text, SHARE) for text in texts)
    assert 0 < len(fewer) < len(texts) / 2
    assert set(fewer) < set(texts)


def gzipped(path: Path, texts: list[str]) -> Path:
    path.write_bytes(gzip.compress("".join(json.dumps({"text": x}) + "\n" for x in texts).encode()))
    return path


def parquet(path: Path, texts: list[str]) -> Path:
    table = pa.table({"text": texts, "other": [{"text": "x" * 99}] * len(texts)})
    pyarrow.parquet.write_table(table, path, compression="zstd")
    return path


@pytest.mark.parametrize(("name", "write"), [("a.jsonl.gz", gzipped), ("a.parquet", parquet)])
def test_it_learns_from_as_much_as_is_asked_however_files_are_compressed(tmp_path, name, write):
    texts = [f"{number} " + "the same words again " * 50 for number in range(2000)]
    file = write(tmp_path / name, texts)
    sources = sources_of(TrainConfig(data=file, held_out_share=SHARE))
    there, asked = sum(map(len, texts)), 200_000
    assert file.stat().st_size < asked < there / 4

    found = sum(map(len, texts_to_learn(sources, asked)))

    assert asked / 2 < found < 1.5 * asked


def test_it_learns_from_streamed_text_in_parts_what_it_learns_from_the_whole(tmp_path):
    for name in "abcdefgh":
        (tmp_path / f"{name}.txt").write_text(f"{name} line\n" * 300_000)  # over two parts
    train = TrainConfig(data=tmp_path, held_out_share=SHARE)

    whole, parts = (list(texts_to_learn(sources_of(train, streamed=s))) for s in (False, True))
    assert parts == whole
    assert len(parts) > 8
