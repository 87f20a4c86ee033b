# SPDX-License-Identifier: MIT
"""Rows of the study from queries and keys: no map is computed, so texts may be as long as the model allows.

A layer's heads and their mean get the quantities of rows and columns, and heads get profiles over positions:
the share of the first key and the entropy by query, incoming attention by key, means over bins that are
equally wide on a logarithmic axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.metrics.lazy.head_mean import HeadMeanAttention
from attnscope.metrics.lazy.lazy_attention import LazyAttention
from attnscope.metrics.lazy.map_free import needs_no_map
from attnscope.metrics.lazy.passes import Key, shared_pass
from attnscope.metrics.lazy.visibility import visible_keys
from attnscope.metrics.measured import Measured
from attnscope.metrics.quantity import Quantity
from attnscope.metrics.support import measure_layer
from attnscope.studies.attention_sinks.layer_rows import of_single_maps, write_rows
from attnscope.studies.supports import LayerVisibility
from attnscope.study_api.forward import Batch
from attnscope.study_api.stage_run import StageRun

if TYPE_CHECKING:
    from attnscope.capture.lazy.lazy_layer import LazyLayer

#: Metrics of graphs that hold up to n/threshold entries of each head, measured where the user names them.
NAMED_METRICS = frozenset({"graph_statistics", "betti_numbers"})
#: Bins of positions from 1 to n, of which neighbours that hold no position are dropped.
_BINS = 48


@dataclass(frozen=True)
class LazyStates(LayerVisibility):
    """A captured layer of which queries and keys are in memory."""

    attention: LazyAttention
    names: tuple[int, ...]  # numbers of the heads

    @classmethod
    def of(cls, layer: LazyLayer) -> LazyStates:
        """Read a captured layer."""
        learned = None if layer.sink_logits is None else layer.sink_mass.cpu()
        supports = tuple(visible_keys(layer.attention.visibility, n) for n in layer.lengths.tolist())
        return cls("auto", learned, supports, layer.attention, tuple(layer.heads))


def select_lazily(quantities: Sequence[Quantity], metrics: Sequence[str]) -> tuple[list[Quantity], list[str]]:
    """Return the quantities that need no map, and the metrics of the others.

    Args:
        quantities: of the run.
        metrics: that the user has named.
    """
    chosen = [quantity for quantity in quantities if needs_no_map(quantity) or _is_named(quantity, metrics)]
    left_out = {quantity.metric.strip("_") for quantity in quantities if quantity not in chosen}
    return chosen, sorted(left_out - {quantity.metric for quantity in chosen})


def _is_named(quantity: Quantity, metrics: Sequence[str]) -> bool:
    """Return True for a quantity of sparse graphs whose metric the user has named."""
    if quantity.protocol != "exact" or quantity.needs != ("attention",):
        return False
    return quantity.metric in NAMED_METRICS & set(metrics)


def write_lazy_layer(
    states: LazyStates,
    number: int,
    quantities: Sequence[Quantity],
    batch: Batch,
    run: StageRun,
    *,
    profiles: bool,
) -> None:
    """Write the rows of a layer's heads and of their mean, and where asked its profiles over positions."""
    attention = states.attention
    keys: list[Key] = [("entropy", None), ("first", 1), ("incoming", None)] if profiles else []
    of_mean = [quantity for quantity in of_single_maps(quantities) if needs_no_map(quantity)]
    mean_attention: Any = HeadMeanAttention(attention)

    def measure_mean() -> Measured | None:
        of_layer = {"attention": mean_attention}
        return measure_layer(of_layer, of_mean, states, mean=True) if of_mean else None

    with shared_pass() as note:
        # so that one pass of the heads and one of their mean measure everything
        note(lambda: attention.take(keys) if keys else None)
        note(measure_mean)
        sites: dict[str, Any] = {"attention": attention, "head_mean": mean_attention}
        measured = measure_layer(sites, quantities, states, heads=states.names)
        measured_profiles = attention.take(keys) if profiles else []
        mean = measure_mean()
    write_rows(run, measured, batch, "exact", number, states.names, supports=states.supports)
    if mean is not None:
        write_rows(run, mean, batch, "exact", number, None, supports=states.supports)
    if not measured_profiles:
        return
    entropy, first, incoming = measured_profiles
    received = incoming / attention.visibility.query_counts().clamp(min=1)
    for place, n in enumerate(batch.lengths):
        columns = {
            "sink_share": first[place],
            "entropy": entropy[place],
            "incoming_attention": received[place],
        }
        _write_profile(run, columns, n, states.names, sample=batch.samples[place], layer=number)


def _write_profile(
    run: StageRun, columns: dict[str, Tensor], n: int, names: Sequence[int], **keys: Any
) -> None:
    """Write the means of numbers [h, positions] of one text over bins of positions."""
    edges = position_bins(n)
    counts = np.diff(edges)
    sums = {
        name: np.add.reduceat(values[:, :n].numpy(), edges[:-1], axis=1) for name, values in columns.items()
    }
    for head, number in enumerate(names):
        means = {name: total[head] / counts for name, total in sums.items()}
        places = {"position": edges[:-1] + 1, "last_position": edges[1:]}
        run.write("position_profiles", head=number, protocol="exact", **keys, **places, **means)


def position_bins(n: int) -> np.ndarray[Any, Any]:
    """Return the borders of bins of the positions 0 to n − 1, about equally wide in their logarithm.

    >>> position_bins(4).tolist()
    [0, 1, 2, 4]
    """
    borders = np.geomspace(1, n + 1, min(_BINS, n) + 1) - 1
    return np.unique(np.round(borders).astype(np.int64))


def uniform_attention(support: str, n: int) -> LazyAttention:
    """Return lazy attention with equal weights on the visible keys of n tokens.

    Args:
        support: "causal", "full", "window W", or "window W+" where all later keys are visible too.
        n: number of tokens.

    >>> uniform_attention("window 2", 3).dense()[0, 0].tolist()
    [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """
    kind, _, width = support.partition(" ")
    before = width.removesuffix("+")
    if kind not in ("causal", "full", "window") or (kind == "window" and not before.isdecimal()):
        raise ValueError(f"uniform_attention: expected causal, full or a window before, got {support!r}")
    is_causal = kind != "full" and before == width
    window = int(before) + (before != width) if kind == "window" else None
    zeros = torch.zeros(1, 1, n, 1, device="cpu")
    return LazyAttention(zeros, zeros, causal=is_causal, window=window, precision="exact")
