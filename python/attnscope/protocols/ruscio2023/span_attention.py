# SPDX-License-Identifier: MIT
"""Mean attention inside a word, and outside."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _calls, _checks
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape


@shown_by_shape
class SpanAttention(NamedTuple):
    """Mean entries of a map, each [...] float64; NaN for a map without a word, and
    for one that is not finite, with one warning.

    Attributes:
        mean: of all; 1/n for every map of n tokens whose rows sum to 1.
        inner: of the block of the word's m tokens.
        outer: of all entries outside that block, (n − m²·inner)/(n² − m²) where rows sum to 1: no
            information of its own. NaN where the word is the whole text.
    """

    mean: Tensor
    inner: Tensor
    outer: Tensor


@without_derivative("it is the published code's number, made for comparing")
def span_attention(attention: Any, spans: Any, *, lengths: _checks.Lengths = None) -> SpanAttention:
    """Mean of a map, of the block of a word, and of the rest.

    Differs from the exact `span_attention`, which sums over a word's keys: the mean over m keys falls with
    m, and under uniform attention it is 1/n, which varies with the text.

    Args:
        attention: head means [..., n, n].
        spans: first token of the word and one past its last [..., 2]; (−1, −1) for none.
        lengths: tokens per map, broadcast against the leading axes.

    Raises:
        ValueError: not square, empty, wrong dtype, lengths outside 1..n, spans that do not broadcast.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2023
        >>> result = ruscio2023.span_attention(torch.eye(4), [1, 3])
        >>> result.mean.item(), result.inner.item(), round(result.outer.item(), 9)
        (0.25, 0.5, 0.166666667)
    """
    name = "span_attention"
    checked = _checks.attention_argument(name, attention, lengths)
    span = _checks.as_tensor(name, "spans", spans)
    try:
        span = span.expand(*checked.leading, 2)
    except RuntimeError:
        raise ValueError(
            f"{name}: spans of shape {tuple(span.shape)} do not broadcast to {(*checked.leading, 2)}"
        ) from None
    start, stop = span[..., :1], span[..., 1:]
    column = torch.arange(checked.n, device="cpu")
    n = torch.full_like(start, checked.n)[..., 0] if checked.lengths is None else checked.lengths
    within = column < n[..., None]
    word = within & (column >= start) & (column < stop)
    is_real, is_block = (chosen[..., None, :] & chosen[..., :, None] for chosen in (within, word))
    # behind a map's length anything may stand
    maps = torch.where(is_real, checked.tensor.double(), 0.0)
    bad = ~maps.isfinite().all(-1).all(-1)
    total, block = maps.sum((-2, -1)), torch.where(is_block, maps, 0.0).sum((-2, -1))
    m = word.sum(-1)
    is_defined = (start[..., 0] >= 0) & ~bad
    numbers = (total / n**2, block / m**2, (total - block) / (n**2 - m**2))
    result = SpanAttention(*(torch.where(is_defined, values, torch.nan) for values in numbers))
    return _calls.warn_non_finite(name, checked, result, int(bad.sum()))
