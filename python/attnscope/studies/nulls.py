# SPDX-License-Identifier: MIT
"""What attention without a model would show: shuffled rows, and controls by the length of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnscope.studies.supports import visible_pairs

if TYPE_CHECKING:
    import pandas as pd


def shuffled_rows(
    maps: Tensor,
    lengths: Sequence[int],
    samples: Sequence[int],
    layer: int,
    seed: int,
    support: Tensor | None = None,
) -> Tensor:
    """Maps whose rows hold the same entries in another order, each row inside its visible keys.

    A sentence's draw depends on the seed, its number and the layer, and not on the batch it is in.

    Args:
        maps: [b, m, n, n].
        support: who sees whom, bool [n, n] or [b, 1, n, n]; None: each text's maps are causal or full.
    """
    result = torch.zeros(maps.shape, dtype=maps.dtype)
    for place, (length, sample) in enumerate(zip(lengths, samples, strict=True)):
        own = maps[place, :, :length, :length].cpu()
        draw = np.random.default_rng([seed, sample, layer, 0x5EED])
        keys = torch.from_numpy(draw.random((own.shape[0], length, length)))
        if support is None:
            causal = length > 1 and not bool(own.triu(1).ne(0).any())
            seen = visible_pairs("causal" if causal else "full", length)
        else:
            seen = (support[place, 0] if support.ndim == 4 else support)[:length, :length]
        # hidden keys come last, and what they hold is 0 in any order
        order = keys.masked_fill(~seen, 2.0).argsort(-1)
        places = (~seen).byte().argsort(dim=-1, stable=True).expand(order.shape)
        result[place, :, :length, :length].scatter_(-1, places, own.gather(-1, order).to(result.dtype))
    return result


def by_length(controls: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Rows of `baselines` from averages of controls: mean and deviation over sentences of one length.

    A control is read under the visibility of its own maps, and a length has layers of several: no support.

    Args:
        controls: a row for each number, as `Results.variants` gives them.
    """
    lengths = samples.drop_duplicates(["model", "sample"])[["model", "sample", "n_tokens"]]
    frame = controls.rename(columns={"variant": "kind"}).assign(support="")
    frame = frame.merge(lengths, on=["model", "sample"], how="left", validate="many_to_one")
    keys = ["n_tokens", "metric", "kind", "support", "threshold", "protocol", "scope"]
    keys += ["model", "revision", "step"]
    found = frame.groupby(keys, sort=True, dropna=False)["value"].agg(["mean", "std", "count"]).reset_index()
    named: pd.DataFrame = found.rename(columns={"mean": "value"})
    return named
