"""From a trainer's settings to the model that a manifest names."""

import dataclasses
import json

import models.harness  # noqa: F401  registers the family
import pytest

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.models.blocks import cut_into, make_blocks
from p2pswarm.models.compute.bundle_spec import check_model
from p2pswarm.models.library.hf_library import requirement
from p2pswarm.models.model_source import FILE_BYTES_MAX, resolved
from p2pswarm.settings.config import CodecConfig, ModelConfig, RunConfig
from p2pswarm.settings.parser import load, run_from_json, run_to_json

CONFIG = {
    "_name_or_path": "somewhere/else",
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "vocab_size": 300,
    "tie_word_embeddings": False,
}


def run_of(folder, config, settings='[run]\nmodel = "hf:./tiny"\n'):
    (folder / "tiny").mkdir()
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "tiny" / "config.json").write_text(text)
    (folder / "run.toml").write_text(settings)
    return load(folder / "run.toml").run


@pytest.mark.parametrize("key", ['[run]\nmodel = "hf:./tiny"', '[run.model]\nfamily = "hf:tiny"'])
def test_a_folder_becomes_a_model_that_needs_no_folder(tmp_path, key):
    run = resolved(run_of(tmp_path, CONFIG, key))

    model = run.model
    assert (model.family, model.folder, model.package) == ("hf:llama", None, requirement())
    assert (model.vocabulary, model.d_model, model.layers, model.heads) == (300, 16, 3, 2)
    assert "somewhere" not in model.config
    check_model(run)
    assert resolved(run) is run
    assert run_from_json(run_to_json(run)) == run


@pytest.mark.parametrize(
    ("averaging", "found"),
    [
        ("raw", "raw"),
        (("raw", "int-grid"), "raw"),
        (("powersgd", "powersgd"), "powersgd"),
    ],
)
def test_another_cut_has_no_list_of_averagings(averaging, found):
    run = RunConfig(stages=2, cut=(3, 3), codecs=CodecConfig(averaging=averaging))
    run = dataclasses.replace(run, model=ModelConfig(layers=4))

    other = cut_into(run, 3)

    assert (other.stages, other.cut, other.codecs.averaging) == (3, (), found)
    assert cut_into(run, 2, (2, 4)).codecs == run.codecs


def test_an_adapter_is_settled_whatever_the_averaging_of_each_stage(tmp_path):
    settings = '[run]\nmodel = "hf:./tiny"\nstages = 2\nadapter = { rank = 2 }\n'
    settings += '[run.codecs]\naveraging = ["raw", "int-grid"]\n'

    run = resolved(run_of(tmp_path, CONFIG, settings))

    assert run.adapter.settled
    assert run.codecs.averagings == ("raw", "int-grid")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("said", [None, True, False])
def test_embedding_and_head_are_one_as_the_config_says_unless_the_settings_do(tmp_path, tied, said):
    setting = "" if said is None else f"tie = {str(said).lower()}\n"
    settings = f'[run]\nstages = 3\n[run.model]\nfamily = "hf:./tiny"\n{setting}'
    run = run_of(tmp_path, CONFIG | {"tie_word_embeddings": tied}, settings)

    if said and not tied:
        with pytest.raises(Unusable, match=r"two tensors: leave run\.model\.tie out"):
            check_model(resolved(run))
        return
    found = resolved(run)
    check_model(found)
    assert found.model.tie is (tied if said is None else said)
    assert found.tied_ends == ((0, 2) if found.model.tie else None)
    assert run_from_json(run_to_json(found)) == found


def test_a_family_of_a_program_that_cannot_be_tied_is_refused_in_a_line(tmp_path):
    (tmp_path / "run.toml").write_text('[run.model]\nfamily = "skipping"\ntie = true\n')

    with pytest.raises(Unusable, match=r"leave run\.model\.tie out, or set it to false") as caught:
        check_model(resolved(load(tmp_path / "run.toml").run))

    assert "\n" not in str(caught.value)


