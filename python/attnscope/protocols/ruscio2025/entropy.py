# SPDX-License-Identifier: MIT
"""Entropy of attention rows, as two of the notebooks compute it."""

from __future__ import annotations

import math

import torch

from attnscope import _calls, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics.closed_forms import uniform_map
from attnscope.metrics.information import entropy as exact
from attnscope.metrics.quantity import ClosedForm
from attnscope.protocols.ruscio2025._maps import as_exact, declared, head_mean

# The value notebook drops entries up to a hundred float32 roundings.
SMALLEST = 100 * 2.0**-23


@memory_errors("attention_entropy")
@without_derivative("it is the published code's number, made for comparing")
def attention_entropy(attention: torch.Tensor, *, base: float = math.e) -> torch.Tensor:
    """Entropy of every row of the head mean, by the value notebook (nats) or the random-matrix one (bits).

    base = e: over the entries above 1.1921e-5 only, renormalised to sum 1. base = 2: −Σ a·log2(a + 1e-10)
    over the whole row, of which the notebook reports the mean over rows.

    Quirks: in nats the tail of small entries, and with it entropy, is dropped; in bits a row of zeros has
    entropy 0 and a one-hot row a slightly negative one; both take the entropy of the head mean, which is
    larger than the mean entropy of the heads.

    Args:
        attention: head mean [..., n, n].
        base: e or 2, which chooses the notebook.

    Returns:
        [..., n] float64; a map with a NaN or infinite entry is NaN.

    Raises:
        ValueError: another base.

    Example:
        Uniform causal attention: the mean over rows is log2(n!)/n bits.

        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> uniform = torch.ones(10, 10).tril() / torch.arange(1, 11)[:, None]
        >>> round(ruscio2025.attention_entropy(uniform, base=2).mean().item(), 3)
        2.179

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, notebooks on values and random matrices.
    """
    name = "ruscio2025.attention_entropy"
    base = scalars.real(name, "base", base)
    if base not in (math.e, 2):
        raise ValueError(
            f"{name}: base must be e (value notebook) or 2 (random-matrix notebook), got {base!r}"
        )
    maps, bad, checked = head_mean(name, attention)
    if base == 2:
        result = bits(maps)
    else:
        large_entries = torch.where(maps > SMALLEST, maps, 0.0)
        mass = large_entries.sum(-1, keepdim=True)
        share = large_entries / torch.where(mass > 0, mass, 1.0)
        result, _ = _core.attention_entropy(share, None, "full", False)
    result = torch.where(bad.unsqueeze(-1), torch.nan, result)
    return _calls.warn_non_finite(name, checked, result, int(bad.sum()))


def bits(maps: torch.Tensor) -> torch.Tensor:
    """−Σ a·log2(a + 1e-10) of every row."""
    return -(maps * (maps + 1e-10).log2()).sum(-1)


QUANTITIES = (
    as_exact(
        exact,
        "entropy",
        meaning="Mean over queries of the entropy of a row, over entries above 1.2e-5 alone.",
    ),
    declared(
        "entropy_bits",
        "attention_entropy",
        "entropy (bits)",
        "Mean over queries of −Σ a·log2(a + 1e-10).",
        ClosedForm(-math.log2(0.25 + 1e-10), uniform_map(4), entry=(0,)),
        options={"base": 2},
        axes=("query",),
    ),
)
