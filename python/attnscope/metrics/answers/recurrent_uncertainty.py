# SPDX-License-Identifier: MIT
"""Confidence in an answer's tokens, carried on along the attention to the token before: RAUQ."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _calls, _checks
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.metrics._named import shown_by_shape


@shown_by_shape
class RecurrentUncertainty(NamedTuple):
    """The uncertainty of answers.

    Attributes:
        value: the largest over layers, [...] float64, at least 0; NaN for an answer of no token.
        layers: of each layer, [..., L]: −mean_t ln c_t.
        head: the head of each layer that was taken, [..., L] int64; −1 for an answer of no token.
    """

    value: Tensor
    layers: Tensor
    head: Tensor


@memory_errors("recurrent_uncertainty")
def recurrent_uncertainty(
    previous: Tensor, log_p: Tensor, *, weight: float = 0.2, lengths: _checks.Lengths = None
) -> RecurrentUncertainty:
    """Return the uncertainty of answers from likelihoods and the attention to the token before.

    Each layer gives the head with the largest mean a_t over the answer; c_0 = p_0,
    c_t = weight·p_t + (1 − weight)·a_t·c_{t−1}, and the value is the largest over layers of −mean_t ln c_t.

    Args:
        previous: a_t = A_{t,t−1} of each answer token, [..., L, h, T]; entry 0 does not count. lm-polygraph
            takes the diagonal A_qq of the predicting row, which can be passed as well.
        log_p: log-likelihoods of the answer's tokens [..., T], as `token_likelihood` gives them.
        weight: of the token's own likelihood, in [0, 1].
        lengths: answer tokens of each text.

    Returns:
        RecurrentUncertainty; infinite where c_t vanishes. NaN, and head -1, of a layer whose entries are not
        finite, and of a text with such a likelihood, with one warning.

    Raises:
        ValueError: tensors of other shapes, log-likelihoods above 0, a weight outside [0, 1].

    Example:
        Two sure tokens with full attention to the token before are certain.

        >>> import torch, attnscope as asc
        >>> asc.recurrent_uncertainty(torch.ones(1, 1, 2), torch.zeros(2)).value.item()
        0.0
        >>> found = asc.recurrent_uncertainty(torch.zeros(1, 1, 2), torch.zeros(2), weight=0.5)
        >>> round(found.value.item(), 6)  # c = 1, 1/2
        0.346574

    References:
        Vazhentsev et al., Uncertainty-aware attention heads, arXiv 2505.20045, 2025.
    """
    name = "recurrent_uncertainty"
    attention = _checks.float_tensor(name, "previous", previous).cpu().double()
    likelihood = _checks.float_tensor(name, "log_p", log_p).cpu().double()
    share = scalars.between(name, "weight", weight, 0, 1)
    if attention.ndim < 3 or likelihood.ndim < 1 or 0 in attention.shape[-3:-1]:
        raise ValueError(f"{name}: previous must be [..., L, h, T], got shape {tuple(attention.shape)}")
    leading, size = tuple(attention.shape[:-3]), attention.shape[-1]
    likelihood = _checks.expanded(f"{name}: log_p", likelihood, (*leading, size))
    ends = torch.full(leading, size, device="cpu")
    if lengths is not None and size:
        ends = _lengths(name, lengths, leading, size)
    inside = torch.arange(size, device="cpu") < ends[..., None]
    if bool((inside & (likelihood > 1e-6)).any()):
        worst = likelihood[inside & (likelihood > 1e-6)][0].item()
        raise ValueError(f"{name}: log_p must be logarithms of likelihoods, at most 0, got {worst}")
    follows = inside.clone()
    follows[..., :1] = False
    is_non_finite = (follows[..., None, None, :] & ~attention.detach().isfinite()).any(-1).any(-1)
    is_non_finite = is_non_finite | (inside & likelihood.detach().isnan()).any(-1, keepdim=True)
    _calls.warn_non_finite_parts(name, is_non_finite.any(-1), "texts")
    # what does not count may be NaN, and so would be the gradient of all that it is multiplied by
    counted = follows[..., None, None, :] & ~is_non_finite[..., None, None]
    attention = torch.where(counted, attention, 0.0)
    likelihood = torch.where(inside & ~likelihood.detach().isnan(), likelihood, 0.0)
    head = attention.sum(-1).argmax(-1)
    chosen_head = attention.gather(-2, head[..., None, None].expand(*head.shape, 1, size)).squeeze(-2)
    total = torch.zeros(head.shape, dtype=torch.float64, device="cpu")
    log_confidence = total
    for t in range(size):
        log_p_of_token = likelihood[..., None, t].expand(head.shape)
        counts = inside[..., None, t]
        if t:
            # what does not count would have a gradient of NaN
            carry = torch.where(counts, chosen_head[..., t], 1.0)
            log_confidence = _log_confidence(share, log_p_of_token, carry, log_confidence)
        else:
            log_confidence = log_p_of_token
        total = total - torch.where(counts, log_confidence, 0.0)
    # undefined layers are set to NaN at the end: the largest of numbers with NaN has a gradient of NaN
    layers = total / ends.clamp(min=1)[..., None]
    value = layers.amax(-1) if layers.shape[-1] else torch.full(leading, torch.nan, device="cpu")
    defined = ends > 0
    defined_layers = defined[..., None] & ~is_non_finite
    return RecurrentUncertainty(
        torch.where(defined & ~is_non_finite.any(-1), value, torch.nan),
        torch.where(defined_layers, layers, torch.nan),
        torch.where(defined_layers, head, -1),
    )


def _log_confidence(weight: float, log_p: Tensor, carry: Tensor, log_confidence: Tensor) -> Tensor:
    """Return ln(weight·p + (1 − weight)·carry·c), where p and c may underflow to 0.

    Both are divided by the larger of those that take part.

    Args:
        weight: of p.
        log_p: ln p.
        carry: attention to the token before.
        log_confidence: ln c of the token before.
    """
    is_carried = (carry > 0) & (weight < 1)
    of_token = log_p if weight > 0 else torch.full_like(log_p, -torch.inf)
    largest = torch.where(is_carried, torch.maximum(of_token, log_confidence), of_token).detach()
    largest = torch.where(largest.isfinite(), largest, 0.0)
    # beyond e^700 stands only what attention of 0 is multiplied by
    scaled = (log_confidence - largest).clamp(max=700.0).exp()
    return largest + (weight * (log_p - largest).clamp(max=700.0).exp() + (1 - weight) * carry * scaled).log()


def _lengths(function: str, lengths: Any, leading: tuple[int, ...], size: int) -> Tensor:
    """Return the number of answer tokens of each text, 0 allowed."""
    values = _checks.as_tensor(function, "lengths", lengths).detach().cpu()
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"{function}: lengths must be integers, got {values.dtype}")
    if len(outside := values[(values < 0) | (values > size)]):
        raise ValueError(f"{function}: lengths must lie between 0 and {size}, got {outside[0]}")
    return _checks.expanded(f"{function}: lengths", values.long(), leading)
