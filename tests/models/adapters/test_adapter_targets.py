"""Targets are chosen as PEFT chooses them, and a manifest has names alone."""

import dataclasses
import json

import pytest
import torch
from models.families import EXPERTS, family_run

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.models.adapters.adapter_targets import pattern_entry
from p2pswarm.models.blocks import block_count, make_blocks
from p2pswarm.models.compute.bundle_spec import boundary_above, check_model
from p2pswarm.models.compute.flat_parameters import layout_of, named_parameters
from p2pswarm.models.model_source import resolved
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.settings.parser import run_from_json, run_to_json

GPT = RunConfig(model=ModelConfig(d_model=16, heads=2, layers=2, sequence_length=8))
TIED = r"embedding and head are one tensor.*run\.model\.tie to false"


def of_bytes(name: str, **settings: object) -> RunConfig:
    run = family_run(name, vocab_size=256, **settings)
    return dataclasses.replace(run, model=dataclasses.replace(run.model, vocabulary=256))


LLAMA = of_bytes("llama")
MIXTRAL = of_bytes("mixtral")


def settled(run: RunConfig, **settings: object) -> RunConfig:
    return resolved(dataclasses.replace(run, adapter=AdapterConfig(rank=2, **settings)))


def trained(run: RunConfig) -> dict[str, tuple[int, ...]]:
    numbers = range(block_count(run.model))
    with torch.device("meta"):
        blocks = make_blocks(run, numbers)
    return {name: tuple(p.shape) for name, p in named_parameters(numbers, blocks)}


def test_all_linear_is_every_linear_layer_but_the_head() -> None:
    run = settled(LLAMA)
    names = trained(run)

    assert set(run.adapter.targets) == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }
    assert len(names) == 2 * 7 * 2
    assert names["model.layers.1.self_attn.q_proj.lora_A.weight"] == (2, 16)
    assert names["model.layers.1.self_attn.q_proj.lora_B.weight"] == (16, 2)
    assert not any("lm_head" in name or "embed" in name for name in names)


def test_of_a_mixture_all_linear_takes_experts_and_routers_as_peft_does() -> None:
    run = settled(MIXTRAL)
    names, experts = trained(run), EXPERTS["num_local_experts"]
    layer = "model.layers.0.mlp."

    assert names[f"{layer}gate.lora_A.weight"] == (2, 16)
    assert names[f"{layer}experts.lora_A.weight"] == (2 * experts, 24)
    assert names[f"{layer}experts.lora_B.weight"] == (16, 2 * experts)
    # two matrices in one have twice the rank, and lie one layer deeper
    assert names[f"{layer}experts.base_layer.lora_A.weight"] == (4 * experts, 16)
    assert names[f"{layer}experts.base_layer.lora_B.weight"] == (48, 4 * experts)
    assert run.adapter.rank_pattern == run.adapter.alpha_pattern == ("gate_up_proj=4",)


def test_former_names_of_experts_are_known() -> None:
    run = settled(MIXTRAL, targets=("w1", "w3", "q_proj"))
    assert set(run.adapter.targets) == {"gate_up_proj", "q_proj"}
    assert run.adapter.rank_pattern == ("gate_up_proj=4",)


@pytest.mark.parametrize("run", [LLAMA, MIXTRAL, GPT], ids=["llama", "mixtral", "gpt"])
def test_what_is_settled_stays_as_it_is(run: RunConfig) -> None:
    once = settled(run)
    assert resolved(once) == once
    assert once.adapter.settled
    assert run_from_json(run_to_json(once)) == once


def test_a_regular_expression_becomes_the_names_that_it_matches() -> None:
    run = settled(LLAMA, targets=r".*layers\.1\..*(q|v)_proj")
    assert run.adapter.targets == ("1.self_attn.q_proj", "1.self_attn.v_proj")
    assert len(trained(run)) == 4


def test_ranks_and_alphas_by_pattern_become_names() -> None:
    run = settled(
        LLAMA, rank_pattern=(r"self_attn\..*=8", "up_proj=1"), alpha_pattern=("q_proj=5.5",)
    )
    names = trained(run)

    assert names["model.layers.0.self_attn.k_proj.lora_A.weight"] == (8, 16)
    assert names["model.layers.0.mlp.up_proj.lora_A.weight"] == (1, 16)
    assert names["model.layers.0.mlp.down_proj.lora_A.weight"] == (2, 24)
    assert run.adapter.settled
    assert run.adapter.alpha_pattern == ("q_proj=5.5",)


def test_a_number_of_a_pattern_keeps_all_its_digits() -> None:
    """PEFT scales by what its file says: 16 / sqrt(2) is such a number."""
    alpha = 11.313708498984761
    once = settled(LLAMA, alpha_pattern=(pattern_entry("q_proj", alpha),))
    assert once.adapter.alpha_pattern == (f"q_proj={alpha!r}",)
    assert pattern_entry("q_proj", 1e-9) == "q_proj=0.000000001"
    assert run_from_json(run_to_json(once)) == once


