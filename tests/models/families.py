"""Tiny random copies of families of `transformers`, whole against staged."""

from dataclasses import replace

from p2pswarm.models.library.hf_library import config_text, library
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

WIDTHS = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 32,
    "max_position_embeddings": 32,
    "pad_token_id": None,
}
WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
PLAIN = {
    "llama": {},
    "mistral": {"sliding_window": 4},
    "qwen2": {},
    "qwen3": {},
    "qwen3 with sliding layers": WINDOW | {"use_sliding_window": True},
    "olmo2": {},
    "phi3": {},
    "smollm3": {},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 8} | WINDOW,
    "gemma3_text": {"query_pre_attn_scalar": 8} | WINDOW,
    "cohere": {},
    "cohere2": WINDOW,
    "glm4": {},
    "granite": {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "starcoder2": {},
    "gpt2": {"n_inner": 24},
    "gpt_neox": {},
}
MIXTURES = {
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS | {"moe_intermediate_size": 8},
    "olmoe": EXPERTS,
    "gpt_oss": EXPERTS | WINDOW,
    "deepseek_v3": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 8,
        "first_k_dense_replace": 1,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "num_key_value_heads": 2,
    },
}
NO_DROPOUT = {
    "attention_dropout": 0.0,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "hidden_dropout": 0.0,
    "dropout": 0.0,
    "activation_dropout": 0.0,
    "layerdrop": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
    "embed_dropout": 0.0,
}


def family_run(name: str, **also: object) -> RunConfig:
    """A run of a tiny copy, one block a stage would be possible: three stages."""
    dtype = "float32" if name in MIXTURES else "float64"
    return run_of_kind(name.partition(" ")[0], dtype, **(PLAIN | MIXTURES)[name] | also)


def run_of_kind(kind: str, dtype: str = "float64", **own: object) -> RunConfig:
    """A run of a tiny copy of a family; what is None of its settings is left out."""
    library_has = library().AutoConfig.for_model(kind)
    kept = {key: value for key, value in NO_DROPOUT.items() if hasattr(library_has, key)}
    values = {"model_type": kind} | WIDTHS | kept | own
    config = config_text({k: v for k, v in values.items() if v is not None or k not in own})
    model = ModelConfig(
        family=f"hf:{kind}",
        config=config,
        vocabulary=32,
        sequence_length=10,
        dtype=dtype,
        tie=False,
    )
    return RunConfig(model=model, stages=3, batch=BatchConfig(rows=2, microbatches=1), seed=3)


def tied_run(name: str, **also: object) -> RunConfig:
    """The same with embedding and head as one tensor."""
    run = family_run(name, tie_word_embeddings=True, **also)
    return replace(run, model=replace(run.model, tie=True))
