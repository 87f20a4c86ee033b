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

from attnscope.arguments import scalars
from attnscope.arguments.number_lists import number_array
from attnscope.statistics._arguments import check_draws, label_numbers, missing_labels, vector
from attnscope.statistics.correlations import (
    Correlation,
    correlation_bounds,
    correlation_p_value,
    cosine,
    fisher_z,
    rank_of,
)
from attnscope.statistics.intervals import FEWEST, bootstrap
from attnscope.statistics.rounding import varies

Array = npt.NDArray[np.float64]

#: Share of a variable's spread left by the covariates, below which the rest counts as rounding.
_LEAST_REST = 1e-9


def partial_correlation(
    x: Any,
    y: Any,
    covariates: Any,
    *,
    method: Literal["pearson", "spearman"] = "spearman",
    confidence: float = 0.95,
    units: Any = None,
) -> Correlation:
    """Return the correlation of the residuals of x and of y after least squares on covariates.

    It is −P_xy/√(P_xx·P_yy) of the inverse P of the correlation matrix of x, y and the covariates. Its
    interval is that of `correlation`, with a degree of freedom less for each covariate and units in the place
    of samples.

    Args:
        x: one number a sample [n].
        y: the same samples.
        covariates: [n], or [n, c] with c columns; constant columns are left out, and with none it is
            `correlation`. A row with NaN anywhere is left out.
        method: of values, or of ranks (mean ranks on ties), which the covariates get too.
        confidence: in (0, 1).
        units: labels [n] of samples that belong together, a row without one left out; None: each sample is
            its own unit.

    Returns:
        Correlation; all NaN for fewer than c + 3 samples, where x or y is constant but for rounding, where
        the covariates leave nothing of one of them, and for an infinite value that is not ranked; low and
        high NaN below five units and c + 4. p_value is that of Student's t with n − 2 − c degrees of freedom,
        n the number of units; of ranks where n − c is nine or less, that of so many ranks without ties.
        Ranks of two variables with one cause are no linear functions of its ranks: given a covariate that
        correlates by .95 with both Student's p is below .05 in .09 to .11 of cases (12 to 300 samples), and
        by .995 in .13 to .26. So p of ranks is never smaller than that of the interval's standard error: .01
        to .06, and .04 to .09.

    Raises:
        ValueError: different lengths, an unknown method, confidence outside (0, 1).

    Example:
        Both are their common cause and something that the other has not.

        >>> from attnscope import statistics
        >>> cause = [0, 0, 1, 1, 4, 4, 6, 6]
        >>> one = [0, 1, 1, 2, 4, 5, 6, 7]
        >>> other = [0, 1, 2, 1, 4, 5, 7, 6]
        >>> round(statistics.partial_correlation(one, other, cause, method="pearson").r, 6) == 0
        True

    References:
        Fisher, The distribution of the partial correlation coefficient, 1924.
    """
    from scipy import special

    name = "partial_correlation"
    scalars.choice_argument(name, "method", method, ("pearson", "spearman"))
    confidence = scalars.fraction_argument(name, "confidence", confidence)
    data, labels = _columns(name, x, y, covariates, units)
    n = len(np.unique(labels))
    residuals, basis = _partial(data, method)
    if np.isnan(residuals).any() or not len(residuals):
        return Correlation(math.nan, math.nan, math.nan, math.nan, n)
    r, ranked, counted = cosine(*residuals.T), method == "spearman", basis.shape[1]
    leverage = np.square(basis).sum(1)
    low, high = correlation_bounds(
        residuals, labels, confidence, ranked=ranked, covariates=counted, leverage=leverage
    )
    p_value = correlation_p_value(residuals, n, ranked=ranked, covariates=counted)
    if ranked and counted and not math.isnan(low):
        z, error = fisher_z(residuals, labels, ranked=True, leverage=leverage)
        if error > 0:
            p_value = max(p_value, 2 * float(special.stdtr(n - 2 - counted, -abs(z) / error)))
    return Correlation(r, low, high, p_value, n)


