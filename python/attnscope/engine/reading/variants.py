# SPDX-License-Identifier: MIT
"""Averages of controls, a row for each number: what the tables `NAME_variants` hold column by column.

Example:
    >>> import pandas as pd
    >>> from attnscope.engine.results import Results
    >>> control = pd.DataFrame({"sample": [0], "variant": ["row_permutation"], "seed": [0],
    ...                         "scope": ["heads"], "entropy": [1.5]})
    >>> Results({"heads_variants": control}).variants()[["variant", "metric", "value"]].values.tolist()
    [['row_permutation', 'entropy', 1.5]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.engine.schema import CHECKPOINT_KEYS, VARIANT_KEYS, variants_of

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.engine.results import Results

#: Keys of a row, in order; tables that lack one have null there, a threshold NaN.
KEYS = (*CHECKPOINT_KEYS, "sample", "protocol", *VARIANT_KEYS, "threshold", "table", "metric")


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
        keys = [key for key in KEYS if key in frame]
        tall = frame.melt(keys, var_name="metric", value_name="value").assign(table=whose)
        parts.append(tall.dropna(subset="value").reindex(columns=[*KEYS, "value"]))
    if not parts:
        parts = [pd.DataFrame(columns=[*KEYS, "value"])]
    rows: pd.DataFrame = pd.concat(parts, ignore_index=True)
    rows = rows.astype({"threshold": np.float64, "value": np.float64})
    return rows
