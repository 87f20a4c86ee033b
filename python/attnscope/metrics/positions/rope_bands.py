# SPDX-License-Identifier: MIT
"""The contribution of each band of rotary frequencies to a head's scores."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from attnscope import _calls, _checks
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.arguments.host_copies import row_major
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.positions.toeplitz import offset_variance

Layout = Literal["half", "interleaved"]


@shown_by_shape
class RopeBands(NamedTuple):
    """By band, from the highest frequencies to the lowest; dimensions without rotation are a last one.

    Attributes:
        share: Cov(s^b, s)/Var(s) over the visible pairs; the shares sum to 1 and may be negative.
        norm_share: ‖s^b‖ over the sum of these norms, over the same pairs.
        kl: mean over queries i >= 1 of KL(P_i ‖ P_i without the band), nats.
        tv: the same of their total variation.
    """

    share: Tensor
    norm_share: Tensor
    kl: Tensor
    tv: Tensor


@memory_errors("rope_bands")
@without_derivative("it is made for reading")
def rope_bands(
    query: Tensor,
    key: Tensor,
    *,
    bands: int = 10,
    layout: Layout | Literal["auto"],
    scaling: float,
    rotary: int | None = None,
    softcap: float | None = None,
    repeated: tuple[Tensor, Tensor] | None = None,
    support: Any = "causal",
    sink_logit: Tensor | None = None,
) -> RopeBands:
    """Split scores s = scaling·q·k into bands of rotary frequencies: Σ_b s^b = s.

    Only the right pairing of dimensions makes a band's score of constant content a function of the offset,
    which is how "auto" finds it.

    Args:
        query: after the rotation, [..., n, d].
        key: likewise, one for each query head.
        bands: into how many the pairs are cut, as evenly as can be; at most as many as there are pairs.
        layout: "half" pairs dimension p with p + rotary/2 (Llama, Qwen and Mistral in transformers),
            "interleaved" 2p with 2p + 1; "auto" measures it on `repeated`.
        scaling: of the scores, in most models d**-0.5.
        rotary: how many leading dimensions are rotated; None: all.
        softcap: c of c·tanh(s/c), which `kl` and `tv` pass through; None: none.
        repeated: queries and keys of one token repeated, for "auto".
        support: which keys a query sees: "causal", or a boolean tensor [n, n] or [..., n, n].
        sink_logit: of learned sinks [h], for queries [..., h, n, d]: one more key for `kl` and `tv`.

    Returns:
        RopeBands, float64 [..., bands], one band more where rotary < d; NaN for scores that do not vary,
        and throughout a head whose queries or keys are not finite, with one warning.

    Raises:
        ValueError: queries and keys of different shapes, an odd or too large rotary, more bands than pairs,
            "auto" without `repeated`, or where no layout makes bands a function of the offset, another
            support.

    Example:
        Two pairs of dimensions; the second holds nothing.

        >>> import torch, attnscope as asc
        >>> angle = torch.arange(6, dtype=torch.float64)
        >>> q = torch.stack([angle.cos(), 0 * angle, angle.sin(), 0 * angle], -1)
        >>> asc.rope_bands(q, q, bands=2, layout="half", scaling=0.5).share
        tensor([1., 0.], dtype=torch.float64)

    References:
        Su et al., RoFormer, arXiv 2104.09864, 2021. Ruscio, Once upon a token, 2025, for bands of heads.
    """
    name = "rope_bands"
    q, k = (
        row_major(_checks.float_tensor(name, argument, value).double().cpu())
        for argument, value in (("query", query), ("key", key))
    )
    if q.ndim < 2 or q.shape != k.shape:
        raise ValueError(
            f"{name}: query and key must have one shape [..., n, d], got {tuple(q.shape)} and "
            f"{tuple(k.shape)}"
        )
    rotated = _rotary_argument(name, rotary, q.shape[-1])
    count = scalars.whole_number(name, "bands", bands)
    if not 1 <= count <= rotated // 2:
        raise ValueError(f"{name}: bands must lie between 1 and the {rotated // 2} pairs, got {bands}")
    scalars.choice_argument(name, "layout", layout, ("half", "interleaved", "auto"))
    if layout == "auto":
        if repeated is None:
            raise ValueError(f"{name}: layout='auto' needs repeated, queries and keys of one token repeated")
        if not isinstance(repeated, (tuple, list)) or len(repeated) != 2:
            raise TypeError(f"{name}: repeated must be queries and keys (query, key), got {type(repeated)}")
        layout = rotary_layout(*repeated, rotary=rotary)
    factor = scalars.finite(name, "scaling", scaling)
    cap = None if softcap is None else scalars.positive(name, "softcap", softcap)
    parts = band_scores(q, k, bands=count, layout=layout, rotary=rotary) * factor
    scores = factor * (q @ k.mT)
    seen = _visible_argument(name, support, scores)
    mean = torch.where(seen, scores, 0.0).sum((-2, -1)) / seen.expand_as(scores).sum((-2, -1))
    rest = torch.where(seen, scores - mean[..., None, None], 0.0)
    products = (parts * rest[..., None, :, :]).sum((-2, -1))
    variance = (rest**2).sum((-2, -1))[..., None]
    seen = seen[..., None, :, :]
    norms = torch.where(seen, parts, 0.0).norm(dim=(-2, -1))
    sink = None if sink_logit is None else _sink_argument(name, sink_logit, q.shape[:-2])
    log_p = _log_attention(scores[..., None, :, :], seen, cap, sink)
    log_without = _log_attention(scores[..., None, :, :] - parts, seen, cap, sink)
    p = log_p.exp()
    difference = torch.where(p > 0, log_p - log_without, 0.0)
    kl = (p * difference).sum(-1)[..., 1:].mean(-1)
    tv = (p - log_without.exp()).abs().sum(-1)[..., 1:].mean(-1) / 2
    is_non_finite = ~(q.isfinite() & k.isfinite()).all(-1).all(-1)
    _calls.warn_non_finite_parts(name, is_non_finite, "heads")
    share = torch.where(variance > 0, products / variance, torch.nan)
    fields = (share, norms / norms.sum(-1, keepdim=True), kl, tv)
    return RopeBands(*(torch.where(is_non_finite[..., None], torch.nan, field) for field in fields))


def band_scores(
    query: Tensor, key: Tensor, *, bands: int, layout: Layout, rotary: int | None = None
) -> Tensor:
    """Products of queries and keys by band, unscaled, [..., bands, n, n]; they sum to q·k.

    Args:
        query: after the rotation, [..., n, d].
        key: likewise.
        bands: as `rope_bands` takes them.
        layout: "half" or "interleaved".
        rotary: how many leading dimensions are rotated; None: all.
    """
    d = query.shape[-1]
    rotated = _rotary_argument("band_scores", rotary, d)
    pairs = torch.arange(rotated // 2, device="cpu")
    members = [
        torch.cat([band, band + rotated // 2] if layout == "half" else [2 * band, 2 * band + 1])
        for band in torch.tensor_split(pairs, bands)
    ]
    if rotated < d:
        members.append(torch.arange(rotated, d, device="cpu"))
    return torch.stack([query[..., dimensions] @ key[..., dimensions].mT for dimensions in members], -3)


def rotary_layout(
    query: Tensor, key: Tensor, *, rotary: int | None = None, tolerance: float = 1e-3
) -> Layout:
    """Return which dimensions a model rotates together, from queries and keys of one token repeated.

    Args:
        query: after the rotation, [..., n, d], of content that does not change along the text.
        key: likewise.
        rotary: how many leading dimensions are rotated; None: all.
        tolerance: largest spread along a diagonal, relative to the largest band score.

    Returns:
        "half" or "interleaved": the one whose pairs, each a band of its own, have scores that depend on the
        offset, the one of smaller spread where both do.

    Raises:
        ValueError: neither does, or an odd or too large rotary.

    Example:
        >>> import torch
        >>> from attnscope.metrics.positions.rope_bands import rotary_layout
        >>> angle = torch.arange(6, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.1])
        >>> q = torch.cat([angle.cos(), angle.sin()], -1)
        >>> rotary_layout(q, q)
        'half'
    """
    name = "rotary_layout"
    q, k = (
        row_major(_checks.float_tensor(name, argument, value).double().cpu())
        for argument, value in (("query", query), ("key", key))
    )
    rotated = _rotary_argument(name, rotary, q.shape[-1])
    spreads: dict[Layout, float] = {}
    layouts: tuple[Layout, Layout] = ("half", "interleaved")
    for layout in layouts:
        parts = band_scores(q, k, bands=rotated // 2, layout=layout, rotary=rotary)
        spread = offset_variance(parts).variance.sqrt().max()
        spreads[layout] = float(spread / parts.abs().max())
    best = min(layouts, key=lambda layout: spreads[layout])
    if not spreads[best] <= tolerance:
        words = ", ".join(f"{layout} {spread:.2g}" for layout, spread in spreads.items())
        raise ValueError(
            f"{name}: no layout makes bands functions of the offset; relative spread along diagonals: {words}"
        )
    return best


def _sink_argument(function: str, sink_logit: Any, leading: torch.Size) -> Tensor:
    """Logits of learned sinks, for scores by band: [h, 1, 1, 1], or [1, 1, 1] of a head without an axis."""
    heads = leading[-1] if leading else 1
    logits = _checks.as_tensor(function, "sink_logit", sink_logit, torch.float64).cpu()
    if logits.shape != (heads,):
        raise ValueError(f"{function}: sink_logit must have shape ({heads},), got {tuple(logits.shape)}")
    wrong = ~(logits < torch.inf)
    if bool(wrong.any()):
        raise ValueError(f"{function}: sink_logit must be below +inf, got {float(logits[wrong][0])}")
    return logits.reshape(*leading[-1:], 1, 1, 1)


def _visible_argument(function: str, support: Any, scores: Tensor) -> Tensor:
    """Return who sees whom, broadcast against the scores."""
    if isinstance(support, str) and support == "causal":
        return torch.ones(scores.shape[-2:], dtype=torch.bool, device="cpu").tril()
    if not isinstance(support, str):
        support = _checks.as_tensor(function, "support", support)
    fits = isinstance(support, Tensor) and support.dtype == torch.bool
    try:
        if fits and support.expand(scores.shape).any(-1).all():
            return support.cpu().expand(scores.shape)
    except RuntimeError:
        pass
    description = tuple(support.shape) if isinstance(support, Tensor) else support
    raise ValueError(
        f"{function}: support must be 'causal' or a boolean tensor that broadcasts to {tuple(scores.shape)}, "
        f"every query with a visible key, got {description!r}"
    )


def _log_attention(scores: Tensor, visible: Tensor, softcap: float | None, sink: Tensor | None) -> Tensor:
    """Logarithm of attention, -inf where invisible; behind the keys that to a learned sink."""
    capped = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    capped = capped.masked_fill(~visible, -torch.inf)
    if sink is not None:
        capped = torch.cat([capped, sink.expand(*capped.shape[:-1], 1)], -1)
    return torch.log_softmax(capped, -1)


def _rotary_argument(function: str, rotary: Any, d: int) -> int:
    """Return the number of rotated dimensions: even, and at most d."""
    rotated = d if rotary is None else scalars.whole_number(function, "rotary", rotary)
    if not 2 <= rotated <= d or rotated % 2:
        raise ValueError(f"{function}: rotary must be even and between 2 and d = {d}, got {rotated}")
    return rotated


SOURCES = (rope_bands,)