def within_correlation(
    x: Any,
    y: Any,
    texts: Any,
    *,
    covariates: Any = None,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Correlation:
    """Return Spearman's correlation of versions of one text, its mean over texts.

    Without association the variance of the correlation of k versions over their orders is exactly 1/(k − 1),
    ties or not, so Σ r/√(Σ 1/(k − 1)) is nearly normal where no text has an association. The interval is of
    the mean over texts, which may be 0 while texts have strong ones of either sign: there that normal's p is
    below .05 in .2 to .3 of cases. So from five texts on, where there is an interval, p is the larger of it
    and Student's of the mean over texts, and speaks of what the interval does.

    Args:
        x: one number a version.
        y: the same versions.
        texts: label of each version's text. A version with NaN in any is left out.
        covariates: a control; then ranks are centred within texts and pooled, and the correlation is that of
            what the control leaves of x and y.
        confidence: in (0, 1).
        draws: drawings of texts with replacement, for the mean.
        seed: of the bootstrap.

    Returns:
        Correlation: mean over texts with its bootstrap interval over texts, two-sided p, and the number of
        texts; below five texts p is that of no association in any of them. A text with fewer than three
        versions, or whose x or y is constant, does not count; NaN without a text. With covariates the
        interval is that of `correlation` with texts as units, and the p-value is NaN.

    Raises:
        ValueError: different lengths, confidence outside (0, 1), draws below 1.

    Example:
        In either text y rises with x; over both it falls.

        >>> from attnscope import statistics
        >>> x, y = [1, 2, 3, 11, 12, 13], [21, 22, 23, 1, 2, 3]
        >>> result = statistics.within_correlation(x, y, [0, 0, 0, 1, 1, 1])
        >>> result.r, result.n, round(statistics.correlation(x, y).r, 2)
        (1.0, 2, -0.97)

    References:
        Hotelling and Pabst, Rank correlation and tests of significance involving no assumption of normality,
        1936 (the variance).
    """
    from scipy import special

    name = "within_correlation"
    confidence, draws, seed = check_draws(name, confidence, draws, seed)
    data, labels = _columns(name, x, y, () if covariates is None else covariates, texts)
    parts = [_centred_ranks(data[rows]) for rows in _rows_of(labels)]
    if covariates is not None:
        return _pooled(parts, confidence)
    correlations = np.array([cosine(part[:, 0], part[:, 1]) for part in parts])
    defined = ~np.isnan(correlations)
    if not defined.any():
        return Correlation(math.nan, math.nan, math.nan, math.nan, 0)
    mean = bootstrap(correlations[defined], confidence=confidence, draws=draws, seed=seed)
    variance = sum(1 / (len(part) - 1) for part, is_defined in zip(parts, defined, strict=True) if is_defined)
    z = float(correlations[defined].sum()) / math.sqrt(variance)
    p_value = float(2 * special.ndtr(-abs(z)))
    error = float(correlations[defined].std(ddof=1)) / math.sqrt(mean.n) if mean.n >= FEWEST else 0.0
    if error > 0:
        p_value = max(p_value, float(2 * special.stdtr(mean.n - 1, -abs(mean.estimate) / error)))
    return Correlation(mean.estimate, mean.low, mean.high, p_value, mean.n)


def _columns(
    function: str, x: Any, y: Any, covariates: Any, units: Any
) -> tuple[Array, npt.NDArray[np.int64]]:
    """Return x, y and the covariates [n, 2 + c] of samples without NaN, and numbers of their units."""
    first, second = vector(function, "x", x), vector(function, "y", y)
    covariate_columns = number_array(function, "covariates", covariates)
    if covariate_columns.ndim == 1:
        covariate_columns = (
            covariate_columns[:, None] if len(covariate_columns) else np.empty((len(first), 0))
        )
    if covariate_columns.ndim != 2:
        raise ValueError(
            f"{function}: covariates must have shape [n] or [n, c], got shape {covariate_columns.shape}"
        )
    for name, values in (("y", second), ("covariates", covariate_columns)):
        if len(values) != len(first):
            raise ValueError(f"{function}: {name} must hold the {len(first)} samples of x, got {len(values)}")
    together = np.arange(len(first)) if units is None else units
    labels = number_array(function, "units or texts", together, None)
    if labels.shape != first.shape:
        raise ValueError(
            f"{function}: units or texts must hold one label per item, [{len(first)}], got shape "
            f"{labels.shape}"
        )
    data = np.column_stack([first, second, covariate_columns])
    complete = ~(np.isnan(data).any(1) | missing_labels(labels))
    return data[complete], label_numbers(function, "units or texts", labels[complete])[1]


def _rows_of(labels: npt.NDArray[np.int64]) -> list[npt.NDArray[np.intp]]:
    """Return rows of each unit, in the order of their labels."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1) if len(labels) else []


def _partial(data: Array, method: str) -> tuple[Array, Array]:
    """Return the parts of columns 0 and 1 that the other columns leave, [n, 2], NaN if none; and their
    basis [n, c].
    """
    if len(data) == 0:
        return np.empty((0, 2)), np.empty((0, 0))
    varying = varies(data)
    columns = data[:, [True, True, *varying[2:]]]
    is_usable = varying[:2].all() and (method == "spearman" or np.isfinite(columns).all())
    if len(data) < columns.shape[1] + 1 or not is_usable:
        return np.full((len(data), 2), math.nan), np.empty((len(data), 0))
    if method == "spearman":
        columns = rank_of(columns)
    columns = columns - columns.mean(0)
    return _residuals(columns / np.abs(columns).max(0))


def _residuals(columns: Array) -> tuple[Array, Array]:
    """Return columns 0 and 1 less their projection on the others, NaN where nothing is left; and that
    basis.
    """
    if columns.shape[1] == 2:
        return columns, columns[:, :0]
    left, sizes, _ = np.linalg.svd(columns[:, 2:], full_matrices=False)
    basis = left[:, sizes > _LEAST_REST * sizes[0]] if len(sizes) and sizes[0] > 0 else left[:, :0]
    rest = columns[:, :2]
    for _ in range(2):  # once more takes out what the first projection left by rounding
        rest = rest - basis @ (basis.T @ rest)
    before, after = (np.sqrt(np.square(columns_pair).sum(0)) for columns_pair in (columns[:, :2], rest))
    return np.where(after > _LEAST_REST * before, rest, math.nan), basis


def _centred_ranks(data: Array) -> Array:
    """Return ranks of each column less their mean, 0 of equal numbers; NaN for fewer than three rows."""
    if len(data) < 3:
        return np.full(data.shape, math.nan)
    return np.where(varies(data), rank_of(data) - (len(data) + 1) / 2, 0.0)


def _pooled(parts: list[Array], confidence: float) -> Correlation:
    """Return the correlation of pooled centred ranks given the control; its interval is over texts."""
    usable = [part for part in parts if not np.isnan(part).any() and np.ptp(part[:, :2], axis=0).all()]
    undefined = Correlation(math.nan, math.nan, math.nan, math.nan, len(usable))
    if not usable:
        return undefined
    residuals, basis = _residuals(np.concatenate(usable))
    r = cosine(*residuals.T)
    if math.isnan(r):
        return undefined
    sizes = [len(part) for part in usable]
    low, high = correlation_bounds(
        residuals,
        np.repeat(np.arange(len(usable)), sizes),
        confidence,
        ranked=True,
        covariates=basis.shape[1],
        leverage=np.square(basis).sum(1),
        # centring takes one of each text's versions
        samples=1 + sum(size - 1 for size in sizes),
    )
    return Correlation(r, low, high, math.nan, len(usable))
