# SPDX-License-Identifier: MIT
"""Change over training, as the notebooks compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attnscope.arguments.scalars import whole_steps

if TYPE_CHECKING:
    import pandas as pd


class EmergenceChange(NamedTuple):
    """A difference of means, and the two steps it is between."""

    change: float
    first_step: int
    last_step: int
    order: tuple[int, ...]


def emergence_change(table: pd.DataFrame, metric: str) -> EmergenceChange:
    """Return the mean of a metric at the last step minus that at the first, with steps sorted as strings.

    Quirk: of Pythia's steps 0, 1, 2, 4, 8, 2000, 143000 the last in string order is 8, so that the published
    changes are those of the first eight steps, and not of training. Use `emergence_step` for training.

    Args:
        table: rows with `step` and the metric.
        metric: a column of it.

    Returns:
        EmergenceChange, with the steps in the order used.

    Raises:
        ValueError: a missing column, or fewer than two steps.

    Example:
        >>> import pandas as pd
        >>> from attnscope.protocols import ruscio2025
        >>> table = pd.DataFrame({"step": [0, 1, 2, 4, 8, 2000, 143000], "x": [0, 1, 2, 3, 4, 50, 60]})
        >>> ruscio2025.emergence_change(table, "x")
        EmergenceChange(change=4.0, first_step=0, last_step=8, order=(0, 1, 143000, 2, 2000, 4, 8))

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, Pythia notebook.
    """
    name = "ruscio2025.emergence_change"
    for column in ("step", metric):
        if column not in table.columns:
            present = ", ".join(map(str, table.columns))
            raise ValueError(f"{name}: the table has no column {column!r}, only {present}")
    means = table.assign(step=whole_steps(name, table["step"])).groupby("step")[metric].mean()
    order = sorted(map(int, means.index), key=str)
    if len(order) < 2:
        raise ValueError(f"{name}: the table must hold at least two steps, got {order}")
    first, last = order[0], order[-1]
    return EmergenceChange(float(means[last] - means[first]), first, last, tuple(order))
