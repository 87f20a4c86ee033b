# SPDX-License-Identifier: MIT
"""The spectrum of one map next to the law that random rows would follow, as curves to draw.

The Marchenko–Pastur law holds for rows that see every key, the triangular law of Dykema and Haagerup for rows
under a causal mask. `marchenko_pastur` measures the distance from the law; this module locates it.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from attnscope import _core
from attnscope.metrics.spectra.marchenko_pastur import marchenko_pastur
from attnscope.metrics.spectra.singular_values import singular_values

#: Which keys the queries of a map see.
Word = Literal["auto", "causal", "full"]
#: Below this many tokens a distribution of singular values is uninformative.
FEWEST = 8


class NullSpectrum(NamedTuple):
    """Eigenvalues of the row-standardised map, and the law of random rows.

    values: ascending. law: its name. law_x, law_cdf: the law as a curve. edge: its upper edge. ks: the
    Kolmogorov–Smirnov distance. outliers: eigenvalues beyond the edge. at: where that distance is. between:
    the law there, and the share of eigenvalues at the other end of it.
    """

    values: np.ndarray[Any, Any]
    law: str
    law_x: np.ndarray[Any, Any]
    law_cdf: np.ndarray[Any, Any]
    edge: float
    ks: float
    outliers: int
    at: float
    between: tuple[float, float]


def undefined_because(attention: torch.Tensor, support: Word = "auto") -> str:
    """Return the reason why a map [n, n] has no spectrum to compare with a law; "" if it has one."""
    if len(attention) < FEWEST:
        return "fewer than eight tokens: too few eigenvalues to compare with a law"
    if not bool(attention.isfinite().all()):
        return "the matrix has entries that are not finite"
    if not bool(_varying(attention, _visible(attention, support)).any()):
        return "every row is uniform over its visible keys; no spectrum can be compared"
    return ""


def null_spectrum(attention: torch.Tensor, support: Word = "auto") -> NullSpectrum:
    """Return the squared singular values of the row-standardised map over n, and the law of their null.

    Each row of a map [n, n], causal or full (`support`; "auto" looks above the diagonal), is standardised
    over its visible keys; rows whose visible entries are all equal are dropped. A map that is not square, or
    has no spectrum as `undefined_because` says, is a ValueError.

    Example:
        All seven eigenvalues of a Hadamard matrix but for its constant row are 1.

        >>> from scipy.linalg import hadamard
        >>> result = null_spectrum(torch.from_numpy(1.0 + hadamard(8)))
        >>> result.law, result.values.round(12).tolist()
        ('Marchenko–Pastur law', [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])

    References:
        Marčenko and Pastur, Distribution of eigenvalues for some sets of random matrices, 1967. Dykema and
        Haagerup, DT-operators and decomposability of Voiculescu's circular operator, 2004.
    """
    if attention.ndim != 2 or attention.shape[0] != attention.shape[1]:
        raise ValueError(f"null_spectrum: attention must be [n, n], got shape {tuple(attention.shape)}")
    if reason := undefined_because(attention, support):
        raise ValueError(f"null_spectrum: {reason}")
    entries, visible = attention.double(), _visible(attention, support)
    n, count = len(entries), visible.sum(-1, keepdim=True)
    centred = torch.where(visible, entries - (entries * visible).sum(-1, keepdim=True) / count, 0.0)
    deviation = ((centred**2).sum(-1, keepdim=True) / count).sqrt()
    varying_rows = _varying(attention, visible)
    rows = torch.where(varying_rows[:, None], centred / deviation, 0.0)
    number = int(varying_rows.sum())
    values = (singular_values(rows)[:number] ** 2 / n).flip(-1).numpy()
    measured = marchenko_pastur(attention, support=support)
    edge, aspect = float(measured.edge), number / n if bool(visible.all()) else None
    law = "Marchenko–Pastur law" if aspect else "triangular law"
    cdf, share = np.array(_core.null_law_cdf(values, aspect, False)), np.arange(1, number + 1) / number
    before = share - 1 / number
    # values below 1e-12 of the edge count as below every x, as in `marchenko_pastur`
    gaps = np.where(values >= 1e-12 * edge, np.maximum(abs(share - cdf), abs(before - cdf)), 0.0)
    at = int(gaps.argmax())
    end = share if abs(share[at] - cdf[at]) >= gaps[at] - 1e-12 else before
    between = float(cdf[at]), float(end[at])
    ks, outliers = float(measured.ks), int(measured.outliers)
    return NullSpectrum(values, law, *null_law(edge, aspect), edge, ks, outliers, float(values[at]), between)


def null_law(
    edge: float, aspect: float | None, points: int = 4001
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the law of random rows as a curve: rising x > 0 up to its edge, denser near 0, and the CDF
    there.

    `aspect` is rows over columns, in (0, 1], of the Marchenko–Pastur law; None is the triangular law.
    """
    x = edge * (np.arange(1, points + 1) / points) ** 8
    return x, np.array(_core.null_law_cdf(x, aspect, False))


def _visible(attention: torch.Tensor, support: Word) -> torch.Tensor:
    all_visible = torch.ones_like(attention, dtype=torch.bool)
    is_full = bool(attention.triu(1).any()) if support == "auto" else support == "full"
    return all_visible if is_full else all_visible.tril()


def _varying(attention: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Return a mask of the rows whose visible entries are not all equal."""
    high = attention.masked_fill(~visible, -math.inf).amax(-1)
    return high > attention.masked_fill(~visible, math.inf).amin(-1)
