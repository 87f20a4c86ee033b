# SPDX-License-Identifier: MIT
"""The share of a layer's divergence that its strongest keys carry, and its control: shuffled rows.

Keys that are chosen because they receive most set the heads apart more than other keys do, noise included,
and under a causal mask they are early keys, which have more of every row. So the control chooses in the same
way: every row of every head is shuffled among the keys that it sees, and the strongest keys of the shuffled
maps are taken out of these. Heads that have nothing in common and no preferred key are as good as their
shuffled copies. Shuffled rows diverge more than rows that share a sink, so shares of the divergence are
compared, not nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.metrics.information.sink_sets import PERCENTILES, _keys_by_percentile
from attnscope.studies.nulls import shuffled_rows
from attnscope.study_api.forward import head_mean

#: Percentile of incoming attention -> the column of the share that the keys above it carry, and that
#: of shuffled rows.
SHARE = {percentile: f"kl_share_{percentile}" for percentile in PERCENTILES}
SHUFFLED = {percentile: f"kl_share_shuffled_{percentile}" for percentile in PERCENTILES}
#: Shuffled copies of every layer.
DRAWS = 2


def removal_shares(
    heads: Tensor,
    lengths: Tensor,
    samples: Sequence[int],
    layer: int,
    seed: int,
    support: Tensor | None = None,
    learned: Tensor | None = None,
) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return the columns of `SHARE` and `SHUFFLED` of a layer, a number a text.

    Args:
        heads: [texts, h, n, n].
        lengths: tokens of each text [texts].
        samples: numbers of the texts, which the draws depend on.
        layer: its number, likewise.
        seed: of the run.
        support: which keys queries see, bool [n, n] or [texts, 1, n, n]; None: maps are causal or full.
        learned: what a learned sink takes of each row [texts, h, n], one more key, which stays.
    """
    maps = [heads]
    for draw in range(1, DRAWS + 1):
        maps.append(shuffled_rows(heads, lengths.tolist(), samples, layer, seed, support, draw=draw))
    shares = [_shares(copy.double().cpu(), lengths, support, learned) for copy in maps]
    columns = {}
    for percentile in PERCENTILES:
        columns[SHARE[percentile]] = shares[0][percentile].numpy()
        columns[SHUFFLED[percentile]] = (
            torch.stack([shares_of_draw[percentile] for shares_of_draw in shares[1:]]).mean(0).numpy()
        )
    return columns


def _shares(
    maps: Tensor, lengths: Tensor, support: Tensor | None, learned: Tensor | None
) -> dict[int, Tensor]:
    """Return the share that the strongest keys of the maps carry at each percentile, [texts]."""
    seen: Any = "auto" if support is None else support
    keys = _keys_by_percentile(head_mean(maps), support=seen, lengths=lengths[:, None])
    rows = maps if learned is None else torch.cat([maps, learned.double().cpu()[..., None]], -1)
    inside = torch.arange(maps.shape[-1], device="cpu") < lengths[:, None]
    rows = torch.where(inside[:, None, :, None], rows, 0.0)
    return {percentile: share_without(rows, flags[:, 0]) for percentile, flags in keys.items()}


def share_without(rows: Tensor, keys: Tensor) -> Tensor:
    """Return the share of the heads' divergence from their mean that some keys carry, as `sink_removal`.

    Args:
        rows: of all heads [texts, h, queries, n], or n + 1 with a learned sink, which stays.
        keys: those that are taken out, bool [texts, n].

    Returns:
        [texts]: the mean reduction over heads and rows that have something left over the mean divergence of
        these rows; NaN without keys, without divergence, and where a head has no row left.

    >>> import torch
    >>> rows = torch.tensor([[[0.5, 0.25, 0.25]], [[0.25, 0.375, 0.375]]], dtype=torch.float64)[None]
    >>> share_without(rows, torch.tensor([[True, False, False]])).item()
    1.0
    """
    is_left = torch.ones(len(rows), 1, 1, rows.shape[-1], dtype=torch.bool, device="cpu")
    is_left[:, 0, 0, : keys.shape[-1]] = ~keys
    rest = torch.where(is_left, rows, 0.0)
    mass = rest.sum(-1)
    left = mass > 0
    rest = rest / torch.where(left, mass, 1.0)[..., None]
    mean = rest.sum(1, keepdim=True) / left.sum(1, keepdim=True).clamp(min=1)[..., None]
    before, after = (
        torch.where(left, values, 0.0).sum(-1).div(left.sum(-1)).mean(1)
        for values in (_divergence(rows, rows.mean(1, keepdim=True)), _divergence(rest, mean))
    )
    defined = keys.any(-1) & (before > 1e-12)
    return torch.where(defined, 1 - after / before, torch.nan)


def _divergence(rows: Tensor, mean: Tensor) -> Tensor:
    """Return KL of the rows of heads from their mean, without the axis of keys."""
    return (torch.xlogy(rows, rows) - torch.xlogy(rows, mean)).sum(-1)
