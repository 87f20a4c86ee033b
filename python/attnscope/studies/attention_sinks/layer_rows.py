# SPDX-License-Identifier: MIT
"""The quantities of the study, the maps that they are measured on, and their rows.

A quantity is requested by the name of its metric. Quantities of a map are in `heads`, or in `head_means`
for the mean over heads; those with a threshold in `graphs` and `head_mean_graphs`; those of all heads
together in `layers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.metrics.discovery import registry
from attnscope.metrics.homology.barcodes import bar_columns
from attnscope.metrics.homology.persistence import persistence
from attnscope.metrics.measured import Measured
from attnscope.metrics.quantity import Quantity, Site
from attnscope.metrics.signatures import reads_layers
from attnscope.metrics.thresholds import first_equal_of_maps, levels_of_maps
from attnscope.results.schema import head_means_of
from attnscope.studies.supports import LayerVisibility, keys_of
from attnscope.study_api.forward import Batch, head_mean
from attnscope.study_api.stage_run import StageRun

if TYPE_CHECKING:
    from attnscope.capture import Layer

#: Functions that the study takes, by protocol.
METRICS = {
    "exact": (
        *("sink_share", "sink_rate", "sink_position", "sink_tokens", "sink_excess", "sink_test", "top_mass"),
        *("fiedler_value", "laplacian_gap", "graph_statistics", "betti_numbers"),
        *("participation_ratio", "stable_rank", "effective_rank", "spectral_gap", "spectral_ratio"),
        *("marchenko_pastur", "bar_count", "total_persistence", "max_persistence", "persistent_entropy"),
        *("head_divergence", "sink_removal", "geometric_semantic_alignment", "transformation_magnitude"),
        *("entropy_magnitude_correlation", "reference_influence", "attention_entropy"),
    ),
    "ruscio2025": (
        *("attention_entropy", "participation_ratio", "stable_rank", "spectral_ratio", "spectral_norm"),
        *("bulk", "sink_concentration", "marchenko_pastur_deviation", "topology", "sink_tokens"),
        *("graph_statistics", "head_divergence", "sink_removal", "geometric_semantic_alignment"),
        *("pca_correlation", "entropy_magnitude_correlation", "transformation_magnitude"),
        "reference_influence",
    ),
}
#: Quantities that another metric than their own asks for, by scope and name or by their function.
_ASKED_BY = {
    ("layer", "sink_count"): "sink_removal",
    ("map", "reference_count"): "reference_influence",
    "_mean_persistence": "total_persistence",
    "_mass_on": "sink_removal",
    "_keys_above": "sink_removal",
    "_influence_of_sinks": "reference_influence",
    "_state_norm": "transformation_magnitude",
}
#: What the spectrum of random rows of a support is held against; of windows and masks, shuffled copies.
LAWS = {"causal": "triangular", "full": "Marchenko-Pastur"}
#: Functions of a protocol -> other names that ask for them as well.
_SYNONYMS: dict[str, dict[str, tuple[str, ...]]] = {
    "exact": {
        "sink_test": ("classify_frames", "sink_excess", "sink_position", "sink_tokens"),
        "sink_position": ("classify_frames", "sink_test"),
    },
    "ruscio2025": {
        "topology": ("bar_count", "max_persistence", "sink_position"),
        "bulk": ("marchenko_pastur",),
        "marchenko_pastur_deviation": ("marchenko_pastur",),
        "spectral_norm": ("stable_rank",),
        "sink_concentration": ("top_mass",),
    },
}

#: Sites other than attention that the study reads if the model lets them be captured.
SITES = ("value", "hidden", "attention_output", "mlp_output", "block_output")
#: The sentence whose maps are kept.
SAMPLE = 0


def metric_names() -> list[str]:
    """Return every metric that `options.metrics` may name."""
    return sorted({name for names in METRICS.values() for name in names} | {"classify_frames"})


def table_of(quantity: Quantity) -> str:
    """Return the table of a quantity; "" for one with a number per query, key or rank."""
    if quantity.scope == "layer":
        return "" if quantity.axes else "layers"
    return {(): "heads", ("threshold",): "graphs"}.get(quantity.axes, "") if quantity.scope == "map" else ""


def select_quantities(
    protocol: str, metrics: Sequence[str], thresholds: Sequence[float | str]
) -> list[Quantity]:
    """Return the quantities of a protocol under the settings of a run, means over queries."""
    chosen = []
    for declared in registry().quantities:
        if declared.protocol != protocol:
            continue
        metric = _asked_by(declared)
        names = (metric, *_SYNONYMS[protocol].get(metric, ()))
        if metric not in METRICS[protocol] or (metrics and not set(names) & set(metrics)):
            continue
        averaged = declared.mean_over("query")
        averaged = (
            averaged.with_options(thresholds=tuple(thresholds)) if "threshold" in averaged.axes else averaged
        )
        if table_of(averaged):
            chosen.append(averaged)
    return chosen


def _asked_by(quantity: Quantity) -> str:
    if quantity.protocol == "ruscio2025" and quantity.metric == "betti_numbers":
        return "topology"
    name = _ASKED_BY.get((quantity.scope, quantity.name)) if quantity.metric == "sink_tokens" else None
    return name or _ASKED_BY.get(quantity.metric, quantity.metric)


def of_single_maps(quantities: Sequence[Quantity]) -> list[Quantity]:
    """Return the quantities of any map by itself: uniform attention and shuffled rows too."""
    return [
        quantity
        for quantity in quantities
        if (quantity.needs, quantity.scope) == (("attention",), "map")
        and _asked_by(quantity) != "reference_influence"
        and not reads_layers(quantity)
    ]


def of_layers(quantities: Sequence[Quantity]) -> list[Quantity]:
    """Return the quantities that only all heads of a layer together have."""
    return [quantity for quantity in quantities if quantity.scope == "layer" or reads_layers(quantity)]


def of_means(quantities: Sequence[Quantity]) -> list[Quantity]:
    """Return the quantities of a head mean; it has no value vectors, so its influence is on hidden states."""
    return [
        replace(quantity, needs=("attention", "hidden")).with_options(states=Site("hidden"))
        if quantity.metric == "_influence_of_sinks"
        else quantity
        for quantity in quantities
        if quantity.scope == "map"
    ]


@dataclass(frozen=True)
class States(LayerVisibility):
    """A captured layer as the study reads it: the tensors of one layer of one batch."""

    heads: Tensor  # maps [b, h, n, n], real tokens in each one's leading block
    mean: Tensor  # their mean [b, 1, n, n], float64
    lengths: Tensor  # real tokens [b]
    names: tuple[int, ...]  # numbers of the heads
    sites: dict[str, Tensor]  # captured states by site, on the CPU: value [b, kv, n, d], the others [b, n, D]

    @classmethod
    def of(cls, layer: Layer) -> States:
        """Read a captured layer."""
        heads = layer.matrices()
        sites = {site: layer.states(site).cpu() for site in SITES if site in layer.tensors}
        # each query head its own value head, unless the heads divide evenly, which the kernels read in place
        if "value" in sites and heads.shape[1] % sites["value"].shape[1]:
            sites["value"] = layer.states("value", per_head=True).cpu()
        seen = LayerVisibility.by(layer, heads)
        visibility = (seen.support, seen.learned, seen.supports)
        return cls(*visibility, heads, head_mean(heads), layer.lengths, tuple(layer.heads), sites)

    def copy(self) -> States:
        """Return the same numbers in memory of their own, which outlive the forward pass."""
        sites = {site: tensor.clone() for site, tensor in self.sites.items()}
        return replace(self, heads=self.heads.clone(), sites=sites)


def write_rows(
    run: StageRun,
    measured: Measured,
    batch: Batch,
    protocol: str,
    layer: int,
    names: Sequence[int] | None,
    *,
    variant: str = "",
    supports: Sequence[str] = (),
    **of_layer: Any,
) -> None:
    """Write the measured numbers of the maps [batch, maps] of a layer.

    The maps are heads of these numbers or, without `names`, the head mean, as the model has them or a
    `variant`; `supports` name the visible keys of each text's queries, `of_layer` holds further columns of
    `layers`.
    """
    columns: dict[str, dict[str, Any]] = {"heads": {}, "graphs": {}, "layers": {}}
    thresholds: Sequence[float | str] = ()
    for quantity, values in measured.values.items():
        missing = ~measured.defined[quantity].numpy()
        flat = values.numpy().ravel()  # a float is NaN where it is missing
        flat = flat if values.is_floating_point() else np.ma.MaskedArray(flat, missing.ravel())
        columns[table_of(quantity)][quantity.name] = flat
        if quantity.name == "sink_position":
            columns["heads"]["sink_token"] = batch.tokens_at(np.ma.MaskedArray(values.numpy(), missing))
        thresholds = quantity.options.get("thresholds", thresholds)
    keys = keys_of(batch, layer, names, protocol)
    maps = 1 if names is None else len(names)
    lengths, seen = np.repeat(batch.lengths, maps), np.repeat(supports, maps).tolist()
    control = bool(variant or run.unit.variant)
    if "mp_ks" in columns["heads"] and protocol == "exact" and not control:
        columns["heads"]["mp_law"] = [LAWS.get(name, "shuffled rows") for name in seen]
    for table, table_columns in columns.items():
        if not table_columns:
            continue
        if table == "layers":
            table_columns |= of_layer
            rows = keys_of(batch, layer, None, protocol)
            rows |= {} if control else {"n_tokens": batch.lengths}
        elif table == "graphs":
            levels = len(thresholds)
            rows = {key: np.repeat(value, levels) if np.ndim(value) else value for key, value in keys.items()}
            rows["threshold"] = levels_of_maps(thresholds, lengths.tolist()).ravel()
            rows |= {} if control else {"support": np.repeat(seen, levels)}
            # k/n may be one of the numbers for a text of some length, which is one row then
            once = (first_equal_of_maps(thresholds, lengths.tolist()) == np.arange(levels)).ravel()
            if not once.all():
                rows = {
                    key: np.asarray(value)[once] if np.ndim(value) else value for key, value in rows.items()
                }
                table_columns = {column: values[once] for column, values in table_columns.items()}
        else:
            rows = keys if control else {**keys, "n_tokens": lengths, "support": seen}
        name = head_means_of(table) if names is None and table != "layers" else table
        run.write(name, variant=variant, **rows, **table_columns)


def write_examples(states: States, number: int, batch: Batch, run: StageRun, *, bars: bool) -> None:
    """Write to `examples` the heads of a layer that attend most and least to the first key, flattened."""
    if SAMPLE not in batch.samples:
        return
    place = list(batch.samples).index(SAMPLE)
    n = batch.lengths[place]
    maps = states.heads[place, :, :n, :n].double().cpu()
    if not bool(maps.isfinite().all()):
        return
    first = maps[..., 0].mean(-1)
    chosen = sorted({int(first.argmax()), int(first.argmin())})
    heads = [states.names[head] for head in chosen]
    keys: dict[str, Any] = {"sample": SAMPLE, "layer": number, "head": heads, "protocol": "exact"}
    run.write("examples", **keys, n_tokens=n, attention=[maps[head].flatten().tolist() for head in chosen])
    if bars:
        run.write("bars", **bar_columns(persistence(maps[torch.tensor(chosen, device="cpu")]), keys))
