# SPDX-License-Identifier: MIT
"""When during training a metric takes the value it ends with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnscope._checks import whole_steps
from attnscope.inference._arguments import check_draws, number, table_argument

if TYPE_CHECKING:
    import pandas as pd

# Columns along which rows must not be mixed in silence.
APART = ("model", "protocol", "group", "threshold")


def emergence_step(
    table: pd.DataFrame,
    metric: str,
    *,
    fraction: float = 0.5,
    by: Sequence[str] = (),
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """The first training step at which a metric has covered `fraction` of its way from first to last step.

    The value of a step is the mean over samples of each sample's mean over its rows (layers, heads). The
    interval is a percentile interval of the same step over samples drawn with replacement. Steps are
    ordered as integers.

    Args:
        table: rows with `step`, `sample` and the metric, such as the table `heads` of a checkpoint series;
            filter it first where it holds more than one model or protocol, or name these in `by`.
        metric: a column of it.
        fraction: in (0, 1].
        by: one row of the result for every combination of these columns, for example ["layer", "head"].
        confidence: of the interval, in (0, 1).
        draws: bootstrap samples.
        seed: of the bootstrap.

    Returns:
        A DataFrame with the columns of `by`, then step, low, high (int64, −1 where the metric ends where it
        began or is NaN there), start and end (the metric's mean at the first and the last step).

    Raises:
        ValueError: a column is missing, fewer than two steps, negative steps, fraction or confidence outside
            their range, several models, protocols, groups or thresholds that `by` does not name.

    Example:
        >>> import pandas as pd, attnscope as asc
        >>> steps, values = [0, 1, 2, 8, 16], [0.0, 0.1, 0.2, 0.7, 1.0]
        >>> table = pd.DataFrame({"step": steps, "sample": 0, "sink_share": values})
        >>> asc.emergence_step(table, "sink_share").iloc[0].to_dict()
        {'step': 8.0, 'low': 8.0, 'high': 8.0, 'start': 0.0, 'end': 1.0}

    References:
        Gu et al., When attention sink emerges in language models, arXiv 2410.10781, 2024.
    """
    import pandas as pd

    fraction = number("emergence_step", "fraction", fraction)
    confidence, draws, seed = check_draws("emergence_step", confidence, draws, seed)
    whole = _checked_steps(table, metric, fraction, by)
    table = table.assign(step=whole)
    rows: list[dict[str, Any]] = []
    groups = [((), table)] if not by else table.groupby(list(by), sort=True, dropna=False)
    for key, group in groups:
        each = group.groupby(["step", "sample"])[metric].mean().unstack("sample").sort_index()
        steps, values = each.index.to_numpy(np.int64), each.to_numpy(np.float64)
        found = emergence_of(steps, values, fraction, confidence, draws, seed)
        rows.append({**dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True)), **found})
    result: pd.DataFrame = pd.DataFrame(rows).astype({"step": "int64", "low": "int64", "high": "int64"})
    return result


@lru_cache(maxsize=4)
def _weights(samples: int, draws: int, seed: int) -> npt.NDArray[np.int64]:
    """How often each sample is in each draw; a study asks the same of every metric."""
    return np.random.default_rng(seed).multinomial(samples, np.full(samples, 1 / samples), draws)


def emergence_of(
    steps: npt.NDArray[np.int64],
    values: npt.NDArray[np.float64],
    fraction: float = 0.5,
    confidence: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """What `emergence_step` tells of one curve.

    Args:
        steps: ascending.
        values: [steps, samples], NaN where a sample was not measured.
        fraction: as for `emergence_step`.
        confidence: of the interval.
        draws: of the bootstrap.
        seed: of the bootstrap.
    """
    present = ~np.isnan(values)
    filled = np.where(present, values, 0.0)
    weights = _weights(values.shape[1], draws, seed)
    with np.errstate(invalid="ignore"):
        curve = filled.sum(1) / present.sum(1)
        drawn = (filled @ weights.T) / (present @ weights.T)
    at = _first_crossing(curve[:, None], fraction)[0]
    each = _first_crossing(drawn, fraction)
    each = each[each >= 0]
    low = high = -1
    if at >= 0 and len(each):
        tail = (1 - confidence) / 2
        low, high = (
            int(steps[i]) for i in np.quantile(each, [tail, 1 - tail], method="inverted_cdf").astype(np.int64)
        )
    return {
        "step": int(steps[at]) if at >= 0 else -1,
        "low": low,
        "high": high,
        "start": float(curve[0]),
        "end": float(curve[-1]),
    }


def _first_crossing(curves: npt.NDArray[np.float64], fraction: float) -> npt.NDArray[np.int64]:
    """For curves [steps, count]: the first index that has covered the fraction, −1 where nothing changes."""
    way = curves[-1] - curves[0]
    with np.errstate(invalid="ignore"):
        covered = (curves - curves[0]) * np.sign(way) >= fraction * np.abs(way)
    first = covered.argmax(0)
    return np.where((way != 0) & ~np.isnan(way), first, -1)


def _checked_steps(table: pd.DataFrame, metric: str, fraction: float, by: Sequence[str]) -> list[int]:
    """The steps as integers, for as text "10" stands before "2"."""
    name = "emergence_step"
    table_argument(name, table, ("step", "sample"), metric, by)
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"{name}: fraction must lie in (0, 1], got {fraction!r}")
    column_of_steps = whole_steps(name, table["step"])
    steps = sorted(set(column_of_steps))
    if len(steps) < 2 or steps[0] < 0:
        raise ValueError(f"{name}: the table must hold at least two steps, none negative, got {steps}")
    for column in APART:
        if column not in table.columns or column in by:
            continue
        if (count := table[column].nunique(dropna=False)) > 1:
            raise ValueError(
                f"{name}: the table holds {count} values of {column!r}: filter it or name {column!r} in by"
            )
    return column_of_steps
