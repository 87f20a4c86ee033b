# SPDX-License-Identifier: MIT
"""Checks of texts, spans and contexts that the functions of likelihood share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnscope._nearest import nearest
from attnscope.models.head_rows import head_plan

CONTEXTS = ("auto", "left", "masked", "own")


def texts_argument(function: str, inputs: Any) -> tuple[Tensor, Tensor]:
    """input_ids [B, n] int64 and the mask of real tokens [B, n], both on the CPU."""
    if not isinstance(inputs, Mapping) or not torch.is_tensor(inputs.get("input_ids")):
        raise TypeError(
            f"{function}: inputs must be a mapping with a tensor input_ids, got {type(inputs).__name__}"
        )
    ids = inputs["input_ids"]
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(f"{function}: input_ids must have shape [B, n], got {tuple(ids.shape)}")
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"{function}: input_ids must be integers, got {ids.dtype}")
    ids = ids.detach().cpu().to(torch.int64)
    mask = inputs.get("attention_mask")
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else torch.as_tensor(mask).cpu().bool()
    if real.shape != ids.shape:
        raise ValueError(
            f"{function}: attention_mask must have the shape of input_ids, {tuple(ids.shape)}, "
            f"got {tuple(real.shape)}"
        )
    if not bool(real.any(1).all()):
        raise ValueError(f"{function}: text {int((~real.any(1)).int().argmax())} has no token")
    if bool((real[:, 1:] & ~real[:, :-1]).any()):
        row = int((real[:, 1:] & ~real[:, :-1]).any(1).int().argmax())
        raise ValueError(
            f"{function}: texts must be padded on the right, got padding before a token in text {row}"
        )
    return ids, real


def spans_argument(function: str, spans: Any, real: Tensor) -> Tensor:
    """Spans [B, 2] int64 inside the texts; (−1, −1) says that a text has no word."""
    tensor = torch.as_tensor(spans)
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
    """What q conditions on for this model, and the id of the mask token (−1 where none is needed)."""
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
        given = "no tokenizer" if tokenizer is None else f"{type(tokenizer).__name__} without one"
        raise ValueError(f"{function}: context 'masked' needs a tokenizer with a mask token, got {given}")
    return chosen, int(mask_id)
