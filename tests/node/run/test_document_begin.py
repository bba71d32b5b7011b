"""Documents that begin with the token that their tokenizer begins texts with (BOS)."""

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.samples.target_marks import BEGIN, IDS, NO_TARGET
from p2pswarm.data.tokenizer import train_tokenizer
from p2pswarm.node.run.preparation import tokenised_run
from p2pswarm.node.run.run_text import read_corpus, settled, tokenizer_of
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.parser import run_from_json, run_to_json
from p2pswarm.settings.train_config import TrainConfig

DOCUMENTS = [f"{number} cats and {number} dogs sat on mats. " * 3 for number in range(200)]
BOS = "<|begin|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Of a tokenizer that puts a token before each text, and one that ends it behind, as BERT's."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made = json.loads(train_tokenizer(330, [text.encode() for text in DOCUMENTS]).text)
    number = max(made["model"]["vocab"].values()) + 1
    made["added_tokens"].append(made["added_tokens"][0] | {"id": number, "content": BOS})
    end = made["added_tokens"][0]
    pieces = [(BOS, number), (end["content"], end["id"])]
    special = {name: {"id": name, "ids": [id_], "tokens": [name]} for name, id_ in pieces}
    names = [{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in pieces]
    text = {"Sequence": {"id": "A", "type_id": 0}}
    made["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [names[0], text, names[1]],
        "pair": [names[0], text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": special,
    }
    (folder / "tokenizer.json").write_text(json.dumps(made))
    return folder


def config_of(folder: Path, place: Path, samples: str = "drawn", **train: object) -> NodeConfig:
    data = place / "rows.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    settings = {"data": data, "document_begin": "token"} | train
    return settled(
        NodeConfig(
            role="trainer",
            run=RunConfig(
                model=ModelConfig(d_model=8, layers=1, heads=2, sequence_length=200),
                batch=BatchConfig(rows=4, microbatches=2, samples=samples),
            ),
            train=TrainConfig(tokenizer=str(folder), cache=place / "cache", **settings),
        )
    )


def rows_of(config: NodeConfig) -> np.ndarray:
    """Some rows, without marks."""
    tokenizer = tokenizer_of(config)
    run = tokenised_run(config.run, tokenizer)
    corpus = read_corpus(dataclasses.replace(config, run=run), tokenizer)
    return np.concatenate([corpus.microbatch(number) for number in range(4)])


def test_a_run_says_which_token_documents_begin_with(folder, tmp_path):
    tokenizer = tokenizer_of(config_of(folder, tmp_path))
    run = tokenised_run(RunConfig(), tokenizer)

    assert tokenizer.written([run.model.document_begin]) == BOS
    assert run.model.document_begin != run.model.document_end
    assert run_from_json(run_to_json(run)) == run
    assert "document_begin" not in run_to_json(RunConfig(), 11).decode()


@pytest.mark.parametrize("samples", ["drawn", "once", "packed", "streamed"])
def test_behind_the_end_of_a_document_the_next_one_begins(folder, tmp_path, samples):
    config = config_of(folder, tmp_path, samples)
    tokenizer = tokenizer_of(config)
    pairs = [(int(a), int(b)) for row in rows_of(config) for a, b in itertools.pairwise(row)]

    after = [b for a, b in pairs if a == tokenizer.end]
    assert len(after) > 10
    assert set(after) == {tokenizer.begin}
    assert all(a == tokenizer.end for a, b in pairs if b == tokenizer.begin)


def test_text_files_that_are_streamed_begin_where_a_document_does(folder, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(20):
        (texts / f"{number}.txt").write_text("".join(DOCUMENTS[number : number + 2]))
    config = config_of(folder, tmp_path, "streamed", data=texts, held_out_share=0.3)
    tokenizer = tokenizer_of(config)

    for row in rows_of(config):
        after = [int(b) for a, b in itertools.pairwise(row) if a == tokenizer.end]
        assert after
        assert set(after) == {tokenizer.begin}


def test_rows_of_whole_documents_and_completions_begin_so_and_it_is_no_target(folder, tmp_path):
    whole = config_of(folder, tmp_path, "whole")
    asked = tmp_path / "asked.jsonl"
    rows = [{"prompt": f"{number} + 1 = ", "completion": str(number + 1)} for number in range(200)]
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
    completions = config_of(folder, tmp_path, data=asked)

    for config in (whole, completions):
        begin = tokenizer_of(config).begin
        found = rows_of(config)
        begun = found[(found & BEGIN) != 0]
        ours = begun[(begun & IDS) == begin]
        assert len(ours) >= 4
        assert set(ours.tolist()) == {begin | BEGIN | NO_TARGET}
    last = tokenizer_of(completions)
    row = rows_of(completions)[0]
    said = last.written([int(token & IDS) for token in row if not token & NO_TARGET])
    assert said.count("<|endoftext|>") > 1
    assert "+" not in said


def test_pretrained_runs_do_as_the_tokenizer_does_and_say_so(folder, tmp_path):
    config = config_of(folder, tmp_path, document_begin="auto")
    assert tokenizer_of(config).begin is None
    pretrained = dataclasses.replace(
        config, run=dataclasses.replace(config.run, start="pretrained")
    )

    tokenizer = tokenizer_of(pretrained)

    assert tokenizer.begin == tokenizer.own_begin
    assert [
        line for line in tokenizer.remarks if "documents of text begin with '<|begin|>'" in line
    ]
    assert tokenizer.reading_special().begin == tokenizer.begin
    none = dataclasses.replace(pretrained.train, document_begin="none")
    assert tokenizer_of(dataclasses.replace(pretrained, train=none)).begin is None


def test_a_tokenizer_that_begins_nothing_is_refused_where_one_is_asked_for(tmp_path):
    (tmp_path / "tokenizer.json").write_text(train_tokenizer(320, [b"some text"]).text)

    with pytest.raises(
        Unusable, match=r'document_begin = "token": the tokenizer begins texts with'
    ):
        tokenizer_of(config_of(tmp_path, tmp_path))
