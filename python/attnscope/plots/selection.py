# SPDX-License-Identifier: MIT
"""From stored tables to the numbers a figure draws: which rows, which series, which interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from attnscope.engine.schema import CHECKPOINT_KEYS
from attnscope.inference.mean_intervals import mean_intervals
from attnscope.plots.figure import Tables, optional, stored

#: Samples below which no intervals are given that hold for many means at once.
FEWEST_TOGETHER = 10
#: Columns, each with the threshold of the graph that it is taken at, or None.
Quantities = Sequence[tuple[str, float | None]]


def with_groups(frame: pd.DataFrame, samples: pd.DataFrame | None) -> pd.DataFrame:
    """Adds input set (`group`), length (`n_tokens`) and kind (`causal`) of each row's sample, and a `series`.

    A series is an input set of a model; the part that all rows share is left out of its name.
    """
    keys = [*CHECKPOINT_KEYS, "sample"]
    if samples is not None:
        wanted = [name for name in ("group", "n_tokens", "causal") if name not in frame and name in samples]
        of_samples = samples[[*keys, *wanted]].drop_duplicates(keys)
        frame = frame.merge(of_samples, on=keys, how="left", validate="many_to_one")
    frame = frame.assign(group=frame["group"].fillna("text") if "group" in frame else "text")
    models, groups = frame["model"].astype(str), frame["group"].astype(str)
    if groups.nunique() <= 1 and models.ne("").all():
        return frame.assign(series=models)
    return frame.assign(series=groups if models.nunique() <= 1 else models + ", " + groups)


def in_series(frame: pd.DataFrame, results: Tables) -> pd.DataFrame:
    """`with_groups` of rows of some results."""
    return with_groups(frame, optional(results, "samples"))


def series_are(frame: pd.DataFrame) -> str:
    """What tells the series of a table apart: "model", "input" or "model, input"."""
    models, inputs = (frame[key].nunique() > 1 for key in ("model", "group"))
    return "model, input" if models and inputs else "model" if models else "input"


def rows_of(given: Any, metric: str, table: str = "heads", threshold: float | None = None) -> pd.DataFrame:
    """Rows of single heads with their series, of whatever a drawing function is given.

    That is results; a table of them or of one's own, in which a missing axis has one place; or numbers
    [layer, head], [layer, sample, head] or [step, layer, sample, head] that are called `metric`.
    """
    if hasattr(given, "tables"):
        if table == "heads":
            return measured_heads(given, ((metric, threshold),))
        return defined(in_series(heads_only(stored(given, table)), given))
    frame = given if isinstance(given, pd.DataFrame) else _numbers(given, metric)
    if "series" in frame:
        return frame
    alone: dict[str, Any] = {"model": "", "revision": "", "step": -1, "sample": 0, "layer": 0, "head": 0}
    return with_groups(heads_only(frame.assign(**{k: v for k, v in alone.items() if k not in frame})), None)


def _numbers(given: Any, metric: str) -> pd.DataFrame:
    """A number per head as rows; steps, layers, samples and heads count from 0."""
    values = np.asarray(given, dtype=float)
    axes = {2: ("layer", "head"), 3: ("layer", "sample", "head"), 4: ("step", "layer", "sample", "head")}
    if values.ndim not in axes:
        raise ValueError(
            "numbers to draw are [layer, head], [layer, sample, head] or [step, layer, sample, head], got "
            f"shape {values.shape}"
        )
    index = pd.MultiIndex.from_product([range(size) for size in values.shape], names=axes[values.ndim])
    return pd.DataFrame({metric: values.ravel()}, index=index).reset_index()


def heads_only(frame: pd.DataFrame, protocol: str = "exact") -> pd.DataFrame:
    """Rows of single heads (not of the head mean, head −1) under one protocol."""
    chosen = frame[frame["head"] >= 0] if "head" in frame else frame
    return chosen[chosen["protocol"] == protocol] if "protocol" in chosen else chosen


def measured_columns(frame: pd.DataFrame) -> list[str]:
    """Columns with numbers but keys, what `with_groups` adds, and values of uniform attention."""
    keys = {*CHECKPOINT_KEYS, "sample", "layer", "head", "protocol", "threshold", "n_tokens", "causal"}
    names = map(str, frame.select_dtypes(["number", "bool"]))
    return [name for name in names if name not in keys and not name.endswith("_uniform")]


def measured_heads(results: Tables, quantities: Quantities = ()) -> pd.DataFrame:
    """Single exact heads with their series, and columns of the graphs that were asked for."""
    heads = defined(in_series(heads_only(stored(results, "heads")), results))
    graphs = optional(results, "graphs")
    if graphs is None:
        return heads
    keys = [*CHECKPOINT_KEYS, "sample", "layer", "head", "protocol"]
    for threshold in sorted({at for _, at in quantities if at is not None}):
        columns = [name for name, at in quantities if at == threshold and name in graphs]
        rows = graphs[np.isclose(graphs["threshold"].astype(float), threshold, rtol=1e-6, atol=0)]
        if columns and not rows.empty:
            heads = heads.merge(defined(rows)[keys + columns], on=keys, how="left")
    return heads


def defined(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose counts of −1, which stand for "undefined", enter no mean."""
    counts = table.select_dtypes("integer").columns.difference([*CHECKPOINT_KEYS, "layer", "head"])
    return table.assign(**{name: table[name].where(table[name] >= 0) for name in counts})


