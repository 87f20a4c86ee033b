# SPDX-License-Identifier: MIT
"""Two runs held against each other, number by number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope._warn import warn
from attnscope.engine.reading.statistics import STATISTIC, kinds_of, typical
from attnscope.engine.schema import ResultsError

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.engine.results import Results


def compared(results: Results, other: Results, table: str = "heads") -> pd.DataFrame:
    """Two runs, metric by metric, over the rows that both have.

    Rows are matched on the key columns (two runs of one model under two names: on all keys but model).
    Samples are matched by number; a warning says so where their sentences differ.

    Returns:
        one row per numeric metric: rows matched, rows only here, rows only there, which statistic its kind
        allows (mean, median, most frequent), that of both runs, the mean and the largest absolute difference,
        the correlation, and whether all matched values are equal.
    """
    import numpy as np
    import pandas as pd

    mine, theirs = results.table(table), other.table(table)
    keys = [key for key in results.keys(table) if key in theirs]
    one_model_each = "model" in keys and mine["model"].nunique() == theirs["model"].nunique() == 1
    if one_model_each and not set(mine["model"]) & set(theirs["model"]):
        keys.remove("model")
    both = mine.merge(theirs, on=keys, suffixes=("", "\0other"), validate="one_to_one")
    if both.empty:
        raise ResultsError(f"compare: no row of table {table!r} has the same {', '.join(keys)} in both runs")
    if "sample" in keys and (differ := _other_sentences(results, other, set(both["sample"]))):
        warn(
            f"compare: {len(differ)} of {both['sample'].nunique()} samples are other sentences there "
            f"(the first is sample {differ[0]}); rows are paired by the sample's number all the same",
            UserWarning,
        )
    rows = []
    for name, kind in kinds_of(results, table).items():
        if f"{name}\0other" not in both:
            continue
        a, b = (both[one].to_numpy(float, na_value=np.nan) for one in (name, f"{name}\0other"))
        good = np.isfinite(a) & np.isfinite(b)
        x, y = a[good], b[good]
        varies = len(x) > 1 and np.ptp(x) > 0 and np.ptp(y) > 0
        rows.append(
            {
                "metric": name,
                "rows": len(both),
                "only_here": len(mine) - len(both),
                "only_there": len(theirs) - len(both),
                "finite": int(good.sum()),
                "statistic": STATISTIC.get(kind, "mean"),
                "here": typical(x, kind),
                "there": typical(y, kind),
                "mean_difference": float((y - x).mean()) if len(x) and kind != "position" else np.nan,
                "max_difference": float(np.abs(y - x).max()) if len(x) else np.nan,
                "correlation": float(np.corrcoef(x, y)[0, 1]) if varies and kind != "position" else np.nan,
                "equal": bool(np.array_equal(a, b, equal_nan=True)),
            }
        )
    return pd.DataFrame(rows)


def _other_sentences(results: Results, other: Results, numbers: set[int]) -> list[int]:
    """Which of the samples are not the same text in both runs; none where a run does not say."""
    if not all("samples" in run.tables() for run in (results, other)):
        return []
    here, there = (run.table("samples") for run in (results, other))
    if not all({"sample", "text"} <= set(table) for table in (here, there)):
        return []
    texts = [dict(zip(table["sample"], table["text"], strict=True)) for table in (here, there)]
    return sorted(int(at) for at in numbers if texts[0].get(at) != texts[1].get(at))
