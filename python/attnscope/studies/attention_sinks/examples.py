# SPDX-License-Identifier: MIT
"""Whole maps of the first sentence, for the figures that need one."""

from __future__ import annotations

from typing import Any

import torch

from attnscope.engine.forward import Batch
from attnscope.engine.stage_run import StageRun
from attnscope.metrics.homology.persistence import persistence
from attnscope.studies.attention_sinks.columns import write_bars
from attnscope.studies.attention_sinks.states import States

#: The sentence whose maps are kept.
SAMPLE = 0


def write_examples(states: States, number: int, batch: Batch, run: StageRun, *, bars: bool) -> None:
    """Writes to `examples` the heads of a layer that attend most and least to the first key, flattened."""
    if SAMPLE not in batch.samples:
        return
    place = list(batch.samples).index(SAMPLE)
    n = batch.lengths[place]
    maps = states.heads[place, :, :n, :n].double().cpu()
    if not bool(maps.isfinite().all()):
        return
    first = maps[..., 0].mean(-1)
    chosen = sorted({int(first.argmax()), int(first.argmin())})
    keys: dict[str, Any] = {
        "sample": [SAMPLE] * len(chosen),
        "layer": number,
        "head": [states.names[head] for head in chosen],
        "protocol": "exact",
    }
    kept = [maps[head].flatten().tolist() for head in chosen]
    run.write("examples", **keys, n_tokens=[n] * len(chosen), attention=kept)
    if bars:
        write_bars(run, persistence(maps[torch.tensor(chosen)]), keys)
