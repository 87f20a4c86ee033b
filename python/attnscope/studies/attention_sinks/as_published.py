# SPDX-License-Identifier: MIT
"""Columns of protocol ruscio2025: what the notebooks compute, of every head and of the head mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.metrics.homology.barcodes import bar_count
from attnscope.protocols import ruscio2025
from attnscope.protocols.ruscio2025._maps import type_in_numpy
from attnscope.protocols.ruscio2025.alignment import correlation_over_tokens
from attnscope.protocols.ruscio2025.divergence import sink_removals
from attnscope.protocols.ruscio2025.graph_statistics import both_variants
from attnscope.protocols.ruscio2025.random_matrix import spectral_numbers
from attnscope.studies.attention_sinks.readings import column
from attnscope.studies.attention_sinks.states import States

Columns = dict[str, Any]
Takes = Callable[[str], bool]

PERCENTILES = (80, 90, 95)
#: Columns that both notebooks on graphs fill, with another meaning in the second.
OF_FIEDLER_NOTEBOOK = ("hub_share", "gini", "centralization", "degree_variance", "star_likeness")
TOPOLOGY = {
    "attention_mean": "mean",
    "attention_max": "max",
    "attention_std": "std",
    "matrix_entropy": "entropy",
}
INFLUENCE = {
    "reference_magnitude": "relative_magnitude",
    "reference_directional": "directional",
    "reference_information": "information_change",
}
#: Functions of the protocol that the study takes.
METRICS = (
    "attention_entropy",
    "participation_ratio",
    "stable_rank",
    "spectral_ratio",
    "spectral_norm",
    "bulk",
    "sink_concentration",
    "marchenko_pastur_deviation",
    "topology",
    "sink_tokens",
    "graph_statistics",
    "head_divergence",
    "sink_removal",
    "geometric_semantic_alignment",
    "pca_correlation",
    "entropy_magnitude_correlation",
    "transformation_magnitude",
    "reference_influence",
)

_BULK = ("edge", "mean", "std")
#: Function of the protocol -> exact metrics whose names ask for it as well.
SYNONYMS = {
    "topology": ("bar_count", "max_persistence", "sink_position"),
    "bulk": ("marchenko_pastur",),
    "marchenko_pastur_deviation": ("marchenko_pastur",),
    "spectral_norm": ("stable_rank",),
    "sink_concentration": ("top_mass",),
}


def equal_lengths(lengths: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Lengths and the places in the batch that have them; the protocol knows whole maps only.

    Args:
        lengths: of the sentences of a batch.
    """
    for n in sorted(set(lengths)):
        yield n, [place for place, length in enumerate(lengths) if length == n]


def head_columns(maps: Tensor, takes: Takes) -> Columns:
    """What attention alone says of whole maps [b, m, n, n], one entry per map.

    Args:
        maps: heads and head means.
        takes: whether a metric is wanted.
    """
    columns: Columns = {}
    if takes("attention_entropy"):
        columns["entropy"] = column(query_entropy(maps).mean(-1))
        columns["entropy_bits"] = column(ruscio2025.attention_entropy(maps, base=2).mean(-1))
    names = (
        "participation_ratio",
        "stable_rank",
        "spectral_ratio",
        "spectral_norm",
        "marchenko_pastur_deviation",
    )
    spectral = {name: takes(name) for name in names} | {f"bulk_{part}": takes("bulk") for part in _BULK}
    if any(spectral.values()):
        numbers = spectral_numbers(maps)
        columns |= {name: column(numbers[name]) for name, wanted in spectral.items() if wanted}
    if takes("sink_concentration"):
        columns["sink_concentration"] = column(ruscio2025.sink_concentration(maps))
    if takes("sink_tokens"):
        flags = ruscio2025.sink_tokens(maps, rule="rmt")
        spoiled = ~maps.isfinite().all(-1).all(-1)
        columns["sink_count"] = column(flags.sum(-1).masked_fill(spoiled, -1))
    if takes("topology"):
        columns |= _topology(maps)
    return columns


def query_entropy(maps: Tensor) -> Tensor:
    """The value notebook's entropy of every query, nats."""
    return ruscio2025.attention_entropy(maps)


def _topology(maps: Tensor) -> Columns:
    bars = ruscio2025.persistence(maps)
    found = ruscio2025.topology(maps, barcodes=bars)
    counts = bar_count(bars)
    columns: Columns = {"sink_position": column(found.top_key)}
    for dimension in (0, 1):
        columns[f"bar_count_{dimension}"] = column(counts[..., dimension])
        columns[f"mean_persistence_{dimension}"] = column(found.mean_length[..., dimension])
        columns[f"max_persistence_{dimension}"] = column(found.max_length[..., dimension])
    columns |= {name: column(getattr(found, field)) for name, field in TOPOLOGY.items()}
    columns["entry_density_20"], columns["entry_density_40"] = map(column, found.density.unbind(-1))
    columns["strongest_query"], columns["strongest_key"] = map(column, found.strongest_edge.unbind(-1))
    return columns


