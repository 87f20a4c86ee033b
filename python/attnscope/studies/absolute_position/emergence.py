# SPDX-License-Identifier: MIT
"""Emergence of the residual and of the preference for key 0 during training.

Curves are means over heads of the base arm's early queries; all of a run are one family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.statistics.emergence import Curve, emergence_splits
from attnscope.statistics.rounding import ROUNDED_FLOAT32
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from attnscope.study_api.stage_run import StageRun

MEASURED = ("residual", "sink_advantage")


def write(run: StageRun) -> None:
    """Write the table `emergence`, of models with two checkpoints or more of known step."""
    if "layer_means" not in run.stored.tables():
        return  # no model went beyond its checks
    means = run.read("layer_means")
    means = where(means[means["step"] >= 0], queries="early", arm="base", input="windows")
    keys: list[dict[str, Any]] = []
    curves: list[Curve] = []
    for model, rows in means.groupby("model", sort=False):
        if rows["step"].nunique() < 2:
            continue
        for metric in MEASURED:
            grid = rows.pivot_table(index="step", columns="layer", values=metric, dropna=False).sort_index()
            parts = {("layer", int(layer)): grid[layer] for layer in grid}
            if len(later := grid[[layer for layer in grid if layer >= 1]].columns):
                parts["from_1", 1] = grid[later].mean(axis=1, skipna=False)
            for (scope, layer), values in parts.items():
                keys.append({"model": model, "metric": metric, "scope": scope, "layer": layer})
                curves.append((grid.index.to_numpy(np.int64), values.to_numpy(np.float64)[:, None]))
    for key, emergence in zip(
        keys,
        emergence_splits(curves, seed=run.settings.seed, resolution=ROUNDED_FLOAT32) if curves else (),
        strict=True,
    ):
        names = ("verdict", "step", "p_value", "p_holm", "start", "end", "half_way")
        run.write("emergence", **key, **{name: emergence[name] for name in names})
