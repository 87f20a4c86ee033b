# SPDX-License-Identifier: MIT
"""At which checkpoint of a series what states tell, and what the output makes of it, changes its level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.statistics.emergence import Curve, emergence_splits
from attnscope.statistics.rounding import ROUNDED_FLOAT32
from attnscope.studies.hallucination_geometry.evidence import in_blocks
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from attnscope.study_api.stage_run import StageRun

Array = np.ndarray[Any, Any]


def curves(tables: dict[str, pd.DataFrame]) -> dict[tuple[str, str, str], Curve]:
    """Return steps and values [steps, samples] of each model, contrast and quantity.

    The largest excess of detection over layers; of the last layer but one the logarithms of readout gain and
    of relative sensitivity, of every prompt.
    """
    curves_by_name: dict[tuple[str, str, str], Curve] = {}
    detection = tables.get("detection", pd.DataFrame())
    if len(detection):
        rows = in_blocks(where(detection, score="auc_excess"))
        best = rows.groupby(["model", "contrast", "step"], as_index=False)["auc"].max().assign(sample=0)
        curves_by_name |= _curves(best, "auc", "auc_excess")
    for table, column in (("readout", "readout_gain"), ("sensitivity", "relative_fisher")):
        rows = tables.get(table, pd.DataFrame())
        if rows.empty:
            continue
        rows = where(rows, direction="boundary")
        if "k" in rows:
            rows = rows.drop_duplicates(["model", "contrast", "step", "layer"])
        rows_of_models = [part for _, part in rows.groupby("model", sort=False)]
        rows = pd.concat([where(part, layer=_last_but_one(part["layer"])) for part in rows_of_models])
        with np.errstate(divide="ignore", invalid="ignore"):
            rows = rows.assign(**{column: np.log(rows[column].astype(float))})
        curves_by_name |= _curves(
            rows if "sample" in rows else rows.assign(sample=0), column, f"log_{column}"
        )
    return curves_by_name


def _last_but_one(layers: pd.Series[int]) -> int:
    """Return the layer in front of a model's last one; the only one of a single layer."""
    distinct = sorted(layers.unique())
    return int(distinct[-2 if len(distinct) > 1 else -1])


def _curves(rows: pd.DataFrame, column: str, name: str) -> dict[tuple[str, str, str], Curve]:
    curves_by_name = {}
    for (model, contrast), rows_of_contrast in rows.groupby(["model", "contrast"], sort=False):
        wide = rows_of_contrast.pivot_table(index="step", columns="sample", values=column).sort_index()
        values = wide.to_numpy(float)
        if len(wide) > 1 and np.isfinite(values).any(1).all():
            values = np.where(np.isfinite(values), values, np.nan)
            curves_by_name[str(model), str(contrast), name] = (wide.index.to_numpy(np.int64), values)
    return curves_by_name


def write(run: StageRun, tables: dict[str, pd.DataFrame]) -> None:
    """Write the table `emergence`, where a model has several checkpoints."""
    all_curves = curves(tables)
    for (model, contrast, quantity), emergence in zip(
        all_curves,
        emergence_splits([*all_curves.values()], seed=run.settings.seed, resolution=ROUNDED_FLOAT32)
        if all_curves
        else (),
        strict=True,
    ):
        run.write(
            "emergence",
            model=model,
            contrast=contrast,
            quantity=quantity,
            verdict=emergence["verdict"],
            step=emergence["step"],
            p_value=emergence["p_value"],
            p_adjusted=emergence["p_holm"],
            start=emergence["start"],
            end=emergence["end"],
            difference=emergence["difference"],
            low=emergence["low"],
            high=emergence["high"],
            half_way=emergence["half_way"],
        )
