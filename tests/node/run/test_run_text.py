"""Tests of `node/run/run_text.py`."""

import dataclasses
import json
from pathlib import Path

import pytest
from local_hub import local_hub

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.compatibility import differences
from p2pswarm.data.tokenizer import train_tokenizer
from p2pswarm.node.run.preparation import checked_model, tokenised_run
from p2pswarm.node.run.run_match import _other
from p2pswarm.node.run.run_text import (
    default_cache,
    describe,
    keep_with_checkpoints,
    read_corpus,
    tokenizer_of,
)
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.node_config import CheckpointConfig, NodeConfig
from p2pswarm.settings.parser import load, run_from_json, run_to_json
from p2pswarm.settings.train_config import TrainConfig


def test_the_cache_is_where_the_user_keeps_caches(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "p2pswarm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "p2pswarm"


def test_a_user_without_a_home_prepares_text_for_one_process(monkeypatch, caplog):
    """As in a container that runs as any number of a user."""

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)

    place = default_cache()

    assert place.stat().st_mode & 0o777 == 0o700
    assert default_cache() == place
    assert caplog.text.count("train.cache") == 1
    place.rmdir()


SMALL = ModelConfig(d_model=8, layers=1, heads=2, sequence_length=8)
TEXT = Path(__file__).read_bytes()


def node(tmp_path: Path, tokenizer: str = "train:320", **settings) -> NodeConfig:
    (tmp_path / "text.txt").write_bytes(TEXT)
    train = TrainConfig(data=tmp_path / "text.txt", tokenizer=tokenizer, cache=tmp_path / "cache")
    return NodeConfig(role="trainer", run=RunConfig(model=SMALL), train=train, **settings)


def sized(vocabulary: int) -> RunConfig:
    model = {"d_model": 8, "layers": 1, "heads": 2, "vocabulary": vocabulary}
    return RunConfig(model=ModelConfig(**model))


def test_the_vocabulary_follows_from_the_tokenizer(tmp_path):
    config = node(tmp_path)
    tokenizer = tokenizer_of(config)
    run = checked_model(config.run, tokenizer)

    assert run.model.vocabulary == tokenizer.size == 320
    assert (run.model.tokenizer, run.model.document_end) == (tokenizer.digest, 0)
    assert run_from_json(run_to_json(run)) == run
    assert checked_model(run, tokenizer) == run


def test_a_mixture_of_files_and_rows_has_one_tokenizer_and_one_corpus(tmp_path):
    node(tmp_path)
    rows = [json.dumps({"body": f"row {number} of a document"}) for number in range(400)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    (tmp_path / "run.toml").write_text(
        '[train]\ntokenizer = "train:320"\ncache = "cache"\n'
        '[[train.mixture]]\ndata = "text.txt"\n'
        '[[train.mixture]]\ndata = "rows.jsonl"\nfield = "body"\nweight = 3\n'
    )
    config = load(tmp_path / "run.toml")
    config = dataclasses.replace(config, run=RunConfig(model=SMALL))
    tokenizer = tokenizer_of(config)
    corpus = read_corpus(config, tokenizer)
    texts = [tokenizer.decode(row) for n in range(100) for row in corpus.microbatch(n).tolist()]

    of_rows = sum("row" in text or "document" in text for text in texts)
    assert 0.6 < of_rows / len(texts) < 0.9
    assert describe(corpus, tokenizer).startswith("2 files: ")
    assert tokenizer_of(config).digest == tokenizer.digest  # kept, and not learnt again
    lighter = dataclasses.replace(config.train.mixture[1], weight=1.0)
    other = dataclasses.replace(config.train, mixture=(config.train.mixture[0], lighter))
    again = read_corpus(dataclasses.replace(config, train=other), tokenizer)
    assert again.digest() != corpus.digest()


def test_bytes_leave_a_run_as_it_is(tmp_path):
    config = node(tmp_path, "bytes")

    assert tokenizer_of(config) is None
    assert checked_model(config.run) == config.run
    assert "bytes to train on" in describe(read_corpus(config), None)


def test_a_tokenizer_of_the_hub_is_named_as_its_digest_alone(tmp_path, monkeypatch):
    tokenizer = train_tokenizer(320, [TEXT])
    (tmp_path / "run.toml").write_text('role = "trainer"\n[train]\ntokenizer = "some/body"\n')
    with local_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.at("trainer"))
        hub.publish("some/body", {"tokenizer.json": tokenizer.text.encode()})

        found = tokenizer_of(load(tmp_path / "run.toml"))

    assert found.digest == tokenizer.digest
    assert b"some/body" not in run_to_json(checked_model(sized(384), found))


