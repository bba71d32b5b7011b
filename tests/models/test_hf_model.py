"""Tests of `models/hf_model.py`."""

import pytest
import torch
from models.families import family_run

from p2pswarm.base.errors import Unusable
from p2pswarm.models.blocks import block_count, make_blocks
from p2pswarm.models.hf_model import sliced, sliced_of
from p2pswarm.models.tensor_plan import Style, TensorShare


def blocks(name, **also):
    run = family_run(name, num_attention_heads=4, num_key_value_heads=2, **also)
    with torch.device("meta"):
        return make_blocks(run, range(block_count(run.model)))


def test_embedding_and_head_are_shared_over_the_vocabulary():
    first, *_, last = blocks("llama")

    assert first.tensor_plan == {"inner.model.embed_tokens": TensorShare(Style.EMBEDDING)}
    assert last.tensor_plan == {"inner.lm_head": TensorShare(Style.COLWISE)}


def test_a_layer_has_the_plan_of_its_family_with_heads_that_are_not_cut():
    plan = blocks("qwen3")[2].tensor_plan
    layer = "inner.model.layers.1"

    assert plan[f"{layer}.self_attn.q_proj"] == TensorShare(Style.COLWISE, 4)
    assert plan[f"{layer}.self_attn.k_proj"] == TensorShare(Style.COLWISE, 2)
    assert plan[f"{layer}.self_attn.o_proj"] == TensorShare(Style.ROWWISE, 4)
    assert plan[f"{layer}.self_attn.q_norm"] == TensorShare(Style.OWN_FEATURES)
    assert plan[f"{layer}.mlp.down_proj"] == TensorShare(Style.ROWWISE)


def test_experts_are_shared_with_their_packed_parameters():
    plan = blocks("mixtral")[1].tensor_plan
    experts = "inner.model.layers.1.mlp.experts"

    assert plan[experts] == TensorShare(Style.EXPERTS)
    assert plan[f"{experts}.gate_up_proj"] == TensorShare(Style.PACKED_COLWISE)
    assert "inner.model.layers.1.mlp.gate" not in plan


@pytest.mark.parametrize("name", ["gpt2", "gpt_oss"])
def test_a_family_without_a_plan_for_its_layers_is_refused(name):
    with pytest.raises(Unusable, match=f'{name} ships no plan.*set serve.parallel to "rows"'):
        _ = blocks(name)[1].tensor_plan


def test_a_plan_that_leaves_out_a_norm_of_each_head_is_refused():
    layer = blocks("cohere", use_qk_norm=True)[1]

    with pytest.raises(Unusable, match=r"cohere ships a plan that does not say.*self_attn\.q_norm"):
        _ = layer.tensor_plan


def test_a_style_that_is_not_known_here_is_refused():
    layer = blocks("llama")[1]
    shipped = layer.inner.base_model.config
    shipped.base_model_tp_plan = {"layers.*.self_attn.q_proj": "mla_kv_a_proj"}

    with pytest.raises(
        Unusable, match=r"llama shares layers\.1\.self_attn\.q_proj as 'mla_kv_a_proj'"
    ):
        _ = layer.tensor_plan


def test_a_matrix_of_heads_whose_order_is_not_known_is_refused():
    layer = blocks("phi3")[1]
    shipped = layer.inner.base_model.config
    shipped.base_model_tp_plan = {
        "layers.*.self_attn.qkv_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
    }

    with pytest.raises(Unusable, match=r"heads in layers\.1\.self_attn\.qkv_proj"):
        _ = layer.tensor_plan


def test_what_is_made_in_another_way_is_refused_in_one_line():
    with pytest.raises(Unusable, match=r"^hf:odd cannot be cut: AttributeError: .*'base_model'"):
        sliced_of(object(), "hf:odd", None)


def test_a_block_that_is_given_another_width_names_itself():
    block = sliced(family_run("llama").model)[2]

    with pytest.raises(Unusable, match=r"LlamaForCausalLM cannot be cut: block 2 is given .* by 5"):
        block.trace(torch.zeros(1, 2, 5))
