# SPDX-License-Identifier: MIT
"""Controls of sets of keys: as many other keys, near those that they stand for.

Taking keys out of a model or a map changes something whichever keys they are, and more of them change more.
So every set has controls of exactly its size in each text, drawn from the other keys at comparable depth: a
key is stood for by one of the nearest quarter of the text. Where a set is empty there is nothing to compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.metrics.information.divergence import sink_removal
from attnscope.metrics.information.sink_sets import PERCENTILES, _keys_by_percentile

#: Percentile of incoming attention -> the column that holds what taking out as many random keys does.
RANDOM = {percentile: f"kl_random_{percentile}" for percentile in PERCENTILES}
#: Controls drawn for every set of keys.
DRAWS = 5
#: Share of the text's keys, the nearest ones, from which a key's stand-in is drawn, and the fewest of them.
NEAREST, FEWEST = 0.25, 5


def matched_keys(
    keys: Tensor, lengths: Sequence[int], seeds: Sequence[Sequence[int]], draws: int = DRAWS
) -> tuple[Tensor, Tensor]:
    """Controls of sets of keys, and the texts that have any.

    Args:
        keys: bool [texts, n].
        lengths: tokens of each text.
        seeds: of each text's draws.
        draws: controls of each set.

    Returns:
        bool [draws, texts, n] with as many keys in each row as the set has and none of its own, and bool
        [texts]: False where the set is empty or leaves fewer keys than it has: no control.

    >>> import torch
    >>> sets = torch.tensor([[True, False, False, False], [False] * 4])
    >>> found, there = matched_keys(sets, [4, 4], [[0], [1]])
    >>> found.sum(-1)[0].tolist(), bool((found & sets).any()), there.tolist()
    ([1, 0], False, [True, False])
    """
    chosen = np.zeros((draws, *keys.shape), dtype=np.bool_)
    there = torch.zeros(len(keys), dtype=torch.bool)
    for text, (n, seed) in enumerate(zip(lengths, seeds, strict=True)):
        own = np.flatnonzero(keys[text, :n].numpy())
        others = np.flatnonzero(~keys[text, :n].numpy())
        there[text] = 0 < len(own) <= len(others)
        if not there[text]:
            continue
        generator = np.random.default_rng(list(seed))
        for draw in range(draws):
            free = others
            for key in own:
                near = free[np.argsort(np.abs(free - key), kind="stable")[: max(FEWEST, int(NEAREST * n))]]
                taken = near[generator.integers(len(near))]
                free = free[free != taken]
                chosen[draw, text, taken] = True
    return torch.from_numpy(chosen), there


def random_reduction(
    heads: Tensor, keys: Tensor, lengths: Sequence[int], seeds: Sequence[Sequence[int]], **options: Any
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """How much the heads' divergence falls without as many random keys: mean over the draws, NaN without any.

    Args:
        heads: of one layer [texts, h, n, n].
        keys: those whose `kl_reduction` it is compared with, bool [texts, n].
    """
    controls, there = matched_keys(keys.cpu(), lengths, seeds)
    sizes = torch.as_tensor(list(lengths))
    found = [
        sink_removal(heads, control, keep_attention=False, lengths=sizes, **options).kl_reduction
        for control in controls
    ]
    return torch.where(there, torch.stack(found).mean(0), torch.nan).numpy()


def random_reductions(
    heads: Tensor,
    mean: Tensor,
    lengths: Tensor,
    seeds: Sequence[Sequence[int]],
    support: Any,
    sink_mass: Tensor | None,
) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """`kl_random_P` of a layer for each percentile: the control of `kl_reduction_P`, one number a text.

    Args:
        heads: [texts, h, n, n].
        mean: over heads [texts, 1, n, n], whose strongest keys are taken out.
    """
    found = _keys_by_percentile(mean, support=support, lengths=lengths[:, None])
    options = {"support": support, "sink_mass": sink_mass}
    return {
        column: random_reduction(
            heads, found[percentile][:, 0], lengths.tolist(), [[*one, percentile] for one in seeds], **options
        )
        for percentile, column in RANDOM.items()
    }
