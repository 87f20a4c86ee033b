# SPDX-License-Identifier: MIT
"""Tiny random models of many architectures, built from their configurations with a fixed seed.

Query and key weights are enlarged, so that maps are sharp: near-uniform attention would hide a lost mask.
`MapCount` counts the maps that are alive while one is captured.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnscope.capture import capture, edit

VOCABULARY = 97
SHARPEN = 6.0
_QUERY_KEY = ("q_proj", "k_proj", ".query.", ".key.", "q_lin", "k_lin", "query_proj", "key_proj")
_FUSED = ("query_key_value", "c_attn", "qkv", "Wqkv")


def _decoder(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 96,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }


def _encoder(**changes: Any) -> dict[str, Any]:
    return _decoder(num_key_value_heads=None, type_vocab_size=2, **changes)


#: A decoder smaller than those of the table, for tests whose maps need not be sharp.
SMALL_DECODER = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": 96,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 96,
    "d_kv": 24,
    "d_ff": 64,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 96,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_LAYERED = {"vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 32, "pad_token_id": 0}
_LAYERED |= {"num_hidden_layers": 3, "num_attention_heads": 4}
_LOCAL = ["sliding_attention", "full_attention", "sliding_attention"]
_SPECIAL_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
#: By family: class of the configuration, class of the model, what the configuration says.
FAMILY_CONFIGURATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _decoder()),
    "mistral": ("MistralConfig", "MistralForCausalLM", _decoder(sliding_window=7)),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", _decoder(**_EXPERTS)),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _decoder()),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", _decoder(head_dim=24)),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        _decoder(head_dim=24, sliding_window=7, num_hidden_layers=4),
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**_LAYERED, "num_key_value_heads": 2, "head_dim": 12, "sliding_window": 7, "layer_types": _LOCAL},
    ),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {**_LAYERED, "local_attention": 14, "global_attn_every_n_layers": 3, **_SPECIAL_TOKENS},
    ),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", _GPT),
    "gpt2_scaled": ("GPT2Config", "GPT2LMHeadModel", {**_GPT, "scale_attn_by_inverse_layer_idx": True}),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _decoder(num_key_value_heads=None)),
    "phi": ("PhiConfig", "PhiForCausalLM", _decoder()),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {**_decoder(), "ffn_dim": 64, "word_embed_proj_dim": 96},
    ),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", _decoder()),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        _decoder(head_dim=24, sliding_window=7, num_hidden_layers=2, **_EXPERTS),
    ),
    "falcon": ("FalconConfig", "FalconForCausalLM", {**_decoder(), "alibi": False}),
    "falcon_alibi": (
        "FalconConfig",
        "FalconForCausalLM",
        {**_decoder(), "alibi": True, "new_decoder_architecture": False, "multi_query": False},
    ),
    "bloom": ("BloomConfig", "BloomForCausalLM", {**_decoder(), "n_head": 4, "n_layer": 3}),
    "gptj": ("GPTJConfig", "GPTJForCausalLM", {**_GPT, "rotary_dim": 16}),
    "bert": ("BertConfig", "BertModel", _encoder()),
    "roberta": ("RobertaConfig", "RobertaModel", _encoder()),
    "albert": ("AlbertConfig", "AlbertModel", _encoder(embedding_size=32, num_hidden_layers=4)),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertModel",
        {
            "vocab_size": VOCABULARY,
            "dim": 96,
            "n_layers": 3,
            "n_heads": 4,
            "hidden_dim": 64,
            "pad_token_id": 0,
        },
    ),
    "deberta_v2": (
        "DebertaV2Config",
        "DebertaV2Model",
        _encoder(relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=16),
    ),
    "t5": ("T5Config", "T5ForConditionalGeneration", _T5),
    "bart": ("BartConfig", "BartForConditionalGeneration", _BART),
    "jamba": (
        "JambaConfig",
        "JambaForCausalLM",
        _decoder(
            num_hidden_layers=4,
            attn_layer_period=2,
            attn_layer_offset=1,
            mamba_d_state=4,
            mamba_dt_rank=4,
            use_mamba_kernels=False,
            num_experts=2,
        ),
    ),
    "mpt": (
        "MptConfig",
        "MptForCausalLM",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_heads": 4, "n_layers": 2},
    ),
    "openai_gpt": ("OpenAIGPTConfig", "OpenAIGPTLMHeadModel", {**_GPT, "n_embd": 32, "n_layer": 2}),
    "gpt_neo": (
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_heads": 4,
            "num_layers": 2,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 7,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "mamba": (
        "MambaConfig",
        "MambaForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 4,
            "pad_token_id": 0,
        },
    ),
}


#: What the queries of each layer see, by model: windows, and layers of different kinds.
LAYER_KINDS = {
    "llama": ["causal"] * 3,
    "mistral": ["window 7"] * 3,
    "gemma3": ["window 7", "causal", "window 7"],
    "modernbert": ["full", "window 7+7", "window 7+7"],
    "gpt_oss": ["window 7", "causal"],
    # modules that compute their attention themselves: one reads its mask the other way round, the others add
    # masks of their own to the one they are given
    "mpt": ["causal"] * 2,
    "openai_gpt": ["causal"] * 2,
    "gpt_neo": ["causal", "window 7"],
}

CAUSAL = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gpt2",
    "gpt2_scaled",
    "gpt_neox",
    "phi",
    "opt",
    "olmo2",
    "mixtral",
    "gpt_oss",
)
LEGACY = ("falcon", "falcon_alibi", "bloom", "gptj", "deberta_v2")
ENCODERS = ("bert", "roberta", "albert", "distilbert")
SEQ2SEQ = ("t5", "bart")
#: One of each kind: plain, capped and windowed, learned positions, fused and parallel, with a learned sink,
#: an encoder, both, a slope for each head, with state-space layers.
QUICK = ("llama", "gemma2", "gpt2", "gpt_neox", "gpt_oss", "bert", "t5", "bloom", "jamba")
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
INTERFACE = (*CAUSAL, *ENCODERS, *SEQ2SEQ)
FAMILIES = (*INTERFACE, *LEGACY)
#: Every family that capture is tested with, those with layers of several kinds too.
ALL_FAMILIES = (*FAMILIES, "gemma3", "modernbert", "jamba")
#: And those whose modules hide keys by masks of their own.
VISIBLE = (*ALL_FAMILIES, "mpt", "openai_gpt", "gpt_neo")
DECODERS = (*CAUSAL, "falcon", "falcon_alibi", "bloom", "gptj", "gemma3", "jamba")
#: Those whose attention goes through transformers' interface, GPT-J's in later ones.
SOFTMAX = (*INTERFACE, "gptj", "gemma3", "modernbert", "jamba")
#: By how their attention learns of positions: rotation at fixed frequencies, a slope for each head, not at
#: all, a table of learned positions. The others take no position ids.
ROTARY = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt_neox", "phi", "olmo2"),
    *("gpt_oss", "modernbert", "falcon", "gptj"),
)
SLOPES = ("falcon_alibi",)
WITHOUT_POSITIONS = ("jamba",)
LEARNED_POSITIONS = ("gpt2", "gpt2_scaled", "opt", *ENCODERS, "deberta_v2")


def few(names, quick=QUICK):
    """Names for a test that is quick for one family of each kind, and slow for the others."""
    import pytest

    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def _source(name: str) -> str:
    """Return the source of the module of transformers that a family is in."""
    import inspect

    return inspect.getsource(inspect.getmodule(type(tiny(name))))  # type: ignore[arg-type]


def needs_configuration(name: str) -> None:
    """Skip the test where this transformers has no such configuration."""
    import pytest
    import transformers

    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")


def has_attention_interface(name: str) -> bool:
    """Return True if this transformers lets the model's attention be replaced.

    T5's not before 5.13 or so, BERT's not before 5; before 5 GPT-2 does not tell an attention function its
    scale, so that a layer-wise one is eager attention's alone.
    """
    source = _source(name)
    has_scale = name != "gpt2_scaled" or "scaling=None" in source
    return "ALL_ATTENTION_FUNCTIONS" in source and has_scale


def eager_rounding(name: str) -> float:
    """Return how far eager maps may be from others by rounding: before transformers 5 GPT-2 divides by the
    root of the width, where others multiply by its inverse.
    """
    return 2e-6 if name.startswith("gpt2") and "attn_weights / torch.full(" in _source(name) else 0.0


def needs_attention_interface(name: str) -> None:
    """Skips the test where `has_attention_interface` says no."""
    import pytest
    import transformers

    if not has_attention_interface(name):
        pytest.skip(f"{name} has no attention interface in transformers {transformers.__version__}")


def tiny(
    name: str, *, implementation: str | None = None, seed: int = 0, sharpness: float = SHARPEN, **changes: Any
) -> Any:
    """A random model in evaluation mode.

    Args:
        name: a key of the table above.
        implementation: attention implementation to load it with; None leaves the default.
        seed: of the weights.
        sharpness: factor on what makes queries and keys.
        changes: of the configuration.
    """
    import transformers

    config_name, model_name, options = FAMILY_CONFIGURATIONS[name]
    needs_configuration(config_name)
    options = {key: value for key, value in {**options, **changes}.items() if value is not None}
    config = getattr(transformers, config_name)(**options)
    torch.manual_seed(seed)
    keywords = {} if implementation is None else {"attn_implementation": implementation}
    build: Callable[..., Any] = getattr(transformers, model_name)._from_config
    model = build(config, **keywords).eval()
    sharpen(model, sharpness)
    return model


@cache
def cached_model(name: str, implementation: str | None = None) -> Any:
    """The same random model for all tests of a process, which leave it as it was."""
    return tiny(name, implementation=implementation)


def sharpen(model: nn.Module, factor: float = SHARPEN) -> None:
    """Enlarges what makes queries and keys."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim != 2:
                continue
            dotted = f".{name}"
            if (
                any(part in dotted for part in _QUERY_KEY)
                or dotted.endswith((".q.weight", ".k.weight"))
                or any(part in dotted for part in _FUSED)
            ):
                parameter.mul_(factor)


