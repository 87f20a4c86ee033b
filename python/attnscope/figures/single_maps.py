# SPDX-License-Identifier: MIT
"""Figures of single maps: the matrix, its spectrum, its bars."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from attnscope.figures.maps import attention_map
from attnscope.figures.registry import NotDrawable, Tables, figure, optional, sinks, stored
from attnscope.figures.selection import CHECKPOINT, last_step
from attnscope.figures.spectra import has_spectrum, spectrum_against_null
from attnscope.figures.style import captioned, panels
from attnscope.figures.topology import betti_curve, persistence_diagram

#: What says whose map it is, and what a bar is.
_MAP = [*CHECKPOINT, "sample", "layer", "head"]
BARS = ("dimension", "birth", "death")


@figure
def examples(results: Tables) -> Figure:
    """Stored attention maps beside their spectrum, persistence diagram and Betti curve."""
    table = last_step(stored(results, "examples", "n_tokens", "attention"))
    table = _few(table.dropna(subset=["n_tokens", "attention"]))
    if table.empty:
        raise NotDrawable(
            "no stored map has a spectrum: too few tokens, uniform attention, or missing values"
        )
    samples, bars = optional(results, "samples"), optional(results, "bars")
    keys = _MAP
    if bars is not None and set(BARS) <= set(bars):
        bars = bars.dropna(subset=list(BARS)).merge(table[keys], on=keys)
    drawn = 4 if bars is not None and set(BARS) <= set(bars) and len(bars) else 2
    figure_, axes = panels(len(table), drawn, height=1.85 * len(table))
    for axes_row, (_, row) in zip(axes, table.iterrows(), strict=True):
        n = int(row["n_tokens"])
        matrix = np.asarray(row["attention"], dtype=float).reshape(n, n)
        attention_map(matrix, ax=axes_row[0], colorbar=False)
        title = f"L{row['layer']}H{row['head']}, sample {row['sample']}"
        if samples is not None and "group" in samples:
            group = samples[(samples[[*CHECKPOINT, "sample"]] == row[[*CHECKPOINT, "sample"]]).all(axis=1)]
            title = f"L{row['layer']}H{row['head']}, {group['group'].iloc[0]}" if len(group) else title
        axes_row[0].set_ylabel(f"{title}\nquery", linespacing=1.5)
        spectrum_against_null(matrix, ax=axes_row[1])
        if bars is not None and drawn == 4:
            own = bars[(bars[keys] == row[keys]).all(axis=1)]
            persistence_diagram(own, ax=axes_row[2])
            betti_curve(own, ax=axes_row[3])
    return captioned(
        figure_,
        "Each row a head: attention on a logarithmic scale, white under 0.001; its spectrum over the law of "
        "random entries"
        + ("; births and deaths; Betti numbers while the threshold falls." if drawn == 4 else "."),
    )


def _few(table: pd.DataFrame, most: int = 4) -> pd.DataFrame:
    """Of many maps the one that rests most on its first key and the one that does least."""
    maps = [
        np.asarray(row["attention"], dtype=float).reshape(int(row["n_tokens"]), -1)
        for _, row in table.iterrows()
    ]
    drawable = [place for place, matrix in enumerate(maps) if has_spectrum(matrix)]
    if len(drawable) > most:
        first = [maps[place][:, 0].mean() for place in drawable]
        drawable = [drawable[int(np.argmax(first))], drawable[int(np.argmin(first))]]
    few: pd.DataFrame = table.iloc[drawable]
    return few


@figure
def persistence(results: Tables) -> Figure:
    """Persistence diagrams and Betti curves of the heads that rest most and least on the first key.

    Both are heads of one sample: among the samples with the bars of two heads, the one with the strongest.
    """
    bars, heads = stored(results, "bars", *BARS), last_step(sinks(results))
    keys = _MAP
    bars = bars[bars["protocol"] == "exact"] if "protocol" in bars else bars
    bars = bars[bars[["birth", "death"]].notna().all(axis=1)]
    there = heads.merge(bars[keys].drop_duplicates(), on=keys).dropna(subset="sink_share")
    if there.empty:
        raise NotDrawable("no bars of single heads at the last checkpoint were stored")
    one = [*CHECKPOINT, "sample"]
    there = there[there.groupby(one)["sink_share"].transform("size") > 1]
    if there.empty:
        raise NotDrawable("no sample has the bars of two heads to hold against each other")
    strongest = there.loc[there["sink_share"].idxmax()]
    there = there[(there[one] == strongest[one]).all(axis=1)]
    chosen = [strongest, there.loc[there.drop(index=strongest.name)["sink_share"].idxmin()]]
    several = heads["model"].nunique() > 1
    figure_, axes = panels(2, 2, height=4.3, width=5.4)
    for axes_row, row in zip(axes, chosen, strict=True):
        own = bars[(bars[keys] == row[keys]).all(axis=1)]
        persistence_diagram(own, ax=axes_row[0])
        betti_curve(own, ax=axes_row[1])
        name = f"L{row['layer']}H{row['head']}, first key {row['sink_share']:.2f}"
        axes_row[0].set_ylabel(f"{name}\ndeath", linespacing=1.5)
    where = f"sample {strongest['sample']}" + (f" of {strongest['model']}" if several else "")
    return captioned(
        figure_,
        f"Among the heads whose bars are stored, those of {where} that attend most and least to the first "
        "key: births and deaths of components and loops, and Betti numbers while the threshold falls.",
    )
