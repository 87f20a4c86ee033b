# SPDX-License-Identifier: MIT
"""The spectrum of one attention matrix against the law that random entries would follow."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes

from attnscope.metrics.spectra.marchenko_pastur import marchenko_pastur_deviation
from attnscope.plots.style import INK, PALETTE, UNIFORM, axes_or_new, legend_above, styled


class Spectrum(NamedTuple):
    """Eigenvalues of the row-standardised map and the null law they are compared with."""

    values: Any
    law_x: Any
    law_cdf: Any
    edge: float
    law: str


#: Below this many tokens a distribution of singular values says nothing.
FEWEST = 8


def has_spectrum(attention: Any) -> bool:
    """Whether `spectrum` takes the map.

    Args:
        attention: `[n, n]`.

    Returns:
        False with too few rows, or where each is uniform over its visible keys.
    """
    matrix = np.asarray(attention, dtype=float)
    if len(matrix) < FEWEST or not np.isfinite(matrix).all():
        return False
    causal = not np.triu(matrix, 1).any()
    return any(bool(np.ptp(row[: k + 1] if causal else row) > 0) for k, row in enumerate(matrix))


def spectrum(attention: Any) -> Spectrum:
    """The squared singular values of the row-standardised map over n, and the law of their null.

    Each row is standardised over its visible keys; rows whose visible entries are all equal are dropped.

    Args:
        attention: `[n, n]`, causal (zero above the diagonal) or full.

    Returns:
        Ascending values; the law as a curve (x, CDF); its upper edge; its name.

    Raises:
        ValueError: when the matrix is not square, has fewer than 8 rows, or only uniform ones.
    """
    matrix = np.asarray(attention, dtype=float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < FEWEST:
        raise ValueError(f"spectrum: attention must be [n, n] with n >= 8, got shape {matrix.shape}")
    n = len(matrix)
    causal = not np.triu(matrix, 1).any()
    rows = []
    for query, row in enumerate(matrix):
        visible = row[: query + 1] if causal else row
        if visible.max() > visible.min():
            standard = np.zeros(n)
            standard[: len(visible)] = (visible - visible.mean()) / visible.std()
            rows.append(standard)
    kept = len(rows)
    if kept == 0:
        raise ValueError("spectrum: every row is uniform over its visible keys; there is nothing to compare")
    values = np.sort(np.linalg.svd(np.array(rows).reshape(kept, n), compute_uv=False)[:kept] ** 2 / n)
    if causal:
        x, cdf = triangular_law()
        return Spectrum(values, x, cdf, float(np.e), "triangular law")
    x, cdf = marchenko_pastur_law(kept / n)
    return Spectrum(values, x, cdf, float(x[-1]), "Marchenko-Pastur law")


def triangular_law(points: int = 4001) -> tuple[Any, Any]:
    """The law of Dykema and Haagerup for triangles of random entries, as a curve.

    x(v) = (sin v / v) exp(v cot v), F = 1 − v/π + sin²v/(πv), v in (0, π).

    Args:
        points: on the curve.

    Returns:
        Ascending x in (0, e) and the CDF there.

    >>> x, cdf = triangular_law()
    >>> bool(abs(np.trapezoid(1 - cdf, x) - 0.5) < 1e-3)   # the mean is 1/2
    True
    """
    # At v = pi - 0.04 x is 1e-36 already; nearer to pi it underflows.
    v = np.linspace(np.pi - 0.04, 1e-6, points)
    x = np.sin(v) / v * np.exp(v / np.tan(v))
    return x, 1 - v / np.pi + np.sin(v) ** 2 / (np.pi * v)


def marchenko_pastur_law(aspect: float, points: int = 4001) -> tuple[Any, Any]:
    """The Marchenko–Pastur law for variance 1, as a curve.

    Args:
        aspect: rows over columns, in (0, 1].
        points: on the curve.

    Returns:
        Ascending x on the support and the CDF there.
    """
    low, high = (1 - np.sqrt(aspect)) ** 2, (1 + np.sqrt(aspect)) ** 2
    # x = middle - half cos(angle) turns the edges' square roots, and the pole at 0 of a square, into a smooth
    # integrand.
    angle = np.linspace(0, np.pi, points)
    middle, half = (low + high) / 2, (high - low) / 2
    x = middle - half * np.cos(angle)
    with np.errstate(invalid="ignore", divide="ignore"):
        density = (half * np.sin(angle)) ** 2 / (2 * np.pi * aspect * x)
    if low < 1e-12:
        density[0] = 2 * half / (2 * np.pi * aspect)
    steps = (density[1:] + density[:-1]) / 2 * np.diff(angle)
    cdf = np.concatenate([[0.0], np.cumsum(steps)])
    return x, cdf / cdf[-1]


def ks_distance(found: Spectrum) -> tuple[float, float, float]:
    """Where the empirical distribution is farthest from the null law; how far is `marchenko_pastur`'s `ks`.

    Args:
        found: from `spectrum`.

    Returns:
        The x of the largest gap, the law there and the share of values at its other end. Values below 1e-12
        of the edge count as below every x, as in `marchenko_pastur`.
    """
    values = found.values
    law = np.interp(values, found.law_x, found.law_cdf, left=0.0, right=1.0)
    count = np.arange(1, len(values) + 1) / len(values)
    gaps = np.maximum(abs(count - law), abs(count - 1 / len(values) - law))
    gaps = np.where(values >= 1e-12 * found.edge, gaps, 0.0)
    place = int(gaps.argmax())
    above = abs(count[place] - law[place]) >= gaps[place] - 1e-12
    return float(values[place]), float(law[place]), float(count[place] - (0 if above else 1 / len(values)))


@styled
def spectrum_against_null(attention: Any, *, ax: Axes | None = None) -> Axes:
    """How far a map is from random entries: its spectrum's distribution over the null law's.

    Args:
        attention: `[n, n]`, causal or full.
        ax: axes to draw on; None makes them.

    Returns:
        The axes: the first line is the spectrum's empirical distribution, the second the null law; a bar
        marks the Kolmogorov–Smirnov distance.
    """
    ax = axes_or_new(ax)
    found = spectrum(attention)
    share = np.arange(1, len(found.values) + 1) / len(found.values)
    ax.step(found.values, share, where="post", color=PALETTE[0], label="this map", zorder=3)
    ax.plot(found.law_x, found.law_cdf, label=found.law, **UNIFORM)
    place, law, at = ks_distance(found)
    distance = float(marchenko_pastur_deviation(torch.from_numpy(np.array(attention, dtype=np.float64))))
    ax.plot([place, place], [law, at], color=PALETTE[1], linewidth=2.0, solid_capstyle="butt", zorder=4)
    ax.annotate(
        f"KS {distance:.2f}", (place, (law + at) / 2), xytext=(4, 0), textcoords="offset points",
        color=PALETTE[1], va="center", fontsize=7, fontweight="bold",
    )  # fmt: skip
    ax.axvline(found.edge, color=INK, linewidth=0.5, linestyle=":")
    ax.annotate(
        "edge", (found.edge, 0.0), xytext=(2, 2), textcoords="offset points", fontsize=6, rotation=90,
        va="bottom",
    )  # fmt: skip
    ax.set_xscale("log")
    smallest = float(found.values[found.values > 0].min())
    ax.set_xlim(max(1e-4, 0.5 * smallest), 1.6 * float(max(found.values[-1], found.edge)))
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("eigenvalue")
    ax.set_ylabel("share below")
    legend_above(ax)
    return ax
