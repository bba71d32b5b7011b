"""The small copy that stages are compared on."""

import json

import pytest
from torch import nn

from p2pswarm.config import ModelConfig, RunConfig
from p2pswarm.models.registry import register
from p2pswarm.models.shrinking import HEADS, LAYERS, shrunken

LLAMA = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
}


@pytest.mark.parametrize(
    ("heads", "groups", "small"),
    [(12, 12, HEADS), (12, 4, 2), (12, 1, 1), (3, 3, 3), (2, 2, 2), (1, 1, 1)],
)
def test_a_copy_has_no_more_groups_than_heads(heads, groups, small):
    config = LLAMA | {"num_attention_heads": heads, "num_key_value_heads": groups}
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    model = ModelConfig(family="hf:llama", config=text, vocabulary=256)

    found = json.loads(shrunken(RunConfig(model=model)).model.config)

    assert found["num_key_value_heads"] == small
    assert found["num_attention_heads"] == min(heads, HEADS)
    assert found["num_attention_heads"] % small == 0


@register("own model of some size")
def own(config):
    """Its sizes are settings."""
    layers = [nn.Linear(config.d_model, config.d_model) for _ in range(config.layers)]
    head = nn.Linear(config.d_model, config.vocabulary)
    return [nn.Embedding(config.vocabulary, config.d_model), *layers, head]


@register("own model of fixed size")
def large(config):
    """No setting may be another."""
    if config.layers != 12:
        raise ValueError("twelve layers")
    return own(config)


def own_run(family, **sizes):
    return RunConfig(stages=2, cut=(1, 1), model=ModelConfig(family=family, **sizes))


def test_a_large_model_of_ones_own_shrinks_by_its_settings():
    run = own_run("own model of some size", d_model=512, layers=12, heads=8)

    small = shrunken(run)

    assert (small.model.d_model, small.model.layers, small.model.heads) == (32, LAYERS, HEADS)
    assert (small.stages, small.cut) == (2, ())


def test_a_small_model_of_ones_own_is_checked_as_it_is():
    run = own_run("own model of some size", d_model=32, layers=12)

    small = shrunken(run)

    assert (small.model.d_model, small.model.layers) == (32, 12)
    assert small.cut == run.cut


def test_a_model_that_no_setting_makes_smaller_stays():
    run = own_run("own model of fixed size", d_model=512, layers=12)

    assert shrunken(run).cut == run.cut


def test_a_model_that_cannot_be_traced_with_other_widths_keeps_its_width():
    @register("own model with a fixed head")
    def tied_to_its_width(config):
        return [*own(config)[:-1], nn.Linear(512, config.vocabulary)]

    small = shrunken(own_run("own model with a fixed head", d_model=512, layers=12))

    assert (small.model.d_model, small.model.layers) == (512, LAYERS)


def test_sizes_that_a_config_leaves_as_they_are_shrink_as_well():
    text = json.dumps({"model_type": "llama", "vocab_size": 256}, separators=(",", ":"))
    run = RunConfig(model=ModelConfig(family="hf:llama", config=text, vocabulary=256))

    found = json.loads(shrunken(run).model.config)

    assert (found["hidden_size"], found["intermediate_size"]) == (32, 48)
    assert found["vocab_size"] == 64


def test_a_copy_has_every_kind_of_layer_that_the_library_computes():
    """Of eight layers the sixth has attention, and each second one experts."""
    config = {"model_type": "jamba", "vocab_size": 256, "num_hidden_layers": 8}
    kinds = {"attn_layer_period": 8, "attn_layer_offset": 5, "expert_layer_period": 2}
    text = json.dumps(config | kinds, sort_keys=True, separators=(",", ":"))
    run = RunConfig(model=ModelConfig(family="hf:jamba", config=text, vocabulary=256))

    assert json.loads(shrunken(run).model.config)["num_hidden_layers"] == 6
