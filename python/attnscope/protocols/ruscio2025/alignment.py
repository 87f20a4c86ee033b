# SPDX-License-Identifier: MIT
"""Attention against hidden states, as the value notebook computes it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from attnscope import _blas, _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import uniform_causal_map
from attnscope.metrics.quantity import ClosedForm, Site, attribute_reader
from attnscope.metrics.states import alignment as exact
from attnscope.protocols.ruscio2025._maps import as_exact, head_mean, hidden_states, named
from attnscope.protocols.ruscio2025.entropy import attention_entropy

LARGEST_STATE = 1e3
COMPONENTS = 3


@shown_by_shape
class PcaCorrelation(NamedTuple):
    """Mean correlation of matching principal scores, each [...]: signed (arbitrary) and absolute."""

    signed: torch.Tensor
    absolute: torch.Tensor


@memory_errors("geometric_semantic_alignment")
@without_derivative("it is the published code's number, made for comparing")
def geometric_semantic_alignment(attention: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Pearson's r between the head mean and the cosines of the hidden states, over all ordered pairs i ≠ j.

    Quirks of the value notebook: the pairs a causal query cannot see enter with attention 0, so that r mostly
    measures how much alike early and late tokens are; hidden states take the place of values;
    without variance r is 0.

    Args:
        attention: head mean [..., n, n].
        hidden: residual stream that enters the layer, [..., n, d].

    Returns:
        [...] float64 in [−1, 1]; NaN for a map or state with a NaN or infinite entry.

    Raises:
        ValueError: as the exact `geometric_semantic_alignment`.

    Example:
        Constant states have no variance: NaN by the exact definition, 0 here.

        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> ruscio2025.geometric_semantic_alignment(torch.eye(4), torch.ones(4, 2)).item()
        0.0

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, value notebook.
    """
    name = "ruscio2025.geometric_semantic_alignment"
    maps, bad, checked = head_mean(name, attention)
    states, lost = hidden_states(name, hidden, checked)
    states, bad = states.expand(*checked.leading, -1, -1), bad | lost
    result, _ = _core.geometric_semantic_alignment(checked.tensor, None, "full", states, None, None)
    zero = (states == 0).all(-1).any(-1)
    if bool((zero & ~bad).any()):
        # The kernel leaves tokens without direction out; here their cosines are 0 and stay in.
        unit = states / states.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        pairs = (~torch.eye(checked.n, dtype=torch.bool, device="cpu")).flatten().expand(*checked.leading, -1)
        with_zero_cosines = exact.pearson(maps.flatten(-2), (unit @ unit.mT).flatten(-2), pairs)
        result = torch.where(zero, with_zero_cosines, result)
    result = torch.where(bad, torch.nan, result.nan_to_num(nan=0.0))
    return _calls.warn_non_finite(name, checked, result, int(bad.sum()), "matrices or their states")


@memory_errors("pca_correlation")
@without_derivative("it is the published code's number, made for comparing")
def pca_correlation(attention: torch.Tensor, hidden: torch.Tensor) -> PcaCorrelation:
    """Mean Pearson correlation between matching principal scores of attention rows and hidden states.

    Three principal components of the rows of the head mean, and three of the states; components whose
    scores have a standard deviation of 1e-8 or less are skipped.

    Quirk: the sign of a principal component is arbitrary, so that the signed mean that the value notebook
    prints is noise around 0; `absolute` averages |r|. Signs here make the entry of largest size in each
    direction positive.

    Args:
        attention: head mean [..., n, n].
        hidden: residual stream that enters the layer, [..., n, d].

    Returns:
        PcaCorrelation, each [...] float64; NaN where no component is left, or an entry is not finite.

    Raises:
        ValueError: as `geometric_semantic_alignment`.

    Example:
        Attention rows that are the states themselves have the same components.

        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> same = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
        >>> round(ruscio2025.pca_correlation(same, same).absolute.item(), 6)
        1.0

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, value notebook.
    """
    name = "ruscio2025.pca_correlation"
    maps, bad, checked = head_mean(name, attention)
    # Not expanded to the maps: heads share their layer's states, whose components are found once.
    states, lost = hidden_states(name, hidden, checked)
    bad = bad | lost
    count = min(COMPONENTS, checked.n, states.shape[-1])
    a, b = _scores(maps, count), _scores(states, count)
    used = (a.std(-2, correction=0) > 1e-8) & (b.std(-2, correction=0) > 1e-8)
    norms = a.norm(dim=-2) * b.norm(dim=-2)
    r = torch.where(used, (a * b).sum(-2) / torch.where(used, norms, 1.0), 0.0)
    number = used.sum(-1).double().masked_fill(bad, torch.nan)
    result = PcaCorrelation(r.sum(-1) / number, r.abs().sum(-1) / number)
    return _calls.warn_non_finite(name, checked, result, int(bad.sum()), "matrices or their states")


