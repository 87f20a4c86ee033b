# SPDX-License-Identifier: MIT
"""Tables made from the stored ones: uncertainty of sentences, phases of training, published values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.engine.results import Results
from attnscope.engine.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.inference import bootstrap
from attnscope.studies.nulls import by_length

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: Columns of `uncertainty` and the pair of columns of `heads` that they correlate across a sentence's heads.
CORRELATIONS = {
    "rho": ("position_entropy", "spectral_entropy"),
    "rho_fourier": ("position_entropy", "fourier_entropy"),
}


def made_from(results: Results) -> dict[str, pa.Table]:
    """The summaries of a finished run.

    Args:
        results: its tables.
    """
    import pyarrow as pa

    there = set(results.tables())
    if "heads" not in there:
        return {}
    heads = results.table("heads")
    made: dict[str, pd.DataFrame] = {}
    if {"position_entropy", "spectral_entropy"} <= set(heads.columns):
        made["uncertainty"] = uncertainty(heads)
    sensitivity = results.table("scale_sensitivity") if "scale_sensitivity" in there else None
    made["phases"] = phases(heads, made.get("uncertainty"), sensitivity)
    found = published(made["phases"])
    if not found.empty:
        made["published"] = found
    tables = {name: pa.Table.from_pandas(table, preserve_index=False) for name, table in made.items()}
    if {"nulls", "baselines"} <= there:
        stored = results.arrow("baselines")
        empirical = by_length(results.table("nulls"), results.table("samples"))
        rows = pa.Table.from_pandas(empirical, preserve_index=False, schema=stored.schema)
        same = rows.replace_schema_metadata(stored.schema.metadata)
        tables["baselines"] = pa.concat_tables([stored, same])
    return tables


def correlated(heads: pd.DataFrame) -> dict[str, float]:
    """ρ of one sentence's heads; NaN for fewer than three heads or where one side does not vary.

    Args:
        heads: its single heads.
    """
    found = {}
    for name, (one, other) in CORRELATIONS.items():
        found[name] = math.nan
        if one in heads and other in heads:
            x, y = (heads[column].to_numpy(dtype=float) for column in (one, other))
            good = np.isfinite(x) & np.isfinite(y)
            if good.sum() >= 3 and np.ptp(x[good]) > 1e-12 and np.ptp(y[good]) > 1e-12:
                found[name] = float(np.corrcoef(x[good], y[good])[0, 1])
    return found


def uncertainty(heads: pd.DataFrame) -> pd.DataFrame:
    """The table `uncertainty`: ρ across the heads of every sentence.

    Args:
        heads: the table.
    """
    import pandas as pd

    keys = [*CHECKPOINT_KEYS, "sample", "protocol"]
    rows = [
        {**dict(zip(keys, key, strict=True)), "heads": len(part), **correlated(part)}
        for key, part in heads[heads["head"] >= 0].groupby(keys, sort=False)
    ]
    table: pd.DataFrame = pd.DataFrame(rows)
    return table


def phases(
    heads: pd.DataFrame, rho: pd.DataFrame | None = None, sensitivity: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The table `phases`: every number of every checkpoint, mean over heads, then over sentences.

    Args:
        heads: the table.
        rho: the table `uncertainty`.
        sensitivity: the table `scale_sensitivity`.

    Returns:
        model, revision, step, metric, mean, low, high (95 % bootstrap over sentences), samples.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for key, part in heads[heads["head"] >= 0].groupby(list(CHECKPOINT_KEYS), sort=False):
        keys = dict(zip(CHECKPOINT_KEYS, key, strict=True))
        for metric, values in _by_sentence(keys, part, rho, sensitivity):
            good = values[np.isfinite(values)]
            if not len(good):
                continue
            low, high = math.nan, math.nan
            if len(good) > 1:
                interval = bootstrap(good)
                low, high = interval.low, interval.high
            rows.append(
                {
                    **keys,
                    "metric": metric,
                    "mean": float(good.mean()),
                    "low": low,
                    "high": high,
                    "samples": len(good),
                }
            )
    table: pd.DataFrame = pd.DataFrame(rows)
    return table


def _by_sentence(
    keys: dict[str, Any], heads: pd.DataFrame, rho: pd.DataFrame | None, sensitivity: pd.DataFrame | None
) -> Iterator[tuple[str, Any]]:
    """Metric and one value per sentence."""
    drop = {*HEAD_KEYS, "n_tokens"}
    numbers = [name for name in heads.columns if name not in drop]
    means = heads.groupby("sample")[numbers].mean()
    for name in numbers:
        yield name, means[name].to_numpy(dtype=float)
    if rho is not None:
        own = rho[(rho[list(keys)] == list(keys.values())).all(axis=1)]
        for name in CORRELATIONS:
            yield name, own[name].to_numpy(dtype=float)
    if sensitivity is not None:
        own = sensitivity[(sensitivity[list(keys)] == list(keys.values())).all(axis=1)]
        own = own[own["head"] >= 0]
        for fraction, part in own.groupby("fraction"):
            for column in ("energy", "coefficients"):
                values = part.groupby("sample")[column].mean().to_numpy(dtype=float)
                yield f"scale_sensitivity_{column}_{fraction:g}", values


def published(table: pd.DataFrame) -> pd.DataFrame:
    """The table `published`: the paper's values for models of this run, beside the run's own.

    Args:
        table: `phases`.

    Returns:
        model, step, metric, published, here, low, high, samples; no rows where the paper has no such model.
    """
    import pandas as pd

    from attnscope.published import published_numbers
    from attnscope.published.numbers import same_model
    from attnscope.studies.wavelet_heads.published import step_belongs

    rows = []
    for _, number in published_numbers("ruscio2024").iterrows():
        for _, row in table[table["metric"] == number["quantity"]].iterrows():
            if same_model(str(row["model"]), str(number["model"])) and step_belongs(
                number["table"], int(row["step"])
            ):
                rows.append(
                    {
                        "model": row["model"],
                        "step": int(row["step"]),
                        "metric": row["metric"],
                        "published": float(number["value"]),
                        "published_low": float(number["low"]),
                        "published_high": float(number["high"]),
                        "here": float(row["mean"]),
                        "low": float(row["low"]),
                        "high": float(row["high"]),
                        "samples": int(row["samples"]),
                    }
                )
    found: pd.DataFrame = pd.DataFrame(rows)
    return found