def text(
    model: Any, *, padding: str = "none", batch: int = 2, n: int = 37, seed: int = 1
) -> dict[str, torch.Tensor]:
    """Random tokens; with padding, sample 1 has 9 padding tokens on the given side.

    Args:
        model: whose inputs they are; an encoder-decoder also gets decoder tokens.
        padding: ``none``, ``left`` or ``right``.
        batch: samples.
        n: tokens of each.
        seed: of the tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (batch, n), generator=generator)
    mask = torch.ones_like(ids)
    if padding == "left":
        ids[1:, :9], mask[1:, :9] = 0, 0
    elif padding == "right":
        ids[1:, -9:], mask[1:, -9:] = 0, 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (batch, 11), generator=generator)
    return inputs


def tiny_llama() -> nn.Module:
    """Two layers of four heads, 40 tokens of vocabulary."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    model: nn.Module = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=40)).eval()
    return model


class MapCount:
    """Counts the maps that are alive whenever one is allocated."""

    def __init__(self, monkeypatch):
        self.maps: list[weakref.ref[torch.Tensor]] = []
        self.most = 0
        original = torch.empty

        def empty(*size, **options):
            tensor = original(*size, **options)
            # results of metrics are tensors too, where torch is asked for them in Python
            if tensor.ndim == 4 and tensor.shape[-2] == tensor.shape[-1]:
                self.maps.append(weakref.ref(tensor))
                self.most = max(self.most, sum(ref() is not None for ref in self.maps))
            return tensor

        monkeypatch.setattr(torch, "empty", empty)

    @property
    def born(self):
        return len(self.maps)


