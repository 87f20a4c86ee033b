# SPDX-License-Identifier: MIT
"""Spectra of the head mean, as the random-matrix notebook computes them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from attnscope import _blas, _checks, _core
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.spectra import singular_values as exact
from attnscope.protocols.ruscio2025._maps import PROTOCOL, head_mean, non_finite, percentile_of, zeroed

# The notebook's Marchenko–Pastur density: aspect, eigenvalues kept, bins.
ASPECT = 0.99
LARGEST = 10
BINS = 20


@shown_by_shape
class Bulk(NamedTuple):
    """Of the eigenvalue magnitudes of each map: the edge of the bulk, mean and deviation below it, [...]."""

    edge: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor


def spectral_ratio(attention: torch.Tensor) -> torch.Tensor:
    """|λ1|/|λ2| of the head mean; the notebook calls it spectral gap.

    Quirk: eigenvalues, not singular values; of a causal map they are its diagonal, so λ1 = A_00 = 1 and
    the ratio says how much the second most self-attending token gives itself.

    Args:
        attention: head mean [..., n, n].

    Returns:
        [...] float64, >= 1, infinite for one token; a map with a NaN or infinite entry is NaN.

    Raises:
        ValueError: as the exact `spectral_ratio`.

    Example:
        Uniform causal attention has the eigenvalues 1, 1/2, 1/3, …

        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(10, 10, dtype=torch.float64).tril()
        >>> uniform /= uniform.sum(-1, keepdim=True)
        >>> ruscio2025.spectral_ratio(uniform).item()
        2.0

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, random-matrix notebook.
    """
    sizes, checked, bad = _eigenvalue_sizes("spectral_ratio", attention)
    return _finished("spectral_ratio", checked, bad, _ratio_of(sizes))


def participation_ratio(attention: torch.Tensor) -> torch.Tensor:
    """(Σ|λ|)²/Σ|λ|² of the head mean, over its eigenvalues.

    Args:
        attention: head mean [..., n, n].

    Returns:
        [...] float64, in [1, n]; NaN where every eigenvalue is 0 or an entry is not finite.

    Raises:
        ValueError: as the exact `participation_ratio`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(10, 10, dtype=torch.float64).tril()
        >>> uniform /= uniform.sum(-1, keepdim=True)
        >>> round(ruscio2025.participation_ratio(uniform).item(), 3)
        5.536

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, random-matrix notebook.
    """
    _, checked = head_mean("participation_ratio", attention)
    result, count = _core.participation_ratio(checked.tensor, None, "eigen")
    return _checks.finished(PROTOCOL + "participation_ratio", checked, result, count)


def stable_rank(attention: torch.Tensor) -> torch.Tensor:
    """‖A‖_F²/σ1² of the head mean, as the exact `stable_rank`.

    Args:
        attention: head mean [..., n, n].

    Returns:
        [...] float64, in [1, n]; NaN for a map of zeros or with an entry that is not finite.

    Raises:
        ValueError: as the exact `stable_rank`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> round(ruscio2025.stable_rank(torch.eye(3)).item(), 12)
        3.0

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, random-matrix notebook.
    """
    return exact.stable_rank_of(_singular_values("stable_rank", attention))


def spectral_norm(attention: torch.Tensor) -> torch.Tensor:
    """The largest singular value of the head mean.

    Args:
        attention: head mean [..., n, n].

    Returns:
        [...] float64, >= 0; a map with a NaN or infinite entry is NaN.

    Raises:
        ValueError: as the exact `singular_values`.

    Example:
        Every query on key 0: σ1 = √n.

        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> star = torch.zeros(9, 9, dtype=torch.float64); star[:, 0] = 1
        >>> round(ruscio2025.spectral_norm(star).item(), 12)
        3.0

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, random-matrix notebook.
    """
    return _singular_values("spectral_norm", attention)[..., 0]


def bulk(attention: torch.Tensor) -> Bulk:
    """Where the bulk of |λ| ends, by the largest gap between neighbours, and its mean and deviation.

    The edge is the middle of the largest gap between consecutive magnitudes (the last magnitude for n <= 2);
    mean and population deviation are over those below it, or over all when fewer than two are.

    Args:
        attention: head mean [..., n, n].

    Returns:
        Bulk, each field [...] float64; a map with a NaN or infinite entry is NaN.

    Raises:
        ValueError: as the exact `participation_ratio`.

    Example:
        Uniform causal attention: 1, 1/2, 1/3, … has its largest gap between the first two.

        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(10, 10, dtype=torch.float64).tril()
        >>> uniform /= uniform.sum(-1, keepdim=True)
        >>> ruscio2025.bulk(uniform).edge.item()
        0.75

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, random-matrix notebook.
    """
    sizes, checked, bad = _eigenvalue_sizes("bulk", attention)
    return _checks.finished(PROTOCOL + "bulk", checked, _bulk_of(sizes, bad), int(bad.sum()))


def sink_concentration(attention: torch.Tensor) -> torch.Tensor:
    """The share of all mass on the keys whose column sum reaches the 90th percentile of column sums.

    Quirk: a tenth of the keys are sinks by construction; uniform causal attention gives about 0.32.

    Args:
        attention: head mean [..., n, n].

    Returns:
        [...] float64, in [0, 1]; NaN for a map of zeros or with an entry that is not finite.

    Raises:
        ValueError: as the exact `incoming_attention`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(20, 20, dtype=torch.float64).tril()
        >>> uniform /= uniform.sum(-1, keepdim=True)
        >>> round(ruscio2025.sink_concentration(uniform).item(), 3)
        0.31

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, random-matrix notebook.
    """
    maps, checked = head_mean("sink_concentration", attention)
    bad = non_finite(maps)
    incoming = zeroed(maps, bad).sum(-2)
    share = torch.where(incoming >= percentile_of(incoming, 90), incoming, 0.0).sum(-1) / incoming.sum(-1)
    return _finished("sink_concentration", checked, bad, share)


def marchenko_pastur_deviation(attention: torch.Tensor) -> torch.Tensor:
    """KL divergence of a histogram of the ten largest |λ| from a Marchenko–Pastur density.

    The ten largest magnitudes over their mean, in 20 bins over their own range, against the density of aspect
    0.99 at the bin centres; both normalised to sum 1.

    Quirks: ten numbers in twenty bins, a law for covariance eigenvalues held against |λ(A)|, and infinity
    where a filled bin lies outside the law's support: such maps are to be dropped from means and counted.

    Args:
        attention: head mean [..., n, n].

    Returns:
        [...] float64 nats, >= 0 or infinite; NaN where every eigenvalue is 0 or an entry is not finite.

    Raises:
        ValueError: as the exact `marchenko_pastur_deviation`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(30, 30, dtype=torch.float64).tril()
        >>> uniform /= uniform.sum(-1, keepdim=True)
        >>> bool(ruscio2025.marchenko_pastur_deviation(uniform) > 0)
        True

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, random-matrix notebook.
    """
    name = "marchenko_pastur_deviation"
    sizes, checked, bad = _eigenvalue_sizes(name, attention)
    return _finished(name, checked, bad, _deviation_of(sizes))


def spectral_numbers(attention: torch.Tensor, *, known: Any = None) -> dict[str, Any]:
    """Every number of the random-matrix notebook that is made of spectra, each decomposition done once.

    Args:
        attention: head mean [..., n, n].
        known: perhaps the maps' `singular_values` [..., n, 1].

    Returns:
        What the functions of those names give.
    """
    sizes, _, bad = _eigenvalue_sizes("spectral_numbers", attention)
    singular = (known or {}).get("singular_values")
    singular = _singular_values("spectral_numbers", attention) if singular is None else singular.squeeze(-1)
    found = {
        "spectral_ratio": _ratio_of(sizes),
        "participation_ratio": participation_ratio(attention),
        "stable_rank": exact.stable_rank_of(singular),
        "spectral_norm": singular[..., 0],
        "marchenko_pastur_deviation": _deviation_of(sizes),
    }
    numbers: dict[str, Any] = {name: torch.where(bad, torch.nan, values) for name, values in found.items()}
    return {**numbers, "bulk": _bulk_of(sizes, bad)}


def _ratio_of(sizes: torch.Tensor) -> torch.Tensor:
    if sizes.shape[-1] == 1:
        return torch.full(sizes.shape[:-1], math.inf, dtype=torch.float64)
    return sizes[..., 0] / sizes[..., 1]


def _deviation_of(sizes: torch.Tensor) -> torch.Tensor:
    rows = sizes[..., :LARGEST].reshape(-1, min(sizes.shape[-1], LARGEST)).numpy()
    values = np.array([_divergence_from_law(row) for row in rows], dtype=np.float64)
    return torch.from_numpy(values).reshape(sizes.shape[:-1])


def _bulk_of(sizes: torch.Tensor, bad: torch.Tensor) -> Bulk:
    if sizes.shape[-1] <= 2:
        edge = sizes[..., -1]
    else:
        gap = (sizes[..., :-1] - sizes[..., 1:]).argmax(-1, keepdim=True)
        edge = ((sizes.gather(-1, gap) + sizes.gather(-1, gap + 1)) / 2).squeeze(-1)
    below = sizes < edge.unsqueeze(-1)
    below = below | (below.sum(-1, keepdim=True) < 2)
    count = below.sum(-1)
    mean = torch.where(below, sizes, 0.0).sum(-1) / count
    variance = torch.where(below, (sizes - mean.unsqueeze(-1)).square(), 0.0).sum(-1) / count
    return Bulk(*(torch.where(bad, torch.nan, field) for field in (edge, mean, variance.sqrt())))


def _divergence_from_law(sizes: np.ndarray[Any, Any]) -> float:
    mean = sizes.mean()
    if not mean > 0:
        return math.nan
    counts, edges = np.histogram(sizes / mean, bins=BINS)
    centres = (edges[:-1] + edges[1:]) / 2
    low, high = (1 - math.sqrt(ASPECT)) ** 2, (1 + math.sqrt(ASPECT)) ** 2
    inside = (centres > low) & (centres < high)
    x = np.where(inside, centres, 1.0)
    density = np.where(inside, np.sqrt((high - x) * (x - low)) / (2 * math.pi * ASPECT * x), 0.0)
    if not density.sum() > 0:
        return math.nan
    p, q = counts / counts.sum(), density / density.sum()
    filled = p > 0
    if np.any(q[filled] == 0):
        return math.inf
    return float(np.sum(p[filled] * np.log(p[filled] / q[filled])))


def _eigenvalue_sizes(
    function: str, attention: torch.Tensor
) -> tuple[torch.Tensor, _checks.Attention, torch.Tensor]:
    """|λ| descending [..., n], 0 where an entry is not finite, with the argument and where that is."""
    maps, checked = head_mean(function, attention)
    bad = non_finite(maps)
    maps = zeroed(maps, bad)
    sizes = maps.diagonal(dim1=-2, dim2=-1).abs().clone()
    general = maps.triu(1).any(-1).any(-1)
    if general.any():
        # not torch.linalg.eigvals: its solver gives up on uniform attention of 48 tokens and other lengths
        with _blas.one_thread():
            sizes[general] = torch.from_numpy(np.abs(np.linalg.eigvals(maps[general].numpy())))
    return sizes.sort(-1, descending=True).values, checked, bad


def _singular_values(function: str, attention: torch.Tensor) -> torch.Tensor:
    _, checked = head_mean(function, attention)
    result, count = _core.singular_values(checked.tensor, None)
    return _checks.finished(PROTOCOL + function, checked, result, count)


def _finished(
    function: str, checked: _checks.Attention, bad: torch.Tensor, result: torch.Tensor
) -> torch.Tensor:
    result = torch.where(bad, torch.nan, result)
    return _checks.finished(PROTOCOL + function, checked, result, int(bad.sum()))
