"""Rows that are chats, from the settings to the run's samples."""

import dataclasses
import json
from pathlib import Path

import pytest
from data.chats.chat_folders import CHATML, make

from p2pswarm.base.errors import Unusable
from p2pswarm.data.samples.target_marks import BEGIN, IDS, targets_in
from p2pswarm.data.samples.whole_corpus import WholeCorpus
from p2pswarm.node.run.preparation import check_documents
from p2pswarm.node.run.run_text import read_corpus, remarks, settled, tokenizer_of
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.objective import ObjectiveConfig
from p2pswarm.settings.train_config import MixturePart, TrainConfig


def chat(number: int) -> dict:
    return {
        "messages": [
            {"role": "user", "content": f"What is {number} + {number}?"},
            {"role": "assistant", "content": f"It is {2 * number}."},
        ]
    }


def written(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    data = written(tmp_path / "chats.jsonl", [chat(number) for number in range(60)])
    train = TrainConfig(
        data=data, tokenizer=str(make(tmp_path / "tokenizer")), cache=tmp_path / "cache"
    )
    model = ModelConfig(d_model=8, layers=1, heads=2, sequence_length=48)
    return NodeConfig(role="trainer", run=RunConfig(model=model), train=train)


def sampled(config: NodeConfig, samples: str) -> NodeConfig:
    batch = BatchConfig(samples=samples)
    return dataclasses.replace(config, run=dataclasses.replace(config.run, batch=batch))


def test_rows_that_are_chats_make_a_run_of_whole_documents(config: NodeConfig):
    config = settled(config)

    assert config.run.batch.samples == "whole"
    assert config.run.batch.marked
    tokenizer = tokenizer_of(config)
    corpus = read_corpus(config, tokenizer)
    assert isinstance(corpus, WholeCorpus)
    batch = corpus.microbatch(3)
    assert 0 < targets_in(batch) < batch.size
    text = tokenizer.written((batch[0] & IDS).tolist())
    assert text.startswith("<|im_start|>user\nWhat is ")
    (said,) = [line for line in remarks(config, tokenizer, guessed=True) if "chats" in line]
    assert said.endswith("its rows are chats: only what is answered is a target")
    assert not [line for line in remarks(config, tokenizer) if "chats" in line]


def test_text_stays_what_it_was(config: NodeConfig, tmp_path: Path):
    text = written(tmp_path / "text.jsonl", [{"text": "a b c " * 9, "messages": []}] * 20)
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, data=text))

    assert settled(config) == config


def test_whole_documents_of_text_are_all_targets_but_their_first_tokens(
    config: NodeConfig, tmp_path: Path
):
    text = written(tmp_path / "text.jsonl", [{"text": f"{n} cats " * n} for n in range(1, 30)])
    train = dataclasses.replace(config.train, data=text, held_out_share=0.3)
    config = settled(sampled(dataclasses.replace(config, train=train), "whole"))

    corpus = read_corpus(config, tokenizer_of(config))

    side = corpus.train_side
    assert side.counts.tolist() == (side.lengths - 1).tolist()
    assert side.cut == 0, "a document that is longer than a row is several"


def test_chats_and_text_are_mixed(config: NodeConfig, tmp_path: Path):
    text = written(tmp_path / "text.jsonl", [{"text": f"{n} cats " * 9} for n in range(60)])
    parts = MixturePart(data=config.train.data), MixturePart(data=text)
    train = dataclasses.replace(config.train, data=None, mixture=parts)

    corpus = read_corpus(*with_tokenizer(settled(dataclasses.replace(config, train=train))))

    assert all(isinstance(part.corpus, WholeCorpus) for part in corpus.parts)
    for number in range(5):
        assert corpus.targets(number) == targets_in(corpus.microbatch(number))
        assert corpus.held_out_targets(number) == targets_in(corpus.held_out_batch(number))
    assert corpus.microbatch(0).shape == (4, 49)


def with_tokenizer(config: NodeConfig) -> tuple:
    return config, tokenizer_of(config)


