# SPDX-License-Identifier: MIT
"""The change of a metric from one level to another during training, and its checkpoint.

Any noisy curve has a best split. A step is named only where two levels explain more of the curve than they do
of the same checkpoints in random orders, corrected for all curves that are judged together, and more than a
straight line over the checkpoints does: what rises all along has no step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnscope.arguments.scalars import fraction_argument, real, whole_steps
from attnscope.statistics._arguments import check_draws, table_argument
from attnscope.statistics.comparisons import holm
from attnscope.statistics.intervals import bootstrap
from attnscope.statistics.rounding import ROUNDED, varies

if TYPE_CHECKING:
    import pandas as pd

# Columns along which rows must not be mixed in silence.
APART = ("model", "protocol", "group", "threshold")
#: Chance of any step where nothing changes; checkpoints on each side of a split; orders held in memory.
LEVEL, EACH_SIDE, DRAWS_AT_ONCE = 0.05, 3, 4096

# Steps, ascending, and values [steps, samples].
Curve = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


def emergence_step(
    table: pd.DataFrame,
    metric: str,
    *,
    fraction: float = 0.5,
    by: Sequence[str] = (),
    level: float = LEVEL,
    confidence: float = 0.95,
    draws: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Return the training step at which a metric changes from one level to another, where it does.

    The value of a checkpoint is the mean over samples of each sample's mean over its rows (layers, heads).
    The step is the split of the least-squares fit of two levels to these values, at least three checkpoints
    on each side. It is given only where that fit explains more than when the checkpoints are put in random
    orders: noise has a best split too; and more than a straight line over the checkpoints in their order,
    which is a trend. A line with noise of a fifth of its rise is a trend in .9 to 1 of cases that show a
    change, a step as large in .02 at most (8 to 30 checkpoints), and a rise over a third of the checkpoints
    in about half. Where some checkpoints lack a sample, samples have levels of their own in that
    fit. A checkpoint whose mean is infinite takes no part in this. Texts are not drawn again for it, because
    what all texts of one checkpoint share would then pass for a step. Steps are ordered as integers.

    Args:
        table: rows with `step`, `sample` and the metric, such as the table `heads` of a checkpoint series;
            filter it first where it holds more than one model or protocol, or name these in `by`.
        metric: a column of it.
        fraction: of the way from first to last checkpoint, for `half_way`, in (0, 1].
        by: one row of the result for every combination of these columns, for example ["layer", "head"].
        level: chance of any step among the rows of the result where nothing changes (Holm), in (0, 1).
        confidence: of the interval of the difference, in (0, 1).
        draws: random orders; None takes 999 or as many as Holm's correction of the rows needs.
        seed: of the orders.

    Returns:
        A DataFrame with the columns of `by`, then verdict ("step"; "trend", a change that a line explains at
        least as well; "no change"; or "too few to tell" where no order of so many checkpoints could pass),
        step (Int64: the first checkpoint of the new level, null without one), p_value and p_holm (NaN where
        nothing was tested), difference of the metric between the last and the first checkpoint with low and
        high over samples (NaN below five samples), start and end (its means there), and half_way (Int64): the
        first checkpoint that has covered `fraction` of the way from start to end, which is no evidence of a
        change.

    Raises:
        ValueError: a column is missing, fewer than two steps, negative steps, fraction, level or confidence
            outside their range, several models, protocols, groups or thresholds that `by` does not name.

    Example:
        >>> import pandas as pd, attnscope as asc
        >>> values = [0.0, 0.1, 0.0, 0.1, 0.9, 1.0, 0.9, 1.0]
        >>> table = pd.DataFrame({"step": [0, 1, 2, 4, 8, 16, 32, 64], "sample": 0, "sink_share": values})
        >>> change = asc.emergence_step(table, "sink_share").iloc[0]
        >>> change["verdict"], int(change["step"]), int(change["half_way"])
        ('step', 8, 8)

    References:
        Hawkins, Testing a sequence of observations for a shift in location, 1977. Gu et al., When attention
        sink emerges in language models, arXiv 2410.10781, 2024.
    """
    import pandas as pd

    name = "emergence_step"
    fraction = real(name, "fraction", fraction)
    confidence, checked_draws, seed = check_draws(name, confidence, 1 if draws is None else draws, seed)
    level = fraction_argument(name, "level", level)
    steps = _checked_steps(table, metric, fraction, by)
    table = table.assign(step=steps)
    keys: list[dict[str, Any]] = []
    curves: list[Curve] = []
    groups = [((), table)] if not by else table.groupby(list(by), sort=True, dropna=False)
    for key, group in groups:
        sample_means = group.groupby(["step", "sample"])[metric].mean().unstack("sample").sort_index()
        curves.append((sample_means.index.to_numpy(np.int64), sample_means.to_numpy(np.float64)))
        keys.append(dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True)))
    splits = emergence_splits(
        curves,
        fraction=fraction,
        level=level,
        confidence=confidence,
        draws=None if draws is None else checked_draws,
        seed=seed,
    )
    rows = [{**key, **split} for key, split in zip(keys, splits, strict=True)]
    return pd.DataFrame(rows).astype({"step": "Int64", "half_way": "Int64"})


