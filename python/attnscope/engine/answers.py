# SPDX-License-Identifier: MIT
"""Texts with the answers that a model writes to them, to be read again in one pass.

Every prompt is generated from by itself, without padding, so that its answer does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attnscope.engine.prepared import PreparedTexts
from attnscope.models import Encoded
from attnscope.models.architecture import input_device
from attnscope.models.inputs.prompt_learning import virtual_tokens
from attnscope.study_api.units import Input

#: Options of `generate` that analysis sets itself.
_SET_HERE = ("input_ids", "inputs", "attention_mask", "return_dict_in_generate", "output_attentions")


def append_answers(
    function: str, model: Any, texts: PreparedTexts, options: Mapping[str, Any]
) -> PreparedTexts:
    """Return the texts with what the model writes behind each of them.

    Args:
        function: whose name errors begin with.
        model: of transformers, a decoder.
        texts: the prompts, token ids alone.
        options: of the model's `generate`. Several sequences per prompt become further texts.

    Returns:
        New texts, numbered from 0; `answer_starts` holds the number of tokens of each one's prompt. An answer
        ends with its end-of-sequence token.

    Raises:
        ValueError: a model that does not generate, or writes into a decoder, inputs besides tokens, an option
            that is set here.
    """
    if not callable(getattr(model, "generate", None)):
        raise ValueError(f"{function}: generate needs a model that generates, got {type(model).__name__}")
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(
            f"{function}: the answer of {type(model).__name__}, an encoder-decoder, is in its decoder; give "
            "inputs with decoder_input_ids instead of generate"
        )
    if texts.groups:
        raise ValueError(
            f"{function}: generate takes texts or token ids, got inputs with {', '.join(texts.names)} too"
        )
    if virtual_tokens(model).number:
        raise ValueError(f"{function}: generate with virtual tokens before each text is not measured")
    if reserved := [name for name in _SET_HERE if name in options]:
        raise ValueError(f"{function}: generate sets {reserved[0]!r} itself, leave it out")
    inputs: list[Input] = []
    starts: dict[int, int] = {}
    ends = _end_tokens(model, options)
    settings = {"pad_token_id": texts.encoder.pad_id, **options}
    for prompt in texts.inputs:
        ids = torch.as_tensor(prompt.encoded.ids, dtype=torch.long, device=input_device(model))[None]
        with torch.no_grad():
            sequences = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)
        for sequence in sequences.tolist():
            sample, start = len(inputs), ids.shape[1]
            tokens = sequence[:start] + _until_end(sequence[start:], ends)
            sentence = replace(prompt.sentence, sample=sample)
            encoded = Encoded(
                np.asarray(tokens, dtype=np.int32), prompt.encoded.truncated, prompt.encoded.starts_with_bos
            )
            inputs.append(Input(sentence, encoded))
            starts[sample] = start
    return replace(texts, inputs=inputs, plain=range(len(inputs)), answer_starts=starts)


def _end_tokens(model: Any, options: Mapping[str, Any]) -> set[int]:
    """Return the ids at which an answer ends."""
    settings = options.get("generation_config", getattr(model, "generation_config", None))
    ends = options.get("eos_token_id", getattr(settings, "eos_token_id", None))
    if ends is None:
        return set()
    return {int(end) for end in (ends if isinstance(ends, (list, tuple)) else [ends])}


def _until_end(answer: list[int], ends: set[int]) -> list[int]:
    """Return an answer up to its first end token; behind it there is padding.

    >>> _until_end([5, 6, 2, 0, 0], {2})
    [5, 6, 2]
    """
    stop = next((place + 1 for place, token in enumerate(answer) if token in ends), len(answer))
    return answer[:stop]
