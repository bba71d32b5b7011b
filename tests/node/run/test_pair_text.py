"""Rows that are pairs of answers, from the settings to the run's samples and to what is shown."""

import dataclasses
import json
from pathlib import Path

import pytest
from data.chats.chat_folders import learnt, make

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.data.text_report import as_json, as_text, text_report
from p2pswarm.data.samples.pair_corpus import PairCorpus
from p2pswarm.node.run.run_text import read_corpus, settled, tokenizer_of
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.objective import ObjectiveConfig
from p2pswarm.settings.train_config import MixturePart, TrainConfig


def pair(number: int) -> dict:
    user = {"role": "user", "content": f"What is {number} + {number}?"}
    answers = [{"role": "assistant", "content": f"It is {n}."} for n in (2 * number, number)]
    return {"chosen": [user, answers[0]], "rejected": [user, answers[1]], "score": 1.0}


def written(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    data = written(tmp_path / "pairs.jsonl", [pair(number) for number in range(1, 60)])
    train = TrainConfig(
        data=data, tokenizer=str(make(tmp_path / "tokenizer")), cache=tmp_path / "cache"
    )
    model = ModelConfig(d_model=8, layers=1, heads=2, sequence_length=47)
    run = RunConfig(model=model, objective=ObjectiveConfig(name="dpo"))
    return NodeConfig(role="trainer", run=run, train=train)


def with_run(config: NodeConfig, **changed) -> NodeConfig:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, **changed))


def test_pairs_with_an_objective_make_rows_of_both_answers(config: NodeConfig):
    config = settled(config)
    tokenizer = tokenizer_of(config)

    corpus = read_corpus(config, tokenizer)

    assert isinstance(corpus, PairCorpus)
    assert config.run.batch.samples == "whole"
    assert not config.run.counted_tokens
    for number in range(0, 20, 2):
        chosen, rejected = (
            learnt(corpus.sample(number + side), tokenizer.reading_special()) for side in range(2)
        )
        (right,), (wrong,) = chosen, rejected
        assert right.endswith(".<|im_end|>")
        assert int(right[6:].split(".")[0]) == 2 * int(wrong[6:].split(".")[0])


def test_both_answers_of_a_pair_are_shown(config: NodeConfig, tmp_path: Path):
    train = config.train
    settings = tmp_path / "run.toml"
    settings.write_text(
        f'role = "trainer"\n[train]\ndata = "{train.data}"\ntokenizer = "{train.tokenizer}"\n'
        f'cache = "{train.cache}"\n[run]\nobjective = "simpo"\n'
        "[run.model]\nsequence_length = 47\n"
    )

    found = text_report(settings, 2)

    assert [row.answer for row in found.rows] == ["chosen", "rejected"] * 2
    shown = json.loads(as_json(found))["rows"]
    assert [len(row["tokens"]) for row in shown] == [48] * 4
    assert all(0 < sum(row["targets"]) < 24 for row in shown)
    assert "row 1, rejected: 48 tokens" in as_text(found)
    assert sum(size.documents for size in (found.texts[0].train, found.texts[0].held_out)) == 59


def test_pairs_need_an_objective_and_an_objective_pairs(config: NodeConfig, tmp_path: Path):
    with pytest.raises(Unusable, match=r'set run.objective to "dpo", "orpo" or "simpo"'):
        settled(with_run(config, objective=ObjectiveConfig()))
    chats = written(tmp_path / "chats.jsonl", [{"messages": pair(3)["chosen"]}] * 9)
    train = dataclasses.replace(config.train, data=chats)
    with pytest.raises(Unusable, match='"dpo" takes rows with "chosen" and "rejected"'):
        settled(dataclasses.replace(config, train=train))
    parts = tuple(MixturePart(data=path) for path in (config.train.data, chats))
    mixed = dataclasses.replace(config.train, data=None, mixture=parts)
    with pytest.raises(Unusable, match="takes one text"):
        settled(dataclasses.replace(config, train=mixed))
    with pytest.raises(Unusable, match=r'samples = "packed" is for text, and rows .* are pairs'):
        settled(with_run(config, batch=BatchConfig(samples="packed")))


def test_rows_that_are_chats_or_text_too_need_no_objective(config: NodeConfig, tmp_path: Path):
    both = written(tmp_path / "both.jsonl", [pair(3) | {"messages": pair(3)["chosen"]}] * 9)
    text = written(tmp_path / "text.jsonl", [pair(3) | {"text": "a b"}] * 9)
    for data, samples in ((both, "whole"), (text, "drawn")):
        train = dataclasses.replace(config.train, data=data)
        found = settled(
            dataclasses.replace(with_run(config, objective=ObjectiveConfig()), train=train)
        )
        assert found.run.batch.samples == samples


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (pair(3) | {"rejected": pair(3)["chosen"]}, "its 'chosen' and 'rejected' are equal"),
        ({"chosen": pair(3)["chosen"]}, "it has no 'rejected'"),
        (
            {"prompt": "a", "chosen": "It is 4?", "rejected": "It is 4\ud800"},
            "its answers are the same tokens",
        ),
    ],
)
def test_a_row_that_is_no_pair_is_named_by_its_number(config: NodeConfig, row: dict, why: str):
    with config.train.data.open("a") as file:
        file.write(json.dumps(row) + "\n")
    config = settled(config)

    with pytest.raises(Unusable, match=f"pairs.jsonl: row 60: {why}"):
        read_corpus(config, tokenizer_of(config))
