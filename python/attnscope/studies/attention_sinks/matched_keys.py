# SPDX-License-Identifier: MIT
"""Controls of sets of keys: as many other keys, near those that they stand for.

Removing any keys from a model changes its output, and removing more of them changes more.
So every set has controls of exactly its size in each text, drawn from the other keys at comparable depth: a
key is replaced by one of the nearest quarter of the text. An empty set has no control.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

#: Controls drawn for every set of keys.
DRAWS = 5
#: Share of the text's keys, the nearest ones, from which a key's replacement is drawn, and the fewest of
#: them.
NEAREST, FEWEST = 0.25, 5


def matched_keys(
    keys: Tensor, lengths: Sequence[int], seeds: Sequence[Sequence[int]], draws: int = DRAWS
) -> tuple[Tensor, Tensor]:
    """Draw controls of sets of keys; return them with a mask of the texts that have any.

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
    >>> controls, defined = matched_keys(sets, [4, 4], [[0], [1]])
    >>> controls.sum(-1)[0].tolist(), bool((controls & sets).any()), defined.tolist()
    ([1, 0], False, [True, False])
    """
    chosen = np.zeros((draws, *keys.shape), dtype=np.bool_)
    has_control = torch.zeros(len(keys), dtype=torch.bool, device="cpu")
    for text, (n, seed) in enumerate(zip(lengths, seeds, strict=True)):
        set_keys = np.flatnonzero(keys[text, :n].numpy())
        others = np.flatnonzero(~keys[text, :n].numpy())
        has_control[text] = 0 < len(set_keys) <= len(others)
        if not has_control[text]:
            continue
        generator = np.random.default_rng(list(seed))
        for draw in range(draws):
            free = others
            for key in set_keys:
                near = free[np.argsort(np.abs(free - key), kind="stable")[: max(FEWEST, int(NEAREST * n))]]
                replacement = near[generator.integers(len(near))]
                free = free[free != replacement]
                chosen[draw, text, replacement] = True
    return torch.from_numpy(chosen), has_control