def test_a_config_as_long_as_a_manifest_has_room_for_is_used_and_a_longer_one_is_not(tmp_path):
    """`layer_types` of a model with many layers, and what else a published config lists."""
    listed = ["full_attention"] * 4_500
    run = resolved(run_of(tmp_path, CONFIG | {"kinds": listed}))
    assert len(run.model.config) > 76_000
    assert run_from_json(run_to_json(run)) == run

    (tmp_path / "more").mkdir()
    more = run_of(tmp_path / "more", CONFIG | {"kinds": ["a"] * 24_500})  # quotes are escaped
    with pytest.raises(Unusable, match=r"settings have .* bytes, and a manifest has room for 122,"):
        resolved(more)


def test_what_is_private_travels_if_the_models_class_declares_it(tmp_path):
    config = {"model_type": "opt", "vocab_size": 300, "hidden_size": 16, "ffn_dim": 24}
    config |= {"num_attention_heads": 2, "word_embed_proj_dim": 16, "num_hidden_layers": 2}
    private = {"_remove_final_layer_norm": True, "_attn_implementation_internal": "x", "_new": 3}
    run = resolved(run_of(tmp_path, config | private))

    assert json.loads(run.model.config)["_remove_final_layer_norm"] is True
    assert not {"_attn_implementation_internal", "_new"} & json.loads(run.model.config).keys()
    names = [name for block in make_blocks(run, range(4)) for name, _ in block.named_parameters()]
    assert not any("decoder.final_layer_norm" in name for name in names)


def test_code_that_stands_beside_a_class_of_the_library_is_not_asked_for(tmp_path):
    """Phi-3.5 names files of its repository, and the library has its class by now."""
    code = {"auto_map": {"AutoModelForCausalLM": "modeling_llama.LlamaForCausalLM"}}

    run = resolved(run_of(tmp_path, CONFIG | code))

    assert "auto_map" not in run.model.config
    check_model(run)


def test_a_strangers_private_setting_is_refused(tmp_path):
    run = resolved(run_of(tmp_path, CONFIG))
    values = json.loads(run.model.config) | {"_attn_implementation_internal": "sdpa"}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    strange = dataclasses.replace(run, model=dataclasses.replace(run.model, config=text))

    with pytest.raises(Unusable, match="_attn_implementation_internal, which is no setting of"):
        check_model(strange)


def test_the_settings_beside_the_folder_stay(tmp_path):
    settings = '[run.model]\nfamily = "hf:./tiny"\ntie = false\nsequence_length = 20'
    run = resolved(run_of(tmp_path, CONFIG | {"tie_word_embeddings": True}, settings))

    assert (run.model.tie, run.model.sequence_length) == (False, 20)
    check_model(run)


@pytest.mark.parametrize("model", [{"folder": "/etc"}, {"family": "hf:/etc"}])
def test_a_manifest_names_no_folder_of_ours(tmp_path, model):
    run = resolved(run_of(tmp_path, CONFIG))
    whole = json.loads(run_to_json(run))
    whole["run"]["model"] |= {"config": ""} | model

    with pytest.raises(BadMessage, match="names a folder"):
        run_from_json(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ("{", "is not JSON"),
        ("[]", "no table of settings"),
        ('{"a":' * 100 + "1" + "}" * 100, "too deep to be a model's config"),
        ("{}" + " " * FILE_BYTES_MAX, "it is no config of a model"),
        (
            CONFIG | {"model_type": "theirs", "auto_map": {"AutoConfig": "x"}},
            "no code is fetched: a newer transformers may have this model_type",
        ),
        (CONFIG | {"vocab_size": 255}, "no room for the 256 of text as bytes"),
        (CONFIG | {"hidden_size": 18, "num_attention_heads": 4}, "the config of llama is refused"),
        (CONFIG | {"model_type": "bert"}, "is no model|is no causal|cannot be cut"),
    ],
)
def test_a_folder_without_a_usable_config_is_told_in_a_line(tmp_path, config, match):
    run = run_of(tmp_path, config)

    with pytest.raises(Unusable, match=match) as caught:
        check_model(resolved(run))

    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_says_what_to_put_where(tmp_path):
    (tmp_path / "run.toml").write_text('[run]\nmodel = "hf:./nowhere"')

    with pytest.raises(Unusable, match=r"put the model's config\.json there"):
        resolved(load(tmp_path / "run.toml").run)
