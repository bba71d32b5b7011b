"""What `--check` says of settings, and the files that it tries."""

from dataclasses import replace
from pathlib import Path

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.setting_report import check_files, report
from p2pswarm.settings.config import (
    CheckpointConfig,
    ModelConfig,
    NodeConfig,
    OptimizerConfig,
    RunConfig,
    ServeConfig,
)
from p2pswarm.settings.train_config import TrainConfig


def told(config: NodeConfig) -> dict[str, str]:
    """The report's rows by their names."""
    _, *lines = report(config, None).splitlines()
    return dict(line.split("  ", 1) for line in lines)


def rows(config: NodeConfig) -> dict[str, str]:
    return {name.strip(): value.strip() for name, value in told(config).items()}


def test_the_report_names_its_source():
    assert report(NodeConfig(role="bootstrap"), Path("a.toml")).startswith("a.toml: good\n")
    assert report(NodeConfig(role="bootstrap"), None).startswith("the flags: good\n")


def test_a_bootstrap_node_is_about_addresses_alone():
    shown = rows(NodeConfig(role="bootstrap", listen=":4001"))

    assert shown["listens on"] == ":4001"
    assert shown["joins through"] == "nobody: it starts a swarm"
    assert "run" not in shown


def test_a_server_tells_what_it_will_serve():
    anything = rows(NodeConfig(role="stage", bootstrap=("a:1",)))
    chosen = rows(NodeConfig(role="stage", serve=ServeConfig(run="r", stage=1, device="cpu")))

    assert anything["stage"] == "the one that needs it most"
    assert anything["joins through"] == "a:1"
    assert (chosen["run"], chosen["stage"], chosen["device"]) == ("'r'", "1", "cpu")


def test_a_rehearsal_is_called_one_on_both_sides():
    serve = ServeConfig(device="emulated", emulated_forward_s=0.25)
    run = RunConfig(emulated=True)

    assert rows(NodeConfig(role="stage", serve=serve))["device"] == (
        "none: a forward is emulated, 0.25 s long"
    )
    assert "a rehearsal that learns nothing" in rows(NodeConfig(role="trainer", run=run))["run"]


def test_a_server_tells_that_its_devices_share_tensors():
    serve = ServeConfig(device="cuda:0,cuda:1", parallel="tensor")

    shown = rows(NodeConfig(role="stage", serve=serve))

    assert shown["device"] == "cuda:0,cuda:1, which share each tensor"


def test_a_trainer_tells_the_run_and_its_files():
    train = TrainConfig(data=Path("text"), suffixes=(".md",), weights=None)

    shown = rows(NodeConfig(role="trainer", run=RunConfig(steps=70), train=train))

    assert shown["steps"] == "70 of 4,096 tokens: 8 microbatches of 4 sequences of 128"
    assert shown["learning rate"] == "0.004 after 20 steps, 0.0004 at step 70, cosine"
    assert shown["text"] == "text, files that end in .md; 10.0% held out"
    assert shown["weights"] == "not written"


def test_a_trainer_tells_what_blocks_compute_in_and_what_weights_are_kept_in():
    low = {"precision": "bf16", "weight_storage": "bf16"}

    shown = [
        rows(NodeConfig(role="trainer", run=RunConfig(**each)))["model"].partition("float32")[2]
        for each in ({}, {"precision": "bf16"}, low)
    ]

    computed = ", computed in bf16"
    assert shown == ["", computed, f"{computed}, weights kept in bf16 and rounded by chance"]


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


def test_checkpoints_are_told_with_what_stays():
    train = TrainConfig(data=Path("text"), resume="out")
    kept = CheckpointConfig(target="out", every_steps=50, keep_every=1000)

    shown = rows(NodeConfig(role="trainer", train=train, checkpoint=kept))
    none = rows(NodeConfig(role="trainer", train=TrainConfig(data=Path("text"))))

    assert shown["goes on from"] == "out"
    assert shown["checkpoints"] == (
        "every 50 steps to out; the newest 3 stay, and each 1000 steps one"
    )
    first = "the first weights, random"
    assert (none["goes on from"], none["checkpoints"]) == (first, "not written")


def test_a_model_of_a_folder_is_told_without_sizes_that_are_not_its_own():
    run = RunConfig(model=ModelConfig(family="hf", folder=Path("qwen")), start="pretrained")

    shown = rows(NodeConfig(role="trainer", run=run, train=TrainConfig(data=Path("text"))))

    assert shown["model"] == "hf: qwen, float32"
    assert shown["goes on from"] == "the first weights, pretrained"


def test_where_curves_go_is_told():
    both = TrainConfig(data=Path("text"), curves=Path("c.csv"), wandb="tries/first")

    shown = [rows(NodeConfig(role="trainer", train=train)) for train in (both, TrainConfig())]

    assert [each["curves"] for each in shown] == [
        "c.csv and wandb: tries/first",
        "not written",
    ]


def test_a_rate_that_spoils_pretrained_weights_is_named():
    model = ModelConfig(family="hf", folder=Path("model"))
    high = RunConfig(model=model, start="pretrained")
    low = replace(high, optimizer=OptimizerConfig(learning_rate=2e-5))

    assert "spoils" in rows(NodeConfig(role="trainer", run=high))["learning rate"]
    assert "spoils" not in rows(NodeConfig(role="trainer", run=low))["learning rate"]
    assert "spoils" not in rows(NodeConfig(role="trainer"))["learning rate"]


def test_it_says_that_names_of_special_tokens_are_read():
    train = TrainConfig(data=Path("text"), tokenizer="model", special_tokens="tokens")

    assert rows(NodeConfig(role="trainer", train=train))["tokens"] == (
        "model, names of special tokens are read"
    )
