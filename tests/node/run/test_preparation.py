"""What a trainer reads and checks before its node is in a swarm."""

import dataclasses
import json
from pathlib import Path

import pytest
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.targets import LocalFolder
from p2pswarm.data.tokenizer import Tokenizer, train_tokenizer
from p2pswarm.models.registry import register
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.node.run.preparation import checked_model, prepare_run
from p2pswarm.node.run.run_folder import RunFolder, SavedRun, make_folder
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.settings.config import BatchConfig, ModelConfig, OptimizerConfig, RunConfig
from p2pswarm.settings.node_config import CheckpointConfig, NodeConfig
from p2pswarm.settings.train_config import TrainConfig

TEXT = Path(__file__).read_bytes()
RUN = RunConfig(model=ModelConfig(d_model=8, layers=1, heads=2, sequence_length=8))


def node(tmp_path: Path, run: RunConfig = RUN, train=None, **settings) -> NodeConfig:
    (tmp_path / "text.txt").write_text("a text to learn\n" * 100)
    given = {"data": tmp_path / "text.txt", "cache": tmp_path / "cache", "weights": None}
    given |= train or {}
    return NodeConfig(role="trainer", run=run, train=TrainConfig(**given), **settings)


def prepared(config: NodeConfig):
    return prepare_run(config, "me", lambda _line: None)


def test_what_is_well_is_ready(tmp_path):
    found = prepared(node(tmp_path, train={"weights": tmp_path / "out" / "w.safetensors"}))

    assert (found.config.run, found.tokenizer, found.resumed) == (RUN, None, None)
    assert found.text == found.corpus.digest()


def test_what_is_passed_over_and_guessed_is_a_line_before_the_run(tmp_path, caplog):
    made = train_tokenizer(300, [TEXT])
    (tmp_path / "tokenizer.json").write_text(made.text)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("".join(f"line {n} to learn\n" for n in range(900)))
    (tmp_path / "texts" / "b.bin").write_bytes(b"\0\1\2\3")
    train = {"data": tmp_path / "texts", "tokenizer": str(tmp_path / "tokenizer.json")}
    model = dataclasses.replace(MODEL, vocabulary=300)
    prepared(node(tmp_path, dataclasses.replace(RUN, model=model), train))

    passed, guessed = caplog.messages
    assert passed == f"{tmp_path}/texts: passed over: 1 binary (b.bin)"
    assert guessed.startswith(f"{tmp_path}/tokenizer.json: no file beside it says what ends a doc")


MODEL = RUN.model
MANY = dataclasses.replace(RUN, stages=2, batch=BatchConfig(microbatches=64_000))
TWO_BLOCKS = RunConfig(model=dataclasses.replace(MODEL, family="two blocks"))


@register("two blocks")
def two_blocks(config):
    return [nn.Embedding(config.vocabulary, 8), nn.Linear(8, config.vocabulary)]


BAD = {
    "no family of that name": (
        {"run": dataclasses.replace(RUN, model=dataclasses.replace(MODEL, family="gtp"))},
        "no model family 'gtp' here",
    ),
    "weights without a folder": (
        {"run": dataclasses.replace(RUN, start="pretrained")},
        'run.start = "pretrained" needs weights',
    ),
    "a cut into too many blocks": (
        {"run": dataclasses.replace(TWO_BLOCKS, stages=2, cut=(1, 2))},
        "cut has 3 blocks",
    ),
    "a tokenizer that is not there": ({"train": {"tokenizer": "gone"}}, "no such folder"),
    "a text that is not there": ({"train": {"data": Path("gone")}}, "no such file or folder"),
    "records without room": ({"run": MANY}, "has a record with room"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_one_line(case, tmp_path):
    settings, why = BAD[case]

    with pytest.raises(Unusable, match=why) as told:
        prepared(node(tmp_path, **settings))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("text", ["", "a", "short"])
def test_a_text_that_is_too_short_is_told(text, tmp_path):
    (tmp_path / "short.txt").write_text(text)

    with pytest.raises(Unusable, match="name a larger text file"):
        prepared(node(tmp_path, train={"data": tmp_path / "short.txt"}))


def test_a_folder_that_is_to_have_the_weights_or_curves_is_told(tmp_path):
    (tmp_path / "taken").write_text("a file")

    for name in ("weights", "curves"):
        with pytest.raises(Unusable, match=r"taken"):
            prepared(node(tmp_path, train={name: tmp_path / "taken" / "in.csv"}))


def test_a_target_of_checkpoints_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "taken").write_text("a file")
    checkpoint = CheckpointConfig(target=str(tmp_path / "taken"))

    with pytest.raises(Unusable, match=r"checkpoint.target: .* cannot be written"):
        prepared(node(tmp_path, checkpoint=checkpoint))


def test_a_target_without_checkpoints_is_told(tmp_path):
    LocalFolder(tmp_path / "none", "me")

    with pytest.raises(Unusable, match="none"):
        prepared(node(tmp_path, train={"resume": str(tmp_path / "none")}))


def test_a_state_of_another_run_is_told_and_one_that_is_over_is_not(tmp_path):
    config = node(tmp_path, state=tmp_path / "state")
    found = prepared(config)
    make_folder(tmp_path / "state")
    other = dataclasses.replace(RUN, optimizer=OptimizerConfig(learning_rate=1e-4))
    me = Identity.generate().peer_id.raw
    identity = RunIdentity(other, found.text, b"n" * 16, me)
    RunFolder(tmp_path / "state").write(SavedRun(identity, finished=False))

    with pytest.raises(Unusable, match=r"holds a run that is not finished, .*learning_rate"):
        prepared(config)
    again = dataclasses.replace(config, train=dataclasses.replace(config.train, new=True))
    assert prepared(again).text == found.text
    RunFolder(tmp_path / "state").write(SavedRun(identity, finished=True))
    assert prepared(config).text == found.text


def sized(vocabulary: int) -> RunConfig:
    return RunConfig(model=dataclasses.replace(RUN.model, vocabulary=vocabulary))


def test_a_vocabulary_may_be_rounded_up_and_not_be_too_small():
    tokenizer = train_tokenizer(320, [TEXT])

    assert checked_model(sized(384), tokenizer).model.vocabulary == 384
    with pytest.raises(Unusable, match=r"tokenizer has 320 tokens and the model 300: name the"):
        checked_model(sized(300), tokenizer)


def test_documents_apart_need_a_model_and_a_tokenizer_that_can():
    apart = dataclasses.replace(RUN.model, documents="apart")
    tokenizer = train_tokenizer(320, [TEXT])

    assert checked_model(RunConfig(model=apart), tokenizer).model.documents == "apart"
    with pytest.raises(Unusable, match=r"needs a token that ends a document: .*train:32000"):
        checked_model(RunConfig(model=apart))
    other = dataclasses.replace(apart, family="mlp")
    with pytest.raises(Unusable, match=r"the family 'mlp' cannot keep documents apart"):
        checked_model(RunConfig(model=other), tokenizer)


def test_a_tokenizer_whose_numbers_no_model_has_is_told():
    model = {"type": "BPE", "vocab": {"a": 4_000_000_000}, "merges": []}
    far = Tokenizer(json.dumps({"model": model}), "far.json")

    with pytest.raises(
        Unusable, match=r"tokens up to number 4,000,000,000, a model at most 4,194,"
    ):
        checked_model(RunConfig(model=RUN.model), far)
