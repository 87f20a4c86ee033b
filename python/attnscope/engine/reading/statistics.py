# SPDX-License-Identifier: MIT
"""Which statistic stands for many numbers of one column: what its stored kind allows.

A value and a flag have a mean. A count and a ratio, whose denominator may come near to 0, have a median; a
position is a place, of which the most frequent one says something and a mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.engine.results import Results

#: By kind of a column; others have a mean.
STATISTIC = {"count": "median", "ratio": "median", "position": "most frequent"}


def kinds_of(results: Results, table: str) -> dict[str, str]:
    """Kind of each numeric column that is no key, as the stored file says; "value" where it says none."""
    import pyarrow as pa

    keys = results.keys(table)
    found = {}
    for field in results.schema(table):
        numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        if field.name not in keys and (numeric or pa.types.is_boolean(field.type)):
            found[field.name] = (field.metadata or {}).get(b"kind", b"value").decode() or "value"
    return found


def typical(values: np.ndarray[Any, Any], kind: str) -> float:
    """The statistic of the finite values of a kind; NaN where there is none.

    >>> typical(np.array([1.0, 1.0, 7.0]), "position"), typical(np.array([1.0, 1.0, 7.0]), "value")
    (1.0, 3.0)
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan")
    statistic = STATISTIC.get(kind, "mean")
    if statistic == "mean":
        return float(finite.mean())
    if statistic == "median":
        return float(np.median(finite))
    places, counts = np.unique(finite, return_counts=True)
    return float(places[counts.argmax()])


def grouped(frame: pd.DataFrame, by: Sequence[str], kinds: Mapping[str, str]) -> pd.DataFrame:
    """The statistic of every column within groups, undefined entries left out; groups sorted."""
    import pandas as pd

    plain = frame[list(kinds)].apply(lambda column: column.to_numpy(float, na_value=np.nan))
    groups = plain.groupby([frame[key] for key in by], sort=True)
    columns = {}
    for name, kind in kinds.items():
        statistic = STATISTIC.get(kind, "mean")
        one = groups[name]
        if statistic == "most frequent":
            columns[name] = one.agg(lambda values: typical(values.to_numpy(float), "position"))
        else:
            columns[name] = one.mean() if statistic == "mean" else one.median()
    return pd.DataFrame(columns).reset_index()
