# SPDX-License-Identifier: MIT
"""Spectra of the head mean, as the random-matrix notebook computes them."""

from __future__ import annotations

import math
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import numpy as np
import torch

from attnscope import _blas, _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import first_key_map, identity, uniform_causal_map
from attnscope.metrics.quantity import ClosedForm, attribute_reader
from attnscope.metrics.spectra import participation_ratio as ranks
from attnscope.metrics.spectra import singular_values as exact
from attnscope.protocols.ruscio2025._maps import as_exact, declared, head_mean, named, percentile_of

# The notebook's Marchenko–Pastur density: aspect, bounds, eigenvalues kept, bins.
ASPECT = 0.99
LOW, HIGH = (1 - math.sqrt(ASPECT)) ** 2, (1 + math.sqrt(ASPECT)) ** 2
LARGEST = 10
BINS = 20
# Magnitudes that differ by less than this of their mean are equal: the solver rounds them.
EQUAL = 1e-12


@shown_by_shape
class Bulk(NamedTuple):
    """The bulk of each map's eigenvalue magnitudes: its edge, mean and deviation below it, [...]."""

    edge: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor


@memory_errors("spectral_ratio")
@without_derivative("it is the published code's number, made for comparing")
def spectral_ratio(attention: torch.Tensor) -> torch.Tensor:
    """|λ1|/|λ2| of a head mean [..., n, n], which the random-matrix notebook calls spectral gap.

    Quirk: eigenvalues, not singular values; of a causal map they are its diagonal, so λ1 = A_00 = 1 and
    the ratio says how much the second most self-attending token gives itself.

    Returns:
        [...] float64, >= 1, infinite for one token; a map with a NaN or infinite entry is NaN.

    Raises:
        ValueError: as the exact `spectral_ratio`.

    Example:
        Uniform causal attention has the eigenvalues 1, 1/2, 1/3, …

        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(10, 10).tril() / torch.arange(1, 11)[:, None]
        >>> ruscio2025.spectral_ratio(uniform).item()
        2.0

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, random-matrix notebook.
    """
    return _ratio_of(_eigenvalue_sizes(attention, "ruscio2025.spectral_ratio"))


@without_derivative("it is the published code's number, made for comparing")
def participation_ratio(attention: torch.Tensor) -> torch.Tensor:
    """(Σ|λ|)²/Σ|λ|² over the eigenvalues of a head mean [..., n, n], by the random-matrix notebook.

    Returns:
        [...] float64, in [1, n]; NaN where every eigenvalue is 0 or an entry is not finite.

    Raises:
        ValueError: as the exact `participation_ratio`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(10, 10).tril() / torch.arange(1, 11)[:, None]
        >>> round(ruscio2025.participation_ratio(uniform).item(), 3)
        5.536

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, random-matrix notebook.
    """
    name = "ruscio2025.participation_ratio"
    checked = _checks.attention_argument(name, attention)
    return _calls.call_and_warn(_core.participation_ratio, name, checked, "eigen")


@memory_errors("stable_rank")
@without_derivative("it is the published code's number, made for comparing")
def stable_rank(attention: torch.Tensor) -> torch.Tensor:
    """Return ‖A‖_F²/σ1² of a head mean [..., n, n], as the exact `stable_rank`, by the random-matrix
    notebook.

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
    return exact.stable_rank_of(_singular_values(attention, "ruscio2025.stable_rank"))


@memory_errors("spectral_norm")
@without_derivative("it is the published code's number, made for comparing")
def spectral_norm(attention: torch.Tensor) -> torch.Tensor:
    """Return the largest singular value of a head mean [..., n, n], by the random-matrix notebook.

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
    return _singular_values(attention, "ruscio2025.spectral_norm")[..., 0]


@memory_errors("bulk")
@without_derivative("it is the published code's number, made for comparing")
def bulk(attention: torch.Tensor) -> Bulk:
    """Return the edge and moments of the bulk of |λ| of a head mean [..., n, n], by the random-matrix
    notebook.

    The edge is the middle of the largest gap between consecutive magnitudes (the last magnitude for n <= 2);
    mean and population deviation are over those below it, or over all when fewer than two are.

    Returns:
        Bulk, each field [...] float64; a map with a NaN or infinite entry is NaN.

    Raises:
        ValueError: as the exact `participation_ratio`.

    Example:
        Uniform causal attention: 1, 1/2, 1/3, … has its largest gap between the first two.

        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(10, 10).tril() / torch.arange(1, 11)[:, None]
        >>> ruscio2025.bulk(uniform).edge.item()
        0.75

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, random-matrix notebook.
    """
    return _bulk_of(_eigenvalue_sizes(attention, "ruscio2025.bulk"))


