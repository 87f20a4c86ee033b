# SPDX-License-Identifier: MIT
"""Lines of what a measured curve is held against: uniform attention, random weights, shuffled rows.

A reference that is the same for all curves of a panel is one line. Where it differs, as shuffled rows of two
models do, each curve has its own in its colour: a mean over them would be the reference of none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from attnscope.plots.style import NULL_LINES, UNIFORM
from attnscope.results.summaries import NULLS, null_value, uniform_value
from attnscope.statistics.rounding import ROUNDED_FLOAT32

#: Steps and values of a reference; a level has one value, whose step says nothing.
Course = Sequence[tuple[int, float]]


def draw_references(
    ax: Axes,
    heads: pd.DataFrame,
    baselines: pd.DataFrame | None,
    metric: str,
    *,
    threshold: float | None = None,
    along_steps: bool = False,
    by: str = "series",
    colors: Mapping[str, str] | None = None,
) -> None:
    """Draw uniform attention and the measured nulls that a run holds beside curves of a metric.

    Args:
        ax: the panel.
        heads: the rows that the curves are of.
        baselines: the `baselines` table; without it there is only what the rows say of uniform attention.
        metric: the column.
        threshold: of the graph, for a metric that has one.
        along_steps: nulls have a value at each step, and a level elsewhere.
        by: the column that makes the curves.
        colors: of the curves, by value of `by`; without them the references are of all rows together.
    """

    def uniform(rows: pd.DataFrame) -> Course:
        return _with_value([(0, uniform_value(rows, baselines, metric, threshold))])

    def null(kind: str) -> Callable[[pd.DataFrame], Course]:
        def course(rows: pd.DataFrame) -> Course:
            checkpoints: Any = rows.groupby("step", sort=True) if along_steps else [(0, rows)]
            return _with_value(
                [
                    (int(step), null_value(at_step, baselines, kind, metric, threshold))
                    for step, at_step in checkpoints
                ]
            )

        return course

    _draw(ax, heads, uniform, "uniform attention", "uniform", UNIFORM, by, colors)
    for kind, name in NULLS.items():
        _draw(ax, heads, null(kind), name, kind, NULL_LINES[kind], by, colors)


def _with_value(course: Course) -> Course:
    return [(step, value) for step, value in course if np.isfinite(value)]


def _draw(
    ax: Axes,
    heads: pd.DataFrame,
    course_of: Callable[[pd.DataFrame], Course],
    label: str,
    gid: str,
    how: Mapping[str, Any],
    by: str,
    colors: Mapping[str, str] | None,
) -> None:
    """Draw one line for all rows, or one for each curve where they differ, called `gid:curve`."""
    groups: Any = heads.groupby(by, sort=False) if colors else ()
    courses = {name: course_of(rows) for name, rows in groups}
    if colors and _differ(list(courses.values())):
        lines = [(course, f"{gid}:{name}", {"color": colors[name]}) for name, course in courses.items()]
    else:
        lines = [(course_of(heads), gid, {})]
    for course, name, color in lines:
        if len(course) > 1:
            ax.plot(*zip(*course, strict=True), label=label, gid=name, **{**how, **color})
        elif course:
            ax.axhline(course[0][1], label=label, gid=name, **{**how, **color})


def _differ(courses: Sequence[Course]) -> bool:
    """Return True if some have other values at a step than others, but for what float32 rounds, or only some
    have any.

    >>> _differ([[(0, 0.5), (8, 0.25)], [(0, 0.5)]]), _differ([[(0, 0.5)], [(0, 0.75)]]), _differ([[], []])
    (False, True, False)
    """
    if any(courses) and not all(courses):
        return True
    values = pd.DataFrame([dict(course) for course in courses])
    return any(
        column.max() - column.min() > ROUNDED_FLOAT32 * column.abs().max() for _, column in values.items()
    )
