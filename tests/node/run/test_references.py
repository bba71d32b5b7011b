"""Where references are kept, and for which runs they hold."""

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.samples.pair_corpus import PairCorpus, paired
from p2pswarm.data.samples.target_marks import marked_document
from p2pswarm.node.run.references import check_references, keep_references, with_references
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import (
    BatchConfig,
    CodecConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from p2pswarm.settings.node_config import CheckpointConfig, NodeConfig
from p2pswarm.settings.objective import ObjectiveConfig
from p2pswarm.settings.train_config import TrainConfig
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom


def corpus(first: int = 1) -> PairCorpus:
    answers = [
        marked_document(np.full(length, first), np.arange(length) > 1) for length in (3, 4, 5, 6)
    ]
    both = np.concatenate(answers).astype("<u4")
    return paired(Corpus(both, both[:7], 1, 1, rows=2, sequence_length=11), padding=0)


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    run = RunConfig(
        model=ModelConfig(sequence_length=11),
        batch=BatchConfig(samples="whole", rows=2),
        objective=ObjectiveConfig(name="dpo"),
    )
    train = TrainConfig(cache=tmp_path / "cache")
    return NodeConfig(role="trainer", run=run, train=train, state=tmp_path / "state")


def changed(config: NodeConfig, **run) -> NodeConfig:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, **run))


def opened(config: NodeConfig, text: PairCorpus | None = None, *beginning):
    return with_references(config, text or corpus(), *beginning).references


def test_they_lie_beside_the_run_and_whole_ones_serve_every_later_run(config: NodeConfig):
    found = opened(config)
    assert found.path.parent == config.state
    assert found.due(2) == (0, 1, 2)
    found.keep(0, [-1.0, -2.0])
    keep_references(config, with_references(config, corpus()))
    assert opened(config).due(2) == (1, 2)
    assert not config.train.cache.exists()

    found.keep(2, [-3.0, -4.0, -5.0, -6.0])
    keep_references(config, with_references(config, corpus()))

    elsewhere = dataclasses.replace(config, state=config.state.with_name("another"))
    for change in (
        {"objective": ObjectiveConfig(name="dpo", beta=0.5)},
        {"optimizer": OptimizerConfig(learning_rate=1.0)},
        {"adapter": AdapterConfig(rank=3)},
        {"batch": BatchConfig(samples="whole", rows=4)},
        {"name": "another", "steps": 3},
    ):
        assert opened(changed(elsewhere, **change)).complete, change
    stateless = dataclasses.replace(config, state=None)
    assert opened(stateless).path.parent == config.train.cache
    assert np.array_equal(opened(stateless).train, found.train)


def test_another_text_model_seed_or_rounding_has_others(config: NodeConfig):
    opened(config).keep(0, [-1.0] * 6)

    assert opened(config).complete
    assert not opened(config, corpus(2)).known
    for change in (
        {"seed": 2},
        {"model": ModelConfig(sequence_length=11, layers=2)},
        {"codecs": CodecConfig(activation="raw")},
        {"stages": 3},
        {"precision": "bf16"},
    ):
        assert not opened(changed(config, **change)).known, change


def test_other_weights_in_a_folder_of_the_same_names_have_others(
    config: NodeConfig, tmp_path: Path
):
    folder = tmp_path / "model"
    folder.mkdir()
    model = dataclasses.replace(config.run.model, family="hf:llama", folder=folder)
    config = changed(config, model=model, start="pretrained")
    weights, half = folder / "model.safetensors", b"x" * (2 << 20)
    weights.write_bytes(half + b"x" + half)
    opened(config).keep(0, [-1.0] * 6)
    assert opened(config).complete

    weights.write_bytes(half + b"y" + half)  # as a merged adapter's are: other in one tensor alone
    os.utime(weights, (1, 1))

    assert not opened(config).known


def test_a_file_that_is_named_is_taken_and_that_of_another_text_is_refused(
    config: NodeConfig, tmp_path: Path
):
    train = dataclasses.replace(config.train, references=tmp_path / "kept.bin")
    config = dataclasses.replace(config, train=train)
    opened(config).keep(0, [-1.0] * 6)
    assert opened(config).path == tmp_path / "kept.bin"
    check_references(config, corpus())

    with pytest.raises(Unusable, match=r"kept.bin: references of another text, model or template"):
        check_references(config, corpus(2))
    with pytest.raises(Unusable, match=r"kept.bin: references of another text, model or template"):
        opened(config, corpus(2))


NUMBERS = (-1.0, -2.0, -3.0, -4.0, -5.0, -6.0)
ANEW = RunOrigin(b"r" * 16, 4, b"c" * 32, anew=True)


@pytest.mark.parametrize("begun", [None, ANEW])
def test_a_run_that_goes_on_from_a_checkpoint_takes_them_from_there(
    config: NodeConfig, tmp_path: Path, begun, monkeypatch
):
    target = tmp_path / "checkpoints"
    saving = dataclasses.replace(config, checkpoint=CheckpointConfig(target=str(target)))
    train = TrainConfig(cache=tmp_path / "other")
    away = dataclasses.replace(config, train=train, state=tmp_path / "away")
    origin = RunOrigin(b"r" * 16, 4, b"d" * 32)
    beginning = origin, ResumedFrom(origin, f"{target}/step-4", "")
    manifest = SimpleNamespace(run_config=lambda: config.run, origin=begun)
    found = SimpleNamespace(manifest=manifest)
    monkeypatch.setattr("p2pswarm.node.run.references.open_checkpoint", lambda *_: found)
    with pytest.raises(Unusable, match="the references of this run are not here"):
        opened(away, None, *beginning)

    opened(saving, None, begun).keep(0, NUMBERS)
    for _ in range(2):
        keep_references(saving, with_references(saving, corpus(), begun))

    assert opened(away, None, *beginning).part(0, 9) == NUMBERS


def test_weights_of_another_run_have_others(config: NodeConfig):
    opened(config).keep(0, NUMBERS)

    assert not opened(config, None, ANEW).known


def test_a_run_that_compares_with_nothing_has_none(config: NodeConfig):
    text = corpus()
    for name in ("orpo", "simpo"):
        other = changed(config, objective=ObjectiveConfig(name=name))
        assert with_references(other, text) is text
        check_references(other, text)
        keep_references(other, text)
