# SPDX-License-Identifier: MIT
"""What attention without a model would show: closed forms, shuffled rows, random weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: Whole numbers that are places, of which a mean says nothing.
PLACES = ("sink_position", "strongest_query", "strongest_key")
#: Columns of `baselines` and their order; those after the first five say whose the null is.
BASELINES = (
    *("n_tokens", "metric", "value", "kind", "threshold"),
    *("protocol", "scope", "model", "revision", "step", "std", "count"),
)
_TABLES = ("heads", "graphs", "layers")


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


def closed_form(
    n_tokens: int, kind: str, protocol: str, metric: str, value: Any, threshold: float
) -> dict[str, Any]:
    """A row of `baselines` that belongs to no model.

    Args:
        n_tokens: size of the map.
        kind: of uniform attention.
        protocol: whose computation it is.
        metric: the column of `heads` or `graphs`.
        value: its value; counts say "undefined" by −1.
        threshold: of the graph, NaN without one.
    """
    number = math.nan if isinstance(value, np.integer) and value < 0 else float(value)
    whose = {"scope": "any", "model": "", "revision": "", "step": -1, "std": math.nan, "count": 1}
    return {
        "n_tokens": n_tokens,
        "metric": metric,
        "value": number,
        "kind": kind,
        "threshold": float(threshold),
        "protocol": protocol,
        **whose,
    }


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


def per_sentence(tables: Mapping[str, pa.Table], kind: str) -> dict[str, Any]:
    """Every number of a null's `heads`, `graphs` and `layers`, averaged over layers and heads.

    Args:
        tables: as a unit has them.
        kind: of the null.

    Returns:
        columns of the table `nulls`, without the checkpoint's keys.
    """
    import pandas as pd

    parts = []
    for name in _TABLES:
        if name not in tables:
            continue
        frame = tables[name].to_pandas()
        frame["scope"] = "layers" if name == "layers" else np.where(frame["head"] == -1, "head_mean", "heads")
        keys = ["sample", "protocol", "scope", *(["threshold"] if name == "graphs" else [])]
        drop = {*keys, *PLACES, "model", "revision", "step", "layer", "head", "n_tokens", "sink_token"}
        numbers = frame[[column for column in frame.columns if column not in drop]]
        whole = [column for column in numbers.columns if numbers[column].dtype.kind == "i"]
        numbers = numbers.astype(float)
        numbers[whole] = numbers[whole].where(numbers[whole] >= 0)
        # an infinite deviation is dropped from means, as the protocol says
        numbers = numbers.replace([np.inf, -np.inf], np.nan)
        mean = pd.concat([frame[keys], numbers], axis=1).groupby(keys, sort=True).mean()
        tall = mean.reset_index().melt(keys, var_name="metric", value_name="value")
        parts.append(tall.assign(threshold=tall.get("threshold", math.nan)))
    if not parts:
        return {}
    whole_table = pd.concat(parts, ignore_index=True).dropna(subset="value")
    columns = ["sample", "protocol", "scope", "metric", "threshold", "value"]
    return {"kind": kind, **{name: whole_table[name].to_numpy() for name in columns}}


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
