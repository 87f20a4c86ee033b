# SPDX-License-Identifier: MIT
"""The settings of a generation that decide which rows of its steps are those of the written text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from attnscope.capture.module_tracing import CACHE
from attnscope.models.architecture import name_pattern
from attnscope.models.inputs.generation_options import (
    first_attribute,
    generation_option,
    is_before_transformers_5,
)
from attnscope.models.inputs.prompt_learning import VirtualTokens, virtual_tokens

#: Options by which a model guesses several tokens at once and takes back those that it would not write.
_GUESSES = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")
_NO_TOKENS = VirtualTokens(0, True)


@dataclass(frozen=True)
class GenerationSettings:
    """The settings of one generation.

    Attributes:
        beams: that are followed at once.
        is_dictionary: what `generate` returns holds more than tokens.
        prompt_tokens: queries of each prompt, padding among them; 0 where they are those of the first step.
        has_encoder: the prompt is read by an encoder.
        decoder: pattern of the name of the module that writes; "" for the whole model.
        detour: what makes the model compute rows that are no part of the text, in words; "" for nothing.
        virtual: tokens that the model has learned to read before each text.
    """

    beams: int = 1
    is_dictionary: bool = False
    prompt_tokens: int = 0
    has_encoder: bool = False
    decoder: str = ""
    detour: str = ""
    virtual: VirtualTokens = _NO_TOKENS

    @classmethod
    def of(cls, model: nn.Module, inputs: Mapping[str, Any]) -> GenerationSettings:
        """Return the settings of ``model.generate(**inputs)``."""
        setting = partial(generation_option, model, inputs)
        has_encoder = bool(getattr(first_attribute(model, "config"), "is_encoder_decoder", False))
        guess = next((name for name in _GUESSES if setting(name)), "")
        detour = f"{guess} guesses tokens and takes some back" if guess else ""
        if not detour and (setting("guidance_scale") or 1) != 1:
            detour = "guidance_scale runs the model a second time in each step"
        if not detour and setting("prefill_chunk_size") and _reads_cached_tokens(inputs):
            detour = "a prompt in pieces (prefill_chunk_size) reads the tokens of its filled cache again"
        return cls(
            int(setting("num_beams") or 1),
            bool(setting("return_dict_in_generate")),
            0 if has_encoder else _prompt_queries(inputs),
            has_encoder,
            _name_of_decoder(model),
            detour,
            virtual_tokens(model),
        )

    def writes(self, stack: str) -> bool:
        """Return True for attention modules of the part of the model that writes."""
        return not self.decoder or stack.startswith(f"{self.decoder}.")


def _name_of_decoder(model: nn.Module) -> str:
    """Return the pattern of the decoder's name; "" where the model does not say which of its parts it is."""
    for module in model.modules():
        lookup: Any = getattr(module, "get_decoder", None)
        if callable(lookup):
            decoder: Any = lookup()
            if isinstance(decoder, nn.Module) and not any(decoder.children()):
                continue  # a vocabulary head of that name (ModernBERT)
            return next((name_pattern(name) for name, part in model.named_modules() if part is decoder), "")
    return ""


def _filled_tokens(inputs: Mapping[str, Any]) -> int:
    """Return the tokens of the cache that a generation is given; 0 without one."""
    caches: list[Any] = [inputs[name] for name in CACHE if hasattr(inputs.get(name), "get_seq_length")]
    return int(next((cache.get_seq_length() for cache in caches), 0))


def _reads_cached_tokens(inputs: Mapping[str, Any]) -> bool:
    """Return True where a prompt in pieces is read from its first token, whatever its cache holds.

    transformers 4 does so, and its queries then see other tokens than those before them.
    """
    return is_before_transformers_5() and _filled_tokens(inputs) > 0


def _prompt_queries(inputs: Mapping[str, Any]) -> int:
    """Return the queries of a decoder's prompt: tokens that a cache holds already are none.

    A prompt that is as long as its mask begins with the tokens of the cache; a shorter one goes on with them.
    """
    prompts = (inputs.get(name) for name in ("input_ids", "inputs", "inputs_embeds"))
    sizes = (prompt.shape[1] for prompt in prompts if isinstance(prompt, Tensor) and prompt.ndim > 1)
    tokens = next(sizes, 0)
    mask = inputs.get("attention_mask")
    if mask is None or mask.shape[1] == tokens:
        return max(0, tokens - _filled_tokens(inputs))
    return tokens
