# SPDX-License-Identifier: MIT
"""The answer that a decoder writes behind a prompt, up to its end token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attnscope._evaluation import evaluating
from attnscope.models.architecture import input_device
from attnscope.models.inputs.generation_options import generation_option
from attnscope.models.inputs.prompt_learning import virtual_tokens

#: Options of `generate` that the caller sets itself.
_SET_HERE = ("input_ids", "inputs", "attention_mask", "return_dict_in_generate", "output_attentions")
#: Options that end a text without an end token.
_STOPS = ("stop_strings", "stopping_criteria")


def check_generation(function: str, model: Any, options: Mapping[str, Any]) -> None:
    """Raise ValueError where a model does not write behind its prompt, or for an option that is set here.

    Args:
        function: whose name the error begins with.
        model: of transformers.
        options: of the model's `generate`.
    """
    name = type(model).__name__
    if not isinstance(options, Mapping):
        raise ValueError(f"{function}: generate must be a mapping of options, got {options!r:.60}")
    if not callable(getattr(model, "generate", None)):
        raise ValueError(f"{function}: generate needs a model that generates, got {name}")
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(
            f"{function}: the answer of {name}, an encoder-decoder, is in its decoder; give "
            "inputs with decoder_input_ids instead of generate"
        )
    if virtual_tokens(model).number:
        raise ValueError(f"{function}: generate with virtual tokens before each text is not measured")
    if reserved := [option for option in _SET_HERE if option in options]:
        raise ValueError(f"{function}: generate sets {reserved[0]!r} itself, leave it out")


def write_answers(
    model: Any, prompt: Sequence[int], options: Mapping[str, Any], pad_id: int
) -> list[list[int]]:
    """Return the tokens of a prompt and its answer, once for every sequence that the model returns.

    Args:
        model: as `check_generation` accepts it.
        prompt: token ids.
        options: of the model's `generate`.
        pad_id: stands behind sequences that end before others.
    """
    ids = torch.as_tensor(prompt, dtype=torch.long, device=input_device(model))[None]
    settings = {"pad_token_id": pad_id, **options}
    with torch.no_grad(), evaluating(model):
        written = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)
    sequences = getattr(written, "sequences", written)  # the model's configuration may ask for more
    start, ends = ids.shape[1], _end_tokens(model, options)
    answers = [_until_end(tokens[start:], ends) for tokens in sequences.tolist()]
    if any(generation_option(model, options, name) for name in _STOPS):
        answers = [_without_padding(answer, settings["pad_token_id"]) for answer in answers]
    return [ids[0].tolist() + answer for answer in answers]


def _end_tokens(model: Any, options: Mapping[str, Any]) -> set[int]:
    """Return the ids at which an answer ends."""
    ends = generation_option(model, options, "eos_token_id")
    if ends is None:
        return set()
    return {int(end) for end in np.ravel(np.asarray(ends))}


def _without_padding(answer: list[int], pad_id: int | None) -> list[int]:
    """Return an answer without the padding behind it, which follows a text that its words ended.

    >>> _without_padding([5, 6, 0, 0], 0), _without_padding([0, 5], 0)
    ([5, 6], [0, 5])
    """
    count = len(answer)
    while count and answer[count - 1] == pad_id:
        count -= 1
    return answer[:count]


def _until_end(answer: list[int], ends: set[int]) -> list[int]:
    """Return an answer up to its first end token; behind it there is padding.

    >>> _until_end([5, 6, 2, 0, 0], {2})
    [5, 6, 2]
    """
    stop = next((place + 1 for place, token in enumerate(answer) if token in ends), len(answer))
    return answer[:stop]
