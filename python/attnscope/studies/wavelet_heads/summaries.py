# SPDX-License-Identifier: MIT
"""Tables computed from the stored ones: uniform attention, phases of training, published values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from attnscope.metrics.discovery import interval_of_mean
from attnscope.published import published_numbers, same_model
from attnscope.results.results import Results
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.statistics import bootstrap
from attnscope.statistics.rounding import ROUNDED_FLOAT32, varies
from attnscope.studies.wavelet_heads.published import step_belongs

#: Columns of `uncertainty` and the pair of columns of `heads` that they correlate across a sentence's heads.
CORRELATIONS = {
    "rho": ("position_entropy", "spectral_entropy"),
    "rho_fourier": ("position_entropy", "fourier_entropy"),
}
ENTROPIES = tuple(dict.fromkeys(name for pair in CORRELATIONS.values() for name in pair))


def correlated(heads: Mapping[str, Any]) -> dict[str, float]:
    """Return ρ of one sentence's heads; NaN for fewer than three heads or where one side does not vary, but
    for what float32 rounds.
    """
    correlations = dict.fromkeys(CORRELATIONS, math.nan)
    for name, pair in CORRELATIONS.items():
        if set(pair) <= set(heads):
            x, y = (np.asarray(heads[column], dtype=float) for column in pair)
            good = np.isfinite(x) & np.isfinite(y)
            both_vary = good.sum() >= 3 and all(
                varies(side[good], resolution=ROUNDED_FLOAT32) for side in (x, y)
            )
            if both_vary:
                correlations[name] = float(np.corrcoef(x[good], y[good])[0, 1])
    return correlations


def phases(results: Results) -> pd.DataFrame:
    """Return every number of every checkpoint: mean over heads, then over sentences, with its interval."""
    keys, parts = [*CHECKPOINT_KEYS, "sample"], []
    stored_tables = results.tables()
    if "heads" in stored_tables:
        key_columns = {*results.key_columns("heads"), "n_tokens", "support"}
        heads = results.table("heads")
        parts.append(heads.groupby(keys)[[name for name in heads if name not in key_columns]].mean())
    if "uncertainty" in stored_tables:
        parts.append(results.table("uncertainty").set_index(keys)[list(CORRELATIONS)])
    if "scale_sensitivity" in stored_tables:
        by_fraction = results.table("scale_sensitivity").groupby([*keys, "fraction"])
        wide: Any = by_fraction[["energy", "coefficients"]].mean().unstack("fraction")
        wide.columns = [f"scale_sensitivity_{column}_{fraction:g}" for column, fraction in wide]
        parts.append(wide)
    all_values = pd.concat(parts, axis=1).sort_index() if parts else pd.DataFrame()
    rows: list[tuple[Any, ...]] = []
    for checkpoint, values_of_checkpoint in all_values.groupby(list(CHECKPOINT_KEYS)) if parts else ():
        for metric, values in values_of_checkpoint.items():
            good = values.to_numpy(dtype=float)
            good = good[np.isfinite(good)]
            if len(good):
                mean, low, high, texts = bootstrap(good)
                ends = interval_of_mean(str(metric), good, low, high)
                rows.append((*checkpoint, metric, mean, *ends, texts))
    return pd.DataFrame(rows, columns=[*CHECKPOINT_KEYS, "metric", "mean", "low", "high", "samples"])


def published(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table `published`: the paper's values for models of this run, with the run's values."""
    printed = published_numbers("ruscio2024")
    rows = printed.merge(table, left_on="quantity", right_on="metric", suffixes=("_printed", ""))
    is_matched = [
        same_model(row.model, row.model_printed) and step_belongs(row.table, row.step)
        for row in rows.itertuples()
    ]
    columns = {"value": "published", "low_printed": "published_low", "high_printed": "published_high"}
    stored_columns = ["model", "step", "metric", *columns, "mean", "low", "high", "samples"]
    return rows.loc[is_matched, stored_columns].rename(columns={**columns, "mean": "here"})