def last_step(frame: pd.DataFrame) -> pd.DataFrame:
    """Each model's rows at its last checkpoint (all rows of a model that is no checkpoint series)."""
    last = frame.groupby("model")["step"].transform("max")
    return frame[frame["step"] == last]


def first_model(results: Tables, name: str, *columns: str) -> tuple[pd.DataFrame, str]:
    """A table's rows of the first model at its last checkpoint, and a sentence when there are more models."""
    table = last_step(stored(results, name, *columns))
    first, *others = table["model"].unique()
    return table[table["model"] == first], f"{first}; the run holds {len(others)} more." if others else ""


def first_step(frame: pd.DataFrame) -> pd.DataFrame | None:
    """The rows of untrained models: step 0."""
    untrained = frame[frame["step"] == 0]
    return None if untrained.empty or frame["step"].nunique() < 2 else untrained


def estimate(frame: pd.DataFrame, metric: str, by: Sequence[str], *, together: bool = False) -> pd.DataFrame:
    """Mean and 95 % bootstrap interval of a column over samples, for every combination of some columns.

    The unit of replication is the sample: rows of one sample (its heads, its layers) are averaged first and
    samples are drawn with replacement, as `inference.mean_intervals` does. Missing values are left out and
    counted. With `together` all intervals hold at once, as where the largest of the means is chosen; there
    are none below ten samples, whose spread says too little for that.

    Returns:
        One row per combination, sorted: the `by` columns, `mean`, `low`, `high` (NaN for fewer than five
        samples), `samples` (used) and `missing`.

    >>> table = pd.DataFrame({"sample": [0, 0, 1, 1], "layer": 0, "x": [1.0, 3.0, 4.0, 6.0]})
    >>> estimate(table, "x", ["layer"])[["mean", "low", "high", "samples"]].iloc[0].tolist()
    [3.5, nan, nan, 2.0]
    """
    if metric not in frame:
        raise KeyError(f"estimate: no column {metric!r}; there are: {', '.join(map(str, frame.columns))}")
    columns = [*by, "mean", "low", "high", "samples", "missing"]
    if frame.empty:
        return pd.DataFrame(columns=columns)
    unit = [name for name in ("model", "sample") if name in frame and name not in by]
    numbers = frame.assign(**{metric: frame[metric].astype(float)})
    wide = numbers.groupby([*by, *unit], observed=True)[metric].mean().unstack(unit)
    rows = numbers.groupby([*by], observed=True)[metric]
    values = wide.to_numpy(dtype=float)
    result = wide.index.to_frame(index=False)
    result["mean"] = np.ma.masked_invalid(values).mean(axis=1).filled(np.nan)
    result["low"], result["high"] = mean_intervals(values, draws=1000, together=together)
    result["samples"] = np.isfinite(values).sum(axis=1)
    if together:
        result.loc[result["samples"] < FEWEST_TOGETHER, ["low", "high"]] = np.nan
    result["missing"] = (rows.size() - rows.count()).reindex(wide.index).to_numpy()
    return result[columns]


