# SPDX-License-Identifier: MIT
"""The notebook's bands of rotary frequencies."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope import _checks
from attnscope.gradients.dispatch import without_derivative

FIRST_ROW = 5
CLAMP = 1e-12


def band_members(d: int, bands: int = 10) -> list[Tensor]:
    """Dimensions of each band: pairs are (2p, 2p + 1), round(P/bands) of them each, the rest in the last.

    Llama and its kin pair p with p + d/2, so there a band mixes halves of pairs and its scores are no
    function of the offset. Four pairs are all in the last of ten bands.
    """
    pairs = torch.arange(d // 2, device="cpu")
    pairs_per_band = round(len(pairs) / bands)
    parts = [pairs[band * pairs_per_band : (band + 1) * pairs_per_band] for band in range(bands - 1)] + [
        pairs[(bands - 1) * pairs_per_band :]
    ]
    return [torch.stack([2 * band, 2 * band + 1], -1).flatten() for band in parts]


@without_derivative("it is the published code's number, made for comparing")
def band_shares(query: Tensor, key: Tensor, *, bands: int = 10) -> Tensor:
    """‖Q_b K_bᵀ‖_F over the sum of these norms.

    Differs from the exact `rope_bands`: the pairs of `band_members` for any layout of the model; the whole
    square with keys behind the query; a share of norms, which does not show how bands add up to the
    scores.

    Args:
        query: behind the rotation, [..., n, d].
        key: likewise.
        bands: number of bands.

    Returns:
        [..., bands] float64, each row summing to 1; 0 for a band without pairs.

    Raises:
        ValueError: queries and keys of different shapes.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025once
        >>> ruscio2025once.band_shares(torch.ones(3, 8), torch.ones(3, 8)).tolist()[-1]
        1.0

    References:
        Ruscio, Once upon a token, 2025: frequency bands.
    """
    q, k = _heads("band_shares", query, key)
    norms = torch.stack(
        [
            (q[..., dimensions] @ k[..., dimensions].mT).norm(dim=(-2, -1))
            for dimensions in band_members(q.shape[-1], bands)
        ],
        -1,
    )
    return norms / norms.sum(-1, keepdim=True)


@without_derivative("it is the published code's number, made for comparing")
def band_ablation(query: Tensor, key: Tensor, *, bands: int = 10) -> Tensor:
    """Mean KL(P ‖ P_b) of attention with a band's dimensions zeroed.

    Differs from the exact `rope_bands`: the pairs of `band_members`; rows from 5 on; probabilities are
    clamped at 1e-12 inside the logarithms; scores are q·k/√d, without the model's scaling and softcap.

    Args:
        query: behind the rotation, [..., n, d].
        key: likewise.
        bands: number of bands.

    Returns:
        [..., bands] float64 in nats; NaN for fewer than six tokens.

    Raises:
        ValueError: queries and keys of different shapes.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025once
        >>> ruscio2025once.band_ablation(torch.ones(7, 8), torch.ones(7, 8)).abs().max().item()
        0.0

    References:
        Ruscio, Once upon a token, 2025: ablation of frequency bands.
    """
    q, k = _heads("band_ablation", query, key)
    full_attention = _attention(q, k)
    divergences = []
    for dimensions in band_members(q.shape[-1], bands):
        without = q.clone()
        without[..., dimensions] = 0
        other = _attention(without, k)
        logs = full_attention.clamp_min(CLAMP).log() - other.clamp_min(CLAMP).log()
        divergences.append((full_attention * logs).sum(-1)[..., FIRST_ROW:].mean(-1))
    return torch.stack(divergences, -1)


def _attention(query: Tensor, key: Tensor) -> Tensor:
    scores = query @ key.mT / query.shape[-1] ** 0.5
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cpu").tril()
    return torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)


def _heads(function: str, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    q, k = (
        _checks.float_tensor(function, name, value).double().cpu()
        for name, value in (("query", query), ("key", key))
    )
    if q.ndim < 2 or q.shape != k.shape:
        raise ValueError(
            f"{function}: query and key must have one shape [..., n, d], got {tuple(q.shape)} and "
            f"{tuple(k.shape)}"
        )
    return q, k
