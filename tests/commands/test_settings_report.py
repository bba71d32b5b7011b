"""What `--check` says of settings, and the files that it tries."""

from dataclasses import replace
from pathlib import Path

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.settings_report import check_files, report
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import CodecConfig, ModelConfig, OptimizerConfig, RunConfig
from p2pswarm.settings.node_config import CheckpointConfig, NodeConfig, ServeConfig
from p2pswarm.settings.objective import ObjectiveConfig
from p2pswarm.settings.train_config import TrainConfig

TEXT = TrainConfig(data=Path("text"))
LOW = {"precision": "bf16", "weight_storage": "bf16"}
PRETRAINED = RunConfig(model=ModelConfig(family="hf", folder=Path("qwen")), start="pretrained")


def server(**serve: object) -> NodeConfig:
    return NodeConfig(role="stage", bootstrap=("a:1",), serve=ServeConfig(**serve))


def trainer(train: TrainConfig = TEXT, **more: object) -> NodeConfig:
    return NodeConfig(role="trainer", train=train, **more)


SETTINGS = {
    "a bootstrap node is about addresses alone": NodeConfig(role="bootstrap", listen=":4001"),
    "a server of any stage": server(),
    "a server of one stage": server(run="r", stage=1, device="cpu"),
    "a server that rehearses": server(device="emulated", emulated_forward_s=0.25),
    "a server whose devices share tensors": server(device="cuda:0,cuda:1", parallel="tensor"),
    "a server whose devices share tokens": server(device="cuda:0,cuda:1", parallel="context"),
    "a trainer": trainer(
        TrainConfig(data=Path("text"), suffixes=(".md",), weights=None), run=RunConfig(steps=70)
    ),
    "a trainer that rehearses": trainer(run=RunConfig(emulated=True)),
    "a trainer that computes in bf16": trainer(run=RunConfig(precision="bf16")),
    "a trainer that keeps its weights in bf16": trainer(run=RunConfig(**LOW)),
    "a trainer that goes on, and keeps checkpoints": trainer(
        TrainConfig(data=Path("text"), resume="out"),
        checkpoint=CheckpointConfig(target="out", every_steps=50, keep_every=1000),
    ),
    "a trainer whose curves go to two places": trainer(
        TrainConfig(data=Path("text"), curves=Path("c.csv"), wandb="tries/first")
    ),
    "a server that costs, at night": server(
        price_per_hour=0.35, spot=True, hours="20:00-08:00", leave="run, idle:600"
    ),
    "a server that stays": server(leave="never"),
    "a trainer with a budget": trainer(
        TrainConfig(
            data=Path("text"),
            price_per_hour=0.1,
            currency="EUR",
            budget=150,
            price_limit=2,
            notify="https://hooks.example/a-secret",
        )
    ),
    "a trainer that runs a command": trainer(
        TrainConfig(data=Path("text"), notify=("mail", "-s", "run", "me@example.org"))
    ),
    "a trainer whose codecs are measured for, with sums on a grid in one stage": trainer(
        run=RunConfig(
            stages=2, codecs=CodecConfig(choice="measured", averaging=("int-grid", "raw"))
        )
    ),
    "a trainer of a model in a folder, whose sizes are its own": trainer(run=PRETRAINED),
    "a trainer that reads names of special tokens": trainer(
        TrainConfig(data=Path("text"), tokenizer="model", special_tokens="tokens")
    ),
}


def learning_rate(config: NodeConfig) -> str:
    """The report's row of that name."""
    return next(row for row in report(config, None).splitlines() if "learning rate" in row)


def test_the_report_names_its_source():
    assert report(NodeConfig(role="bootstrap"), Path("a.toml")).startswith("a.toml: good\n")
    assert report(NodeConfig(role="bootstrap"), None).startswith("the flags: good\n")


def test_the_report_says_what_the_settings_mean(golden):
    golden("setting_report", {name: report(each, None) for name, each in SETTINGS.items()})


def test_a_trainers_files_are_tried(tmp_path):
    (tmp_path / "text").write_text("some")
    good = TrainConfig(data=tmp_path / "text", weights=tmp_path / "w")

    check_files(NodeConfig(role="trainer", train=good))

    with pytest.raises(Unusable, match="no such file or folder to train on"):
        check_files(NodeConfig(role="trainer", train=TrainConfig(data=tmp_path / "gone")))
    hub = TrainConfig(data=tmp_path / "text", weights=None, tokenizer="hf:owner/name")
    check_files(NodeConfig(role="trainer", train=hub))  # it is asked for when the run is made
    away = TrainConfig(data=tmp_path / "text", tokenizer=str(tmp_path / "gone"))
    with pytest.raises(Unusable, match="there is no such folder"):
        check_files(NodeConfig(role="trainer", train=away))
    bad = TrainConfig(data=tmp_path / "text", weights=tmp_path)
    with pytest.raises(Unusable, match="it is a folder"):
        check_files(NodeConfig(role="trainer", train=bad))


def test_files_that_a_role_does_not_use_are_not_tried(tmp_path):
    check_files(NodeConfig(role="stage", train=TrainConfig(data=tmp_path / "gone")))
    check_files(NodeConfig(role="trainer", train=TrainConfig(data=None, weights=None)))


def test_a_rate_that_spoils_pretrained_weights_is_named():
    model = ModelConfig(family="hf", folder=Path("model"))
    high = RunConfig(model=model, start="pretrained")
    low = replace(high, optimizer=OptimizerConfig(learning_rate=2e-5))

    assert "spoils" in learning_rate(trainer(run=high))
    assert "spoils" not in learning_rate(trainer(run=low))
    assert "spoils" not in learning_rate(trainer())
    pairs = replace(high, objective=ObjectiveConfig(name="dpo"))
    assert "5e-7 is usual" in learning_rate(trainer(run=pairs))
    assert "5e-6 is usual" in learning_rate(trainer(run=replace(pairs, adapter=AdapterConfig())))


def test_pairs_are_counted_and_references_told_of():
    told = {
        name: report(trainer(run=RunConfig(objective=ObjectiveConfig(name=name))), None)
        for name in ("tokens", "dpo", "simpo")
    }

    assert "objective" not in told["tokens"]
    before = "references are computed before the first step"
    assert f"dpo, beta 0.1: 16 pairs a step; {before}\n" in told["dpo"]
    assert "simpo, beta 2, gamma 1: 16 pairs a step\n" in told["simpo"]


def test_a_log_of_a_server_that_is_another_file_is_refused_before_its_node_begins(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("Call me Ishmael.\n")
    config = NodeConfig(role="stage", bootstrap=("a:1",), serve=ServeConfig(log=book))

    with pytest.raises(Unusable, match=r"is no log of events: name another file in serve\.log"):
        check_files(config)
