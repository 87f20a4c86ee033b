# SPDX-License-Identifier: MIT
"""Stored tables in other shapes: numbers as arrays with named axes, averages of controls as a row for each.

Example:
    >>> import pandas as pd
    >>> from attnscope.engine.results import Results
    >>> control = pd.DataFrame({"sample": [0], "variant": ["row_permutation"], "seed": [0],
    ...                         "scope": ["heads"], "entropy": [1.5]})
    >>> Results({"heads_variants": control}).variants()[["variant", "metric", "value"]].values.tolist()
    [['row_permutation', 'entropy', 1.5]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope.engine.schema import (
    CHECKPOINT_KEYS,
    SCHEMA_VERSION,
    VARIANT_KEYS,
    ResultsError,
    check_columns,
    variants_of,
)

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from attnscope.engine.results import Results

#: Keys of a row, in order; tables that lack one have null there, a threshold NaN.
KEYS = (*CHECKPOINT_KEYS, "sample", "protocol", *VARIANT_KEYS, "threshold", "table", "metric")


def as_xarray(
    results: Results, table: str, *, metrics: Sequence[str] | None = None, protocol: str = "exact"
) -> xr.Dataset:
    """The numeric columns of a table; `attnscope.engine.results.Results.to_xarray` says more."""
    import numpy as np
    import pandas as pd
    import xarray as xr

    frame = results.table(table)
    if "protocol" in frame:
        kinds = list(frame["protocol"].unique())
        frame = frame[frame["protocol"] == protocol]
        if frame.empty:
            raise ResultsError(
                f"to_xarray: table {table!r} has no rows of protocol {protocol!r}, only {kinds}"
            )
    axes = [key for key in results.keys(table) if key not in ("protocol", "step")]
    if metrics is None:
        metrics = [
            name
            for name in frame.columns
            if name not in (*axes, "step", "protocol") and pd.api.types.is_numeric_dtype(frame[name])
        ]
    else:
        check_columns(table, metrics, frame.columns)
    places = pd.MultiIndex.from_frame(frame[axes])
    if places.has_duplicates:
        raise ResultsError(f"to_xarray: two rows of table {table!r} share the same {', '.join(axes)}")
    columns = {name: frame[name].to_numpy(float, na_value=np.nan) for name in metrics}
    dataset = xr.Dataset.from_dataframe(pd.DataFrame(columns, index=places))
    if "revision" in axes and "step" in frame:
        order = frame[["revision", "step"]].drop_duplicates().sort_values(["step", "revision"])
        dataset = dataset.reindex(revision=order["revision"].unique())
        if order["revision"].is_unique:
            dataset = dataset.assign_coords(step=("revision", order["step"])).set_xindex("step")
    return dataset.assign_attrs(protocol=protocol, schema_version=SCHEMA_VERSION)


def in_rows(results: Results, table: str | None = None) -> pd.DataFrame:
    """Every average of a control, of one table or of all, as the columns of `KEYS` and `value`.

    No rows where no control was asked for. Controls whose rows are kept whole are not averages, and not among
    them.
    """
    import numpy as np
    import pandas as pd

    parts = []
    suffix = variants_of("")
    for name in results.tables():
        whose = name.removesuffix(suffix)
        if whose == name or table not in (None, whose):
            continue
        frame = results.table(name)
        if not set(VARIANT_KEYS) <= set(frame):
            continue
        numbers = frame.columns.drop([key for key in KEYS if key in frame])
        values = frame[numbers].to_numpy(np.float64, na_value=np.nan).ravel("F")
        there = np.flatnonzero(~np.isnan(values))
        tall = frame.drop(columns=numbers).iloc[there % len(frame)]
        tall = tall.assign(metric=numbers.repeat(len(frame))[there], table=whose)
        parts.append(tall.assign(value=values[there]).reindex(columns=[*KEYS, "value"]))
    if not parts:
        parts = [pd.DataFrame(columns=[*KEYS, "value"])]
    rows = pd.concat(parts, ignore_index=True)
    rows = rows.astype({"threshold": np.float64, "value": np.float64})
    return rows
