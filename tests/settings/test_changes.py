"""Settings of a command line: what they mean, and what is said of those that mean nothing."""

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.parser import load

FILE = """
[train]
data = "text.txt"
[run]
model = "gpt"
steps = 100
[run.optimizer]
beta1 = 0.8
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return path


def test_a_value_is_read_by_the_type_of_its_setting(file):
    changes = (
        *("run.steps=4e3", "run.optimizer.learning_rate = 0.25", "run.optimizer.name=muon"),
        *("run.name=7", "run.model.layers=3", "run.cut=[2, 3]", "run.codecs.exact=false"),
        *("run.adapter.rank=4", "run.adapter.targets=qkv", "train.suffixes=['.md']"),
        *("train.data=other/*.txt", "run.name = second = 2"),
    )

    config = load(file, changes)

    run = config.run
    assert (run.steps, run.optimizer.learning_rate, run.optimizer.name) == (4000, 0.25, "muon")
    assert (run.name, run.cut, run.codecs.exact) == ("second = 2", (2, 3), False)
    assert (run.model.family, run.model.layers, run.optimizer.beta1) == ("gpt", 3, 0.8)
    assert run.adapter == AdapterConfig(rank=4, targets="qkv")
    assert config.train.suffixes == (".md",)
    assert config.train.data == file.parent / "other/*.txt"
    assert load(file).run.steps == 100


def test_without_a_file_all_else_is_default():
    assert load(None, ["serve.device=cpu"]).serve.device == "cpu"
    assert load(None) == type(load(None))()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("run.steps", r"--set: 'run.steps' is not KEY=VALUE, as in --set run\.steps=4000"),
        ("=3", "is not KEY=VALUE"),
        ("run..steps=3", "is not KEY=VALUE"),
        ("run.step=3", r"--set: run\.step is no setting \(did you mean steps\?\)"),
        ("steps=3", r"--set: steps is no setting here: it belongs in \[run\]"),
        ("run.optimizer.lr=3", "run.optimizer.lr is no setting here .did you mean learning_rate"),
        ("run.steps.more=3", "run.steps is no table: it has no 'more'"),
        ("run.steps=many", r"--set: run\.steps is a whole number from 1 .* not \"many\""),
        ("run.steps=3\nseed = 4", r"--set: run\.steps is a whole number"),
        ("run.cut=3", r"--set: run\.cut is a list, not 3"),
        ("run.steps=0", r"--set: run\.steps is a whole number from 1"),
    ],
)
def test_a_change_that_means_nothing_is_a_line(file, change, said):
    with pytest.raises(Unusable, match=said):
        load(file, [change])


def test_a_fault_of_the_file_is_said_of_the_file(file):
    file.write_text(FILE.replace("steps = 100", "steps = -1"))

    with pytest.raises(Unusable, match=r"run\.toml: run\.steps is a whole number"):
        load(file, ["run.seed=3"])