def emergence_splits(
    curves: Sequence[Curve],
    *,
    fraction: float = 0.5,
    level: float = LEVEL,
    confidence: float = 0.95,
    draws: int | None = None,
    seed: int = 0,
    resolution: float = ROUNDED,
) -> list[dict[str, Any]]:
    """Return the results of `emergence_step` for several curves, corrected together: the quantities of one
    run.

    Args:
        curves: of each its steps, ascending, and values [steps, samples], NaN where a sample has none.
        fraction, level, confidence, draws, seed: as for `emergence_step`.
        resolution: means that differ by less of themselves are equal.

    Example:
        >>> import numpy as np
        >>> from attnscope.statistics.emergence import emergence_splits
        >>> flat = np.zeros((9, 4))
        >>> emergence_splits([(np.arange(9), flat)])[0]["verdict"]
        'no change'
    """
    means = []
    for _, values in curves:
        present = ~np.isnan(values)
        with np.errstate(invalid="ignore"):
            means.append(np.where(present, values, 0.0).sum(1) / present.sum(1))
    # an infinite mean is no level, and no order of it tells anything
    defined_means = [_levels(values, mean) for (_, values), mean in zip(curves, means, strict=True)]
    # Curves that are constant but for rounding hold no test: nothing changes, whatever the order.
    tested = [bool(len(curve) and varies(curve, resolution=resolution)) for curve in defined_means]
    family = sum(
        flag and len(curve) >= 2 * EACH_SIDE for curve, flag in zip(defined_means, tested, strict=True)
    )
    draws = max(999, math.ceil(2 * family / level) - 1) if draws is None else draws
    splits: list[tuple[int, float, bool]] = []
    for curve, flag in zip(defined_means, tested, strict=True):
        orders = math.comb(len(curve), len(curve) // 2)
        able = flag and len(curve) >= 2 * EACH_SIDE and 2 * family / level <= orders
        splits.append(_split_of(curve, draws, seed) if able else (-1, math.nan, False))
    adjusted = holm([p_value for _, p_value, _ in splits])
    result = []
    for (steps, values), mean, flag, (place, p_value, is_trend), p_holm in zip(
        curves, means, tested, splits, adjusted, strict=True
    ):
        defined_steps = steps[np.isfinite(mean)]
        verdict = "no change"
        if flag and math.isnan(p_value):
            verdict = "too few to tell"
        elif p_holm <= level:
            verdict = "trend" if is_trend else "step"
        ends = bootstrap(values[-1] - values[0], confidence=confidence, seed=seed)
        with np.errstate(invalid="ignore"):
            way = mean[-1] - mean[0]
            covered = (mean - mean[0]) * np.sign(way) >= fraction * abs(way)
        result.append(
            {
                "verdict": verdict,
                "step": int(defined_steps[place]) if verdict == "step" else None,
                "p_value": p_value,
                "p_holm": float(p_holm),
                "difference": ends.estimate,
                "low": ends.low,
                "high": ends.high,
                "start": float(mean[0]),
                "end": float(mean[-1]),
                "half_way": int(steps[covered.argmax()]) if abs(way) > 0 else None,
            }
        )
    return result


def _levels(values: npt.NDArray[np.float64], means: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the finite means of checkpoints as if each had every sample: least squares of a level for each
    checkpoint and one for each sample.

    A sample that later checkpoints lack would make a step of what it differs from the others by. Checkpoints
    that have no sample in common keep the means of theirs.
    """
    values, means = values[np.isfinite(means)], means[np.isfinite(means)]
    present = ~np.isnan(values)
    if present[:, present.any(0)].all():
        return means
    shares = present / present.sum(1, keepdims=True)
    rest = np.where(present, values - means[:, None], 0.0).sum(0)
    coupling = np.diag(present.sum(0).astype(np.float64)) - present.T @ shares
    of_samples = np.linalg.lstsq(coupling, rest, rcond=None)[0]
    return np.asarray(means - shares @ of_samples)


def _split_of(mean: npt.NDArray[np.float64], draws: int, seed: int) -> tuple[int, float, bool]:
    """Return the first place behind the best split of a curve into two levels, its p-value over orders, and
    whether a straight line explains as much.
    """
    # Every order has the same sum of squares, so the largest one between two levels is the best fit.
    mean = mean - mean.mean()
    mean = mean / np.abs(mean).max()
    count = len(mean)
    left = np.arange(EACH_SIDE, count - EACH_SIDE + 1)

    def between(orders: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        sums = orders.cumsum(-1)[..., left - 1]
        return sums**2 * (count / (left * (count - left)))

    observed = between(mean)
    generator = np.random.default_rng(seed)
    above = 0
    for begin in range(0, draws, DRAWS_AT_ONCE):
        copies = np.broadcast_to(mean, (min(DRAWS_AT_ONCE, draws - begin), count))
        # Orders that give the same two sets of checkpoints differ by rounding only.
        above += int(
            (between(generator.permuted(copies, axis=-1)).max(-1) >= observed.max() * (1 - 1e-9)).sum()
        )
    places = np.arange(count) - (count - 1) / 2
    of_line = float(places @ mean) ** 2 / float(places @ places)
    is_trend = of_line >= float(observed.max()) * (1 - 1e-9)
    return int(left[observed.argmax()]), (1 + above) / (1 + draws), is_trend


def _checked_steps(table: pd.DataFrame, metric: str, fraction: float, by: Sequence[str]) -> list[int]:
    """Return the steps as integers, because as text "10" sorts before "2"."""
    name = "emergence_step"
    table_argument(name, table, ("step", "sample"), metric, by)
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"{name}: fraction must lie in (0, 1], got {fraction!r}")
    column_of_steps = whole_steps(name, table["step"])
    steps = sorted(set(column_of_steps))
    if len(steps) < 2 or steps[0] < 0:
        cure = "; table[table['step'] >= 0] leaves out what has no step" if min(steps, default=0) < 0 else ""
        raise ValueError(f"{name}: the table must hold at least two steps, none negative, got {steps}{cure}")
    for column in APART:
        if column not in table.columns or column in by:
            continue
        if (count := table[column].nunique(dropna=False)) > 1:
            raise ValueError(
                f"{name}: the table holds {count} values of {column!r}: filter it or name {column!r} in by"
            )
    return column_of_steps
