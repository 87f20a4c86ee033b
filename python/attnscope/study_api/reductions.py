# SPDX-License-Identifier: MIT
"""Sums over units, in float64: a partial of each unit is stored with it, and folded in the order of the plan.

Nothing is summed across units in memory, so that the order in which units are done changes no bit.

Example:
    >>> from attnscope.study_api.reductions import Partials
    >>> partials = Partials()
    >>> partials.add("covariance", [[1.0, 2.0]], group="a")
    >>> partials.add("covariance", [[3.0, 4.0]], group="a")
    >>> partials.tables()["reduced-covariance"].to_pylist()
    [{'group': 'a', 'count': 2, 'shape': [1, 2], 'sum': [4.0, 6.0]}]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Reduced:
    """A sum and the number of its terms."""

    sum: np.ndarray[Any, Any]
    count: int

    @property
    def mean(self) -> np.ndarray[Any, Any]:
        """The sum divided by the number of its terms."""
        return self.sum / self.count


class Partials:
    """The sums of one unit."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[tuple[tuple[str, Any], ...], Reduced]] = {}

    def add(self, name: str, tensor: Any, **keys: Any) -> None:
        """Add a term."""
        term = np.array(
            tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else tensor, dtype=np.float64
        )
        sums = self._sums.setdefault(name, {})
        key = tuple(keys.items())
        other = next(iter(sums), key)
        before = sums[key].sum.shape if key in sums else term.shape
        if [name for name, _ in other] != [*keys] or before != term.shape:
            raise ValueError(
                f"reduce: {name!r} has keys {[key for key, _ in other]} and shape {before}, "
                f"got {[*keys]} and {term.shape}"
            )
        if key in sums:
            sums[key].sum += term
            sums[key].count += 1
        else:
            sums[key] = Reduced(term, 1)

    def tables(self) -> dict[str, pa.Table]:
        """Return a table for each name, a row for each of its keys."""
        import pyarrow as pa

        tables = {}
        for name, sums in self._sums.items():
            rows = [
                {
                    **dict(key),
                    "count": term.count,
                    "shape": list(term.sum.shape),
                    "sum": term.sum.ravel(),
                }
                for key, term in sums.items()
            ]
            tables[f"reduced-{name}"] = pa.Table.from_pylist(rows)
        return tables


def folded(
    files: Sequence[Path], by: Sequence[str], only: Mapping[str, Any] | None = None
) -> dict[tuple[Any, ...], Reduced]:
    """Return the sums of all units, with one file in memory at a time.

    Args:
        only: keys with the value that a sum must have to be read.
    """
    import pyarrow.parquet as pq

    sums_of_run: dict[tuple[Any, ...], Reduced] = {}
    for file in files:
        table = pq.read_table(
            file, filters=[(key, "==", value) for key, value in (only or {}).items()] or None
        )
        sums = table["sum"].combine_chunks()
        starts, terms = sums.offsets.to_numpy(), sums.values.to_numpy()
        for place, row in enumerate(table.drop_columns("sum").to_pylist()):
            term = terms[starts[place] : starts[place + 1]].reshape(row["shape"]).astype(np.float64)
            key = tuple(row[name] for name in by)
            if key in sums_of_run:
                sums_of_run[key].sum += term
                sums_of_run[key].count += row["count"]
            else:
                sums_of_run[key] = Reduced(term, row["count"])
    return sums_of_run
