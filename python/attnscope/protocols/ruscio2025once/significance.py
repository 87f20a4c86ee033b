# SPDX-License-Identifier: MIT
"""The heads that the notebook calls significant: leakage of texts against that of texts turned round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from attnscope import _checks
from attnscope.arguments import scalars
from attnscope.arguments.number_lists import number_array

Array = npt.NDArray[np.float64]

TRAIN_SHARE = 0.7
BOOTSTRAP, FLIPS = 2000, 5000


class LeakageSignificance(NamedTuple):
    """The test by layer and head, arrays [L, h].

    Attributes:
        gap: mean leakage of the texts less that of the texts turned round.
        low: 2.5 % quantile of the bootstrap.
        high: 97.5 % quantile.
        p_value: one-sided sign flips; of a head without a gap, such as one whose scores do not vary, NaN.
        q_value: the notebook's number of this name; it is not a q-value, see `rank_adjusted`.
    """

    gap: Array
    low: Array
    high: Array
    p_value: Array
    q_value: Array


def leakage_significance(
    real: Callable[[int], Tensor],
    null: Callable[[int, int], Tensor],
    *,
    texts: int,
    samples: int = 50,
    seed: int,
) -> LeakageSignificance:
    """Return the notebook's test of every head, with its order of random numbers.

    One generator draws for each sample a text, a shuffle of the pairs for each layer, the shift k in 1 … n −
    1, and a shuffle for each layer again; then for every head the bootstrap and the flips.

    Differs from the exact `statistics.leakage.leakage_test`: texts are drawn *with* replacement, so that
    samples repeat; the fits are made on 70 % of the pairs and judged on 30 %, features centred *within each
    part*; flips are one-sided; and the q-values are wrong (`rank_adjusted`). The stored output used 16 texts
    the code has 50.

    Args:
        real: text number -> its unscaled scores [L, h, n, n], without BOS.
        null: text number, k -> the scores of its tokens rotated by k.
        texts: how many there are.
        samples: how many are drawn.
        seed: of the generator.

    Returns:
        LeakageSignificance.

    Raises:
        ValueError: no texts or samples, scores of another shape.

    Example:
        Scores that are their position, against noise.

        >>> import torch
        >>> from attnscope.protocols import ruscio2025once
        >>> i = torch.arange(9.0)
        >>> noise = torch.randn(1, 1, 9, 9, generator=torch.Generator().manual_seed(0))
        >>> test = ruscio2025once.leakage_significance(
        ...     lambda text: (i[:, None] + i)[None, None], lambda text, k: noise, texts=3, samples=9, seed=0
        ... )
        >>> bool(test.p_value < 0.01)
        True

    References:
        Ruscio, Once upon a token, 2025: significance of leakage.
    """
    name = "leakage_significance"
    count, drawn = scalars.whole_number(name, "texts", texts), scalars.whole_number(name, "samples", samples)
    for argument, number in (("texts", count), ("samples", drawn)):
        if number < 1:
            raise ValueError(f"{name}: {argument} must be at least 1, got {number}")
    rng = np.random.default_rng(seed)
    gaps = []
    for _ in range(drawn):
        text = int(rng.integers(0, count))
        scores = real(text)
        of_text = _held_out(scores, rng)
        shift = int(rng.integers(1, scores.shape[-1]))
        gaps.append(of_text - _held_out(null(text, shift), rng))
    gap = np.stack(gaps)
    layers, heads = gap.shape[1:]
    low, high, p_value = (np.empty((layers, heads)) for _ in range(3))
    for layer in range(layers):
        for head in range(heads):
            gaps_of_head = gap[:, layer, head]
            means = gaps_of_head[rng.integers(0, drawn, (BOOTSTRAP, drawn))].mean(1)
            low[layer, head], high[layer, head] = np.quantile(means, [0.025, 0.975])
            flipped = (rng.choice([-1.0, 1.0], (FLIPS, drawn)) * gaps_of_head).mean(1)
            reached = (1 + (flipped >= gaps_of_head.mean()).sum()) / (1 + FLIPS)
            # no flip reaches NaN, which is not a gap that no flip reaches
            p_value[layer, head] = reached if np.isfinite(gaps_of_head).all() else np.nan
    q_value = rank_adjusted(p_value.ravel()).reshape(p_value.shape)
    return LeakageSignificance(gap.mean(0), low, high, p_value, q_value)


def rank_adjusted(p_values: Any) -> Array:
    """Return the notebook's "q-values": the k-th smallest p-value over the rank *of head k*, not over k.

    q_(k) = min over l >= k of p_(l)·M/rank(head l), where Benjamini and Hochberg have p_(l)·M/l. Among 512
    heads without any effect it declares some in every run, 20 on average.

    Args:
        p_values: of the heads, in their order.

    Returns:
        float64 in the order given; may exceed 1. A p-value of NaN has none and is in no family.

    Example:
        The two smallest are divided by the ranks of heads 0 and 1, which are 3 and 1.

        >>> from attnscope.protocols import ruscio2025once
        >>> ruscio2025once.rank_adjusted([0.9, 0.3, 0.6]).round(9).tolist()
        [1.35, 0.3, 1.35]
    """
    all_p_values = number_array("ruscio2025once.rank_adjusted", "p_values", p_values)
    defined = ~np.isnan(all_p_values)
    p = all_p_values[defined]
    order = np.argsort(p, kind="stable")
    ranks = np.empty(len(p))
    ranks[order] = np.arange(1, len(p) + 1)
    by_rank = np.minimum.accumulate((p[order] * len(p) / ranks)[::-1])[::-1]
    adjusted = np.full(len(all_p_values), np.nan)
    adjusted[np.flatnonzero(defined)[order]] = by_rank
    return adjusted


def _held_out(scores: Tensor, rng: np.random.Generator) -> Array:
    """ΔR² on the pairs that the fit has not seen, [L, h]; one shuffle for each layer."""
    maps = _checks.square_tensor("leakage_significance", "scores", scores)
    if maps.ndim != 4:
        raise ValueError(f"leakage_significance: scores must be [L, h, n, n], got {tuple(maps.shape)}")
    row, column = np.tril_indices(maps.shape[-1])
    features = np.stack([row - column, row, column], -1).astype(np.float64)
    values = maps.double().numpy()[..., row, column]
    cut = int(TRAIN_SHARE * len(row))
    gains = np.empty(values.shape[:2])
    for layer, scores_of_layer in enumerate(values):
        order = rng.permutation(len(row))
        parts = [features[part] - features[part].mean(0) for part in (order[:cut], order[cut:])]
        seen, unseen = (np.column_stack([part, np.ones(len(part))]) for part in parts)
        y, target = scores_of_layer[:, order[:cut]].T, scores_of_layer[:, order[cut:]].T
        spread = ((target - target.mean(0)) ** 2).sum(0)
        errors = []
        for columns in ([0, 3], [0, 1, 2, 3]):
            weights = np.linalg.lstsq(seen[:, columns], y, rcond=None)[0]
            errors.append(((target - unseen[:, columns] @ weights) ** 2).sum(0))
        with np.errstate(invalid="ignore", divide="ignore"):
            gains[layer] = (errors[0] - errors[1]) / spread
    return gains
