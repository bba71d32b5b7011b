"""What of a model's config travels, and what of a stranger's is read."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.models.library.hf_library import (
    DROPPED,
    chances,
    config_text,
    library,
    library_module,
    read_config,
    settings_of_class,
)
from p2pswarm.settings.config import CONFIG_BYTES_MAX

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


def test_numbers_that_json_has_not_travel_however_the_library_wrote_them():
    limits = {"time_step_limit": [0.0, {"__float__": "Infinity"}], "low": -math.inf}
    text = config_text({"model_type": "mamba2"} | limits)

    assert read_config(text)["time_step_limit"] == [0.0, math.inf]
    assert read_config(text)["low"] == -math.inf
    assert config_text(json.loads('{"model_type": "x", "a": [Infinity]}')) == (
        '{"a":[Infinity],"model_type":"x"}'
    )
    nothing = read_config(config_text({"model_type": "x", "a": {"__float__": "NaN"}}))
    assert math.isnan(nothing["a"])


def test_lists_in_lists_travel():
    kinds = [[["global", "local"], 12]]

    assert read_config(config_text({"model_type": "gpt_neo", "kinds": kinds}))["kinds"] == kinds


def test_a_pattern_of_layers_travels():
    pattern = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-MM-M-M-M-M-M-" * 3
    config = {"model_type": "nemotron_h", "hybrid_override_pattern": pattern}

    assert read_config(config_text(config)) == config


def test_what_no_code_can_read_stays_at_home():
    config = {"model_type": "llama", "transformers.js_config": {"dtype": "q4"}, "a-b": 1}

    assert read_config(config_text(config)) == {"model_type": "llama"}


REFUSES_ITS_OWN_DEFAULTS = "gemma4_assistant"


def lost_of_default_config(kind, folder):
    """What of the config that the library writes for a kind of model does not arrive."""
    default = library().AutoConfig.for_model(kind)
    default.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    values = read_config(config_text(settings_of_class(written)))
    arrived = library().AutoConfig.for_model(values.pop("model_type"), **values).to_dict()
    there = {key: value for key, value in default.to_dict().items() if key not in DROPPED}
    return [key for key, value in there.items() if arrived.get(key) != value]


@pytest.mark.parametrize(
    "kind", ["granitemoehybrid", "gpt_neo", "llama4_text", "mamba2", "nemotron_h", "opt"]
)
def test_what_the_library_writes_of_a_config_arrives_as_it_is(kind, tmp_path):
    assert lost_of_default_config(kind, tmp_path) == []


@pytest.mark.full
def test_the_config_of_every_language_model_of_the_library_arrives_as_it_is(tmp_path):
    kinds = library_module("models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    odd = {}
    for kind in sorted(kinds.keys() - {REFUSES_ITS_OWN_DEFAULTS}):
        try:
            if lost := lost_of_default_config(kind, tmp_path):
                odd[kind] = lost
        except ValueError as error:
            odd[kind] = str(error)

    more_than_text = {kind for kind, said in odd.items() if "more than text" in said}
    assert len(kinds) > 8 * len(more_than_text)
    assert odd.keys() - more_than_text <= {"doge", "moshi"}
    assert odd["doge"].endswith("num_experts is 16384, not 0 to 4096")


def test_names_of_files_and_programs_stay_at_home():
    config = {"model_type": "llama", "_name_or_path": "/home/me", "torch_dtype": "bfloat16"}

    assert json.loads(config_text(config)) == {"model_type": "llama"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[" * 1_000_000, "has 1,000,000 bytes"),
        ("[" * 1_000, "not JSON"),
        ("[]", "no table with a model_type"),
        (text_of(auto_map={"AutoModel": "x"}), "no code is fetched"),
        (text_of(quantization_config={"bits": 4}), "quantised in a way that is not read here"),
        (text_of(text_config={"a": 1}), "more than text"),
        (text_of(__class__="someone"), "which is no name"),
        (text_of(a={"_attn_implementation_internal": "sdpa"}), "which is no name"),
        (text_of(a={"b-c": 1}), "which is no name"),
        (text_of(attn="someone/kernel"), "more than plain words"),
        (text_of(attn="https:site"), "more than plain words"),
        (text_of(num_hidden_layers=10**6), "num_hidden_layers is 1000000, not 1 to 1000"),
        (text_of(num_local_experts=10**6), "not 0 to 4096"),
        (text_of(hidden_size=10**9), "hidden_size is 1000000000"),
        (text_of(vocab_size=10**9), "vocab_size"),
        (text_of(rope=10**30), "rope is 1"),
        (text_of(a={"b": {"c": {"d": 1}}}), "3 deep"),
        (text_of(a=[[[[[1]]]]]), "lists more than 4 deep in a"),
        (text_of(a=[[{"b": 1}]]), "tables in the list a"),
        (text_of(a=[[["b"], 10**6]]), "a has 1000000, not 0 to 1000"),
        ('{"model_type": "llama"}', "canonical"),
        ('{"model_type":"llama","model_type":"llama"}', "canonical"),
    ],
)
def test_a_config_that_is_not_plain_data_is_refused(text, match):
    with pytest.raises(ValueError, match=match):
        read_config(text)


def test_a_config_larger_than_a_manifest_is_refused():
    with pytest.raises(ValueError, match="leave out of config"):
        config_text({"model_type": "llama", "layer_types": ["x" * 40] * (CONFIG_BYTES_MAX // 40)})


def test_what_draws_is_known_by_its_name():
    config = {"attn_pdrop": 0.1, "dropout": 0.0, "router_jitter_noise": 0.01, "eps": 1.0}

    assert chances(config) == ["attn_pdrop", "router_jitter_noise"]
