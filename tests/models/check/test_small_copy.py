"""The small copy that stages are compared on."""

import dataclasses
import json

import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from p2pswarm.models.check.model_check import check_stages
from p2pswarm.models.check.small_copy import HEADS, LARGE, parameter_count, shrunken
from p2pswarm.models.library.hf_library import config_text
from p2pswarm.models.registry import register
from p2pswarm.settings.config import CodecConfig, ModelConfig, RunConfig
from p2pswarm.settings.objective import ObjectiveConfig

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


def own_run(make, **settings):
    name = f"own {make.__name__}"
    register(name)(make)
    return RunConfig(stages=2, cut=(1, 1), model=ModelConfig(family=name, **settings))


def by_settings(config):
    width = config.d_model
    layers = [nn.Linear(width, width) for _ in range(config.layers)]
    return [nn.Embedding(config.vocabulary, width), *layers, nn.Linear(width, config.vocabulary)]


def of_one_width(config):
    layers = [nn.Linear(512, 512) for _ in range(config.layers)]
    return [nn.Embedding(config.vocabulary, 512), *layers, nn.Linear(config.d_model, 50_000)]


def of_one_size(_config):
    return [nn.Embedding(256, 2048), nn.Linear(2048, 256)]


def test_a_small_model_of_ones_own_stays_as_it_is():
    run = own_run(by_settings, d_model=64)

    small = shrunken(run)

    assert (small.model.d_model, small.stages, small.cut) == (64, 2, (1, 1))


@pytest.mark.parametrize("family", ["hf:llama", "own by_settings", "gpt"])
def test_a_run_with_a_delay_and_an_averaging_for_each_stage_has_a_copy(family):
    own_run(by_settings)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = json.dumps(LLAMA | heads, sort_keys=True, separators=(",", ":"))
    model = ModelConfig(family=family, config=config if family == "hf:llama" else "", d_model=64)
    codecs = CodecConfig(averaging=("raw", "int-grid", "raw"))
    run = RunConfig(stages=3, delay=1, model=model, codecs=codecs)

    assert (shrunken(run).delay, shrunken(run).codecs.averaging) == (0, "raw")


def test_a_large_one_is_made_smaller_by_its_settings():
    small = shrunken(own_run(by_settings, d_model=512, layers=12, vocabulary=50_000))

    model = small.model
    assert (model.d_model, model.layers, model.vocabulary) == (32, 4, 256)
    assert (small.stages, small.cut) == (6, ())
    assert parameter_count(small) < 30_000


def test_one_that_cannot_be_made_smaller_stays_as_large():
    run = own_run(of_one_width, d_model=512, layers=2, vocabulary=50_000)
    fixed = own_run(of_one_size)

    assert shrunken(run).model.vocabulary == 50_000
    assert parameter_count(shrunken(fixed)) > LARGE


@register("own model of fixed size")
def large(config):
    """No setting may be another."""
    if config.layers != 12:
        raise ValueError("twelve layers")
    return by_settings(config)


def test_a_model_that_no_setting_makes_smaller_stays():
    run = RunConfig(
        stages=2,
        cut=(1, 1),
        model=ModelConfig(family="own model of fixed size", d_model=512, layers=12),
    )

    assert shrunken(run).cut == run.cut


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 4))
def test_devices_that_can_share_a_models_heads_can_share_those_of_its_copy(devices, kept, times):
    groups = devices * kept
    config = LLAMA | {"num_attention_heads": groups * times, "num_key_value_heads": groups}
    config |= {"hidden_size": 16 * groups * times, "head_dim": 16}
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    model = ModelConfig(family="hf:llama", config=text, vocabulary=256)

    found = json.loads(shrunken(RunConfig(model=model), devices).model.config)

    assert found["num_key_value_heads"] % devices == 0
    assert found["num_attention_heads"] % found["num_key_value_heads"] == 0
    assert shrunken(RunConfig(), devices).model.heads % devices == 0


def test_sizes_that_a_config_leaves_as_they_are_shrink_as_well():
    text = json.dumps({"model_type": "llama", "vocab_size": 256}, separators=(",", ":"))
    run = RunConfig(model=ModelConfig(family="hf:llama", config=text, vocabulary=256))

    found = json.loads(shrunken(run).model.config)

    assert (found["hidden_size"], found["intermediate_size"]) == (32, 48)
    assert found["vocab_size"] == 64


HEAD_PAIRS = [1.0 + place / 7 for place in range(48)]
AS_PUBLISHED = {
    "phi3": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"long_factor": HEAD_PAIRS, "short_factor": HEAD_PAIRS, "type": "longrope"},
    },
    "gpt_neo": {
        "attention_types": [[["global", "local"], 12]],
        "hidden_size": 2048,
        "intermediate_size": None,
        "num_heads": 16,
        "num_layers": 24,
    },
    "nemotron_h": {
        "hidden_size": 4480,
        "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-MM-M-M-M-M-M-",
        "mamba_num_heads": 128,
        "mamba_head_dim": 80,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "time_step_limit": [0.0, {"__float__": "Infinity"}],
    },
}


@pytest.mark.parametrize("kind", AS_PUBLISHED)
def test_a_published_config_whose_lists_depend_on_its_sizes_has_a_small_copy(kind):
    config = {"model_type": kind, "vocab_size": 256, "pad_token_id": None} | AS_PUBLISHED[kind]
    model = ModelConfig(family=f"hf:{kind}", config=config_text(config), vocabulary=256, tie=False)
    if kind != "phi3":
        model = dataclasses.replace(model, tie=None if kind == "nemotron_h" else True)

    found = check_stages(RunConfig(model=model))

    assert found.problem == ""
    assert parameter_count(shrunken(RunConfig(model=model))) < LARGE


def test_a_copy_has_every_kind_of_layer_that_the_library_computes():
    """Of eight layers the sixth has attention, and each second one experts."""
    config = {"model_type": "jamba", "vocab_size": 256, "num_hidden_layers": 8}
    kinds = {"attn_layer_period": 8, "attn_layer_offset": 5, "expert_layer_period": 2}
    text = json.dumps(config | kinds, sort_keys=True, separators=(",", ":"))
    run = RunConfig(model=ModelConfig(family="hf:jamba", config=text, vocabulary=256))

    assert json.loads(shrunken(run).model.config)["num_hidden_layers"] == 6


def test_a_small_copy_is_judged_by_tokens_as_the_librarys_model_is():
    run = RunConfig(objective=ObjectiveConfig(name="dpo"))

    assert shrunken(run).objective == ObjectiveConfig()
