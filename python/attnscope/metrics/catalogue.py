# SPDX-License-Identifier: MIT
"""Every column that metrics give as a row of one table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope._nearest import nearest
from attnscope._warn import collect_warnings
from attnscope.metrics.discovery import metric_of, registry
from attnscope.metrics.measured import measure_quantities
from attnscope.metrics.quantity import Quantity

if TYPE_CHECKING:
    import pandas as pd

#: Columns that a picture of all heads begins with, where it has them.
MAIN_COLUMNS = ("sink_share", "sink_boost", "entropy", "entropy_normalized", "fiedler_value")
#: Axes of what a column has one number of, before its own axes.
_SHAPES = {
    "map": "[text, head]",
    "head": "[text, head]",
    "layer": "[text, layer]",
    "text": "[text]",
    "cloud": "[cloud]",
    "weights": "[matrix]",
}


def catalogue(n: int = 64, *, protocol: str | None = "exact") -> pd.DataFrame:
    """Return every column that metrics give: what it is, its range, its null, what it needs, its source.

    Args:
        n: number of tokens, on which ranges and nulls depend.
        protocol: whose columns; None takes those of every protocol.

    Returns:
        A row for each column and protocol, with the index `column`. Its columns: `metric`, the function that
        gives it; `protocol`, `label`, `meaning`, `kind`; `low` and `high`, infinite where there is no bound;
        `null`, the value of uniform causal attention, NaN where it needs more than attention or has none;
        `needs`, the captured sites; `shape`, the axes of the numbers; `source` of the definition.

    Raises:
        ValueError: n below 1, or a protocol without columns (the nearest name is suggested).
        ImportError: pandas is missing; the message has the command that installs it.

    Example:
        >>> import attnscope as asc
        >>> table = asc.metrics(n=16)
        >>> row = table.loc["effective_rank"]
        >>> row["metric"], float(row["low"]), float(row["high"])
        ('effective_rank', 1.0, 16.0)
        >>> round(float(table.loc["sink_boost", "null"]), 6)     # in units of uniform attention
        1.0
    """
    import pandas as pd

    if not isinstance(n, int) or n < 1:
        raise ValueError(f"metrics: n must be a whole number of tokens of at least 1, got {n!r}")
    protocols = dict.fromkeys(quantity.protocol for quantity in registry().quantities)
    if protocol is not None and protocol not in protocols:
        raise ValueError(f"metrics: no protocol {protocol!r}{nearest(protocol, protocols)}")
    quantities = [
        quantity for quantity in registry().quantities if protocol is None or quantity.protocol == protocol
    ]
    nulls = _nulls(quantities, n)
    rows = []
    for quantity in quantities:
        low, high = quantity.bounds(n)
        rows.append(
            {
                "column": quantity.name,
                "metric": metric_of(quantity),
                "protocol": quantity.protocol,
                "label": quantity.label,
                "meaning": quantity.meaning,
                "kind": quantity.kind,
                "low": -float("inf") if low is None else float(low),
                "high": float("inf") if high is None else float(high),
                "null": nulls.get(quantity.identity, float("nan")),
                "needs": ", ".join(quantity.needs),
                "shape": _SHAPES[quantity.scope] + "".join(f"[{axis}]" for axis in quantity.axes),
                "source": _source(quantity),
            }
        )
    return pd.DataFrame(rows).set_index("column")


def _nulls(quantities: Sequence[Quantity], n: int) -> dict[tuple[str, str, str], float]:
    """Return the values of uniform causal attention by identity, of what needs attention alone."""
    uniform = torch.ones(n, n, dtype=torch.float64, device="cpu").tril()
    maps = (uniform / uniform.sum(-1, keepdim=True))[None, None]
    chosen: dict[str, list[Quantity]] = {}
    for quantity in quantities:
        if quantity.needs == ("attention",) and quantity.scope == "map" and not quantity.axes:
            chosen.setdefault(quantity.protocol, []).append(quantity)
    values: dict[tuple[str, str, str], float] = {}
    with collect_warnings():  # what has no value on uniform attention has none in the table
        for of_protocol in chosen.values():
            columns: dict[str, Any] = measure_quantities({"attention": maps}, of_protocol).columns()
            for quantity in of_protocol:
                cells: Any = np.ma.filled(np.ma.asarray(columns.get(quantity.name, np.nan), float), np.nan)
                values[quantity.identity] = float(cells.flatten()[0])
    return values


def _source(quantity: Quantity) -> str:
    """Return the references of the function that gives a quantity, in one line."""
    declared = registry()
    function = declared.functions.get(
        (quantity.protocol, declared.source(quantity.protocol, quantity.metric))
    )
    text = (getattr(function, "__doc__", None) or "").partition("References:")[2]
    return re.sub(r"\s+", " ", text).strip()
