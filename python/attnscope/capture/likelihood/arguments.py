# SPDX-License-Identifier: MIT
"""Checks of texts, spans and contexts that the functions of likelihood share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope._checks import as_tensor
from attnscope._nearest import nearest
from attnscope.arguments.modules import module_argument
from attnscope.arguments.tokenizers import tokenizer_argument
from attnscope.models.head_rows import head_plan
from attnscope.models.inputs.context_length import table_length
from attnscope.models.inputs.forward_inputs import ForwardInputs
from attnscope.models.inputs.text_inputs import encode_text, read_inputs

CONTEXTS = ("auto", "left", "masked", "own")


class Texts(NamedTuple):
    """Texts of which likelihoods are asked for.

    Attributes:
        ids: [B, n] int64, on the CPU.
        real: which of them are tokens [B, n].
        extras: what the forward pass takes for the same texts.
    """

    ids: Tensor
    real: Tensor
    extras: ForwardInputs


def texts_argument(function: str, model: nn.Module, inputs: Any, tokenizer: Any) -> Texts:
    """Return texts padded on the right, with all that the model's forward pass takes for them.

    Args:
        function: whose name errors begin with.
        model: whose forward pass takes the inputs.
        inputs: a mapping with input_ids, or what `read_inputs` reads.
        tokenizer: for texts.
    """
    model = module_argument(function, model)
    tokenizer_argument(function, tokenizer)
    mapping = inputs if isinstance(inputs, Mapping) and "input_ids" in inputs else None
    if mapping is None:
        mapping = _encoded(function, inputs, tokenizer)
    pad_id = getattr(tokenizer, "pad_token_id", None) or 0
    extras = ForwardInputs.of(function, mapping, pad_id)
    extras = extras.only(model)
    ids, real = extras.tensors["input_ids"].detach().cpu().to(torch.int64), extras.real
    assert real is not None
    longest = table_length(model)
    if longest is not None and ids.shape[1] > longest:
        raise ValueError(
            f"{function}: texts of {ids.shape[1]} tokens are longer than the {longest} positions of "
            f"{type(model).__name__}"
        )
    if not bool(real.any(1).all()):
        raise ValueError(f"{function}: text {int((~real.any(1)).int().argmax())} has no token")
    if bool((real[:, 1:] & ~real[:, :-1]).any()):
        row = int((real[:, 1:] & ~real[:, :-1]).any(1).int().argmax())
        raise ValueError(
            f"{function}: texts must be padded on the right, got padding before a token in text {row}"
        )
    if extras.size > 1 and not extras.is_divisible:
        _ = [extras.texts_axis(name) for name in extras.tensors]  # names the tensor
        raise ValueError(f"{function}: {', '.join(extras.others)} cannot go with single texts")
    return Texts(ids, real, extras)


def _encoded(function: str, inputs: Any, tokenizer: Any) -> dict[str, list[Any]]:
    """Return texts of any kind as lists of what a tokenizer gives for each."""
    rows: list[Mapping[str, Any]] = []
    for place, entry in enumerate(read_inputs(function, inputs)):
        if isinstance(entry, list):
            rows.append({"input_ids": [entry]})
        elif isinstance(entry, Mapping):
            rows += _rows_of(function, place, entry)
        elif tokenizer is None:
            raise ValueError(f"{function}: input {place} is a text, which needs tokenizer=...")
        else:
            rows.append(encode_text(function, entry, tokenizer, None))
    return {name: [row[name][0] for row in rows] for name in rows[0] if all(name in row for row in rows)}


def _rows_of(function: str, place: int, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the texts of a mapping, each as a batch of one without padding.

    Raises:
        TypeError: a mapping without ids, or of more than ids and their mask.
    """
    group = ForwardInputs.of(function, entry)
    if not group.is_plain:
        raise TypeError(
            f"{function}: input {place} of several must be token ids and their mask, got a mapping of "
            f"{', '.join(map(str, entry))}; hand over one mapping of all texts"
        )
    return [{"input_ids": [ids]} for ids in group.ids or ()]


def spans_argument(function: str, spans: Any, real: Tensor) -> Tensor:
    """Return spans [B, 2] int64 inside the texts; (−1, −1) means that a text has no word."""
    tensor = as_tensor(function, "spans", spans)
    if tensor.is_floating_point() or tensor.dtype == torch.bool or tensor.is_complex():
        raise ValueError(f"{function}: spans must be integers, got {tensor.dtype}")
    if tuple(tensor.shape) != (len(real), 2):
        raise ValueError(f"{function}: spans must have shape {(len(real), 2)}, got {tuple(tensor.shape)}")
    tensor = tensor.cpu().to(torch.int64)
    lengths = real.sum(1)
    for row, (start, stop) in enumerate(tensor.tolist()):
        if (start, stop) != (-1, -1) and not 0 <= start < stop <= lengths[row]:
            raise ValueError(
                f"{function}: spans must hold 0 <= start < stop <= {int(lengths[row])}, the tokens of text "
                f"{row}, or (-1, -1), got ({start}, {stop})"
            )
    return tensor


def context_argument(function: str, context: Any, model: nn.Module, tokenizer: Any) -> tuple[str, int]:
    """Return the context that q conditions on for this model, and the id of the mask token (−1 where none is
    needed).
    """
    if context not in CONTEXTS:
        raise ValueError(f"{function}: unknown context {context!r}{nearest(str(context), CONTEXTS)}")
    causal = head_plan(model, function).causal
    name = type(model).__name__
    chosen = ("left" if causal else "masked") if context == "auto" else str(context)
    if causal and chosen != "left":
        raise ValueError(
            f"{function}: context must be 'left' for a causal model such as {name}, got {context!r}"
        )
    if not causal and chosen == "left":
        raise ValueError(
            f"{function}: context must be 'masked' or 'own' for a masked-language model such as {name}, "
            f"got {context!r}"
        )
    if chosen != "masked":
        return chosen, -1
    mask_id = getattr(tokenizer, "mask_token_id", None)
    if mask_id is None:
        holder = "no tokenizer" if tokenizer is None else f"{type(tokenizer).__name__} without one"
        raise ValueError(f"{function}: context 'masked' needs a tokenizer with a mask token, got {holder}")
    return chosen, int(mask_id)
