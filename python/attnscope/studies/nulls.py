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
    return uniform_over(visible_pairs("causal" if causal else "full", n))


def uniform_over(support: Tensor) -> Tensor:
    """Uniform attention among the visible keys of every query.

    Args:
        support: bool [n, n], each row with a visible key.

    >>> uniform_over(torch.eye(2, dtype=torch.bool)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    maps = support.double()
    return maps / maps.sum(-1, keepdim=True)


def visible_pairs(name: str, n: int) -> Tensor:
    """Who sees whom among n tokens, bool [n, n].

    Args:
        name: "causal", "full", or a window as `Visibility.name` gives it.
        n: number of tokens.

    Raises:
        ValueError: a mask, of which the name says nothing.

    >>> visible_pairs("window 2", 3).int().tolist(), int(visible_pairs("window 1+1", 3).sum())
    ([[1, 0, 0], [1, 1, 0], [0, 1, 1]], 7)
    """
    back = torch.arange(n)[:, None] - torch.arange(n)
    if name == "full":
        return torch.ones(n, n, dtype=torch.bool)
    if name == "causal":
        return back >= 0
    kind, _, size = name.partition(" ")
    if kind != "window":
        raise ValueError(f"visible_pairs: expected 'causal', 'full' or a window, got {name!r}")
    left, two_sided, right = size.partition("+")
    before = n if not left else int(left) - (not two_sided)
    after = 0 if not two_sided else int(right) if right else n
    return (back <= before) & (-back <= after)


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
        lengths: real tokens.
        samples: numbers of the sentences.
        layer: number of the layer.
        seed: of the study.
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
