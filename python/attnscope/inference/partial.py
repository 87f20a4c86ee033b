# SPDX-License-Identifier: MIT
"""Correlation given other variables, and correlation within texts.

A correlation over texts can be that of a third variable, such as their length. Partial correlation takes the
third variable out; correlation within texts compares versions of one text, which share all of it.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attnscope import _checks
from attnscope.inference._arguments import Vector, array, check_draws, label_numbers, vector
from attnscope.inference.intervals import Correlation, _percentiles, bootstrap

Array = npt.NDArray[np.float64]

#: What of a variable is left by the covariates as a share of its spread, below which nothing is left.
_NOTHING = 1e-9
#: Draws that are held in memory at a time.
_BLOCK = 200


def partial_correlation(
    x: Any,
    y: Any,
    covariates: Any,
    *,
    method: Literal["pearson", "spearman"] = "spearman",
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
    units: Any = None,
) -> Correlation:
    """Correlation of what least squares on covariates leaves of x and of y.

    It is −P_xy/√(P_xx·P_yy) of the inverse P of the correlation matrix of x, y and the covariates.

    Args:
        x: one number a sample [n].
        y: the same samples.
        covariates: [n], or [n, c] with c columns; constant columns are left out, and with none it is
            `correlation`. A row with NaN anywhere is left out.
        method: of values, or of ranks (mean ranks on ties), which the covariates get too.
        confidence: in (0, 1).
        draws: drawings of samples with replacement.
        seed: of the bootstrap.
        units: labels [n] of what is drawn together; None draws samples.

    Returns:
        Correlation; all NaN for fewer than c + 3 samples, where x or y is constant, or where the covariates
        leave nothing of one of them. p_value is that of Student's t with n − 2 − c degrees of freedom, n the
        number of units.

    Raises:
        ValueError: different lengths, an unknown method, confidence outside (0, 1), draws below 1.

    Example:
        Both are their common cause and something that the other has not.

        >>> from attnscope import inference
        >>> cause = [0, 0, 1, 1, 4, 4, 6, 6]
        >>> one = [0, 1, 1, 2, 4, 5, 6, 7]
        >>> other = [0, 1, 2, 1, 4, 5, 7, 6]
        >>> round(inference.partial_correlation(one, other, cause, method="pearson", draws=1).r, 6)
        0.0

    References:
        Fisher, The distribution of the partial correlation coefficient, 1924.
    """
    name = "partial_correlation"
    _checks.choice_argument(name, "method", method, ("pearson", "spearman"))
    confidence, draws, seed = check_draws(name, confidence, draws, seed)
    data, labels = _columns(name, x, y, covariates, units)
    r, counted = _partial(data, method)
    n = len(np.unique(labels))
    if math.isnan(r):
        return Correlation(math.nan, math.nan, math.nan, math.nan, n)
    drawn = _drawn_partial(data, labels, method, draws, seed)
    low, high = _percentiles(drawn[~np.isnan(drawn)], confidence)
    return Correlation(r, low, high, _student(r, n - 2 - counted), n)


def within_correlation(
    x: Any,
    y: Any,
    texts: Any,
    *,
    given: Any = None,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Correlation:
    """Spearman's correlation of versions of one text, its mean over texts.

    Without association the variance of the correlation of k versions over their orders is exactly 1/(k − 1),
    ties or not, so Σ r/√(Σ 1/(k − 1)) is nearly normal.

    Args:
        x: one number a version.
        y: the same versions.
        texts: label of each version's text. A version with NaN in any is left out.
        given: a control; then ranks are centred within texts and pooled, and the correlation is that of what
            the control leaves of x and y.
        confidence: in (0, 1).
        draws: drawings of texts with replacement.
        seed: of the bootstrap.

    Returns:
        Correlation: mean over texts with its bootstrap interval over texts, two-sided p of the normal, and
            the
        number of texts. A text with fewer than three versions, or whose x or y is constant, does not count;
        NaN without a text. With `given` the p-value is NaN.

    Raises:
        ValueError: different lengths, confidence outside (0, 1), draws below 1.

    Example:
        In either text y rises with x; over both it falls.

        >>> from attnscope import inference
        >>> x, y = [1, 2, 3, 11, 12, 13], [21, 22, 23, 1, 2, 3]
        >>> found = inference.within_correlation(x, y, [0, 0, 0, 1, 1, 1])
        >>> found.r, found.n, round(inference.correlation(x, y).r, 2)
        (1.0, 2, -0.97)

    References:
        Hotelling and Pabst, Rank correlation and tests of significance involving no assumption of normality,
        1936 (the variance).
    """
    from scipy import special

    name = "within_correlation"
    confidence, draws, seed = check_draws(name, confidence, draws, seed)
    data, labels = _columns(name, x, y, () if given is None else given, texts)
    parts = [_centred_ranks(data[rows]) for rows in _rows_of(labels)]
    if given is not None:
        return _pooled(parts, confidence, draws, seed)
    found = np.array([_r_of(part[:, 0], part[:, 1]) for part in parts])
    defined = ~np.isnan(found)
    if not defined.any():
        return Correlation(math.nan, math.nan, math.nan, math.nan, 0)
    mean = bootstrap(found[defined], confidence=confidence, draws=draws, seed=seed)
    variance = sum(1 / (len(part) - 1) for part, there in zip(parts, defined, strict=True) if there)
    z = float(found[defined].sum()) / math.sqrt(variance)
    return Correlation(mean.estimate, mean.low, mean.high, float(2 * special.ndtr(-abs(z))), mean.n)


def _columns(
    function: str, x: Any, y: Any, covariates: Any, units: Any
) -> tuple[Array, npt.NDArray[np.int64]]:
    """x, y and the covariates [n, 2 + c] of samples without NaN, and numbers of their units."""
    first, second = vector(function, "x", x), vector(function, "y", y)
    more = array(function, "covariates", covariates)
    if more.ndim == 1:
        more = more[:, None] if len(more) else np.empty((len(first), 0))
    if more.ndim != 2:
        raise ValueError(f"{function}: covariates must have shape [n] or [n, c], got shape {more.shape}")
    for name, values in (("y", second), ("covariates", more)):
        if len(values) != len(first):
            raise ValueError(f"{function}: {name} must hold the {len(first)} samples of x, got {len(values)}")
    together = np.arange(len(first)) if units is None else units
    _, own = label_numbers(function, "units or texts", together, len(first))
    data = np.column_stack([first, second, more])
    known = np.isfinite(data).all(1)
    return data[known], label_numbers(function, "units or texts", own[known])[1]


def _rows_of(labels: npt.NDArray[np.int64]) -> list[npt.NDArray[np.intp]]:
    """Rows of each unit, in the order of their labels."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1) if len(labels) else []


