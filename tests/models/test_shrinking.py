"""The small copy that stages are compared on."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.config import ModelConfig, RunConfig
from p2pswarm.models.shrinking import HEADS, shrunken

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


@settings(max_examples=30, deadline=None)
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