def value_columns(maps: Tensor, hidden: Tensor | None, takes: Takes) -> Columns:
    """What attention says together with the residual stream, and heads with one another.

    Args:
        maps: [b, 1 + h, n, n], the head mean first.
        hidden: residual stream that enters the layer [b, n, D], None where it could not be captured.
        takes: whether a metric is wanted.
    """
    nothing = np.full(maps.shape[0] * maps.shape[1], math.nan)
    columns: Columns = {}
    if takes("head_divergence"):
        divergence = torch.full(maps.shape[:2], math.nan, dtype=torch.float64)
        divergence[:, 1:] = ruscio2025.head_divergence(maps[:, 1:])
        columns["head_divergence"] = divergence.flatten().numpy()
    states = None if hidden is None else hidden.unsqueeze(1).double()
    if takes("geometric_semantic_alignment"):
        columns["alignment_hidden"] = (
            nothing if states is None else column(ruscio2025.geometric_semantic_alignment(maps, states))
        )
    if takes("pca_correlation"):
        pca = None if states is None else ruscio2025.pca_correlation(maps, states)
        columns["pca_correlation"] = nothing if pca is None else column(pca.signed)
        columns["pca_correlation_absolute"] = nothing if pca is None else column(pca.absolute)
    if takes("reference_influence"):
        influence = None if states is None else ruscio2025.reference_influence(maps, states)
        for name, field in INFLUENCE.items():
            columns[name] = nothing if influence is None else column(getattr(influence, field).mean(-1))
        count = (
            np.full(len(nothing), -1) if influence is None else influence.reference.sum(-1).flatten().numpy()
        )
        columns["reference_count"] = count
    return columns


def moving_columns(entropy: Tensor, before: Tensor | None, after: Tensor | None, takes: Takes) -> Columns:
    """Correlation of entropy with how far tokens move, one entry per map.

    Args:
        entropy: of every query [b, 1 + h, n].
        before: residual stream that enters the layer [b, n, D].
        after: as transformers gives it for the layer above; for the last layer that is after the final norm.
        takes: whether a metric is wanted.
    """
    if not takes("entropy_magnitude_correlation"):
        return {}
    if before is None or after is None:
        return {"entropy_magnitude_correlation": np.full(entropy.shape[0] * entropy.shape[1], math.nan)}
    moved = ruscio2025.transformation_magnitude(before, after).unsqueeze(1)
    return {"entropy_magnitude_correlation": column(correlation_over_tokens(entropy, moved))}


def graph_columns(
    maps: Tensor, thresholds: Sequence[float | str], takes: Takes, *, like: Tensor | None = None
) -> Columns:
    """Columns of `graphs` of whole maps, thresholds varying fastest.

    Args:
        maps: [b, m, n, n].
        thresholds: of the study.
        takes: whether a metric is wanted.
        like: the model's maps, in whose type the notebooks hold the head mean and compare thresholds;
            None: `maps` as they are.
    """
    if not takes("graph_statistics"):
        return {}
    if like is not None:
        maps = maps.to(type_in_numpy(like))
    laplacian, fiedler = both_variants(maps, thresholds)
    columns = {name: values.flatten().numpy() for name, values in laplacian._asdict().items()}
    for name in OF_FIEDLER_NOTEBOOK:
        columns[f"{name}_fiedler"] = getattr(fiedler, name).flatten().numpy()
    return columns


def layer_columns(heads: Tensor, takes: Takes) -> Columns:
    """Columns of `layers` that attention alone fills, one entry per sentence.

    Args:
        heads: whole maps [b, h, n, n].
        takes: whether a metric is wanted.
    """
    columns: Columns = {}
    if takes("head_divergence"):
        columns["head_divergence"] = ruscio2025.head_divergence(heads).mean(-1).numpy()
    if takes("sink_removal"):
        spoiled = ~heads.isfinite().flatten(1).all(-1)
        removals = sink_removals(heads, PERCENTILES)
        for percentile in PERCENTILES:
            full, fast = removals[percentile, False], removals[percentile, True]
            columns |= {
                f"kl_reduction_{percentile}": full.kl_reduction.numpy(),
                f"sink_concentration_{percentile}": full.sink_concentration.numpy(),
                f"sink_count_{percentile}": full.sinks.sum(-1).masked_fill(spoiled, -1).numpy(),
                f"p_value_{percentile}": full.p_value.numpy(),
                f"kl_reduction_speed_{percentile}": fast.kl_reduction.numpy(),
                f"sink_concentration_speed_{percentile}": fast.sink_concentration.numpy(),
            }
    return columns


def magnitude_columns(before: Tensor | None, after: Tensor | None, count: int, takes: Takes) -> Columns:
    """How far a block moves the tokens of whole sentences [b, n, D], by the value notebook.

    Args:
        before: residual stream that enters the layer.
        after: as for `moving_columns`.
        count: number of sentences.
        takes: whether a metric is wanted.
    """
    if not takes("transformation_magnitude"):
        return {}
    nothing = np.full(count, math.nan)
    if before is None:
        return dict.fromkeys(
            ("state_norm", "transformation_magnitude", "transformation_magnitude_median"), nothing
        )
    norm = before.double().norm(dim=-1).mean(-1).numpy()
    if after is None:
        return {
            "state_norm": norm,
            "transformation_magnitude": nothing,
            "transformation_magnitude_median": nothing,
        }
    moved = ruscio2025.transformation_magnitude(before, after)
    return {
        "state_norm": norm,
        "transformation_magnitude": moved.mean(-1).numpy(),
        "transformation_magnitude_median": moved.quantile(0.5, -1).numpy(),
    }


def whole(states: States, places: Sequence[int], n: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Maps [b, 1 + h, n, n] in float64, the head mean first, and states, of sentences of n tokens.

    Args:
        states: the layer.
        places: which sentences of the batch.
        n: their length.
    """
    chosen = list(places)
    heads = states.heads[chosen][..., :n, :n].double().cpu()
    maps = torch.cat([states.mean[chosen][..., :n, :n].cpu(), heads], 1)
    return maps, {name: values[chosen][..., :n, :] for name, values in states.sites.items()}
