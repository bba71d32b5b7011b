"""Chats by a rule are learnt by an adapter in three stages, from the file to the loss.

The end of a turn is the token that pads, the template has no marks, and only answers count. The
model is frozen and drawn from a seed; `bench/real_model.py` has a real one.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from p2pswarm.data.samples.target_marks import IDS, NO_TARGET, targets_in
from p2pswarm.models.compute.base import BackwardSpec, Engine, Update
from p2pswarm.models.compute.flat_parameters import squared_norm
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.model_source import resolved
from p2pswarm.node.run.preparation import tokenised_run
from p2pswarm.node.run.run_text import read_corpus, settled, tokenizer_of
from p2pswarm.run.averaging.shards import Span
from p2pswarm.run.schedule import learning_rate, sum_scale, tokens_per_target
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import BatchConfig, ModelConfig, OptimizerConfig, RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.train_config import TrainConfig

STEPS, STAGES = 40, 3
NUMBERS, THINGS = ["one", "two", "three", "four", "five"], ["cup", "fork", "spoon", "plate", "pan"]
MARKS = ["[none]", "[user]", "[assistant]", "[end]", "x", "1", "2", "3", "4", "5"]
WORDS = {word: number for number, word in enumerate([*MARKS, *NUMBERS, *THINGS])}
CHATML = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }} [end] {% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
LLAMA = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "added_tokens": [
            flags | {"id": WORDS[mark], "content": mark, "special": True} for mark in MARKS[1:4]
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": WORDS, "unk_token": MARKS[0]},
    }
    about = {"chat_template": CHATML, "eos_token": "[end]", "pad_token": "[end]"}
    files = {"tokenizer.json": tokenizer, "tokenizer_config.json": about, "config.json": LLAMA}
    for name, table in files.items():
        (tmp_path / name).write_text(json.dumps(table))
    rows = [chat(number, thing) for number in range(len(NUMBERS)) for thing in THINGS]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows * 4)))
    run = RunConfig(
        stages=STAGES,
        steps=STEPS,
        model=ModelConfig(family="hf", folder=tmp_path, sequence_length=24),
        adapter=AdapterConfig(rank=8, alpha=32.0, train=("embed_tokens", "lm_head")),
        batch=BatchConfig(rows=16, microbatches=1),
        optimizer=OptimizerConfig(learning_rate=2e-2, warmup_steps=3, weight_decay=0.0),
    )
    train = TrainConfig(
        data=tmp_path / "chats.jsonl", tokenizer=str(tmp_path), cache=tmp_path / "cache"
    )
    return settled(NodeConfig(role="trainer", run=run, train=train))


def chat(number: int, thing: str) -> dict:
    asked = {"role": "user", "content": f"{NUMBERS[number]} {thing}"}
    said = {"role": "assistant", "content": f"{number + 1} x {thing}"}
    return {"messages": [asked, said]}


def trained_on(engines: list[Engine], batch: torch.Tensor, step: int) -> None:
    """Add the gradients of a step's only microbatch."""
    key, given = (0, step), {}
    for engine in engines[:-1]:
        given = engine.stage.forward(key, batch, given)
    back = engines[-1].stage.finish(batch, given, BackwardSpec(True, True)).gradient
    for stage in range(STAGES - 2, -1, -1):
        back = engines[stage].stage.backward(key, back, BackwardSpec(True, stage > 0))


def loss_on(engines: list[Engine], batches: Iterable[torch.Tensor]) -> float:
    """Nats a target."""
    nats, targets = 0.0, 0
    for batch in batches:
        given = {}
        for engine in engines[:-1]:
            given = engine.stage.evaluate(batch, given)
        count = targets_in(batch.numpy())
        nats += engines[-1].stage.evaluate(batch, given) * count
        targets += count
    return nats / targets


def commit(engines: list[Engine], run: RunConfig, step: int, targets: int) -> None:
    reduced = [engine.weights.reduction(step) for engine in engines]
    for each in reduced:
        each.reduce(Span(0, each.length), [None])
    norm = sum(squared_norm(each.reduced_N) for each in reduced) ** 0.5
    _, scale = sum_scale(run.optimizer, norm, tokens_per_target(run, targets))
    update = Update(step + 1, scale, learning_rate(run, step))
    for engine, each in zip(engines, reduced, strict=True):
        engine.weights.apply(each, update)


def test_an_adapter_learns_the_rule_of_chats_in_three_stages(config: NodeConfig):
    tokenizer = tokenizer_of(config)
    run = resolved(tokenised_run(config.run, tokenizer))
    corpus = read_corpus(config, tokenizer)
    row = corpus.microbatch(0)[0]
    said = [int(token & IDS) for token in row if not token & NO_TARGET]
    assert said.count(WORDS["[end]"]) == 2, "two chats fit a row, and each turn's end is learnt"
    engines = [torch_engine(run, stage, torch.device("cpu"), 1 << 30) for stage in range(STAGES)]
    for engine in engines:
        engine.weights.reset(draw=True)
    seen = [torch.from_numpy(corpus.microbatch(0))]
    held_out = [torch.from_numpy(corpus.held_out_batch(0))]

    first = loss_on(engines, seen), loss_on(engines, held_out)
    for step in range(STEPS):
        batch = corpus.microbatch(step)
        trained_on(engines, torch.from_numpy(batch), step)
        commit(engines, run, step, targets_in(batch))

    last = loss_on(engines, seen), loss_on(engines, held_out)
    assert min(first) > 5.0
    assert last[0] < 0.3
    assert last[1] < 1.0, "of orders that were never trained on"