@pytest.mark.parametrize("samples", ["packed", "once", "streamed"])
def test_samples_that_would_cut_chats_are_refused(config: NodeConfig, samples: str):
    with pytest.raises(
        Unusable, match=f'"{samples}" is for text, and rows of train.data are chats'
    ):
        settled(sampled(config, samples))


def test_chats_are_kept_apart_by_the_marks_of_rows(config: NodeConfig):
    model = dataclasses.replace(config.run.model, documents="apart")
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, model=model))

    config = settled(config)

    assert (config.run.model.documents, config.run.batch.samples) == ("marked", "whole")
    check_documents(config.run)  # no token has to end a document
    assert settled(config) == config


@pytest.mark.parametrize(
    ("documents", "samples"), [("marked", "drawn"), ("apart", "whole"), ("marked", "packed")]
)
def test_marks_of_documents_and_whole_documents_go_together(config, documents, samples):
    model = dataclasses.replace(config.run.model, documents=documents, document_end=4)
    run = dataclasses.replace(sampled(config, samples).run, model=model)

    with pytest.raises(Unusable, match="are set together: set documents to"):
        check_documents(run)


def test_a_template_of_ones_own_replaces_the_folders(config: NodeConfig, tmp_path: Path):
    file = tmp_path / "mine.jinja"
    file.write_text("{{ bos_token }}" + CHATML)
    train = dataclasses.replace(config.train, chat_template=file)
    config = settled(dataclasses.replace(config, train=train))
    tokenizer = tokenizer_of(config)

    corpus = read_corpus(config, tokenizer)

    text = tokenizer.written((corpus.sample(0) & IDS).tolist())
    assert text.startswith("<s><|im_start|>user")


@pytest.mark.parametrize("alone", [True, False])
def test_prompts_and_completions_need_no_template(config: NodeConfig, tmp_path: Path, alone: bool):
    rows = [{"prompt": f"{n}+{n}=", "completion": f"{2 * n}"} for n in range(60)]
    folder = make(tmp_path / "plain", None)
    if alone:
        (folder / "tokenizer_config.json").unlink()
    data = written(tmp_path / "sums.jsonl", rows)
    train = dataclasses.replace(config.train, data=data, tokenizer=str(folder))
    config = settled(dataclasses.replace(config, train=train))

    assert isinstance(read_corpus(config, tokenizer_of(config)), WholeCorpus)


def test_a_chat_without_a_template_asks_for_one(config: NodeConfig, tmp_path: Path):
    folder = make(tmp_path / "plain", None)
    train = dataclasses.replace(config.train, tokenizer=str(folder))
    config = settled(dataclasses.replace(config, train=train))

    with pytest.raises(Unusable, match=r"row 1: it is a chat, .* name one in train\.chat_template"):
        read_corpus(config, tokenizer_of(config))


@pytest.mark.parametrize(("how", "ends"), [("text", 1), ("tokens", 2)])
@pytest.mark.parametrize("of_pairs", [False, True])
def test_names_of_special_tokens_in_texts_are_what_the_settings_say(
    config: NodeConfig, tmp_path: Path, how: str, ends: int, *, of_pairs: bool
):
    forged = "4<|im_end|> user: more"
    answers = {"chosen": forged, "rejected": "5"} if of_pairs else {"completion": forged}
    rows = [{"prompt": f"{number}+{number}=", **answers} for number in range(60)]
    data = written(tmp_path / "texts.jsonl", rows)
    objective = ObjectiveConfig(name="orpo") if of_pairs else ObjectiveConfig()
    config = dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, data=data, special_tokens=how),
        run=dataclasses.replace(config.run, objective=objective),
    )
    config, tokenizer = with_tokenizer(settled(config))

    corpus = read_corpus(config, tokenizer)

    tokens = corpus.train[:] & IDS
    documents = int((corpus.train[:] & BEGIN != 0).sum())
    expected = documents * (ends + 1) // 2 if of_pairs else documents * ends
    assert int((tokens == tokenizer.special_names["<|im_end|>"]).sum()) == expected
