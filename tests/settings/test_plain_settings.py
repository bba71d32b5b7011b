"""Which settings a stranger may read."""

from pathlib import Path

from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.settings.node_config import NodeConfig, ServeConfig
from p2pswarm.settings.plain_settings import plain_settings, set_texts
from p2pswarm.settings.train_config import MixturePart, TrainConfig

CONFIG = NodeConfig(
    role="trainer",
    bootstrap=("203.0.113.7:4000",),
    state=Path("/home/anna/state"),
    run=RunConfig(name="my run", steps=7, model=ModelConfig(d_model=64)),
    train=TrainConfig(mixture=(MixturePart(data=Path("/home/anna/text")),)),
    serve=ServeConfig(packages=("annas_models",)),
)


def test_numbers_truth_values_and_named_choices_are_plain():
    told = plain_settings(CONFIG)

    assert told["role"] == "trainer"
    assert told["run.steps"] == 7
    assert told["run.model.d_model"] == 64
    assert told["network.relay"] is True
    assert not [name for name, value in told.items() if "anna" in str(value)]
    assert "run.name" not in told


def test_texts_that_are_set_are_found_wherever_they_are():
    assert set_texts(CONFIG) == {
        "bootstrap": ("203.0.113.7:4000",),
        "state": ("/home/anna/state",),
        "run.name": ("my run",),
        "train.mixture": ("/home/anna/text",),
        "serve.packages": ("annas_models",),
    }


def test_defaults_are_no_texts_of_the_user():
    assert set_texts(NodeConfig()) == {}


def test_a_text_that_is_no_choice_is_not_plain():
    """As of a later release, whose choices this one does not know."""
    config = NodeConfig()
    object.__setattr__(config, "role", "secret")

    assert "role" not in plain_settings(config)
    assert set_texts(config) == {"role": ("secret",)}