@memory_errors("sink_concentration")
@without_derivative("it is the published code's number, made for comparing")
def sink_concentration(attention: torch.Tensor) -> torch.Tensor:
    """Return the share of a head mean [..., n, n] on the keys whose column sum reaches the 90th percentile.

    Quirk of the random-matrix notebook: a tenth of the keys are sinks by construction; uniform causal
    attention gives about 0.32.

    Returns:
        [...] float64, in [0, 1]; NaN for a map of zeros or with an entry that is not finite.

    Raises:
        ValueError: as the exact `incoming_attention`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(20, 20).tril() / torch.arange(1, 21)[:, None]
        >>> round(ruscio2025.sink_concentration(uniform).item(), 3)
        0.31

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, random-matrix notebook.
    """
    name = "ruscio2025.sink_concentration"
    maps, bad, checked = head_mean(name, attention)
    incoming = maps.sum(-2)
    share = torch.where(incoming >= percentile_of(incoming, 90), incoming, 0.0).sum(-1) / incoming.sum(-1)
    return _calls.warn_non_finite(name, checked, share, int(bad.sum()))


@memory_errors("marchenko_pastur_deviation")
@without_derivative("it is the published code's number, made for comparing")
def marchenko_pastur_deviation(attention: torch.Tensor) -> torch.Tensor:
    """KL divergence of the eigenvalues of a head mean [..., n, n] from a Marchenko–Pastur density.

    The ten largest |λ| over their mean, in 20 bins over their own range, against the density of aspect 0.99
    at the bin centres; both normalised to sum 1. The range of equal ones is 1 wide, from 1/2 to 3/2.

    Quirks of the random-matrix notebook: ten numbers in twenty bins, a law for covariance eigenvalues held
    against |λ(A)|, and infinity where a filled bin is outside the law's support: such maps are to be
    dropped from means and counted.

    Returns:
        [...] float64 nats, >= 0 or infinite; NaN where every eigenvalue is 0 or an entry is not finite.

    Raises:
        ValueError: as the exact `marchenko_pastur_deviation`.

    Example:
        One magnitude of ten times the mean is beyond the law's edge of 3.98.

        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> ruscio2025.marchenko_pastur_deviation(torch.diag(torch.tensor([1.0] + [0.0] * 9))).item()
        inf

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, random-matrix notebook.
    """
    return _deviation_of(_eigenvalue_sizes(attention, "ruscio2025.marchenko_pastur_deviation"))


def _eigenvalue_sizes(attention: torch.Tensor, caller: str = "ruscio2025.eigenvalues") -> torch.Tensor:
    """|λ| descending [..., n]; NaN for maps that are not finite, with one warning."""
    maps, bad, checked = head_mean(caller, attention)
    sizes = maps.diagonal(dim1=-2, dim2=-1).abs().clone()
    general = maps.triu(1).any(-1).any(-1)
    if general.any():
        # not torch.linalg.eigvals: its solver gives up on uniform attention of 48 tokens and other lengths
        with _blas.one_thread():
            sizes[general] = torch.from_numpy(np.abs(np.linalg.eigvals(maps[general].numpy())))
    sizes = sizes.sort(-1, descending=True).values
    sizes = sizes.masked_fill_(bad.unsqueeze(-1), torch.nan)
    return _calls.warn_non_finite(caller, checked, sizes, int(bad.sum()))


def _singular_values(
    attention: torch.Tensor, caller: str = "ruscio2025.singular_values", measured: Any = None
) -> torch.Tensor:
    """Return singular values, descending [..., n]; reuse `measured["singular_values"]` [..., n, 1] of the
    same maps.
    """
    if measured and "singular_values" in measured:
        return measured["singular_values"].squeeze(-1)
    checked = _checks.attention_argument(caller, attention)
    _checks.require_map(caller, checked)
    return _calls.call_and_warn(_core.singular_values, caller, checked)


def _ratio_of(sizes: torch.Tensor) -> torch.Tensor:
    if sizes.shape[-1] == 1:
        return torch.where(sizes.isnan(), sizes, math.inf).squeeze(-1)
    return sizes[..., 0] / sizes[..., 1]


