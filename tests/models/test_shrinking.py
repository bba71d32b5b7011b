"""The small copy that stages are compared on."""

import json

import pytest

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
