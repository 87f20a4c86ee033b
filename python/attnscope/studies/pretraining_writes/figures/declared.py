# SPDX-License-Identifier: MIT
"""The study's figures by name, and readers that several of them share."""

from __future__ import annotations

from typing import Any

import matplotlib.figure as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator

from attnscope.errors import NotDrawable
from attnscope.plots.figure import Figure, Options, Results, declared_in, optional, require_table
from attnscope.plots.panels import Panels
from attnscope.plots.style import INK, MUTED, NULL_LINES, PALETTE, panels
from attnscope.studies.pretraining_writes.options import ROLES
from attnscope.study_api.selection import where

FIGURES: dict[str, Figure] = {}
figure = declared_in(FIGURES)

#: Colours of the roles, the same in every figure.
COLORS = dict(zip(ROLES, (*PALETTE[:6], PALETTE[6]), strict=True))
#: How nulls are drawn, by the name of the variant.
NULLS: dict[str, dict[str, Any]] = {
    "other_layer": {"color": MUTED, "linestyle": (0, (1, 1.5)), "linewidth": 1.0},
    "random_weights": NULL_LINES["random_weights"],
    "weights": {"color": MUTED, "linestyle": (0, (5, 2)), "linewidth": 1.0},
}
NULL_WORDS = {
    "other_layer": "dotted: inputs of another layer",
    "random_weights": "dash-dotted: a model of random weights",
    "weights": "dashed: the base's own matrices",
}
PAIR = ["model", "revision", "step", "reference"]


def grid(
    count: int, options: Options, height: float, most: int, narrowest: float = 1.5, **panel_options: Any
) -> tuple[mpl.Figure, list[Axes]]:
    """Return a figure of some panels, at most so many in a row, fewer where they would be too narrow."""
    least = max(narrowest, options.width / most - 0.01)
    drawn, (axes,) = panels(1, count, height=height, width=options.width, narrowest=least, **panel_options)
    return drawn, axes


def measured(results: Results, subspace: str = "") -> pd.DataFrame:
    """Return the measured fractions at the tested k of the seven roles."""
    table = require_table(results, "fractions", "relative")
    tested = where(table[table["tested"].astype(bool) & (table["relative"] > 0)], role=ROLES)
    if subspace:
        tested = where(tested, subspace=subspace)
    if tested.empty:
        raise NotDrawable(f"the run has no fractions on the subspace {subspace or 'of any kind'}")
    return with_pairs(tested)


def controls(results: Results, subspace: str) -> pd.DataFrame:
    """Return the same fractions under nulls; empty where the run has none."""
    table = optional(results, "fractions_variants")
    columns = ["variant", "role", "layer", "relative", *PAIR]
    if table is None or not {*columns, "subspace"} <= set(table):
        return pd.DataFrame(columns=[*columns, "pair"])
    rows = where(table, role=ROLES, subspace=subspace)
    return with_pairs(rows[rows["relative"] > 0])


def with_pairs(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a column `pair`: model and revision, and the reference where there are several."""
    names: pd.Series[str] = (table["model"] + " " + table["revision"].fillna("")).str.strip()
    if table["reference"].nunique() > 1:
        names = names + " − " + table["reference"]
    return table.assign(pair=names)


def chosen_pairs(table: pd.DataFrame, most: int) -> tuple[list[str], str]:
    """Return the titles of the pairs to draw, and a sentence on those that are not.

    If more pairs exist than fit, those with fractions farthest from isotropic are drawn, in the table's
    order.

    Args:
        table: from `with_pairs`.
        most: pairs that fit.
    """
    names = list(dict.fromkeys(table["pair"]))
    if len(names) <= most:
        return names, ""
    tested = table[table["tested"].astype(bool)] if "tested" in table else table
    column = "relative" if "relative" in tested else "observed"
    tested = tested[tested[column] > 0]
    distances = np.log2(tested[column].astype(float)).groupby(tested["pair"]).mean().abs()
    # pairs without a tested fraction come last
    far = set(distances.reindex(names).sort_values(ascending=False, kind="stable").index[:most])
    left = [name for name in names if name not in far]
    text = f"The {most} of {len(names)} pairs farthest from isotropic; left out: {', '.join(left)}."
    return [name for name in names if name in far], text


def pair_panels(table: pd.DataFrame, names: list[str], options: Options, height: float) -> Panels:
    """Return a panel for each of some pairs, three in a row, fewer where they would be too narrow."""
    least = max(1.5, options.width / 3 - 0.01)
    return Panels.by(
        where(table, pair=names), "pair", options, height=height, panel_width=options.width, narrowest=least
    )


def isotropic(ax: Axes, spread: float = 0.0) -> None:
    """Draw the line at 1 and the band of 95 % of random subspaces around it.

    A band that reaches 0 ends at the axis: it may not stretch a logarithmic axis over what was measured.
    """
    ax.axhline(1.0, color=INK, linewidth=0.8, gid="isotropic")
    if spread > 0:
        low, high = 1 - 1.96 * spread, 1 + 1.96 * spread
        limits = ax.dataLim.frozen()
        ax.axhspan(max(low, 1e-6), high, color=MUTED, alpha=0.18, linewidth=0)
        ax.dataLim.set(limits)
        ax.update_datalim([(0.0, max(low, 0.5)), (0.0, high)], updatex=False)


class _Octaves(LogLocator):
    """Ticks at powers of two; where fewer than two of them are in sight, at plain numbers."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Return the places of ticks between two values."""
        powers = super().tick_values(vmin, vmax)
        if sum(vmin <= power <= vmax for power in powers) > 1:
            return powers
        return MaxNLocator(4, min_n_ticks=3).tick_values(vmin, vmax)


def octaves(ax: Axes, *, along: str = "y") -> None:
    """Make an axis logarithmic to base 2, with plain numbers."""
    axis = ax.yaxis if along == "y" else ax.xaxis
    (ax.set_yscale if along == "y" else ax.set_xscale)("log", base=2)
    axis.set_major_locator(_Octaves(base=2))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda *_: "")


def spread_of(rows: pd.DataFrame) -> float:
    """Return the mean Haar deviation of relative fractions."""
    return float((rows["deviation"] * rows["relative"] / rows["fraction"]).mean())


def mean_log2(values: pd.Series[float]) -> float:
    """Return 2^mean log2."""
    return float(2.0 ** np.log2(values).mean())
