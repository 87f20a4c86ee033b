# SPDX-License-Identifier: MIT
"""Quadrature of the spectrum of a symmetric matrix that is known by its products alone (Lanczos).

After k steps from a vector v, nodes and weights integrate functions over the spectral measure of v, which has
the weight (v·u)² at the eigenvalue of an eigenvector u. Random v make it the distribution of all eigenvalues
on average (Golub and Meurant 1994; Ubaru, Chen and Saad 2017).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

#: Bytes of all vectors of a run up to which each new one is made orthogonal to the earlier ones.
_BASIS_BYTES = 1 << 26
#: Share of the largest entry below which what a step adds is rounding.
_NEGLIGIBLE = 1e-13


class Tridiagonal(NamedTuple):
    """Symmetric tridiagonal matrices of Lanczos runs.

    Attributes:
        diagonal: [c, k].
        coupling: entries next to the diagonal [c, k]; the last one couples with what the steps left out.
    """

    diagonal: Tensor
    coupling: Tensor


class Quadrature(NamedTuple):
    """Nodes and weights of spectral measures.

    Attributes:
        nodes: [c, k], ascending.
        weights: [c, k], which sum to 1.
        residuals: [c, k], how far the nearest eigenvalue may be from a node.
    """

    nodes: Tensor
    weights: Tensor
    residuals: Tensor


def run_lanczos(multiply: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tridiagonal:
    """Return the matrices of runs from each column of `start` [n, c].

    Args:
        multiply: returns the product of a symmetric matrix without negative eigenvalues with [n, c].
        start: its columns are nonzero.
        steps: at most n.
    """
    n, columns = start.shape
    keeps_all = n * columns * steps * start.element_size() <= _BASIS_BYTES
    basis = torch.zeros(columns, steps if keeps_all else 0, n, dtype=start.dtype, device="cpu")
    vector = (start / start.norm(dim=0)).mT.contiguous()
    previous = torch.zeros_like(vector)
    diagonal, coupling = (torch.zeros(columns, steps, dtype=start.dtype, device="cpu") for _ in range(2))
    for step in range(steps):
        image = multiply(vector.mT).mT
        diagonal[:, step] = (image * vector).sum(-1)
        image = image - diagonal[:, step, None] * vector
        if step:
            image = image - coupling[:, step - 1, None] * previous
        if keeps_all:
            basis[:, step] = vector
            so_far = basis[:, : step + 1]
            for _ in range(2):  # once is not enough in floating point
                image = image - ((so_far @ image[..., None]).mT @ so_far)[:, 0]
        length = image.norm(dim=-1)
        largest = torch.maximum(diagonal, coupling).amax(-1)
        length = torch.where(length > _NEGLIGIBLE * largest, length, 0.0)
        coupling[:, step] = length
        previous = vector
        vector = image * torch.where(length > 0, 1 / length, 0.0)[:, None]
    return Tridiagonal(diagonal, coupling)


def gauss_quadrature(matrices: Tridiagonal) -> Quadrature:
    """Return the nodes and weights of Gauss's rule, which is the measure's lower half for x^(1/2)."""
    nodes, vectors = torch.linalg.eigh(_dense(matrices.diagonal, matrices.coupling))
    residuals = matrices.coupling[:, -1:] * vectors[:, -1].abs()
    return Quadrature(nodes, vectors[:, 0].square(), residuals)


def radau_quadrature(matrices: Tridiagonal) -> Quadrature:
    """Return the nodes and weights of the rule of Gauss and Radau with one node at 0."""
    pivot = matrices.diagonal[:, 0]
    for step in range(1, matrices.diagonal.shape[-1]):
        ratio = _divide(matrices.coupling[:, step - 1].square(), pivot)
        pivot = (matrices.diagonal[:, step] - ratio).clamp(min=0.0)
    diagonal = matrices.diagonal.clone()
    diagonal[:, -1] = diagonal[:, -1] - pivot
    nodes, vectors = torch.linalg.eigh(_dense(diagonal, matrices.coupling))
    return Quadrature(nodes, vectors[:, 0].square(), torch.zeros_like(nodes))


def _dense(diagonal: Tensor, coupling: Tensor) -> Tensor:
    beside = coupling[:, :-1]
    return diagonal.diag_embed() + beside.diag_embed(1) + beside.diag_embed(-1)


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    return torch.where(denominator > 0, numerator / torch.where(denominator > 0, denominator, 1.0), 0.0)
