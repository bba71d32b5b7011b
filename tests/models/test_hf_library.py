"""What of a model's config travels, and what of a stranger's is read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.models.hf_library import chances, config_text, read_config
from p2pswarm.settings.config import CONFIG_CHARS_MAX

NAMES = st.from_regex(r"[a-z][a-z_]{0,9}", fullmatch=True).filter(
    lambda name: name not in ("dtype", "auto_map")
)
WORDS = st.from_regex(r"[A-Za-z0-9_.-]{0,8}", fullmatch=True)
NUMBERS = st.integers(0, 4_000) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
VALUES = NUMBERS | WORDS | st.none() | st.lists(WORDS, max_size=3)


def text_of(**values):
    return json.dumps({"model_type": "llama"} | values, sort_keys=True, separators=(",", ":"))


@given(st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES, max_size=2), max_size=5))
def test_what_travels_is_read_as_it_was(config):
    whole = {"num_hidden_layers": 2} | config | {"model_type": "llama"}

    assert read_config(config_text(whole)) == whole


@given(st.text() | st.binary().map(repr) | st.recursive(NUMBERS | WORDS, st.lists).map(json.dumps))
def test_whatever_a_stranger_wrote_is_read_or_refused_in_a_line(text):
    try:
        config = read_config(text)
    except ValueError as error:
        said = str(error)
    else:
        said = config["model_type"]
    assert "\n" not in said


def test_a_pattern_of_layers_is_left_out_where_each_layer_is_named():
    config = {"model_type": "gemma3_text", "_sliding_window_pattern": 6}

    assert "pattern" not in config_text(config | {"layer_types": ["full_attention"]})
    with pytest.raises(ValueError, match="'_sliding_window_pattern', which is no name"):
        config_text(config)


def test_names_of_files_and_programs_stay_at_home():
    config = {"model_type": "llama", "_name_or_path": "/home/me", "torch_dtype": "bfloat16"}

    assert json.loads(config_text(config)) == {"model_type": "llama"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[" * 100_000, "has 100000 characters"),
        ("[" * 1_000, "not JSON"),
        ("[]", "no table with a model_type"),
        (text_of(scale=float("nan")), "NaN is no number"),
        (text_of(auto_map={"AutoModel": "x"}), "no code is fetched"),
        (text_of(quantization_config={"bits": 4}), "do not train"),
        (text_of(text_config={"a": 1}), "more than text"),
        (text_of(_attn_implementation="someone/kernel"), "which is no name"),
        (text_of(attn="someone/kernel"), "not one word"),
        (text_of(num_hidden_layers=10**6), "num_hidden_layers is 1000000, not 1 to 1000"),
        (text_of(num_local_experts=10**6), "not 0 to 4096"),
        (text_of(hidden_size=10**9), "hidden_size is 1000000000"),
        (text_of(vocab_size=10**9), "vocab_size"),
        (text_of(rope=10**30), "rope is 1"),
        (text_of(a={"b": {"c": {"d": 1}}}), "3 deep"),
        (text_of(a=[[1]]), "lists in the list a"),
        ('{"model_type": "llama"}', "canonical"),
        ('{"model_type":"llama","model_type":"llama"}', "canonical"),
    ],
)
def test_a_config_that_is_not_plain_data_is_refused(text, match):
    with pytest.raises(ValueError, match=match):
        read_config(text)


def test_a_config_larger_than_a_manifest_is_refused():
    with pytest.raises(ValueError, match="leave out of config"):
        config_text({"model_type": "llama", "layer_types": ["x" * 40] * (CONFIG_CHARS_MAX // 40)})


def test_what_draws_is_known_by_its_name():
    config = {"attn_pdrop": 0.1, "dropout": 0.0, "router_jitter_noise": 0.01, "eps": 1.0}

    assert chances(config) == ["attn_pdrop", "router_jitter_noise"]