def _partial(data: Array, method: str) -> tuple[float, int]:
    """The partial correlation of columns 0 and 1 given the others, and how many of them are not constant."""
    from scipy import stats

    if len(data) == 0:
        return math.nan, 0
    varying = np.ptp(data, axis=0) > 0
    columns = data[:, [True, True, *varying[2:]]]
    count = columns.shape[1] - 2
    if len(data) < count + 3 or not varying[:2].all():
        return math.nan, count
    if method == "spearman":
        columns = stats.rankdata(columns, axis=0)
    columns = columns - columns.mean(0)
    columns = columns / np.abs(columns).max(0)
    return _r_of(*_residuals(columns).T), count


def _residuals(columns: Array) -> Array:
    """Columns 0 and 1 less their projection on the others; NaN where nothing is left."""
    if columns.shape[1] == 2:
        return columns
    left, sizes, _ = np.linalg.svd(columns[:, 2:], full_matrices=False)
    basis = left[:, sizes > _NOTHING * sizes[0]] if len(sizes) and sizes[0] > 0 else left[:, :0]
    rest = columns[:, :2]
    for _ in range(2):  # once more takes out what the first projection left by rounding
        rest = rest - basis @ (basis.T @ rest)
    before, after = (np.sqrt(np.square(some).sum(0)) for some in (columns[:, :2], rest))
    return np.where(after > _NOTHING * before, rest, math.nan)