def uniform_value(
    frame: pd.DataFrame, baselines: pd.DataFrame | None, metric: str, threshold: float | None = None
) -> float:
    """The metric on uniform attention, averaged over the lengths of the frame's samples.

    Each row is held against uniform attention among the keys that its queries see, causal samples against
    causal and others against full attention; where the frame does not say which they are, the table must hold
    one support only.
    """
    if f"{metric}_uniform" in frame:
        return float(frame[f"{metric}_uniform"].mean())
    table = _baseline_rows(frame, baselines, "uniform", metric, threshold)
    if table is None:
        return float("nan")
    if "support" in frame and frame["support"].notna().all():
        # layers of one model differ: a window has its own uniform attention
        supports = frame["support"]
    elif "causal" in frame and frame["causal"].notna().all():
        supports = frame["causal"].astype(bool).map({True: "causal", False: "full"})
    elif table["support"].nunique() == 1:
        supports = pd.Series(table["support"].iloc[0], index=frame.index)
    else:
        return float("nan")
    if not set(supports) <= set(table["support"]):
        return float("nan")  # of masks nothing is stored, and a mean over the other layers is none of all
    return _mean_at(frame.assign(support=supports), table, ["n_tokens", "support"])


#: Measured nulls and what they are called: a copy of the model with random weights, and shuffled rows.
NULLS = {"random_weights": "random weights", "row_permutation": "rows shuffled"}


def null_value(
    frame: pd.DataFrame,
    baselines: pd.DataFrame | None,
    kind: str,
    metric: str,
    threshold: float | None = None,
) -> float:
    """The metric under a measured null, averaged over the lengths of the frame's samples."""
    table = _baseline_rows(frame, baselines, kind, metric, threshold)
    if table is None or "scope" not in table:
        return float("nan")
    # the model with random weights belongs to a whole series, shuffled rows to their own checkpoint
    wanted = ("model", "n_tokens") if kind == "random_weights" else (*CHECKPOINT_KEYS, "n_tokens")
    keys = [key for key in wanted if key in frame and key in table]
    return _mean_at(frame, table[table["scope"] == "heads"], keys)


def _mean_at(frame: pd.DataFrame, table: pd.DataFrame, keys: list[str]) -> float:
    """The mean of a baseline's values at the keys of a frame's rows."""
    values = table.drop_duplicates(keys)[[*keys, "value"]]
    return float(frame[keys].merge(values, on=keys, how="left")["value"].mean())


def _baseline_rows(
    frame: pd.DataFrame, baselines: pd.DataFrame | None, kind: str, metric: str, threshold: float | None
) -> pd.DataFrame | None:
    """Rows of a metric at a threshold under the exact protocol; None when lengths or values are missing."""
    if baselines is None or "n_tokens" not in frame or not {"value", "kind", "support"} <= set(baselines):
        return None
    table = baselines[(baselines["metric"] == metric) & (baselines["kind"] == kind)]
    if "protocol" in table:
        table = table[table["protocol"].isin(["exact", ""])]
    if threshold is None:
        return table[table["threshold"].isna()]
    return table[np.isclose(table["threshold"].astype(float), threshold, rtol=1e-6, atol=0)]
