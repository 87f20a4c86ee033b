# SPDX-License-Identifier: MIT
"""Whole maps of the first sentence, for the figures that need one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from attnscope.engine.forward import Batch
from attnscope.engine.recipe import UnitRows, bar_columns
from attnscope.metrics.homology.persistence import persistence

#: The sentence whose maps are kept.
SAMPLE = 0


def example_rows(
    heads: Tensor, names: Sequence[int], number: int, batch: Batch, rows: UnitRows, *, bars: bool
) -> None:
    """Adds to `examples` the heads of a layer that rest most and least on the first key.

    Args:
        heads: the layer's maps [b, h, n, n], padded.
        names: numbers of the heads.
        number: of the layer.
        batch: the sentences; without the one whose maps are kept nothing is added.
        rows: takes the maps, flattened, float64.
        bars: whether their bars are to be added to `bars` as well.
    """
    if SAMPLE not in batch.samples:
        return
    place = list(batch.samples).index(SAMPLE)
    n = batch.lengths[place]
    maps = heads[place, :, :n, :n].double().cpu()
    if not bool(maps.isfinite().all()):
        return
    first = maps[..., 0].mean(-1)
    chosen = sorted({int(first.argmax()), int(first.argmin())})
    keys = {
        "sample": [SAMPLE] * len(chosen),
        "layer": number,
        "head": [names[head] for head in chosen],
        "protocol": "exact",
    }
    # A column of lists: an array of objects, or NumPy would see a matrix.
    kept = np.empty(len(chosen), dtype=object)
    kept[:] = [maps[head].flatten().tolist() for head in chosen]
    rows.add("examples", {**keys, "n_tokens": [n] * len(chosen), "attention": kept})
    if bars:
        rows.add("bars", bar_columns(persistence(maps[torch.tensor(chosen)]), keys))