@without_derivative("it is the published code's number, made for comparing")
def transformation_magnitude(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """‖after_i − before_i‖₂ per token, after both states are scaled down by one factor to at most 1e3.

    Quirks of the value notebook: one entry above 1000 in size (massive activations) in either state shrinks
    every token's magnitude, by 1000 over the largest entry of the two; entries of the difference are cut at
    ±1000.

    Args:
        before: hidden states that enter the block, [..., n, d].
        after: hidden states that leave it, the same shape.

    Returns:
        [..., n] float64; NaN for all tokens of states with a NaN or infinite entry, with one warning.

    Raises:
        ValueError: as the exact `transformation_magnitude`.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> ruscio2025.transformation_magnitude(torch.zeros(1, 2), torch.tensor([[6e3, 8e3]]))
        tensor([1250.], dtype=torch.float64)

        The second token has moved by 4 and shrinks with the first.

        >>> before = torch.zeros(2, 1); after = torch.tensor([[2500.0], [4.0]])
        >>> ruscio2025.transformation_magnitude(before, after)
        tensor([1000.0000,    1.6000], dtype=torch.float64)

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, value notebook.
    """
    start, stop = exact.two_states("ruscio2025.transformation_magnitude", before, after, fewest=1)
    size = torch.maximum(*(states.abs().amax((-2, -1), keepdim=True) for states in (start, stop)))
    factor = torch.where(size > LARGEST_STATE, LARGEST_STATE / size, 1.0)
    factor = torch.where(size.isfinite(), factor, torch.nan)
    moved = ((stop - start) * factor).clamp(-LARGEST_STATE, LARGEST_STATE)
    return exact.transformation_magnitude(torch.zeros_like(moved), moved)


@memory_errors("entropy_magnitude_correlation")
@without_derivative("it is the published code's number, made for comparing")
def entropy_magnitude_correlation(
    attention: torch.Tensor, before: torch.Tensor, after: torch.Tensor
) -> torch.Tensor:
    """Pearson's r over tokens between the entropy and the magnitude of the value notebook.

    Quirk: those of `attention_entropy` and `transformation_magnitude`, and 0 without variance.

    Args:
        attention: head mean [..., n, n].
        before: hidden states that enter the block, [..., n, d].
        after: hidden states that leave it.

    Returns:
        [...] float64 in [−1, 1]; NaN where an entry is not finite.

    Raises:
        ValueError: as the two functions.

    Example:
        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> still = torch.zeros(4, 2)
        >>> ruscio2025.entropy_magnitude_correlation(torch.eye(4), still, still).item()
        0.0

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, value notebook.
    """
    return _correlation_of(attention_entropy(attention), before, after)


def _correlation_of(entropy: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """`entropy_magnitude_correlation` from the entropies [..., n]."""
    description, words = "ruscio2025.entropy_magnitude_correlation: states", "+ [d] do not broadcast to"
    magnitude = _checks.expanded(description, transformation_magnitude(before, after), entropy.shape, words)
    inside = torch.ones(entropy.shape, dtype=torch.bool, device="cpu")
    bad = entropy.isnan().any(-1) | magnitude.isnan().any(-1)
    return torch.where(bad, torch.nan, exact.pearson(entropy, magnitude, inside).nan_to_num(nan=0.0))


def _scores(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Scores [..., n, count] on the first principal components of `rows` [..., n, d].

    Eigenvectors of the smaller of both products of the centred rows with themselves, of which a few cost a
    third of a singular value decomposition.
    """
    centred = rows - rows.mean(-2, keepdim=True)
    if centred.shape[-2] > centred.shape[-1]:
        directions = _leading(centred.mT @ centred, count)
        scores = centred @ directions
    else:
        unit = _leading(centred @ centred.mT, count)
        directions = centred.mT @ unit
        scores = unit * directions.norm(dim=-2, keepdim=True)
    return scores * directions.gather(-2, directions.abs().argmax(-2, keepdim=True)).sign()


def _leading(products: torch.Tensor, count: int) -> torch.Tensor:
    """Return the unit eigenvectors [..., n, count] of the largest eigenvalues, descending."""
    from scipy import linalg

    n = products.shape[-1]
    eigenvectors = np.empty((*products.shape[:-1], count))
    with _blas.one_thread():
        for place in np.ndindex(*products.shape[:-2]):
            product = products[place].numpy()
            leading = linalg.eigh(product, subset_by_index=[n - count, n - 1])[1]
            # LAPACK gives fewer where equal eigenvalues stand at the border, as of heads on the diagonal
            has_too_few = leading.shape[-1] < count
            eigenvectors[place] = linalg.eigh(product)[1][:, n - count :] if has_too_few else leading
    return torch.from_numpy(eigenvectors).flip(-1)


def _state_norm(before: torch.Tensor) -> torch.Tensor:
    """Norms of the states of each token [..., n], as they are."""
    return before.double().norm(dim=-1)


_PCA = named(
    "pca_correlation",
    "PCA correlation",
    "Mean correlation of matching principal component scores of the rows and the hidden states.",
    ClosedForm(1.0, uniform_causal_map(5), {"hidden": uniform_causal_map(5)}),
    symbol="r",
    low=-1,
    high=1,
    options={"hidden": Site("hidden")},
    read=attribute_reader("signed"),
    needs=("attention", "hidden"),
)

DERIVED = {"entropy_magnitude_correlation": ("attention_entropy", _correlation_of)}

QUANTITIES = (
    as_exact(
        exact,
        "alignment_hidden",
        meaning="Correlation of attention with the cosine of hidden states, over all ordered pairs.",
        options={"hidden": Site("hidden")},
    ),
    _PCA,
    replace(
        _PCA,
        name=f"{_PCA.name}_absolute",
        label=f"{_PCA.label}, size",
        low=0,
        read=attribute_reader("absolute"),
    ),
    as_exact(exact, "entropy_magnitude_correlation"),
    as_exact(exact, "state_norm", "layer", metric="_state_norm", options={"before": Site("hidden")}),
    as_exact(
        exact,
        "transformation_magnitude",
        "layer",
        meaning="Mean over tokens of the distance between a block's output and input, scaled to at most "
        "1000.",
    ),
    as_exact(
        exact, "transformation_magnitude_median", "layer", meaning="Median over tokens of that distance."
    ),
)
