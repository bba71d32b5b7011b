"""Further families of `transformers` whose stages equal the whole; all are in the bench's table.

`EACH_KIND` are those that tests run: each is cut by something that the others do not need.
"""

from models.families import EXPERTS, MIXTURES

ROUTED = EXPERTS | {
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
LATENT = {
    key: MIXTURES["deepseek_v3"][key]
    for key in (
        "q_lora_rank",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "qk_nope_head_dim",
        "v_head_dim",
        "num_key_value_heads",
    )
}
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 4,
}
MAMBA_2 = {"head_dim": 8, "n_groups": 1, "state_size": 8, "chunk_size": 4}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
EACH_KIND: dict[str, dict[str, object]] = {
    "afmoe": ROUTED,  # parameters that are frozen
    "bamba": MAMBA | {"attn_layer_indices": [1]},  # x in a tuple, kinds that are computed
    "deepseek_v2": ROUTED | LATENT,
    "ernie4_5_moe": ROUTED | {"moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 1},
    "falcon": {"head_dim": None, "num_kv_heads": 1},  # x in a tuple
    "falcon_mamba": {"state_size": 8},  # weights that are drawn by torch.rand
    "gptj": {"rotary_dim": 8, "n_inner": 24},  # constants of float32
    "granite_swa": {},  # a list by layer of its own
    "jamba": ROUTED
    | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "llama4_text": ROUTED | {"intermediate_size_mlp": 24, "attention_chunk_size": 4},
    "longcat_flash": ROUTED | LATENT,  # a second name for the number of layers
    "minimax": ROUTED
    | {"layer_types": ["linear_attention", "full_attention"], "block_size": 4},  # constants
    "mpt": {"d_model": 16, "n_heads": 2, "n_layers": 2, "expansion_ratio": 2, "max_seq_len": 32},
    "nanochat": {},  # a norm without parameters, before and after
    "nemotron_h": MAMBA
    | {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1}
    | {"chunk_size": 4},
    "olmo": {},  # a norm without parameters
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},  # layers one module deeper
    "qwen3_next": ROUTED | LINEAR,
    "recurrent_gemma": {  # a constant of bfloat16
        "hidden_size": 24,
        "lru_width": 24,
        "attention_window_size": 4,
        "block_types": ["recurrent", "attention"],
    },
}
OTHERS: dict[str, dict[str, object]] = {
    "arcee": {},
    "aria_text": {},
    "axk1": ROUTED | LATENT,
    "axk2": ROUTED | LATENT,
    "bailing_hybrid": ROUTED | LATENT,
    "beam": {},
    "biogpt": {},
    "bitnet": {},
    "bloom": {"n_head": 2},
    "codegen": {"rotary_dim": 8, "n_inner": 24},
    "cohere2_moe": ROUTED,
    "cwm": {},
    "deepseek_v32": ROUTED | LATENT | {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4},
    "diffllama": {"num_key_value_heads": 2},
    "dots1": ROUTED,
    "ernie4_5": {},
    "exaone": {},
    "exaone4": {},
    "exaone_moe": ROUTED,
    "flex_olmo": {},
    "flint": ROUTED,
    "glm": {},
    "glm4_moe": ROUTED,
    "glm4_moe_lite": ROUTED | LATENT,
    "gpt-sw3": {},
    "gpt_bigcode": {"n_inner": 24},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gpt_neox_japanese": {"intermediate_multiple_size": 2},
    "granitemoe": {},
    "granitemoe_swa": {},
    "granitemoehybrid": MAMBA | EXPERTS | {"layer_types": ["mamba", "attention"]},
    "granitemoeshared": {},
    "helium": {},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {},
    "hy_v3": ROUTED,
    "hyperclovax": {},
    "inkling_text": ROUTED,
    "internlm3": {},
    "iquestcoder": {},
    "jais2": {},
    "jetmoe": {},
    "kolibri1": ROUTED,
    "laguna": ROUTED,
    "lara_mini": ROUTED,
    "lfm2": {},
    "lfm2_moe": ROUTED | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lfm3": {},
    "mamba": {"state_size": 8},
    "mamba2": MAMBA_2 | {"num_heads": 4},
    "mellum": ROUTED,
    "mimo_v2_flash": ROUTED,
    "minicpm3": LATENT,
    "minimax_m2": ROUTED,
    "minimax_m3_vl_text": {},
    "ministral": {},
    "ministral3": {},
    "nemotron": {},
    "olmo3": {},
    "olmo_hybrid": LINEAR,
    "persimmon": {},
    "phi": {},
    "phimoe": ROUTED,
    "qwen2_moe": ROUTED | {"shared_expert_intermediate_size": 8},
    "qwen3_5_moe_text": ROUTED | LINEAR,
    "qwen3_5_text": LINEAR,
    "sarvam_mla": ROUTED | LATENT,
    "sarvam_moe": ROUTED,
    "seed_oss": {},
    "solar_open": ROUTED,
    "stablelm": {},
    "vaultgemma": {},
    "youtu": LATENT,
}