def test_a_pattern_that_takes_too_long_is_one_line() -> None:
    slow = "(.*)" * 8 + r"\1\2\3\4x?9?j.$"
    with pytest.raises(Unusable, match="takes too long for a name: name modules instead"):
        settled(LLAMA, targets=slow)


def test_modules_may_train_whole_beside_adapters() -> None:
    run = settled(LLAMA, train=("lm_head", "norm"))
    names = trained(run)
    assert {"lm_head.weight", "model.norm.weight"} <= names.keys()
    assert "model.embed_tokens.weight" not in names


def test_an_embedding_may_have_an_adapter() -> None:
    names = trained(settled(LLAMA, targets=("embed_tokens",)))
    assert names == {
        "model.embed_tokens.lora_embedding_A": (2, LLAMA.model.vocabulary),
        "model.embed_tokens.lora_embedding_B": (16, 2),
    }


@pytest.mark.parametrize(
    ("run", "settings", "said"),
    [
        (LLAMA, {"targets": ("q_porj",)}, r"'q_porj' matches nothing; the nearest name is q_proj"),
        (LLAMA, {"targets": "q_proj"}, "'q_proj' matches nothing; the nearest name is q_proj"),
        (LLAMA, {"targets": "("}, "is no regular expression"),
        (LLAMA, {"targets": "(" * 480}, "is no regular expression"),
        (LLAMA, {"train": ("lm_haed",)}, "'lm_haed' matches nothing; the nearest name is lm_head"),
        (LLAMA, {"rank_pattern": ("q_prj=4",)}, "'q_prj=4' matches no target; the nearest"),
        (MIXTRAL, {"targets": ("w1",)}, "w1 is one parameter with w3 now, gate_up_proj: name both"),
        (MIXTRAL, {"dropout": 0.1}, "dropout: what .* multiplies cannot be left out"),
        (GPT, {"targets": ("blocks.9.qkv",)}, "matches nothing"),
    ],
)
def test_what_fits_nothing_is_one_line(run: RunConfig, settings: dict, said: str) -> None:
    with pytest.raises(Unusable, match=said) as caught:
        trained(settled(run, **settings))
    assert "\n" not in str(caught.value)


def test_a_tied_tensor_does_not_train_at_one_end() -> None:
    model = dataclasses.replace(GPT.model, tie=True)
    run = dataclasses.replace(GPT, model=model)
    assert settled(run).tied_ends is None
    with pytest.raises(Unusable, match=TIED):
        settled(run, train=("blocks.0", "tied"))
    with pytest.raises(Unusable, match=TIED):
        resolved(dataclasses.replace(run, frozen=("tied.*",)))


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_an_embedding_may_have_the_only_adapter_of_its_stage(family: str) -> None:
    run, name = (GPT, "token_VD") if family == "gpt" else (LLAMA, "embed_tokens")
    blocks = block_count(run.model)
    run = settled(dataclasses.replace(run, stages=2, cut=(1, blocks - 1)), targets=(name,))

    check_model(run)

    assert boundary_above(run, 0).differentiable == ("x",)


@pytest.mark.parametrize("family", ["gpt", "llama", "gpt2"])
@pytest.mark.parametrize("ends", [(0,), (1,), (0, 1)])
def test_a_tied_tensor_has_no_adapter_at_one_end(family: str, ends: tuple[int, ...]) -> None:
    """Merged, it would change both ends, and the adapters of both would be two changes of one."""
    run = GPT if family == "gpt" else of_bytes(family, tie_word_embeddings=True)
    inner, *names = {
        "gpt": ("qkv", "token_VD", "score_VD"),
        "llama": ("q_proj", "embed_tokens", "lm_head"),
        "gpt2": ("c_attn", "wte", "lm_head"),
    }[family]
    targets = (inner, *(names[end] for end in ends))
    untied = dataclasses.replace(run, model=dataclasses.replace(run.model, tie=False))
    tied = dataclasses.replace(run, model=dataclasses.replace(run.model, tie=True))

    assert settled(tied, targets=(inner,)).adapter.targets == (inner,)
    assert settled(untied, targets=targets).adapter.settled
    with pytest.raises(Unusable, match=rf"adapter\.targets: {TIED}"):
        settled(tied, targets=targets)


@pytest.mark.parametrize(
    "adapter",
    [
        {"targets": "(a+)+$"},
        {"targets": "all-linear"},
        {"targets": ["(a+)+$"]},
        {"targets": ["q_proj"], "rank_pattern": ["(a+)+$=3"]},
        {"targets": ["q_proj"], "train": ["(a+)+$"]},
    ],
)
def test_a_strangers_patterns_are_never_run(adapter: dict) -> None:
    """A regular expression can keep a processor busy for ever."""
    whole = json.loads(run_to_json(settled(LLAMA)))
    whole["run"]["adapter"] |= adapter
    data = json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(BadMessage, match="patterns in the place of names"):
        run_from_json(data)


def test_the_cut_changes_no_adapter() -> None:
    run = settled(LLAMA)
    whole = {t.name: t.shape for t in layout_of(run, range(4)).tensors}
    parts = [layout_of(run, numbers) for numbers in (range(2), range(2, 4))]
    assert {t.name: t.shape for part in parts for t in part.tensors} == whole