def test_a_learnt_tokenizer_is_kept_and_used_again(tmp_path):
    config = node(tmp_path, state=tmp_path / "state")
    (tmp_path / "state").mkdir()
    first = tokenizer_of(config)
    (kept,) = (tmp_path / "state").iterdir()
    found = json.loads(kept.read_text())
    found["model"]["ignore_merges"] = True  # only who reads this file can know of it
    kept.write_text(json.dumps(found))

    assert tokenizer_of(config).digest != first.digest
    kept.unlink()
    assert tokenizer_of(config).digest == first.digest  # that in the cache
    assert "tokens (of 320) to train on" in describe(read_corpus(config, first), first)


def test_a_resumed_run_takes_the_tokenizer_beside_the_checkpoints(tmp_path):
    (tmp_path / "one").mkdir()
    target = str(tmp_path / "checkpoints")
    config = node(tmp_path / "one", checkpoint=CheckpointConfig(target=target))
    other = train_tokenizer(320, [TEXT[: len(TEXT) // 2]])
    assert other.digest != tokenizer_of(config).digest
    keep_with_checkpoints(config, other)
    keep_with_checkpoints(config, other)  # it is there: nothing is written

    (tmp_path / "two").mkdir()
    elsewhere = node(tmp_path / "two")
    train = TrainConfig(
        data=elsewhere.train.data, tokenizer="train:320", cache=tmp_path / "new", resume=target
    )
    resumed = NodeConfig(role="trainer", run=elsewhere.run, train=train)
    assert tokenizer_of(resumed).digest == other.digest


def test_another_tokenizer_is_another_run_and_said_in_one_line():
    one, other = (tokenised_run(sized(384), train_tokenizer(size, [TEXT])) for size in (320, 330))

    assert "run.model.tokenizer" in _other(one, other)
    assert [x for x in differences(one, other) if "model.tokenizer" in x]
    assert run_to_json(one) != run_to_json(other)


@pytest.mark.parametrize(
    ("name", "why"),
    [("train:", '"train:N"'), ("train:12", "N from 300"), ("train:1e4", "N from"), ("", "bytes")],
)
def test_a_setting_that_names_no_tokenizer_is_refused(tmp_path, name: str, why: str):
    (tmp_path / "run.toml").write_text(f'role = "trainer"\n[train]\ntokenizer = "{name}"\n')

    with pytest.raises(Unusable, match="train.tokenizer is .*" + why):
        load(tmp_path / "run.toml")


def test_a_tokenizers_folder_is_relative_to_the_settings(tmp_path):
    (tmp_path / "run.toml").write_text('[train]\ntokenizer = "model"\n')
    assert load(tmp_path / "run.toml").train.tokenizer == str(tmp_path / "model")

    (tmp_path / "run.toml").write_text('[train]\ntokenizer = "train:32000"\n')
    assert load(tmp_path / "run.toml").train.tokenizer == "train:32000"


def test_samples_of_whole_documents_need_a_tokenizer_that_ends_them(tmp_path):
    config = node(tmp_path)
    batch = BatchConfig(microbatches=2, rows=2, samples="packed")
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, batch=batch))
    tokenizer = tokenizer_of(config)
    run = checked_model(config.run, tokenizer)
    corpus = read_corpus(dataclasses.replace(config, run=run), tokenizer)

    assert corpus.microbatch(7).shape == (2, 9)
    assert corpus.microbatch(7)[:, 0].tolist() == [run.model.document_end] * 2
    with pytest.raises(Unusable, match=r'"packed" needs a token that ends a document'):
        checked_model(config.run)
    other = dataclasses.replace(run, batch=dataclasses.replace(batch, samples="drawn"))
    assert [x for x in differences(run, other) if "batch.samples" in x]


def test_names_of_special_tokens_are_letters_unless_the_settings_say_otherwise(tmp_path):
    (tmp_path / "tokenizer.json").write_text(train_tokenizer(320, [TEXT]).text)
    plain = NodeConfig(train=TrainConfig(tokenizer=str(tmp_path)))
    read = NodeConfig(train=TrainConfig(tokenizer=str(tmp_path), special_tokens="tokens"))

    plainly, specially = tokenizer_of(plain), tokenizer_of(read)
    assert plainly.digest != specially.digest
    assert specially.encode([b"<|endoftext|>"])[0].tolist() == [plainly.end]
    assert plainly.end not in plainly.encode([b"<|endoftext|>"])[0]
