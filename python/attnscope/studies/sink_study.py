# SPDX-License-Identifier: MIT
"""What are you sinking? A geometric approach on attention sink (Ruscio et al., arXiv 2508.02546).

Every metric of every head and of the head mean (head −1), beside its value on uniform attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.metrics.alignment import geometric_semantic_alignment
from attnscope.metrics.measure import measure
from attnscope.studies.recipe import Batch, Recipe, Rows, bar_columns, head_mean

if TYPE_CHECKING:
    from attnscope.capture import Layer


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


#: What fills the table `heads`.
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

#: Column of `heads` -> the states that attention is compared with.
ALIGNMENTS = {"alignment_value": "value", "alignment_hidden": "hidden"}
#: Metrics of `heads` that need more than one head or more than attention.
OF_LAYERS = ("head_divergence", "geometric_semantic_alignment")

#: What fills the table `graphs`, one row per map and threshold.
GRAPHS: tuple[str, ...] = ("graph_statistics", "betti_numbers")


class SinkStudy(Recipe):
    """Captures attention; fills `heads`, `graphs`, `bars` when asked for, and `baselines`."""

    name = "sink_study"

    @classmethod
    def metrics(cls) -> list[str]:
        """Names of the metric functions that the study takes."""
        return sorted({reading.metric for reading in HEADS} | set(GRAPHS) | set(OF_LAYERS))

    def sites(self) -> tuple[str, ...]:
        """Attention, which everything but the value space is made of."""
        return ("attention",)

    def extra_sites(self) -> tuple[str, ...]:
        """Value vectors and the residual stream, for the alignment of attention with meaning."""
        return tuple(ALIGNMENTS.values()) if self._takes("geometric_semantic_alignment") else ()

    def _takes(self, metric: str) -> bool:
        return not self.study.metrics or metric in self.study.metrics

    def measure(self, layer: Layer, number: int, batch: Batch, rows: Rows) -> None:
        """Every metric on every head of the layer and on their mean.

        Args:
            layer: captured self-attention.
            number: of the layer.
            batch: the sentences.
            rows: takes the results.
        """
        heads = layer.matrices()
        lengths = layer.lengths[:, None]
        mean = head_mean(heads)
        for maps, names in ((mean, [-1]), (heads, list(layer.heads))):
            keys: dict[str, Any] = {
                "sample": _each(batch.samples, len(names)),
                "layer": number,
                "head": names * len(batch.samples),
                "protocol": "exact",
            }
            columns = self._heads(maps, lengths)
            columns |= self._layer_columns(layer, maps, lengths, mean=names == [-1])
            if "sink_position" in columns:
                found = columns["sink_position"].reshape(len(batch.samples), len(names)).tolist()
                columns["sink_token"] = [
                    batch.tokens[sample][position] if position >= 0 else ""
                    for sample, positions in enumerate(found)
                    for position in positions
                ]
            rows.add("heads", {**keys, "n_tokens": _each(batch.lengths, len(names)), **columns})
            if self.study.bars:
                barcodes = measure(maps, "persistence", lengths=lengths)["persistence"]
                rows.add("bars", bar_columns(barcodes, keys))
            graphs = self._graphs(maps, lengths)
            if graphs:
                each = len(self.study.thresholds)
                spread = {
                    name: np.repeat(value, each) if np.ndim(value) else value for name, value in keys.items()
                }
                levels = [_levels(self.study.thresholds, n) for n in batch.lengths for _ in names]
                rows.add("graphs", {**spread, "threshold": np.concatenate(levels), **graphs})

    def _heads(self, maps: Tensor, lengths: Tensor | None) -> dict[str, Any]:
        """Columns of `heads`, one entry per map, in the order of the leading axes."""
        chosen = [one for one in HEADS if self._takes(one.metric)]
        if not chosen:
            return {}
        requests = {str(at): {"metric": one.metric, **one.options} for at, one in enumerate(chosen)}
        requests["incoming"] = {"metric": "incoming_attention"}
        found = measure(maps, requests, lengths=lengths)
        spoiled = found["incoming"][..., 0].isnan()
        columns: dict[str, Any] = {}
        for at, one in enumerate(chosen):
            for column, take in one.columns.items():
                values = take(found[str(at)], spoiled)
                kind = torch.int64 if not values.dtype.is_floating_point else torch.float64
                columns[column] = values.to(kind).flatten().numpy()
        return columns

    def _layer_columns(self, layer: Layer, maps: Tensor, lengths: Tensor, *, mean: bool) -> dict[str, Any]:
        """Columns of `heads` that need more than one head or more than attention.

        The head mean has no divergence from itself and no value vectors of its own: NaN.
        """
        nothing = np.full(maps.shape[0] * maps.shape[1], math.nan)
        columns: dict[str, Any] = {}
        if self._takes("head_divergence"):
            divergence = (
                nothing if mean else measure(maps, "head_divergence", lengths=lengths)["head_divergence"]
            )
            columns["head_divergence"] = np.asarray(divergence).ravel()
        if self._takes("geometric_semantic_alignment"):
            for column, site in ALIGNMENTS.items():
                columns[column] = nothing
                if site not in layer.tensors or (mean and site == "value"):
                    continue
                states = (
                    layer.states(site, per_head=True) if site == "value" else layer.states(site).unsqueeze(1)
                )
                states = states.expand(*maps.shape[:2], *states.shape[2:])
                found = geometric_semantic_alignment(maps, states.cpu(), lengths=lengths)
                columns[column] = found.flatten().numpy()
        return columns

    def _graphs(self, maps: Tensor, lengths: Tensor | None) -> dict[str, Any]:
        """Columns of `graphs`, thresholds varying fastest."""
        chosen = [name for name in GRAPHS if self._takes(name)]
        if not chosen:
            return {}
        found = measure(maps, chosen, thresholds=self.study.thresholds, lengths=lengths)
        columns: dict[str, Any] = {}
        if "graph_statistics" in found:
            columns.update(found["graph_statistics"]._asdict())
        if "betti_numbers" in found:
            columns["betti_0"], columns["betti_1"] = found["betti_numbers"].unbind(-1)
        return {name: values.flatten().numpy() for name, values in columns.items()}

    def baselines(self, n_tokens: int, causal: bool) -> list[dict[str, Any]]:
        """Every number of `heads` and `graphs` on uniform attention among the visible keys.

        Args:
            n_tokens: size of the map.
            causal: whether keys after the query are hidden.
        """
        kind = "uniform_causal" if causal else "uniform_full"
        maps = uniform_attention(n_tokens, causal=causal)
        entries = [(name, math.nan, values[0]) for name, values in self._heads(maps, None).items()]
        levels = _levels(self.study.thresholds, n_tokens)
        entries += [
            (name, float(level), value)
            for name, values in self._graphs(maps, None).items()
            for level, value in zip(levels, values, strict=True)
        ]
        return [
            {"n_tokens": n_tokens, "metric": name, "value": _number(value), "kind": kind, "threshold": level}
            for name, level, value in entries
        ]


def _number(value: Any) -> float:
    """A stored number as a float; counts say "undefined" by −1, floats by NaN."""
    return math.nan if isinstance(value, np.integer) and value < 0 else float(value)


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


def _levels(thresholds: Sequence[float | str], n: int) -> np.ndarray[Any, Any]:
    """Thresholds as numbers for a map of n tokens."""
    return np.asarray(
        [float(one.partition("/")[0]) / n if isinstance(one, str) else one for one in thresholds]
    )


def _each(values: Sequence[int], times: int) -> list[int]:
    return [value for value in values for _ in range(times)]


RECIPE = SinkStudy
