# SPDX-License-Identifier: MIT
"""From stored tables to the numbers a figure draws: which rows, which series, which interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

CHECKPOINT = ["model", "revision", "step"]


def with_groups(frame: pd.DataFrame, samples: pd.DataFrame | None) -> pd.DataFrame:
    """Adds the input set (`group`) and length (`n_tokens`) of each row's sample, and a `series` name.

    A series is an input set of a model; the part that all rows share is left out of its name.

    Args:
        frame: a table with the keys model, revision, step and sample.
        samples: the `samples` table; None puts everything into the group "text".

    Returns:
        A copy with the columns `group`, `n_tokens` (where known) and `series`.
    """
    keys = [*CHECKPOINT, "sample"]
    if samples is None:
        frame = frame.copy()
    else:
        wanted = [name for name in ("group", "n_tokens") if name not in frame and name in samples]
        of_samples = samples[[*keys, *wanted]].drop_duplicates(keys)
        frame = frame.merge(of_samples, on=keys, how="left", validate="many_to_one")
    frame["group"] = frame["group"].fillna("text") if "group" in frame else "text"
    models, groups_there = frame["model"].astype(str), frame["group"].astype(str)
    if models.nunique() <= 1:
        frame["series"] = groups_there
    elif groups_there.nunique() <= 1:
        frame["series"] = models
    else:
        frame["series"] = models + ", " + groups_there
    return frame


def heads_only(frame: pd.DataFrame, protocol: str = "exact") -> pd.DataFrame:
    """Rows of single heads (not of the head mean, head −1) under one protocol.

    Args:
        frame: a table with `head`.
        protocol: "exact" or "ruscio2025"; a table without the column passes whole.

    Returns:
        The chosen rows.
    """
    chosen = frame[frame["head"] >= 0]
    if "protocol" in chosen:
        chosen = chosen[chosen["protocol"] == protocol]
    return cast("pd.DataFrame", chosen)


def last_step(frame: pd.DataFrame) -> pd.DataFrame:
    """Each model's rows at its last checkpoint (all rows of a model that is no checkpoint series).

    Args:
        frame: a table with the keys model and step.

    Returns:
        The chosen rows.
    """
    last = frame.groupby("model")["step"].transform("max")
    return cast("pd.DataFrame", frame[frame["step"] == last])


def first_step(frame: pd.DataFrame) -> pd.DataFrame | None:
    """The rows of untrained models: step 0.

    Args:
        frame: a table with the key step.

    Returns:
        The rows, or None when no model has a step 0 beside later ones.
    """
    untrained = frame[frame["step"] == 0]
    return None if untrained.empty or frame["step"].nunique() < 2 else cast("pd.DataFrame", untrained)


def estimate(
    frame: pd.DataFrame,
    metric: str,
    by: Sequence[str],
    *,
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Mean and bootstrap interval of a column over samples.

    The unit of replication is the sample: rows of one sample (its heads, its layers) are averaged first and
    samples are drawn with replacement. Missing values are left out and counted.

    Args:
        frame: a table with `sample` and the metric.
        metric: the column.
        by: columns whose every combination gets an estimate.
        confidence: of the percentile interval.
        draws: of the bootstrap.
        seed: of the draws.

    Returns:
        One row per combination: the `by` columns, `mean`, `low`, `high` (NaN for fewer than two samples),
        `samples` (used) and `missing`.

    Raises:
        KeyError: when the table lacks the metric.

    >>> table = pd.DataFrame({"sample": [0, 0, 1, 1], "layer": 0, "x": [1.0, 3.0, 4.0, 6.0]})
    >>> estimate(table, "x", ["layer"])[["mean", "low", "high", "samples"]].iloc[0].tolist()
    [3.5, 2.0, 5.0, 2.0]
    """
    if metric not in frame:
        raise KeyError(f"estimate: no column {metric!r}; there are: {', '.join(map(str, frame.columns))}")
    columns = [*by, "mean", "low", "high", "samples", "missing"]
    if frame.empty:
        empty: pd.DataFrame = pd.DataFrame(columns=columns)
        return empty
    unit = [name for name in ("model", "sample") if name in frame and name not in by]
    table = (
        frame.assign(**{metric: frame[metric].astype(float)})
        .groupby([*by, *unit], sort=True, observed=True)[metric]
        .mean()
    )
    wide = table.unstack(unit)
    asked = frame.groupby([*by], sort=True, observed=True)[metric].apply(lambda column: column.isna().sum())
    values = wide.to_numpy(dtype=float)
    result = wide.index.to_frame(index=False)
    result["mean"] = _nan_mean(values)
    low, high = _bootstrap(values, confidence, draws, seed)
    result["low"], result["high"] = low, high
    result["samples"] = np.isfinite(values).sum(axis=1)
    result["missing"] = asked.reindex(wide.index).to_numpy()
    return cast("pd.DataFrame", result[columns])


def _nan_mean(values: Any) -> Any:
    there = np.isfinite(values)
    count = there.sum(axis=1)
    total = np.where(there, values, 0.0).sum(axis=1)
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)


def _bootstrap(values: Any, confidence: float, draws: int, seed: int) -> tuple[Any, Any]:
    """Percentiles of the resampled means of each row; rows seen on the same samples share the draws."""
    low, high = np.full(len(values), np.nan), np.full(len(values), np.nan)
    there = np.isfinite(values)
    tail = 100 * (1 - confidence) / 2
    patterns, which = np.unique(there, axis=0, return_inverse=True)
    for index, pattern in enumerate(patterns):
        size = int(pattern.sum())
        if size < 2:
            continue
        rows = np.flatnonzero(which.ravel() == index)
        draw = np.random.default_rng(seed)
        weights = draw.multinomial(size, np.full(size, 1 / size), size=draws) / size
        # 256 rows at a time keep the resampled means of a large model in the cache's order of size.
        for start in range(0, len(rows), 256):
            block = rows[start : start + 256]
            means = values[np.ix_(block, np.flatnonzero(pattern))] @ weights.T
            low[block], high[block] = np.percentile(means, [tail, 100 - tail], axis=1)
    return low, high


def uniform_value(
    frame: pd.DataFrame, baselines: pd.DataFrame | None, metric: str, threshold: float | None = None
) -> float:
    """The metric on uniform attention, averaged over the lengths of the frame's samples.

    Args:
        frame: rows about to be drawn; `n_tokens` says how long their samples are.
        baselines: the `baselines` table.
        metric: the column.
        threshold: of the graph; None for metrics without one.

    Returns:
        The value, NaN when the table does not hold it.
    """
    if metric == "sink_share" and "sink_share_uniform" in frame:
        return float(frame["sink_share_uniform"].mean())
    if baselines is None or baselines.empty or "n_tokens" not in frame:
        return float("nan")
    table = baselines[baselines["metric"] == metric]
    if "protocol" in table:
        table = table[(table["protocol"] == "exact") & table["kind"].str.startswith("uniform")]
    if threshold is None:
        table = table[table["threshold"].isna()]
    else:
        table = table[np.isclose(table["threshold"].astype(float), threshold, rtol=1e-6, atol=0)]
    if table.empty:
        return float("nan")
    kind = "uniform_causal" if (table["kind"] == "uniform_causal").any() else str(table["kind"].iloc[0])
    by_length = table[table["kind"] == kind].drop_duplicates("n_tokens").set_index("n_tokens")["value"]
    return float(frame["n_tokens"].map(by_length).mean())
