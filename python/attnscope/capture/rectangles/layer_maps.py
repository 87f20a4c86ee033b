# SPDX-License-Identifier: MIT
"""The maps of layers that are not square, as metrics take them.

A decoding step has a query at the last keys, a prefix of virtual tokens more keys than queries, and the
queries of cross attention stand at no key. Padding is cut from queries and keys alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnscope.capture.visibility import visible_entries
from attnscope.metrics.measure import measure
from attnscope.metrics.support import LayerSupport


@dataclass(frozen=True, eq=False)
class Rectangles:
    """The maps of a layer, real queries and keys in the leading block, zeros behind.

    Attributes:
        maps: [B, h, q, k].
        lengths: real keys of each sample, int64 [B].
        query_lengths: real queries of each sample, int64 [B].
        cross: queries stand at no key; otherwise at the last real keys of their sample.
        seen: keys that queries see, and the mass of a learned sink.
    """

    maps: Tensor
    lengths: Tensor
    query_lengths: Tensor
    cross: bool
    seen: LayerSupport


def rectangles_of(layer: Any, query_mask: Tensor | None = None) -> Rectangles:
    """Return the maps of a captured layer whose keys are not its queries.

    Args:
        layer: a `Layer` with the site attention.
        query_mask: of cross attention the real queries, bool [B, q]; None: all.

    Raises:
        ValueError: self-attention in which a query stands at no real key.
        LoadError: maps that are a part of what the queries attend to.
    """
    layer.require_whole_rows()
    attention: Tensor = layer.captured("attention")
    count = attention.shape[-2]
    keys = [row.nonzero().flatten() for row in layer.valid.cpu()]
    if layer.cross:
        real = torch.ones(len(keys), count, device="cpu") if query_mask is None else query_mask.cpu()
        queries = [row.nonzero().flatten() for row in real]
    else:
        used = max((int(row[-1]) + 1 for row in keys if len(row)), default=0)
        if used < count:
            raise ValueError(
                f"measure: layer {layer.index} ({layer.stack}) has {count} queries x {attention.shape[-1]} "
                f"keys, of which {used} are used; its queries stand at no key"
            )
        # of a static cache the places behind are empty
        queries = [row[row >= used - count] - (used - count) for row in keys]
    maps = _leading_block(attention, queries, keys)
    learned = None
    if layer.has_sink:
        learned = _leading_block(
            layer.sink_mass[..., None], queries, [torch.zeros(1, device="cpu").long()] * len(keys)
        )
        learned = learned[..., 0].cpu()
    return Rectangles(
        maps,
        torch.tensor([len(row) for row in keys], device="cpu"),
        torch.tensor([len(row) for row in queries], device="cpu"),
        layer.cross,
        LayerSupport(_support_of(layer.mask, queries, keys, attention.shape), learned),
    )


def _leading_block(tensor: Tensor, rows: Sequence[Tensor], columns: Sequence[Tensor]) -> Tensor:
    """Return the entries [B, h, q, k] at each sample's rows and columns, zeros behind them."""
    height, width = (max((len(at) for at in places), default=0) for places in (rows, columns))
    if all(_is_leading(at, height) for at in rows) and all(_is_leading(at, width) for at in columns):
        return tensor[..., :height, :width]
    block = tensor.new_zeros(*tensor.shape[:-2], height, width)
    for sample, (row, column) in enumerate(zip(rows, columns, strict=True)):
        at_rows, at_columns = row.to(tensor.device), column.to(tensor.device)
        block[sample, ..., : len(row), : len(column)] = tensor[sample][..., at_rows, :][..., at_columns]
    return block


def _is_leading(places: Tensor, size: int) -> bool:
    return len(places) == size and (size == 0 or int(places[-1]) == size - 1)


def _support_of(
    mask: Tensor | None, rows: Sequence[Tensor], columns: Sequence[Tensor], shape: Sequence[int]
) -> Any:
    """Return what metrics take as `support` beside the leading block, "auto" where no mask says it."""
    if mask is None or mask.ndim != 4:
        return "auto"
    visible = visible_entries(mask[..., : shape[-1]]).cpu()
    visible = visible.expand(shape[0], visible.shape[1], shape[-2], shape[-1])
    visible = _leading_block(visible, rows, columns)
    height, width = visible.shape[-2:]
    counts, lengths = (
        torch.tensor([len(at) for at in places], device="cpu")[:, None, None, None]
        for places in (rows, columns)
    )
    query, key = torch.arange(height, device="cpu")[:, None], torch.arange(width, device="cpu")
    inside = (query < counts) & (key < lengths)
    if bool((visible | ~inside).all()):
        return "full"
    if bool(((visible == (key <= query + lengths - counts)) | ~inside).all()):
        return "causal"
    return visible & inside


def measure_rectangles(
    layer: Any,
    metrics: str | Iterable[str] | Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
    option_names: set[str],
) -> dict[str, Any]:
    """Return metrics of a layer that is not square, as `Layer.measure` does.

    Args:
        layer: the layer.
        metrics: as `measure` takes them.
        options: the caller's.
        option_names: names of the options that the metrics take.
    """
    part = rectangles_of(layer, layer.query_valid)
    seen = part.seen.options(option_names - options.keys())
    if part.cross and seen.get("support") == "causal":
        seen["support"] = "full"
    return measure(
        part.maps,
        metrics,
        lengths=part.lengths[:, None],
        query_lengths=part.query_lengths[:, None],
        cross=part.cross,
        **seen,
        **options,
    )
