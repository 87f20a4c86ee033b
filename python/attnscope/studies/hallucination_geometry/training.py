# SPDX-License-Identifier: MIT
"""At which checkpoint of a series what states tell, and what the output makes of it, changes its level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.inference.emergence import Curve, emergence_splits

if TYPE_CHECKING:
    from attnscope.study_api.stage_run import StageRun

Array = np.ndarray[Any, Any]


def curves(tables: dict[str, pd.DataFrame]) -> dict[tuple[str, str, str], Curve]:
    """Steps and values [steps, samples] of each model, contrast and quantity.

    The largest excess of detection over layers; of the last layer but one the logarithms of readout gain and
    of relative sensitivity, of every prompt.
    """
    found: dict[tuple[str, str, str], Curve] = {}
    detection = tables.get("detection", pd.DataFrame())
    if len(detection):
        own = detection[detection["score"] == "auc_excess"]
        best = own.groupby(["model", "contrast", "step"], as_index=False)["auc"].max().assign(sample=0)
        found |= _curves(best, "auc", "auc_excess")
    for table, column in (("readout", "readout_gain"), ("sensitivity", "relative_fisher")):
        own = tables.get(table, pd.DataFrame())
        if own.empty:
            continue
        own = own[own["direction"] == "boundary"]
        if "k" in own:
            own = own.drop_duplicates(["model", "contrast", "step", "layer"])
        layers = sorted(own["layer"].unique())
        own = own[own["layer"] == layers[-2 if len(layers) > 1 else -1]]
        with np.errstate(divide="ignore", invalid="ignore"):
            own = own.assign(**{column: np.log(own[column].astype(float))})
        found |= _curves(own if "sample" in own else own.assign(sample=0), column, f"log_{column}")
    return found


def _curves(rows: pd.DataFrame, column: str, name: str) -> dict[tuple[str, str, str], Curve]:
    found = {}
    for (model, contrast), own in rows.groupby(["model", "contrast"], sort=False):
        wide = own.pivot_table(index="step", columns="sample", values=column).sort_index()
        values = wide.to_numpy(float)
        if len(wide) > 1 and np.isfinite(values).any(1).all():
            values = np.where(np.isfinite(values), values, np.nan)
            found[str(model), str(contrast), name] = (wide.index.to_numpy(np.int64), values)
    return found


def write(run: StageRun, tables: dict[str, pd.DataFrame]) -> None:
    """The table `emergence`, where a model has several checkpoints."""
    every = curves(tables)
    for (model, contrast, quantity), own in zip(
        every, emergence_splits([*every.values()], seed=run.settings.seed) if every else (), strict=True
    ):
        run.write(
            "emergence", model=model, contrast=contrast, quantity=quantity, verdict=own["verdict"],
            step=own["step"], p_value=own["p_value"], p_adjusted=own["p_holm"], start=own["start"],
            end=own["end"], difference=own["difference"], low=own["low"], high=own["high"],
            half_way=own["half_way"],
        )  # fmt: skip
