# SPDX-License-Identifier: MIT
"""Norms of what each key writes, and attention weighted by them: whether a sink moves anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.metrics.closed_forms import uniform_map
from attnscope.metrics.quantity import ClosedForm, Quantity, Site


@memory_errors("value_norms")
def value_norms(value: Tensor, projection: Tensor, *, layer: bool = False) -> Tensor:
    """Return the norm of what each head writes of each key, ‖v_j W_O^h‖.

    v carries its bias; the bias of W_O is no part of it. Values of grouped heads are repeated.

    Args:
        value: value vectors [..., kv, n, d]; h is a multiple of kv.
        projection: W_O by head [D, h, d], as `output_projection` gives it.
        layer: return the products of the heads' writes instead, for the norm of their sum:
            f_j^h · f_j^g, [..., n, h, h].

    Returns:
        [..., h, n] float64, at least 0; NaN where a value, or its head's projection, is not finite, with one
        warning.

    Raises:
        ValueError: no axes of heads, tokens and dimensions; a projection of other dimensions or heads.

    Example:
        One head, two keys, a projection that doubles.

        >>> import torch, attnscope as asc
        >>> asc.value_norms(torch.tensor([[[0.0, 0.0], [3.0, 4.0]]]), 2 * torch.eye(2)[:, None])
        tensor([[ 0., 10.]], dtype=torch.float64)

    References:
        Kobayashi et al., Attention is not only a weight, 2020.
    """
    name = "value_norms"
    values = _checks.float_tensor(name, "value", value).cpu().double()
    matrix = _checks.float_tensor(name, "projection", projection).cpu().double()
    if values.ndim < 3:
        raise ValueError(f"{name}: value must be [..., kv, n, d], got shape {tuple(values.shape)}")
    kv, width = values.shape[-3], values.shape[-1]
    if matrix.ndim != 3 or matrix.shape[2] != width or matrix.shape[1] % kv:
        raise ValueError(
            f"{name}: projection must be [D, h, {width}] with h a multiple of {kv}, got shape "
            f"{tuple(matrix.shape)}"
        )
    per_head = values.repeat_interleave(matrix.shape[1] // kv, -3)
    finite_heads = matrix.detach().isfinite().all(-1).all(0)
    finite = per_head.detach().isfinite().all(-1) & finite_heads[:, None]
    _calls.warn_non_finite_parts(name, ~finite, "values of heads or their projections")
    # set to 0 before the products, which would carry NaN into the gradient of the projection
    per_head = torch.where(finite[..., None], per_head, 0.0)
    matrix = torch.where(finite_heads[:, None], matrix, 0.0)
    if scalars.flag(name, "layer", layer):
        products = torch.einsum("Dhd,Dge->hdge", matrix, matrix)
        writes = torch.einsum("...hnd,hdge,...gne->...nhg", per_head, products, per_head)
        by_key = finite.mT
        return torch.where(by_key[..., :, None] & by_key[..., None, :], writes, torch.nan)
    # ‖W v‖ = ‖R v‖ of W = QR, whose R has as few rows as v
    triangles = torch.linalg.qr(matrix.detach().transpose(0, 1), mode="r").R
    norms = (per_head.detach() @ triangles.mT).norm(dim=-1)
    norms = torch.where(finite, norms, torch.nan)
    if not (per_head.requires_grad or matrix.requires_grad):
        return norms
    # R alone has no derivative: the value is that of R, the slope that of W
    of_writes = torch.einsum("...hnd,Dhd->...hnD", per_head, matrix).norm(dim=-1)
    return norms + (of_writes - of_writes.detach())


@memory_errors("weighted_attention")
def weighted_attention(
    heads: Tensor,
    norms: Tensor,
    *,
    layer: bool = False,
    support: Any = "auto",
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> Tensor:
    """Return attention times the norm of what it moves, N_ij = A_ij ‖f(x_j)‖.

    Rows do not sum to 1: metrics of maps take N divided by its row sums.

    Args:
        heads: all heads of a layer [..., h, n, n].
        norms: `value_norms` [..., h, n]; with `layer` its products [..., n, h, h].
        layer: return ‖Σ_h A^h_ij f_j^h‖ [..., n, n], the size of what the layer moves, where heads may
            cancel.
        support: which keys a query sees; entries of others count as 0. "auto" takes all as they are.
        precision: "fast" gives the exact value: it has no faster way.
        lengths: tokens per layer; 0 behind them.
        validate: refuse NaN, infinite, negative and > 1.01 entries.

    Returns:
        [..., h, n, n] float64, or [..., n, n]; NaN for maps and columns of norms that are not finite.

    Raises:
        ValueError: norms of another shape, and as `head_divergence`.

    Example:
        Uniform attention to two keys, the first of which holds nothing.

        >>> import torch, attnscope as asc
        >>> asc.weighted_attention(torch.full((1, 2, 2), 0.5), torch.tensor([[0.0, 1.0]]))
        tensor([[[0.0000, 0.5000],
                 [0.0000, 0.5000]]], dtype=torch.float64)

    References:
        Kobayashi et al., Attention is not only a weight, 2020.
    """
    name = "weighted_attention"
    _checks.precision_argument(name, precision, heads)
    checked = _checks.heads_argument(name, heads, lengths, validate=validate)
    seen = _checks.support_argument(name, support, checked)
    of_layer = scalars.flag(name, "layer", layer)
    weights = _checks.float_tensor(name, "norms", norms).cpu().double()
    _calls.undefined_results(name, tuple(checked.tensor.shape))
    entries = _checks.entries_argument(name, checked, detach=False)
    finite = _calls.call_kernel(_core.finite_matrices, _checks.Attention(entries.detach(), checked.lengths))
    finite = finite.all(-1, keepdim=True).expand(finite.shape)
    maps = entries.double()
    inside = checked.inside()
    visible = inside[..., :, None] & inside[..., None, :]
    if isinstance(seen, Tensor):
        visible = visible & seen
    elif seen == "causal":
        visible = visible & torch.ones(checked.n, checked.n, dtype=torch.bool, device="cpu").tril()
    maps = torch.where(visible, maps, 0.0)
    maps = torch.where(finite[..., None, None], maps, torch.nan)
    bad = int((~finite[..., 0]).sum())
    if not of_layer:
        weights = _checks.expanded(f"{name}: norms", weights, (*checked.leading, checked.n))
        _calls.warn_non_finite_parts(name, inside & ~weights.detach().isfinite(), "norms")
        weighted = maps * torch.where(inside, weights, 0.0)[..., None, :]
        return _calls.warn_non_finite(name, checked.layers, weighted, bad, "layers")
    count = checked.leading[-1]
    shape = (*checked.leading[:-1], checked.n, count, count)
    weights = _checks.expanded(f"{name}: norms", weights, shape)
    within = inside[..., 0, :, None, None]
    _calls.warn_non_finite_parts(name, within & ~weights.detach().isfinite(), "norms")
    squares = torch.einsum("...hij,...jhg,...gij->...ij", maps, torch.where(within, weights, 0.0), maps)
    # the root has no slope at 0
    zero = squares <= 0
    roots = torch.where(zero, 0.0, torch.where(zero, 1.0, squares).sqrt())
    return _calls.warn_non_finite(name, checked.layers, roots, bad, "layers")


def _share_of_first(weighted: Tensor) -> Tensor:
    """Return the part of weighted attention [..., n, n] that key 0 has."""
    return weighted[..., 0].sum(-1) / weighted.sum((-2, -1))


QUANTITIES = (
    Quantity(
        "weighted_sink_share",
        "weighted_attention",
        "share of key 0 in what is moved",
        "Attention to key 0 times the norm of its value, over the sum for all keys.",
        ClosedForm(
            0.0,
            uniform_map(2)[None],
            {"value_norms": torch.tensor([[0.0, 1.0]], dtype=torch.float64, device="cpu")},
        ),
        low=0,
        high=1,
        options={"norms": Site("value_norms")},
        read=_share_of_first,
        needs=("attention", "value_norms"),
    ),
)