def _r_of(first: Vector, second: Vector) -> float:
    """The cosine of two centred vectors, NaN where one has no length."""
    size = math.sqrt(float(first @ first) * float(second @ second))
    return min(1.0, max(-1.0, float(first @ second) / size)) if size > 0 else math.nan


def _student(r: float, freedom: int) -> float:
    """The two-sided p of a correlation."""
    from scipy import special

    if freedom < 1:
        return math.nan
    if abs(r) >= 1:
        return 0.0
    t = r * math.sqrt(freedom / (1 - r * r))
    return float(2 * special.stdtr(freedom, -abs(t)))


def _centred_ranks(data: Array) -> Array:
    """Ranks of each column less their mean; NaN for fewer than three rows."""
    from scipy import stats

    if len(data) < 3:
        return np.full(data.shape, math.nan)
    return stats.rankdata(data, axis=0) - (len(data) + 1) / 2


def _pooled(parts: list[Array], confidence: float, draws: int, seed: int) -> Correlation:
    """Correlation of pooled centred ranks given the control, drawn by text."""
    known = [part for part in parts if not np.isnan(part).any() and np.ptp(part[:, :2], axis=0).all()]
    r = _r_of(*_residuals(np.concatenate(known)).T) if known else math.nan
    if math.isnan(r):
        return Correlation(math.nan, math.nan, math.nan, math.nan, len(known))
    products = np.stack([part.T @ part for part in known])
    drawn = _of_products(np.einsum("dt,tab->dab", _multiplicities(len(known), draws, seed), products))
    low, high = _percentiles(drawn[~np.isnan(drawn)], confidence)
    return Correlation(r, low, high, math.nan, len(known))


def _multiplicities(count: int, draws: int, seed: int) -> Array:
    """How often each of `count` is drawn with replacement [draws, count]."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(count, np.full(count, 1 / count), draws).astype(np.float64)


def _drawn_partial(data: Array, labels: npt.NDArray[np.int64], method: str, draws: int, seed: int) -> Vector:
    """The partial correlation of samples drawn by unit: a sample counts as often as its unit is drawn."""
    units = int(labels.max()) + 1
    found = []
    weights = _multiplicities(units, draws, seed)
    for start in range(0, draws, _BLOCK):
        w = weights[start : start + _BLOCK][:, labels]
        columns = np.stack([_weighted(column, w, method) for column in data.T], -1)
        mean = np.einsum("dn,dnp->dp", w, columns) / w.sum(1)[:, None]
        columns = (columns - mean[:, None]) * np.sqrt(w)[..., None]
        found.append(_of_products(np.einsum("dna,dnb->dab", columns, columns)))
    return np.concatenate(found)


def _weighted(column: Vector, weights: Array, method: str) -> Array:
    """Values of a column, or its mean ranks where every entry counts `weights` [d, n] times."""
    values, places = np.unique(column, return_inverse=True)
    if method == "pearson":
        scale = float(np.abs(column).max()) or 1.0
        return np.broadcast_to(column / scale, weights.shape)
    counts = np.zeros((len(weights), len(values)))
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    counts[:] = np.add.reduceat(weights[:, order], starts, axis=1)
    return (counts.cumsum(1) - counts / 2)[:, places]


def _of_products(products: Array) -> Vector:
    """Partial correlations of the first two given the others, from their products [..., p, p]."""
    own, shared, others = products[..., :2, :2], products[..., :2, 2:], products[..., 2:, 2:]
    if others.shape[-1]:
        inverse = np.linalg.pinv(others, rcond=1e-12, hermitian=True)
        rest = own - shared @ inverse @ np.swapaxes(shared, -1, -2)
    else:
        rest = own
    first, second = rest[..., 0, 0], rest[..., 1, 1]
    there = (first > 1e-10 * own[..., 0, 0]) & (second > 1e-10 * own[..., 1, 1])
    size = np.sqrt(np.where(there, first * second, math.nan))
    return np.clip(rest[..., 0, 1] / size, -1, 1)
