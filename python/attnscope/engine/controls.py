# SPDX-License-Identifier: MIT
"""Rows of a control, as they are kept: reduced to means over layers and heads, or whole."""

from __future__ import annotations

from attnscope.engine.tables import Rows

#: Kinds of which a mean over heads says something.
AVERAGED = ("value",)


def reduced_rows(rows: Rows, variant: str, seed: int) -> Rows:
    """The rows of the table `NAME_variants`.

    Counts, positions and ratios are not averaged as values: they are null.

    Args:
        rows: of the table.
        variant: name of the control.
        seed: position of its seed.
    """
    import numpy as np

    whole = rows.arrow().to_pandas()
    table = rows.table.controls()
    whole["variant"], whole["seed"] = variant, seed
    if rows.table.variants == "reduced":
        whole["scope"] = "heads" if "head" in whole else "layers" if "layer" in whole else "whole"
        keys = [key for key in table.keys if key in whole]
        columns = [
            column.name
            for column in rows.table.columns or ()
            if str(column.kind) in AVERAGED and whole[column.name].dtype.kind == "f"
        ]
        finite = whole[columns].replace([np.inf, -np.inf], np.nan)
        whole = finite.groupby([whole[key] for key in keys], sort=True, dropna=False).mean().reset_index()
    made = Rows(table, rows.study)
    made.add(**{name: whole[name].to_numpy() for name in whole.columns})
    return made
