# SPDX-License-Identifier: MIT
"""The study's figures by name, and what several of them share."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from attnscope.plots.figure import Figure, Results, declared_in, optional, require_table
from attnscope.plots.style import PALETTE, legend_row
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.studies.hallucination_geometry.contrasts import with_outcomes
from attnscope.study_api.selection import where

FIGURES: dict[str, Figure] = {}
figure = declared_in(FIGURES)

#: How the packaged buckets are drawn everywhere, and in which order others take what is left.
COLORS = (PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[3])
BUCKETS = {"factual": COLORS[0], "impossible": COLORS[1], "unknown": COLORS[2]}


def controls(results: Results, name: str, model: str) -> pd.DataFrame | None:
    """Return the rows of a model's random-weight control."""
    table = optional(results, f"{name}_variants")
    if table is None:
        return None
    rows = where(table, model=model)
    return None if rows.empty else rows


def with_buckets(results: Results, table: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the bucket of their prompt: that of the file, or the one that its answer puts it into
    where the run makes buckets of outcomes.
    """
    prompts = require_table(results, "prompts")
    options = dict(getattr(results, "study", None) or {}).get("options", {})
    if options.get("bucket_by") == "outcome":
        prompts = with_outcomes(prompts, require_table(results, "answers"))
    keys = [key for key in (*CHECKPOINT_KEYS, "sample") if key in table and key in prompts]
    return table.merge(prompts[[*keys, "bucket"]].drop_duplicates(), on=keys, how="left")


def prompts_of_each(rows: pd.DataFrame, *keys: str) -> str:
    """Return how many prompts each combination of some keys has, in words.

    >>> rows = pd.DataFrame({"bucket": ["a", "a", "b"], "sample": [0, 1, 2]})
    >>> prompts_of_each(rows, "bucket"), prompts_of_each(rows[:2], "bucket")
    ('at least 1', '2')
    """
    counts = rows.groupby([*keys])["sample"].nunique()
    return f"at least {counts.min()}" if counts.nunique() > 1 else str(counts.iloc[0]) if len(counts) else "0"


def without_interval(rows: pd.DataFrame, column: str) -> str:
    """Return a sentence, behind a space, where values have no interval over templates, "" where all have one.

    >>> nan = float("nan")
    >>> without_interval(pd.DataFrame({"auc": [0.5, nan], "low": [nan, nan]}), "auc")
    ' Points without a bar have no interval: their templates are too few.'
    >>> without_interval(pd.DataFrame({"auc": [0.5, nan], "low": [0.4, nan]}), "auc")
    ''
    """
    if not (rows[column].notna() & rows["low"].isna()).any():
        return ""
    return " Points without a bar have no interval: their templates are too few."


def layers_below(ax: Axes, n: int = 0) -> None:
    """Put whole numbers of layers on the horizontal axis, with the number of prompts behind the means."""
    first = "−1: before the first" if ax.get_xlim()[0] < -0.5 else ""
    details = "; ".join(filter(None, (first, f"n = {n}" if n else "")))
    ax.set_xlabel(f"layer ({details})" if details else "layer")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def decades(ax: Axes) -> None:
    """Draw powers on the vertical axis; within two decades numbers, also between them; never one alone."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if low > 1e-3 and high < 100 * low:
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        if sum(low <= tick <= high for tick in ax.yaxis.get_majorticklocs()) < 3:
            ax.yaxis.set_major_locator(MaxNLocator(4, min_n_ticks=3))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())


def null_range(ax: Axes, at: Any, low: Any, high: Any, color: str) -> None:
    """Draw the range of a null in the colour of what it is the null of, its edges dotted.

    Edges tell overlapping ranges apart, which shades alone do not.
    """
    ax.fill_between(at, low, high, color=color, alpha=0.08, linewidth=0)
    for edge in (low, high):
        ax.plot(at, edge, color=color, linewidth=0.9, linestyle=(0, (1, 1.5)))


def legend(ax: Axes) -> None:
    """Draw one legend above all panels of these axes' figure, of all named artists."""
    legend_row(ax.figure)  # type: ignore[arg-type]


def colors(names: list[str]) -> dict[Any, str]:
    """Return one colour for each name, the same in all figures for a packaged bucket."""
    of_packaged = {name: BUCKETS[name] for name in dict.fromkeys(names) if name in BUCKETS}
    left = [color for color in COLORS if color not in of_packaged.values()] or list(COLORS)
    others = [name for name in dict.fromkeys(names) if name not in of_packaged]
    return of_packaged | {name: left[at % len(left)] for at, name in enumerate(others)}
