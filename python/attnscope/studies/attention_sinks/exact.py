# SPDX-License-Identifier: MIT
"""Columns of the exact protocol: `heads`, `graphs` and `layers`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.metrics.information.divergence import sink_removal
from attnscope.metrics.information.sinks import incoming_attention, sink_tokens
from attnscope.metrics.measure import measure
from attnscope.metrics.states.alignment import (
    entropy_magnitude_correlation,
    geometric_semantic_alignment,
    transformation_magnitude,
)
from attnscope.metrics.states.reference_influence import reference_influence
from attnscope.studies.attention_sinks.readings import GRAPHS, HEADS, column
from attnscope.studies.attention_sinks.states import States

Columns = dict[str, Any]
Takes = Callable[[str], bool]

#: Percentiles of incoming attention from which on a key counts as a sink to be removed.
PERCENTILES = (80, 90, 95)
#: Sub-layer -> site of what it adds to the residual stream.
SUB_LAYERS = {"attention": "attention_output", "mlp": "mlp_output"}
INFLUENCE = {
    "reference_magnitude": "relative_magnitude",
    "reference_directional": "directional",
    "reference_information": "information_change",
}


def results_of(
    maps: Tensor,
    lengths: Tensor | None,
    thresholds: Sequence[float | str],
    takes: Takes,
    *,
    heads: bool = False,
    states: bool = False,
    bars: bool = False,
) -> dict[str, Any]:
    """Everything that is measured of maps [b, h, n, n] alone, in one go: bars and entropies are shared.

    Args:
        maps: attention.
        lengths: [b, 1], or None for whole maps.
        thresholds: of the study.
        takes: whether a metric is wanted.
        heads: whether they are the heads of layers, which can be compared with one another.
        states: whether they are to be compared with states, for which their sinks are left out.
        bars: whether the bars themselves are wanted.
    """
    chosen = [one for one in HEADS if takes(one.metric)]
    requests: dict[str, dict[str, Any]] = {
        str(at): {"metric": one.metric, **one.options} for at, one in enumerate(chosen)
    }
    if chosen:
        requests["incoming"] = {"metric": "incoming_attention"}
    requests |= {name: {"thresholds": tuple(thresholds)} for name in GRAPHS if takes(name)}
    if heads and takes("head_divergence"):
        requests["head_divergence"] = {}
    if states and (takes("geometric_semantic_alignment") or takes("reference_influence")):
        requests["sink_tokens"] = {}
    if bars:
        requests["persistence"] = {}
    return measure(maps, requests, lengths=lengths) if requests else {}


def head_columns(found: Mapping[str, Any], takes: Takes) -> Columns:
    """What attention alone says of maps, one entry per map in the order of the leading axes.

    Args:
        found: what `results_of` gives.
        takes: whether a metric is wanted.
    """
    chosen = [one for one in HEADS if takes(one.metric)]
    if not chosen:
        return {}
    spoiled = found["incoming"][..., 0].isnan()
    columns = {
        name: column(take(found[str(at)], spoiled))
        for at, one in enumerate(chosen)
        for name, take in one.columns.items()
    }
    if {"bar_count_0", "total_persistence_0"} <= set(columns):
        for dimension in (0, 1):
            # one of the components never dies
            finite = columns[f"bar_count_{dimension}"] - (dimension == 0)
            total = columns[f"total_persistence_{dimension}"]
            columns[f"mean_persistence_{dimension}"] = np.divide(
                total, finite, out=np.full(len(total), math.nan), where=finite > 0
            )
    return columns


def value_columns(
    states: States, maps: Tensor, found: Mapping[str, Any], takes: Takes, *, mean: bool
) -> Columns:
    """What attention says together with states, or with the other heads: further columns of `heads`.

    The head mean has no divergence from itself and no value vectors of its own: NaN.

    Args:
        states: the layer.
        maps: its heads or its head mean.
        found: what `results_of` gives of them.
        takes: whether a metric is wanted.
        mean: whether they are the head mean.
    """
    count = maps.shape[0] * maps.shape[1]
    nothing = np.full(count, math.nan)
    lengths = states.lengths[:, None]
    columns: Columns = {}
    if takes("head_divergence"):
        columns["head_divergence"] = nothing if mean else found["head_divergence"].flatten().numpy()
    value = None if mean else states.sites.get("value")
    hidden = _shared(states.sites.get("hidden"))
    sinks = found.get("sink_tokens")
    if takes("geometric_semantic_alignment"):
        for name, vectors in (("value", value), ("hidden", hidden)):
            for suffix, without in (("", None), ("_without_sinks", sinks)):
                columns[f"alignment_{name}{suffix}"] = (
                    nothing
                    if vectors is None
                    else geometric_semantic_alignment(maps, vectors, without=without, lengths=lengths)
                    .flatten()
                    .numpy()
                )
    if takes("entropy_magnitude_correlation"):
        columns["entropy_magnitude_correlation"] = nothing
        columns["entropy_magnitude_correlation_attention"] = nothing
        after, written = (_shared(states.sites.get(site)) for site in ("block_output", "attention_output"))
        for suffix, start, end in (
            ("", hidden, after),
            ("_attention", None if written is None else torch.zeros_like(written), written),
        ):
            if start is not None and end is not None:
                columns[f"entropy_magnitude_correlation{suffix}"] = (
                    entropy_magnitude_correlation(maps, start, end, lengths=lengths).flatten().numpy()
                )
    if takes("reference_influence"):
        assert sinks is not None
        vectors = hidden if mean else value
        columns |= dict.fromkeys(INFLUENCE, nothing)
        if vectors is not None:
            influence = reference_influence(maps, vectors, sinks, lengths=lengths)
            chosen = sinks.any(-1).flatten()
            for name, field in INFLUENCE.items():
                per_query = getattr(influence, field).flatten(0, 1).nanmean(-1)
                # without a reference there is no influence to speak of, not one of 0
                columns[name] = torch.where(chosen, per_query, torch.nan).numpy()
        columns["reference_count"] = sinks.sum(-1).flatten().numpy()
    return columns


def graph_columns(found: Mapping[str, Any]) -> Columns:
    """Columns of `graphs`, thresholds varying fastest.

    Args:
        found: what `results_of` gives.
    """
    columns: Columns = {}
    if "graph_statistics" in found:
        columns.update(found["graph_statistics"]._asdict())
    if "betti_numbers" in found:
        columns["betti_0"], columns["betti_1"] = found["betti_numbers"].unbind(-1)
    return {name: values.flatten().numpy() for name, values in columns.items()}


def layer_columns(states: States, divergence: Any, takes: Takes) -> Columns:
    """Columns of `layers`, one entry per sentence.

    Args:
        states: the layer.
        divergence: of every head from their mean [b * h], as `heads` has it.
        takes: whether a metric is wanted.
    """
    count = len(states.lengths)
    columns: Columns = {}
    if divergence is not None:
        columns["head_divergence"] = np.asarray(divergence).reshape(count, -1).mean(-1)
    if takes("sink_removal"):
        columns |= _removals(states)
    if takes("transformation_magnitude"):
        columns |= _magnitudes(states)
    return columns


def removed_keys(mean: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """The sets of sink keys [b, n] that are taken out of a layer, by the suffix of their columns.

    "": `sink_tokens` of the head mean. "_80", "_90", "_95": keys whose incoming attention (the mean over the
    queries that see them, and three in ten must) reaches that percentile over such keys.

    Args:
        mean: head mean [b, n, n].
        lengths: [b].
    """
    incoming = incoming_attention(mean, lengths=lengths).numpy()
    visible = np.arange(mean.shape[-1])
    causal = (mean.triu(1) == 0).all(-1).all(-1).numpy() if mean.shape[-1] > 1 else np.ones(len(mean), bool)
    keys = {"": sink_tokens(mean, lengths=lengths)}
    for percentile in PERCENTILES:
        flags = np.zeros(incoming.shape, dtype=bool)
        for row, (each, n) in enumerate(zip(incoming, lengths.tolist(), strict=True)):
            seen_by = n - visible[:n] if causal[row] else np.full(n, n)
            eligible = seen_by >= math.ceil(0.3 * n)
            if np.isfinite(each[:n]).all():
                flags[row, :n] = eligible & (each[:n] >= np.percentile(each[:n][eligible], percentile))
        keys[f"_{percentile}"] = torch.from_numpy(flags)
    return keys


def _removals(states: States) -> Columns:
    mean = states.mean[:, 0].cpu()
    inside = states.inside()
    mass = torch.where(inside[..., None] & inside[:, None, :], mean, 0.0).sum(-2)
    spoiled = mass.isnan().any(-1)
    columns: Columns = {}
    for suffix, keys in removed_keys(mean, states.lengths).items():
        found = sink_removal(states.heads, keys, keep_attention=False, lengths=states.lengths)
        columns[f"kl_reduction{suffix}"] = found.kl_reduction.numpy()
        columns[f"sink_concentration{suffix}"] = (
            (torch.where(keys, mass, 0.0).sum(-1) / mass.sum(-1)).masked_fill(spoiled, math.nan).numpy()
        )
        columns[f"sink_count{suffix}"] = keys.sum(-1).masked_fill(spoiled, -1).numpy()
        columns[f"excluded_rows{suffix}"] = found.excluded.sum(-1).masked_fill(spoiled, -1).numpy()
    return columns


def _magnitudes(states: States) -> Columns:
    """How far the block and its sub-layers move the tokens of a sentence."""
    inside = states.inside()

    def over_tokens(values: Tensor) -> Tensor:
        return torch.where(inside, values, torch.nan)

    nothing = np.full(len(states.lengths), math.nan)
    names = ["state_norm", "transformation_magnitude", "transformation_magnitude_median"]
    columns: Columns = dict.fromkeys(
        [*names, *(f"transformation_magnitude_{one}" for one in SUB_LAYERS)], nothing
    )
    hidden, after = states.sites.get("hidden"), states.sites.get("block_output")
    if hidden is not None:
        norm = transformation_magnitude(torch.zeros_like(hidden), hidden)
        columns["state_norm"] = over_tokens(norm).nanmean(-1).numpy()
    if hidden is not None and after is not None:
        moved = over_tokens(transformation_magnitude(hidden, after))
        columns["transformation_magnitude"] = moved.nanmean(-1).numpy()
        columns["transformation_magnitude_median"] = moved.nanquantile(0.5, -1).numpy()
    for sub_layer, site in SUB_LAYERS.items():
        if site in states.sites:
            written = states.sites[site]
            moved = transformation_magnitude(torch.zeros_like(written), written)
            columns[f"transformation_magnitude_{sub_layer}"] = over_tokens(moved).nanmean(-1).numpy()
    return columns


def _shared(vectors: Tensor | None) -> Tensor | None:
    """States [b, n, D] as shared by all heads of a sentence."""
    return None if vectors is None else vectors.unsqueeze(1)
