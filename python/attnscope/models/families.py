# SPDX-License-Identifier: MIT
"""The names and layouts of each transformer family's block matrices, as data.

A model keeps its query, key and value weights under names of its own, and often in one fused matrix whose
rows lie in an order that only its code knows. Read wrongly, such a matrix still gives plausible numbers. So
every name that is understood stands in a table here, by model type, and a matrix that no entry claims is an
error in `attnscope.models.architecture`, which reads these tables. To add a family, add a `Family`;
`attnscope.verify_weight_map` proves on a model whether it is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class FusedRows(NamedTuple):
    """The order of the rows of a fused matrix: the roles take turns, `repeats` times.

    Attributes:
        repeats: how often the sequence of roles is repeated down the rows.
        shares: each role of the sequence with its share of the rows of one repetition.
    """

    repeats: int
    shares: tuple[tuple[str, int], ...]


#: Layout -> parts, given query heads, key-value heads and rows. A layout of one role needs no entry.
LAYOUTS: Mapping[str, Callable[[int, int, int], FusedRows]] = {
    # all of q, then all of k, then all of v
    "stacked": lambda heads, kv, rows: FusedRows(1, (("q", heads), ("k", kv), ("v", kv))),
    # for each key-value head: its query heads, its key, its value; one kv head makes that a stack
    "grouped": lambda heads, kv, rows: FusedRows(kv, (("q", heads // max(kv, 1)), ("k", 1), ("v", 1))),
    # four partitions, each q, v, k
    "partitions": lambda heads, kv, rows: FusedRows(4, (("q", 1), ("v", 1), ("k", 1))),
    # for each head: its query, then the gate on its output
    "gated_query": lambda heads, kv, rows: FusedRows(heads, (("q", 1), ("q_gate", 1))),
    "halves": lambda heads, kv, rows: FusedRows(1, (("gate", 1), ("up", 1))),
    "shared_halves": lambda heads, kv, rows: FusedRows(1, (("shared_gate", 1), ("shared_up", 1))),
    # gate in the even rows, up in the odd ones
    "alternating": lambda heads, kv, rows: FusedRows(rows // 2, (("gate", 1), ("up", 1))),
}


class NameRule(NamedTuple):
    """The meaning of a name: a role or a layout of `LAYOUTS`, and whether the matrix is stored [in, out]."""

    means: str
    transposed: bool = False


@dataclass(frozen=True)
class Family:
    """The facts of one model type that its names alone do not give.

    Attributes:
        claims: name behind the block's number -> meaning, before the common ones.
        kv_heads: of the configuration and the number of heads, where it is not what the configuration states.
        rotary: which dimensions of a head turn together: "half" (p with p + d/2), "interleaved" (2p with
            2p + 1), "" for none.
        norm_offset: what the stored gain of a norm lacks (1 where the model multiplies by 1 + weight).
        layer_norm: whether the final norm subtracts the mean, where its having a bias does not tell.
    """

    claims: Mapping[str, NameRule] = field(default_factory=dict)
    kv_heads: Callable[[Mapping[str, Any], int], int] | None = None
    rotary: str = "half"
    norm_offset: float = 0.0
    layer_norm: bool | None = None


def _claims(table: Mapping[str, str], *, transposed: bool = False) -> dict[str, NameRule]:
    return {name: NameRule(means, transposed) for means, names in table.items() for name in names.split()}


_ROUTED = ("mlp", "block_sparse_moe", "feed_forward")

#: Names that mean one thing in every family that uses them; "*" is the number of an expert.
COMMON: Mapping[str, NameRule] = _claims(
    {
        "q": "self_attn.q_proj self_attn.q_a_proj attn.q_proj attn.attention.q_proj attention.self.query"
        " attention.q_lin",
        "k": "self_attn.k_proj attn.k_proj attn.attention.k_proj attention.self.key attention.k_lin",
        "v": "self_attn.v_proj attn.v_proj attn.attention.v_proj attention.self.value attention.v_lin",
        "o": "self_attn.o_proj self_attn.out_proj self_attn.dense attn.out_proj attn.attention.out_proj"
        " attn.c_proj attention.dense self_attention.dense attention.output.dense attention.out_lin attn.Wo",
        "kv": "self_attn.kv_a_proj_with_mqa",
        "q_up": "self_attn.q_b_proj",
        "kv_up": "self_attn.kv_b_proj",
        "gate": "mlp.gate_proj feed_forward.gate_proj",
        "up": "mlp.up_proj feed_forward.up_proj mlp.c_fc mlp.fc1 fc1 mlp.fc_in mlp.dense_h_to_4h ffn.up_proj"
        " ffn.lin1 intermediate.dense",
        "down": "mlp.down_proj feed_forward.down_proj mlp.c_proj mlp.fc2 fc2 mlp.fc_out mlp.dense_4h_to_h"
        " ffn.down_proj ffn.lin2 output.dense mlp.Wo",
        "halves": "mlp.gate_up_proj mlp.Wi",
        "shared_halves": "shared_mlp.input_linear",
        "shared_down": "shared_mlp.output_linear",
        "shared_router": "mlp.shared_expert_gate",
        # linear attention: no queries and keys that meet in a softmax
        "mixer_gates": "linear_attn.in_proj_ba",
        "mixer_z": "linear_attn.in_proj_z",
        "mixer_a": "linear_attn.in_proj_a",
        "mixer_b": "linear_attn.in_proj_b",
        # state-space layers: what they read and write, and the step sizes and states inside
        "mixer_in": "linear_attn.in_proj_qkvz linear_attn.in_proj_qkv mamba.in_proj",
        "mixer_x": "mamba.x_proj",
        "mixer_dt": "mamba.dt_proj",
        "mixer_out": "linear_attn.out_proj mamba.out_proj",
        # a convolution over tokens is no matrix, nor are the decays of a state
        "": "linear_attn.conv1d mamba.conv1d mamba.A_log",
    }
) | {
    f"{place}.{name}": NameRule(means)
    for place in _ROUTED
    for name, means in {
        "gate": "router",
        "router": "router",
        "router.layer": "router",
        "experts.*.gate_proj": "gate",
        "experts.*.up_proj": "up",
        "experts.*.down_proj": "down",
        "experts.*.w1": "gate",
        "experts.*.w3": "up",
        "experts.*.w2": "down",
        "experts.gate_up_proj": "halves",
        "experts.down_proj": "down",
        "input_linear": "halves",
        "output_linear": "down",
        **{
            f"{shared}.{role}_proj": f"shared_{role}"
            for shared in ("shared_expert", "shared_experts")
            for role in ("gate", "up", "down")
        },
    }.items()
}


def _as_many_as_heads(settings: Mapping[str, Any], heads: int) -> int:
    return heads


def _falcon_kv_heads(settings: Mapping[str, Any], heads: int) -> int:
    if settings.get("new_decoder_architecture", False):
        return settings.get("num_kv_heads") or settings.get("n_head_kv") or heads
    return 1 if settings.get("multi_query", True) else heads


def _bigcode_kv_heads(settings: Mapping[str, Any], heads: int) -> int:
    return 1 if settings.get("multi_query", True) else heads


def _fused(name: str, layout: str) -> dict[str, NameRule]:
    return {name: NameRule(layout)}


_INTERLEAVED = Family(rotary="interleaved")
_NO_ROTARY = Family(rotary="")
_ONE_PLUS_GAIN = Family(norm_offset=1.0)
_SHORT_CONVOLUTIONS = _claims(
    {
        "gate": "feed_forward.w1",
        "up": "feed_forward.w3",
        "down": "feed_forward.w2",
        "mixer_in": "conv.in_proj",
        "mixer_out": "conv.out_proj",
        "": "conv.conv",
    }
)
_LINEAR_ATTENTION = Family(_fused("self_attn.q_proj", "gated_query"), norm_offset=1.0)

#: Model type -> what is its own. A type that is absent uses common names, or its matrices are refused.
FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        _claims(
            {"stacked": "attn.c_attn", "o": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"},
            transposed=True,
        ),
        _as_many_as_heads,
        rotary="",
    ),
    "gpt_bigcode": Family(_fused("attn.c_attn", "grouped"), _bigcode_kv_heads, rotary=""),
    "gpt_neox": Family(_fused("attention.query_key_value", "grouped"), _as_many_as_heads),
    "bloom": Family(_fused("self_attention.query_key_value", "grouped"), _as_many_as_heads, rotary=""),
    "falcon": Family(_fused("self_attention.query_key_value", "grouped"), _falcon_kv_heads),
    "persimmon": Family(_fused("self_attn.query_key_value", "grouped"), _as_many_as_heads),
    "mpt": Family(_fused("attn.Wqkv", "stacked"), _as_many_as_heads, rotary="", layer_norm=True),
    "codegen": Family(_fused("attn.qkv_proj", "partitions"), _as_many_as_heads, rotary="interleaved"),
    "phi3": Family(_fused("self_attn.qkv_proj", "stacked")),
    "modernbert": Family(_fused("attn.Wqkv", "stacked"), _as_many_as_heads, layer_norm=True),
    "modernbert-decoder": Family(layer_norm=True),
    "gpt_oss": Family(
        {
            "mlp.experts.gate_up_proj": NameRule("alternating", transposed=True),
            "mlp.experts.down_proj": NameRule("down", transposed=True),
        }
    ),
    "llama4_text": Family(
        {
            "feed_forward.experts.gate_up_proj": NameRule("halves", transposed=True),
            "feed_forward.experts.down_proj": NameRule("down", transposed=True),
        },
        rotary="interleaved",
    ),
    "aria_text": Family(
        {
            f"mlp.experts.{name}": NameRule(means, transposed=True)
            for means, names in {"halves": ("gate_up_proj", "fc1"), "down": ("down_proj", "fc2")}.items()
            for name in names  # in memory and in files
        }
    ),
    "laguna": Family(_fused("self_attn.g_proj", "q_gate")),
    "afmoe": Family({**_fused("self_attn.gate_proj", "q_gate"), **_fused("mlp.router.gate", "router")}),
    **dict.fromkeys(("lfm2", "lfm2_moe"), Family(_SHORT_CONVOLUTIONS)),
    # a small vector of each token for each layer, which a gate lets into the residual stream
    "gemma4_text": Family(
        _claims({"token_gate": "per_layer_input_gate", "token_out": "per_layer_projection"}),
    ),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _LINEAR_ATTENTION),
    "gemma": _ONE_PLUS_GAIN,
    "gemma2": _ONE_PLUS_GAIN,
    "gemma3_text": _ONE_PLUS_GAIN,
    "vaultgemma": _ONE_PLUS_GAIN,
    "nemotron": Family(norm_offset=1.0, layer_norm=True),
    **dict.fromkeys(("gptj", "glm", "glm4", "helium", "ernie4_5", "ernie4_5_moe"), _INTERLEAVED),
    "deepseek_v2": _INTERLEAVED,
    "deepseek_v3": _INTERLEAVED,
    "roformer": _INTERLEAVED,
    **dict.fromkeys(("cohere", "cohere2", "cohere2_moe"), Family(rotary="interleaved", layer_norm=True)),
    "olmo": Family(layer_norm=True),
    **dict.fromkeys(("gpt_neo", "opt", "xglm", "biogpt", "distilbert", "jamba"), _NO_ROTARY),
    **dict.fromkeys(
        (
            *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie"),
            *("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "xlm-roberta"),
            "xlm-roberta-xl",
        ),
        _NO_ROTARY,
    ),
}

#: Settings of a configuration under the names that the families give them.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
}

#: Ends of the names outside the blocks, by role.
OUTSIDE: Mapping[str, tuple[str, ...]] = {
    "embed": ("embed_tokens", "wte", "embed_in", "word_embeddings", "tok_embeddings"),
    "unembed": ("lm_head", "embed_out", "output_projection", "decoder", "vocab_projector"),
    "final_norm": (
        "norm",
        "ln_f",
        "norm_f",
        "final_layer_norm",
        "final_layernorm",
        "final_norm",
        "layer_norm",
        "embedding_norm",
    ),
    "project_out": ("project_out",),
}

#: Norms behind the sub-layer: (gain on the output of o, gain on the output of down), both in the block.
OUT_GAINS: tuple[tuple[str, str], ...] = (
    ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight"),
    ("post_self_attn_layernorm.weight", "post_mlp_layernorm.weight"),
)
