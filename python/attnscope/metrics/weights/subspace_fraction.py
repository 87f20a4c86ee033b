# SPDX-License-Identifier: MIT
"""The share of a weight matrix, or of its change, in a subspace of what it reads or writes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from attnscope import _calls
from attnscope._evaluation import full_precision
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.metrics import _powers
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.quantity import ClosedForm, Quantity, Site
from attnscope.metrics.weights.delta_statistics import weights_argument
from attnscope.metrics.weights.haar import haar_deviation, upper_tail
from attnscope.metrics.weights.low_rank import LowRank
from attnscope.metrics.weights.matrix_spectrum import spectrum_of

Side = Literal["in", "out"]
#: |UᵀU − I| of a basis, from which on it is refused.
ORTHONORMAL = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@shown_by_shape
class SubspaceFraction(NamedTuple):
    """The fractions of every matrix and every k, [..., len(k)] float64.

    Attributes:
        fraction: f, the share of the matrix's energy in the first k directions, in [0, 1].
        relative: f·d/k; 1 for a matrix without preferred directions.
        ceiling: the largest fraction that any k directions reach, in [k/d, 1].
        captured: (f − k/d)/(ceiling − k/d); 1 for the best directions, NaN where all are alike.
        deviation: standard deviation of f over random subspaces.
        z: (f − k/d)/deviation; NaN where f does not vary.
        p_value: probability that a random subspace reaches f.
    """

    fraction: Tensor
    relative: Tensor
    ceiling: Tensor
    captured: Tensor
    deviation: Tensor
    z: Tensor
    p_value: Tensor


@memory_errors("subspace_fraction")
def subspace_fraction(
    matrix: Tensor | LowRank, basis: Tensor, *, side: Side = "in", k: int | Iterable[int] | None = None
) -> SubspaceFraction:
    """Share of ‖M‖_F² in the first k columns of a basis: ‖M U‖_F²/‖M‖_F² on the input side, ‖UᵀM‖_F² on
    the output side.

    Args:
        matrix: [..., out, in], or a `LowRank`, which is not multiplied out.
        basis: [..., d, K] with orthonormal columns, the most important first; d is `in` or `out`.
        side: "in" for directions that the matrix reads, "out" for directions that it writes.
        k: numbers of columns, each in 1 .. K; None takes all K.

    Returns:
        `SubspaceFraction`, each field [..., len(k)] float64. NaN for a matrix of zeros or with an entry that
        is not finite. Products are formed in the dtype of the inputs (at least float32), sums in float64.
        Beyond 2048 rows and columns `ceiling` is reached by subspace iteration from a fixed seed, and
        `deviation` rests on 64 random probes.

    Raises:
        ValueError: an unknown side, a basis that is not orthonormal or of another dimension, k outside 1..K.

    Example:
        A matrix that reads direction 0 only has all its energy there, whatever it writes.

        >>> import torch, attnscope as asc
        >>> matrix = torch.zeros(3, 4)
        >>> matrix[:, 0] = 1
        >>> found = asc.subspace_fraction(matrix, torch.eye(4), k=[1, 2])
        >>> found.fraction.tolist(), found.relative.tolist(), found.captured.tolist()
        ([1.0, 1.0], [4.0, 2.0], [1.0, 1.0])

    References:
        Ruscio, Khedouri and Thompson, arXiv 2605.16600, 2026, for the question; Haar moments as in
        `haar_deviation`.
    """
    name = "subspace_fraction"
    side = _side(name, side)
    weights = matrix_argument(name, matrix)
    columns = _basis(name, "basis", basis, weights, side)
    d, largest = columns.shape[-2:]
    dimensions = _numbers(name, k, largest)
    energies = _column_energies(weights, columns, side)
    spectrum = spectrum_of(weights, max(dimensions))
    leading = (energies[..., 0] + spectrum.energy).shape
    energy = spectrum.energy.expand(leading)[..., None]
    place = torch.tensor(dimensions, dtype=torch.int64, device="cpu") - 1
    isotropic = (place + 1).double() / d
    fraction = (energies.cumsum(-1)[..., place] / energy).clamp_max(1.0)
    top = spectrum.top.cumsum(-1)
    ceiling = (top[..., place.clamp_max(top.shape[-1] - 1)] / spectrum.energy[..., None]).clamp_max(1.0)
    ceiling = torch.maximum(ceiling.expand(fraction.shape), fraction)
    room = ceiling - isotropic
    ratio = spectrum.participation_ratio.expand(leading)[..., None].clamp(1, d)
    deviation = haar_deviation(ratio, (place + 1).double(), d) * isotropic
    z = torch.where(deviation > 0, (fraction - isotropic) / deviation, torch.nan)
    return SubspaceFraction(
        fraction,
        fraction / isotropic,
        ceiling,
        torch.where(room > 1e-12, (fraction - isotropic) / room, torch.nan),
        deviation,
        z,
        upper_tail(fraction, isotropic.expand(fraction.shape), deviation),
    )


@memory_errors("concentration")
def concentration(matrix: Tensor | LowRank, basis: Tensor, *, side: Side = "in") -> Tensor:
    """Return how early along an ordered basis a matrix's energy comes, with no k to choose.

    2·mean over k = 1 .. d of f(k), less (d + 1)/d, f as in `subspace_fraction`.

    Args:
        matrix: [..., out, in], or a `LowRank`.
        basis: [..., d, d], orthonormal, the most important direction first.
        side: as in `subspace_fraction`.

    Returns:
        [...] float64: 0 for a matrix without preferred directions, (d − 1)/d where all of it lies in the
        first direction, (1 − d)/d in the last; NaN for zeros.

    Raises:
        ValueError: as `subspace_fraction`, and a basis of fewer than d columns.

    Example:
        >>> import torch, attnscope as asc
        >>> matrix = torch.zeros(3, 4)
        >>> matrix[:, 0] = 1
        >>> asc.concentration(matrix, torch.eye(4)).item()
        0.75
        >>> asc.concentration(torch.eye(4), torch.eye(4)).item()
        0.0

    References:
        Twice the area between the curve and the diagonal, as Gini's coefficient (1912) of a Lorenz curve.
    """
    name = "concentration"
    side = _side(name, side)
    weights = matrix_argument(name, matrix)
    columns = _basis(name, "basis", basis, weights, side)
    d, columns_of_basis = columns.shape[-2:]
    if columns_of_basis != d:
        raise ValueError(f"{name}: basis must span all {d} dimensions, got {columns_of_basis} columns")
    energies = _column_energies(weights, columns, side)
    fractions = energies.cumsum(-1) / energies.sum(-1, keepdim=True)
    return 2 * fractions.mean(-1) - (d + 1) / d


@shown_by_shape
class RelativeSubspaceFraction(NamedTuple):
    """Fractions over their value for a matrix without preferred directions, [...] float64.

    Attributes:
        both: of left and right together.
        left: of the output side alone; NaN where no basis was given.
        right: of the input side alone; likewise.
    """

    both: Tensor
    left: Tensor
    right: Tensor


@memory_errors("relative_subspace_fraction")
def relative_subspace_fraction(
    matrix: Tensor | LowRank, *, left: Tensor | None = None, right: Tensor | None = None
) -> RelativeSubspaceFraction:
    """Energy of a matrix in a subspace of each side, relative to an isotropic matrix.

    [tr(WᵀΠ_L W) + tr(W Π_R Wᵀ)]/‖W‖_F² over k_L/d_out + k_R/d_in, and each term over its own k/d.

    Args:
        matrix: [..., out, in], or a `LowRank`.
        left: orthonormal [..., out, k_L], directions that it writes; None leaves the term out.
        right: orthonormal [..., in, k_R], directions that it reads.

    Returns:
        `RelativeSubspaceFraction`; 1 for a matrix without preferred directions, NaN for one of zeros or with
        an entry that is not finite.

    Raises:
        ValueError: neither basis, or one that does not fit.

    Example:
        >>> import torch, attnscope as asc
        >>> axis = torch.eye(4)[:, :1]
        >>> found = asc.relative_subspace_fraction(torch.eye(4), left=axis, right=axis)
        >>> found.both.item(), found.left.item(), found.right.item()
        (1.0, 1.0, 1.0)

    References:
        Ruscio, Khedouri and Thompson, arXiv 2605.16600, 2026, as others quote its formula.
    """
    name = "relative_subspace_fraction"
    if left is None and right is None:
        raise ValueError(f"{name}: left, right or both must be given, got neither")
    weights = matrix_argument(name, matrix)
    energy = spectrum_of(weights, 0).energy
    shares, isotropic = {}, {}
    for which, side, basis in (("left", "out", left), ("right", "in", right)):
        if basis is None:
            continue
        columns = _basis(name, which, basis, weights, side)
        shares[which] = _column_energies(weights, columns, side).sum(-1) / energy
        isotropic[which] = columns.shape[-1] / columns.shape[-2]
    combined = sum(shares.values(), torch.zeros((), dtype=torch.float64, device="cpu")) / sum(
        isotropic.values()
    )
    undefined = torch.full_like(combined, torch.nan)
    single = {which: shares[which] / isotropic[which] for which in shares}
    return RelativeSubspaceFraction(combined, single.get("left", undefined), single.get("right", undefined))


def overlap(basis: Tensor, other_basis: Tensor) -> Tensor:
    """‖UᵀV‖_F²/k of two orthonormal bases [..., d, k]: 1 for one subspace, k/d for unrelated ones."""
    products: Tensor = basis.mT.double() @ other_basis.double()
    return products.square().sum((-2, -1)) / basis.shape[-1]


def matrix_argument(function: str, matrix: Any) -> Tensor | LowRank:
    """Return a `LowRank` or a float tensor [..., out, in] whose shares of energy are those of the argument.

    Detached, one layout for all strides, and scaled by a power of two where squares would leave float64's
    range.
    """
    if isinstance(matrix, LowRank):
        left, right = (
            _powers.in_range(weights_argument(function, "matrix", factor).contiguous())[0]
            for factor in (matrix.left, matrix.right)
        )
        is_non_finite = ~(left.isfinite().all() & right.isfinite().all())
        _calls.warn_non_finite_parts(function, is_non_finite, "matrices")
        return LowRank(left, right, math.frexp(matrix.scale)[0])
    tensor = weights_argument(function, "matrix", matrix).contiguous()
    _calls.warn_non_finite_parts(function, ~tensor.detach().isfinite().all(-1).all(-1), "matrices")
    if tensor.dtype not in (torch.float32, torch.float64):
        return tensor.float()
    return _powers.in_range(tensor)[0]


def _side(function: str, side: Any) -> Side:
    return "in" if scalars.choice_argument(function, "side", side, ("in", "out")) == "in" else "out"


def _basis(function: str, name: str, basis: Any, matrix: Tensor | LowRank, side: str) -> Tensor:
    columns = weights_argument(function, name, basis).contiguous()
    shape = matrix.shape
    d = shape[-1] if side == "in" else shape[-2]
    if columns.shape[-2] != d or columns.shape[-1] > d:
        raise ValueError(
            f"{function}: {name} must have {d} rows and at most {d} columns for side {side!r} of a matrix "
            f"of shape {tuple(shape)}, got shape {tuple(columns.shape)}"
        )
    wide = columns.double()
    error = (wide.mT @ wide - torch.eye(wide.shape[-1], dtype=torch.float64, device="cpu")).abs().max()
    if not float(error) <= ORTHONORMAL[columns.dtype]:
        raise ValueError(
            f"{function}: {name} must have orthonormal columns, got |UᵀU − I| = {float(error):.2g}"
        )
    return columns


def _numbers(function: str, k: Any, largest: int) -> list[int]:
    if k is None:
        return [largest]
    is_list = isinstance(k, Iterable) and getattr(k, "ndim", 1) != 0
    column_counts = list(k) if is_list else [k]
    checked_counts = [scalars.whole_number(function, "k", count) for count in column_counts]
    if not checked_counts:
        raise ValueError(f"{function}: k must hold at least one number, got none")
    for count in checked_counts:
        if not 1 <= count <= largest:
            raise ValueError(f"{function}: k must lie in 1 .. {largest}, the basis's columns, got {count}")
    return checked_counts


@full_precision()
def _column_energies(matrix: Tensor | LowRank, columns: Tensor, side: str) -> Tensor:
    """‖M u‖² (or ‖Mᵀu‖²) of every column, [..., K] float64."""
    if isinstance(matrix, LowRank):
        turned = matrix if side == "in" else matrix.T
        left = turned.left.double()
        reduced = turned.scale * (turned.right.double() @ columns.double())
        products = (left.T @ left) @ reduced
        return (reduced * products).sum(-2)
    turned_matrix = matrix if side == "in" else matrix.mT
    kind = torch.promote_types(matrix.dtype, columns.dtype)
    image: Tensor = turned_matrix.to(kind) @ columns.to(kind)
    return image.double().square().sum(-2)


_READS_ONE = torch.zeros(3, 4, dtype=torch.float64, device="cpu")
_READS_ONE[:, 0] = 1.0
_EXAMPLE_SITES = {"weights": _READS_ONE, "basis": torch.eye(4, dtype=torch.float64, device="cpu")}


def _first(field: str) -> Any:
    def read(result: SubspaceFraction) -> Tensor:
        value: Tensor = getattr(result, field)
        return value[..., 0]

    return read


def _of_matrices(name: str, field: str, label: str, meaning: str, expected: float, **fields: Any) -> Quantity:
    return Quantity(
        name,
        "subspace_fraction",
        label,
        meaning,
        ClosedForm(expected, torch.eye(2, device="cpu"), _EXAMPLE_SITES),
        options={"matrix": Site("weights"), "basis": Site("basis"), "k": 1},
        read=_first(field),
        scope="weights",
        needs=("weights", "basis"),
        **fields,
    )


QUANTITIES = (
    _of_matrices(
        "subspace_fraction",
        "fraction",
        "fraction in the subspace",
        "Share of a matrix's energy that lies in the first k directions of a basis.",
        1.0,
        symbol="f",
        low=0,
        high=1,
    ),
    _of_matrices(
        "relative_fraction",
        "relative",
        "fraction / isotropic",
        "The fraction over k/d, its value for a matrix without preferred directions.",
        4.0,
        symbol="r",
        low=0,
    ),
    _of_matrices(
        "captured_fraction",
        "captured",
        "captured of the possible",
        "(f − k/d)/(ceiling − k/d): how much of what any k directions could hold these hold.",
        1.0,
        kind="ratio",
        high=1,
    ),
    Quantity(
        "concentration",
        "concentration",
        "concentration",
        "Twice the area between the curve f(k) and the diagonal: 0 without preferred directions.",
        ClosedForm(0.75, torch.eye(2, device="cpu"), _EXAMPLE_SITES),
        options={"matrix": Site("weights"), "basis": Site("basis")},
        scope="weights",
        needs=("weights", "basis"),
        low=-1,
        high=1,
    ),
)