def _bulk_of(sizes: torch.Tensor) -> Bulk:
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
    return Bulk(edge, mean, variance.sqrt())


def _deviation_of(sizes: torch.Tensor) -> torch.Tensor:
    rows = sizes[..., :LARGEST].reshape(-1, min(sizes.shape[-1], LARGEST)).numpy()
    values = np.array([_divergence_from_law(row) for row in rows], dtype=np.float64)
    return torch.from_numpy(values).reshape(sizes.shape[:-1])


def _divergence_from_law(sizes: np.ndarray[Any, Any]) -> float:
    from scipy.special import rel_entr

    mean = sizes.mean()
    if not mean > 0:
        return math.nan
    relative = sizes / mean
    if np.ptp(relative) < EQUAL:
        # of a permutation all are 1 but for rounding, of which no histogram can be made
        relative = np.ones_like(relative)
    counts, edges = np.histogram(relative, bins=BINS)
    centres = (edges[:-1] + edges[1:]) / 2
    inside = (centres > LOW) & (centres < HIGH)
    x = np.where(inside, centres, 1.0)
    density = np.where(inside, np.sqrt((HIGH - x) * (x - LOW)) / (2 * math.pi * ASPECT * x), 0.0)
    if not density.sum() > 0:
        return math.nan
    return float(rel_entr(counts / counts.sum(), density / density.sum()).sum())


# Eigenvalues of uniform causal attention are 1, 1/2, 1/3, …; of four tokens the last three are below 3/4.
_TEN = [1 / k for k in range(1, 11)]
_BELOW = _TEN[1:4]
_OF_BULK = (
    ("edge", "bulk edge", "Middle of the largest gap between consecutive |eigenvalues|.", 0.75),
    ("mean", "bulk mean", "Mean of the |eigenvalues| below that edge.", fmean(_BELOW)),
    ("std", "bulk deviation", "Standard deviation of the |eigenvalues| below that edge.", pstdev(_BELOW)),
)
# Where all values are equal, they are in the eleventh of 20 bins over [1/2, 3/2].
_CENTRES = [0.525 + 0.05 * k for k in range(BINS)]
_LAW = [math.sqrt((HIGH - x) * (x - LOW)) / x for x in _CENTRES]

QUANTITIES = (
    as_exact(
        ranks,
        "participation_ratio",
        meaning="(Σ|λ|)²/Σ|λ|² over the eigenvalues of the map: of a causal one, its diagonal.",
        closed_form=ClosedForm(sum(_TEN) ** 2 / sum(value**2 for value in _TEN), uniform_causal_map(10)),
    ),
    as_exact(exact, "stable_rank"),
    named(
        "spectral_ratio",
        "eigenvalue ratio",
        "First over second |eigenvalue|.",
        ClosedForm(2.0, uniform_causal_map(4)),
        kind="ratio",
        low=1,
    ),
    named(
        "spectral_norm",
        "spectral norm",
        "Largest singular value.",
        ClosedForm(math.sqrt(6), first_key_map(6)),
        symbol=r"$\sigma_1$",
        low=0,
    ),
    named(
        "marchenko_pastur_deviation",
        "KL from Marchenko-Pastur",
        "KL of the histogram of the ten largest |eigenvalues| from a Marchenko-Pastur density.",
        ClosedForm(-math.log(_LAW[10] / sum(_LAW)), identity(12)),
        low=0,
    ),
    *(
        declared(
            f"bulk_{field}",
            "bulk",
            label,
            meaning,
            ClosedForm(expected, uniform_causal_map(4)),
            low=0,
            read=attribute_reader(field),
        )
        for field, label, meaning, expected in _OF_BULK
    ),
    named(
        "sink_concentration",
        "mass of the top columns",
        "Share of mass on columns whose sum reaches the 90th percentile of column sums.",
        ClosedForm(1.0, first_key_map(6)),
        low=0,
        high=1,
    ),
)


SOURCES = (_eigenvalue_sizes, _singular_values)
DERIVED = {
    "spectral_ratio": ("_eigenvalue_sizes", _ratio_of),
    "marchenko_pastur_deviation": ("_eigenvalue_sizes", _deviation_of),
    "bulk": ("_eigenvalue_sizes", _bulk_of),
    "stable_rank": ("_singular_values", exact.stable_rank_of),
    "spectral_norm": ("_singular_values", lambda sigma: sigma[..., 0]),
}
