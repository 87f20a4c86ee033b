# SPDX-License-Identifier: MIT
"""Tiny random models of every family whose weights are understood, built from configurations."""

from __future__ import annotations

from typing import Any

import torch

from models import needs_configuration

VOCABULARY = 97
#: One of each way to store the matrices of a block: apart, fused by rows or by heads, transposed, of experts.
QUICK = (
    *("llama", "gpt2", "gpt_neox", "bloom", "falcon_new", "phi3", "gpt_bigcode", "gpt_bigcode_per_head"),
    *("mixtral", "olmoe", "gemma3", "qwen3_next", "deepseek_v2", "llama4", "modernbert"),
)


def _decoder(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }


def _gpt(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "n_embd": 48,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **changes,
    }


_HEAD = {"head_dim": 16}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_STATE = {"mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False}
_LOCAL_JAMBA = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 0,
}
_GLM_EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "full_attention_interval": 2,
}

#: Name -> configuration class, model class, options.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _decoder()),
    "mistral": ("MistralConfig", "MistralForCausalLM", _decoder(sliding_window=7)),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _decoder()),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", _decoder(**_HEAD)),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", _decoder(**_HEAD)),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", _decoder(**_HEAD)),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", _decoder(**_HEAD)),
    "olmo": ("OlmoConfig", "OlmoForCausalLM", _decoder()),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", _decoder()),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", _decoder(partial_rotary_factor=0.5)),
    "cohere": ("CohereConfig", "CohereForCausalLM", _decoder()),
    "granite": ("GraniteConfig", "GraniteForCausalLM", _decoder()),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM", _decoder()),
    "nemotron": ("NemotronConfig", "NemotronForCausalLM", _decoder()),
    "phi": ("PhiConfig", "PhiForCausalLM", _decoder()),
    "opt": ("OPTConfig", "OPTForCausalLM", _decoder(ffn_dim=80, word_embed_proj_dim=24)),
    "xglm": (
        "XGLMConfig",
        "XGLMForCausalLM",
        {"vocab_size": VOCABULARY, "d_model": 48, "ffn_dim": 80, "num_layers": 2, "attention_heads": 4},
    ),
    "gptj": ("GPTJConfig", "GPTJForCausalLM", _gpt(rotary_dim=8)),
    "gpt_neo": (
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        _decoder(num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]),
    ),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", _decoder()),
    "glm4": ("Glm4Config", "Glm4ForCausalLM", _decoder(head_dim=12)),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", _gpt()),
    "gpt_bigcode": ("GPTBigCodeConfig", "GPTBigCodeForCausalLM", _gpt()),
    "gpt_bigcode_per_head": ("GPTBigCodeConfig", "GPTBigCodeForCausalLM", _gpt(multi_query=False)),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _decoder()),
    "bloom": ("BloomConfig", "BloomForCausalLM", {**_decoder(), "n_head": 4, "n_layer": 2}),
    "falcon_rw": (
        "FalconConfig",
        "FalconForCausalLM",
        _decoder(multi_query=False, new_decoder_architecture=False, alibi=True),
    ),
    "falcon_multi_query": (
        "FalconConfig",
        "FalconForCausalLM",
        _decoder(multi_query=True, new_decoder_architecture=False, alibi=False),
    ),
    "falcon_new": (
        "FalconConfig",
        "FalconForCausalLM",
        _decoder(new_decoder_architecture=True, num_kv_heads=2),
    ),
    "persimmon": ("PersimmonConfig", "PersimmonForCausalLM", _decoder()),
    "mpt": (
        "MptConfig",
        "MptForCausalLM",
        {"vocab_size": VOCABULARY, "d_model": 48, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    ),
    "codegen": ("CodeGenConfig", "CodeGenForCausalLM", _gpt(rotary_dim=8)),
    "bert": ("BertConfig", "BertForMaskedLM", _decoder()),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", _decoder()),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {"vocab_size": VOCABULARY, "dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 80},
    ),
    "modernbert": ("ModernBertConfig", "ModernBertForMaskedLM", _decoder()),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", _decoder(**_LOCAL)),
    "phimoe": ("PhimoeConfig", "PhimoeForCausalLM", _decoder(**_LOCAL)),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        _decoder(shared_expert_intermediate_size=40, **_EXPERTS),
    ),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", _decoder(**_HEAD, **_EXPERTS)),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", _decoder(num_experts=4, num_experts_per_tok=2)),
    "deepseek_v2": ("DeepseekV2Config", "DeepseekV2ForCausalLM", _decoder(**_LATENT, **_GLM_EXPERTS)),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", _decoder(**_LATENT, **_GLM_EXPERTS)),
    "glm4_moe": ("Glm4MoeConfig", "Glm4MoeForCausalLM", _decoder(head_dim=12, **_GLM_EXPERTS)),
    "granitemoe": ("GraniteMoeConfig", "GraniteMoeForCausalLM", _decoder(**_LOCAL)),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM", _decoder(**_HEAD, **_LOCAL)),
    "llama4": (
        "Llama4TextConfig",
        "Llama4ForCausalLM",
        _decoder(
            head_dim=12,
            num_local_experts=4,
            num_experts_per_tok=1,
            intermediate_size_mlp=72,
            interleave_moe_layer_step=2,
        ),
    ),
    "qwen3_5_moe": (
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        _decoder(shared_expert_intermediate_size=40, **_HEAD, **_EXPERTS, **_LINEAR),
    ),
    "vaultgemma": ("VaultGemmaConfig", "VaultGemmaForCausalLM", _decoder(**_HEAD)),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", "Glm4MoeLiteForCausalLM", _decoder(**_LATENT, **_GLM_EXPERTS)),
    "bamba": (
        "BambaConfig",
        "BambaForCausalLM",
        _decoder(attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=12, mamba_d_state=4),
    ),
    "cohere2_moe": (
        "Cohere2MoeConfig",
        "Cohere2MoeForCausalLM",
        _decoder(num_experts=4, num_experts_per_tok=2, head_dim=12),
    ),
    "helium": ("HeliumConfig", "HeliumForCausalLM", _decoder(head_dim=12)),
    "ernie4_5": ("Ernie4_5Config", "Ernie4_5ForCausalLM", _decoder(head_dim=12)),
    "aria": ("AriaTextConfig", "AriaTextForCausalLM", _decoder(moe_num_experts=4, moe_topk=2)),
    "laguna": (
        "LagunaConfig",
        "LagunaForCausalLM",
        _decoder(head_dim=12, shared_expert_intermediate_size=40, **_EXPERTS),
    ),
    "jamba": (
        "JambaConfig",
        "JambaForCausalLM",
        _decoder(num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, **_STATE, **_LOCAL_JAMBA),
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        _decoder(shared_expert_intermediate_size=40, **_HEAD, **_EXPERTS, **_LINEAR),
    ),
    "afmoe": (
        "AfmoeConfig",
        "AfmoeForCausalLM",
        _decoder(head_dim=12, num_dense_layers=1, num_shared_experts=1, **_EXPERTS),
    ),
    "lfm2": (
        "Lfm2Config",
        "Lfm2ForCausalLM",
        _decoder(layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False),
    ),
    "lfm2_moe": (
        "Lfm2MoeConfig",
        "Lfm2MoeForCausalLM",
        _decoder(layer_types=["conv", "full_attention"], num_dense_layers=1, **_EXPERTS),
    ),
    "gemma4": (
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        _decoder(
            num_hidden_layers=4,
            head_dim=8,
            global_head_dim=16,
            sliding_window=4,
            layer_types=["sliding_attention", "full_attention"] * 2,
            num_kv_shared_layers=2,
            vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=8,
        ),
    ),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", _decoder(**_HEAD, **_LINEAR)),
}


def tiny(name: str, seed: int = 0, **changes: Any) -> Any:
    """A random model of a family in evaluation mode; every norm's gain and every bias is random too.

    Args:
        name: a key of `FAMILIES`.
        seed: of the weights.
        changes: of the configuration.
    """
    import transformers

    config_name, model_name, options = FAMILIES[name]
    needs_configuration(config_name)
    config = getattr(transformers, config_name)(**{**options, **changes})
    torch.manual_seed(seed)
    model = getattr(transformers, model_name)._from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise.to(parameter.dtype), alpha=0.1)
    return model
