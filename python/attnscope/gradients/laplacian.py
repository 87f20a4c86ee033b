# SPDX-License-Identifier: MIT
"""Derivatives of the eigenvalues of a map's graph Laplacian, λ2 among them.

λ = Σ_{i<j} W_ij (v_i − v_j)² of a unit eigenvector v, so ∂λ/∂W_ij = (v_i − v_j)². For the normalised
Laplacian, with y_i = v_i/√d_i, it is (y_i − y_j)² − λ (y_i² + y_j²). Both go to A_ij and A_ji by halves under
"mean", and to the larger of the two under "max".

The null vector, the constant one or √d, is known and taken out first, so that λ2 of a graph in two parts has
the derivative of joining them. Eigenvalues closer than `EQUAL` times the largest degree have no derivative of
their own; each then gets the mean over their eigenspace, which is right for their sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.devices.graphs.laplacian import above_all, graph_weights, laplacian
from attnscope.devices.slab import Slab
from attnscope.gradients import operators
from attnscope.gradients.equal_values import mean_over_equal
from attnscope.gradients.refusal import refuse_backward

#: Eigenvalues whose distance is below this part of the largest degree count as equal.
EQUAL = 1e-8


def _eigenpairs(slab: Slab, weights: Tensor, normalized: bool) -> tuple[Tensor, Tensor]:
    """Return eigenvalues [m, n] and eigenvectors in columns, the null vector first, padding last."""
    matrix, null = laplacian(slab, weights, normalized)
    matrix = above_all(slab, matrix)
    # below all others of weights that are not negative, whose Laplacian has no negative eigenvalue
    is_ordinary = (weights >= 0).flatten(1).all(-1)
    shift = torch.where(is_ordinary, matrix.diagonal(dim1=-2, dim2=-1).amax(-1) + 1, 0.0)
    values, vectors = torch.linalg.eigh(matrix - shift[:, None, None] * null[:, :, None] * null[:, None, :])
    values = torch.cat([torch.where(is_ordinary[:, None], 0.0, values[:, :1]), values[:, 1:]], -1)
    return values, vectors


def _by_weight(slab: Slab, weights: Tensor, normalized: bool, weight: Tensor) -> Tensor:
    """Return Σ_k g_k ∂λ_k/∂W_ij [m, n, n] for gradients `weight` [m, n] of the eigenvalues."""
    values, vectors = _eigenpairs(slab, weights, normalized)
    degree = weights.sum(-1)
    reach = EQUAL * (torch.ones_like(degree) if normalized else degree).abs().amax(-1)
    # λ1 of an ordinary graph is 0 whatever the weights are, and equal to no other
    first = torch.arange(slab.n, device=values.device) == 0
    is_null = first & (values == 0)
    weight = torch.where(is_null, 0.0, weight)
    shared = mean_over_equal(weight, values, reach[:, None], ~is_null, "an eigenvalue")
    if normalized:
        scale = torch.where(degree > 0, degree.rsqrt(), 0.0)
        vectors = vectors * scale[:, :, None]
    squares = vectors.square()
    of_node = torch.einsum("mik,mk->mi", squares, shared if not normalized else shared * (1 - values))
    product = (vectors * shared[:, None, :]) @ vectors.mT
    return of_node[:, :, None] + of_node[:, None, :] - 2 * product


def _by_entry(slab: Slab, by_weight: Tensor, symmetrize: str) -> Tensor:
    """Return the gradient of the entries of a map from that of its graph's weights, both [m, n, n]."""
    if symmetrize == "mean":
        result = by_weight / 2
    else:
        maps, mirrored = slab.wide, slab.wide.mT
        result = torch.where(maps > mirrored, by_weight, torch.where(maps == mirrored, by_weight / 2, 0.0))
    between = slab.inside[:, :, None] & slab.inside[:, None, :] & (slab.positions[:, None] != slab.positions)
    return torch.where(between, result, 0.0)


