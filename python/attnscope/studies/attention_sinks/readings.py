# SPDX-License-Identifier: MIT
"""Which metric fills which column of `heads`, protocol exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reading:
    """One call of a metric and the columns that its result fills.

    Attributes:
        metric: name of the public function.
        options: of the call.
        columns: column name -> what of the result goes there, one number per map; it is also told which
            maps are spoiled by NaN or infinite entries, because a flag cannot say so itself.
    """

    metric: str
    columns: Mapping[str, Callable[[Any, Tensor], Tensor]]
    options: Mapping[str, Any]


def _plain(metric: str, column: str = "", **options: Any) -> Reading:
    return Reading(metric, {column or metric: lambda result, spoiled: result}, options)


def _fields(metric: str, columns: Mapping[str, str], **options: Any) -> Reading:
    def take(field: str) -> Callable[[Any, Tensor], Tensor]:
        return lambda result, spoiled: getattr(result, field)

    return Reading(metric, {column: take(field) for column, field in columns.items()}, options)


def _by_dimension(metric: str) -> Reading:
    def take(dimension: int) -> Callable[[Any, Tensor], Tensor]:
        return lambda result, spoiled: result[..., dimension]

    return Reading(metric, {f"{metric}_{dimension}": take(dimension) for dimension in (0, 1)}, {})


def _mean_over_queries(result: Tensor, spoiled: Tensor) -> Tensor:
    return result.nanmean(-1)


def _rate(result: Tensor, spoiled: Tensor) -> Tensor:
    return result.double().masked_fill(spoiled, math.nan)


def _count(result: Tensor, spoiled: Tensor) -> Tensor:
    return result.sum(-1).masked_fill(spoiled, -1)


HEADS: tuple[Reading, ...] = (
    _fields("sink_share", {"sink_share": "share", "sink_share_uniform": "uniform", "sink_boost": "boost"}),
    Reading("sink_rate", {"sink_rate": _rate}, {}),
    _plain("sink_position"),
    Reading("sink_tokens", {"sink_count": _count}, {}),
    _plain("top_mass", k=1),
    Reading("attention_entropy", {"entropy": _mean_over_queries}, {}),
    Reading("attention_entropy", {"entropy_normalized": _mean_over_queries}, {"normalized": True}),
    _plain("fiedler_value"),
    _plain("fiedler_value", "fiedler_value_normalized", normalized=True),
    _plain("laplacian_gap"),
    _plain("participation_ratio"),
    _plain("participation_ratio", "participation_ratio_eigen", spectrum="eigen"),
    _plain("participation_ratio", "participation_ratio_laplacian", spectrum="laplacian"),
    _plain("stable_rank"),
    _plain("effective_rank"),
    _plain("spectral_gap"),
    _plain("spectral_ratio"),
    _fields(
        "marchenko_pastur",
        {
            f"mp_{field}": field
            for field in ("ks", "wasserstein", "outliers", "outlier_energy", "largest", "edge")
        },
    ),
    _by_dimension("bar_count"),
    _by_dimension("total_persistence"),
    _by_dimension("max_persistence"),
    _by_dimension("persistent_entropy"),
)

#: What fills the table `graphs`, one row per map and threshold.
GRAPHS: tuple[str, ...] = ("graph_statistics", "betti_numbers")


def column(values: Tensor) -> Any:
    """One number per map as a column: int64 for counts, positions and flags that count, else float64."""
    kind = torch.float64 if values.dtype.is_floating_point else torch.int64
    return values.to(kind).flatten().numpy()
