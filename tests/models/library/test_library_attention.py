"""Our attention in families of `transformers`: what it is told, and what it refuses."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from models.families import run_of_kind
from models.more_families import OTHERS
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.attention.document_attention import WHOLE_ROWS
from p2pswarm.models.blocks import block_count
from p2pswarm.models.check.model_check import check_stages
from p2pswarm.models.hf_model import MASK_TOKENS_MAX
from p2pswarm.models.library.hf_library import library
from p2pswarm.models.library.library_attention import (
    ATTENTION,
    LayerMask,
    attention_for,
    documents_of,
)


@pytest.fixture(scope="module")
def told():
    """The attention and the mask that the library was told of."""
    attention_for(library().AutoConfig.for_model("llama"))
    return library().AttentionInterface()[ATTENTION], library().AttentionMaskInterface()[ATTENTION]


def apart(run, **model):
    documents = {"documents": "apart", "document_end": 7} | model
    return dataclasses.replace(run, model=dataclasses.replace(run.model, **documents))


def test_an_argument_that_is_not_known_is_refused_by_name(told):
    attention, _ = told
    layer, q = nn.Linear(1, 1), torch.ones(1, 2, 3, 4)

    with documents_of(torch.arange(3).view(1, 3), WHOLE_ROWS):
        made, weights = attention(
            nn.Linear(1, 1), q, q, q, LayerMask(), position_ids=q, softcap=None
        )
        with pytest.raises(Unusable, match="Linear of transformers gives its attention head_mask,"):
            attention(layer, q, q, q, LayerMask(), head_mask=q)
        with pytest.raises(Unusable, match="gives its attention is_causal, which is not known"):
            attention(layer, q, q, q, LayerMask(), is_causal=False)

    assert made.shape == (1, 3, 2, 4)
    assert weights is None
    with pytest.raises(Unusable, match=r"InklingAttention .* gives its attention position_bias"):
        check_stages(apart(run_of_kind("inkling_text", **OTHERS["inkling_text"])))


def test_a_window_is_told_from_a_chunk_by_the_config(told):
    _, mask = told

    def made(**config):
        return mask(config=SimpleNamespace(model_type="kind", **config), local_size=4)

    assert made(sliding_window=4) == LayerMask(window=4)
    assert made(sliding_window=None, attention_chunk_size=4) == LayerMask(chunk=4)
    assert mask(config=None, mask_function=None) == LayerMask()
    for config in ({}, {"sliding_window": 4, "attention_chunk_size": 4}):
        with pytest.raises(Unusable, match="kind: whether 4 tokens are a window or a chunk cannot"):
            made(**config)


def test_a_family_that_makes_its_masks_by_itself_keeps_them_and_their_limit():
    falcon = run_of_kind("falcon", head_dim=None, num_kv_heads=1)
    assert check_stages(apart(falcon)).problem == ""

    for run in (falcon, run_of_kind("axk2", **OTHERS["axk2"])):
        block_count(apart(run, sequence_length=MASK_TOKENS_MAX).model)
        with pytest.raises(Unusable, match=r"makes a mask of T x T .* up to 32,768 .*, not 32,769"):
            block_count(apart(run, sequence_length=MASK_TOKENS_MAX + 1).model)
    block_count(apart(run_of_kind("llama"), sequence_length=MASK_TOKENS_MAX + 1).model)