def _backward(
    gradient: Tensor, maps: Tensor, lengths: Tensor | None, symmetrize: str, normalized: bool
) -> Tensor:
    """Return the gradient of the maps from that of their smallest eigenvalues [..., k]."""
    slab = operators.flat_slab(maps, lengths)
    k = gradient.shape[-1]
    weight = torch.nn.functional.pad(operators.incoming_gradient(gradient, slab, k), (0, slab.n - k))
    weight = torch.where(slab.inside, weight, 0.0)
    weights = graph_weights(slab, symmetrize, None)
    result = _by_entry(slab, _by_weight(slab, weights, normalized, weight), symmetrize)
    return result.reshape(maps.shape).to(maps.dtype)


def _eigenvalues(
    maps: Tensor, lengths: Tensor | None, k: int, symmetrize: str, normalized: bool
) -> tuple[Tensor, Tensor]:
    options = (k, symmetrize, None, normalized)
    values, non_finite = operators.evaluate("laplacian_eigenvalues", maps, lengths, *options)
    return values, non_finite


def _eigenvalues_backward(
    gradient: Tensor, maps: Tensor, lengths: Tensor | None, k: int, symmetrize: str, normalized: bool
) -> Tensor:
    return _backward(gradient, maps, lengths, symmetrize, normalized)


_EIGENVALUES = operators.operator_pair(
    "laplacian_eigenvalues",
    _eigenvalues,
    lambda maps, lengths, k, *_: (operators.empty(*maps.shape[:-2], k), operators.count()),
    _eigenvalues_backward,
    lambda gradient, maps, *_: torch.empty_like(maps),
)


def _second(
    maps: Tensor, lengths: Tensor | None, symmetrize: str, normalized: bool, precision: str
) -> tuple[Tensor, Tensor]:
    options = (symmetrize, None, normalized, precision)
    value, non_finite = operators.evaluate("fiedler_value", maps, lengths, *options)
    return value, non_finite


def _second_backward(
    gradient: Tensor, maps: Tensor, lengths: Tensor | None, symmetrize: str, normalized: bool, precision: str
) -> Tensor:
    if maps.shape[-1] < 2:
        return torch.zeros_like(maps)
    gradients = torch.stack([torch.zeros_like(gradient), gradient], -1)
    return _backward(gradients, maps, lengths, symmetrize, normalized)


_SECOND = operators.operator_pair(
    "fiedler_value",
    _second,
    lambda maps, *_: (operators.empty(*maps.shape[:-2]), operators.count()),
    _second_backward,
    lambda gradient, maps, *_: torch.empty_like(maps),
)


def _refuse_threshold(name: str, result: Tensor, maps: Tensor) -> Tensor:
    words = "a threshold makes the graph of a map a step function of its entries"
    refused: Tensor = refuse_backward(result, maps, f"{name} has no derivative with a threshold: {words}")
    return refused


def laplacian_eigenvalues(
    maps: Tensor,
    lengths: Tensor | None,
    k: int,
    symmetrize: str,
    threshold: float | None,
    normalized: bool,
) -> tuple[Tensor, Tensor]:
    """Return the smallest eigenvalues [..., k] and the count of maps that are not finite."""
    if threshold is not None:
        options = (k, symmetrize, threshold, normalized)
        values, non_finite = operators.evaluate("laplacian_eigenvalues", maps.detach(), lengths, *options)
        return _refuse_threshold("laplacian_eigenvalues", values, maps), non_finite
    values, non_finite = _EIGENVALUES(maps, lengths, k, symmetrize, normalized)
    return values, non_finite


def fiedler_value(
    maps: Tensor,
    lengths: Tensor | None,
    symmetrize: str,
    threshold: float | None,
    normalized: bool,
    precision: str = "exact",
) -> tuple[Tensor, Tensor]:
    """Return λ2 [...] and the count of maps that are not finite."""
    if threshold is not None:
        options = (symmetrize, threshold, normalized, precision)
        value, non_finite = operators.evaluate("fiedler_value", maps.detach(), lengths, *options)
        return _refuse_threshold("fiedler_value", value, maps), non_finite
    value, non_finite = _SECOND(maps, lengths, symmetrize, normalized, precision)
    return value, non_finite