def build_tokenizer(name, padding="left", **changes):
    """The model (of an encoder-decoder the encoder), computing as edits of its softmax do, and its inputs."""
    if name == "t5":
        needs_attention_interface(name)
    return with_inputs(tiny(name, implementation="eager", **changes), name, padding)


def kept_with_inputs(name, padding="left"):
    """The same of a model that other tests have too, and that stays as it is."""
    if name == "t5":
        needs_attention_interface(name)
    return with_inputs(cached_model(name, "eager"), name, padding)


def with_inputs(model, name, padding):
    if name in SEQ2SEQ:
        model = model.get_encoder()
    inputs = text(model, padding=padding)
    inputs.pop("decoder_input_ids", None)
    return model, inputs


def out(model, inputs):
    with torch.no_grad():
        return model(**inputs)[0]


def changed(model, inputs, *edits):
    with edit(model, *edits) as applied:
        result = out(model, inputs)
    assert all(edit.count > 0 for edit in applied)
    return result


def layers_of(model, inputs, sites, *edits):
    with edit(model, *edits), capture(model, sites=sites) as recording:
        return list(recording.run(**inputs))


def enlarged(model: str, config: str, options: dict[str, Any], factor: float = 3.0) -> Any:
    """A model of transformers by the names of its classes, whose matrices are all multiplied by a factor."""
    import pytest
    import transformers

    if not hasattr(transformers, model):
        pytest.skip(f"this transformers has no {model}")
    torch.manual_seed(0)
    instance = getattr(transformers, model)(getattr(transformers, config)(**options)).eval()
    with torch.no_grad():
        for parameter in instance.parameters():
            if parameter.ndim == 2:
                parameter.mul_(factor)
    return instance
