# SPDX-License-Identifier: MIT
"""What attention without a model would show: closed forms, shuffled rows, random weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd


def uniform_attention(n: int, *, causal: bool) -> Tensor:
    """Each query spreads its attention evenly over the keys it sees.

    Args:
        n: number of tokens.
        causal: whether keys after the query are hidden.

    >>> uniform_attention(2, causal=True)
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    ones = torch.ones(n, n, dtype=torch.float64)
    maps = ones.tril() if causal else ones
    return maps / maps.sum(-1, keepdim=True)


def shuffled_rows(
    maps: Tensor, lengths: Sequence[int], samples: Sequence[int], layer: int, seed: int
) -> Tensor:
    """Maps whose rows hold the same entries in another order, each row inside its visible keys.

    A sentence's draw depends on the seed, its number and the layer, and not on the batch it is in.

    Args:
        maps: [b, m, n, n], causal or full.
        lengths: real tokens.
        samples: numbers of the sentences.
        layer: number of the layer.
        seed: of the study.
    """
    result = torch.zeros(maps.shape, dtype=maps.dtype)
    for place, (length, sample) in enumerate(zip(lengths, samples, strict=True)):
        own = maps[place, :, :length, :length].cpu()
        causal = length > 1 and not bool(own.triu(1).ne(0).any())
        draw = np.random.default_rng([seed, sample, layer, 0x5EED])
        keys = torch.from_numpy(draw.random((own.shape[0], length, length)))
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None
        if hidden is not None:
            keys = keys.masked_fill(hidden, 2.0)
        order = keys.argsort(-1)
        # hidden keys come last, and what they hold is 0 in any order
        result[place, :, :length, :length] = own.gather(-1, order)
    return result


def by_length(controls: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Rows of `baselines` from averages of controls: mean and deviation over sentences of one length.

    Args:
        controls: a row for each number, as `Results.variants` gives them.
        samples: the table, for the lengths.
    """
    lengths = samples.drop_duplicates(["model", "sample"])[["model", "sample", "n_tokens"]]
    frame = controls.rename(columns={"variant": "kind"})
    frame = frame.merge(lengths, on=["model", "sample"], how="left", validate="many_to_one")
    keys = ["n_tokens", "metric", "kind", "threshold", "protocol", "scope", "model", "revision", "step"]
    found = frame.groupby(keys, sort=True, dropna=False)["value"].agg(["mean", "std", "count"]).reset_index()
    named: pd.DataFrame = found.rename(columns={"mean": "value"})
    return named
