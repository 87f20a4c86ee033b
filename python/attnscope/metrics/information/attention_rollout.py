# SPDX-License-Identifier: MIT
"""Attention multiplied through the layers, half of each layer passed by: attention rollout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from attnscope import _calls, _checks
from attnscope._memory import memory_errors
from attnscope.arguments.host_copies import row_major


@memory_errors("attention_rollout")
def attention_rollout(
    layers: Iterable[Tensor], *, precision: _checks.Precision = "exact", lengths: _checks.Lengths = None
) -> Tensor:
    """Return how much of each token of the input is in each token behind the last layer.

    R_l = ½(Ā_l + I) R_{l−1} from R_0 = I, with the mean Ā_l over heads. One layer is in memory at a time.
    The mass of a learned sink is lost, so rows may sum to less than 1; the original renormalises.

    Args:
        layers: all heads of each layer [..., h, n, n], in the order of the layers: a list, or layers of a
            recording as they come.
        precision: "fast" gives the exact value: an entry of a product of n terms in float32 is
            not certain to 1e-5 for long texts.
        lengths: tokens per text, broadcast against the axes before the heads.

    Returns:
        [..., n, n] float64, rows are tokens behind the last layer; NaN where a map is not finite, and behind
        a text's length.

    Raises:
        ValueError: no layer, layers of different sizes, and as `head_divergence`.

    Example:
        All tokens attend to the first: after l layers 1 − 2^(−l) of each is the first.

        >>> import torch, attnscope as asc
        >>> star = torch.zeros(1, 3, 3); star[..., 0] = 1
        >>> asc.attention_rollout([star, star])[2].tolist()
        [0.75, 0.0, 0.25]

    References:
        Abnar and Zuidema, Quantifying attention flow in transformers, 2020.
    """
    name = "attention_rollout"
    _checks.precision_argument(name, precision)
    rollout: Tensor | None = None
    if not isinstance(layers, Iterable) or isinstance(layers, (str, Mapping)):
        raise TypeError(f"{name}: layers must be maps of each layer, got {type(layers).__name__}")
    if isinstance(layers, Tensor) and layers.ndim < 4:
        raise ValueError(f"{name}: layers must be [L, h, n, n] or more, got shape {tuple(layers.shape)}")
    for number, heads in enumerate(layers):
        checked = _checks.heads_argument(name, heads, lengths)
        maps = row_major(_checks.entries_argument(name, checked, detach=False)).double().mean(-3)
        if rollout is None:
            inside = checked.layers.inside() if checked.lengths is None else checked.inside()[..., 0, :]
            rollout = torch.eye(checked.n, dtype=torch.float64, device="cpu").expand(maps.shape)
            has_non_finite = torch.zeros(rollout.shape[:-2], dtype=torch.bool, device="cpu")
            visible = inside[..., :, None] & inside[..., None, :]
        if maps.shape != rollout.shape:
            raise ValueError(
                f"{name}: layers must be of one size, got shape {tuple(maps.shape)} of layer {number} behind "
                f"{tuple(rollout.shape)}"
            )
        # products with NaN would spoil the gradients of other heads, and a text ends at its length
        has_non_finite = has_non_finite | (~maps.isfinite() & visible).flatten(-2).any(-1)
        rollout = (torch.where(maps.isfinite() & visible, maps, 0.0) @ rollout + rollout) / 2
    if rollout is None:
        raise ValueError(f"{name}: layers must hold at least one layer, got none")
    _calls.warn_non_finite_parts(name, has_non_finite.detach(), "texts")
    return torch.where(visible & ~has_non_finite[..., None, None], rollout, torch.nan)
