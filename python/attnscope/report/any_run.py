# SPDX-License-Identifier: MIT
"""Sections of a report on any run: the strongest heads, and, for a study without sections, every quantity."""

from __future__ import annotations

import numpy as np
import pandas as pd

from attnscope.metrics.discovery import quantity
from attnscope.plots.figure import optional
from attnscope.plots.selection import FEWEST_TOGETHER, averaged_columns, estimate, last_step
from attnscope.report.section import Page, Section, Table, analysis
from attnscope.results.summaries import uniform_value
from attnscope.study_api.number_text import interval_text, number

#: Title of a report and its note on intervals, where the study's sections declare no `TITLE` and `INTERVALS`.
TITLE = "Attention study"
INTERVALS = (
    "Where a section names no others, intervals are 95 % bootstrap intervals over texts, the unit of "
    "replication: "
    "studentised, none below five (of all heads at once: none below ten). Layers and heads "
    "are counted "
    "from 0. Where the run has them, the same numbers are given for uniform attention of the same lengths "
    "and for the "
    "model before training (step 0)."
)
#: The note of a study that measures no heads and declares no other: its sections name their intervals.
NAMED = "Each section names its intervals. Layers and heads are counted from 0."
#: Rows of each series, and further quantities next to the ranking one.
_ROWS, _BESIDE = 5, 3


def _every_number(page: Page) -> None:
    heads = page.heads()
    page.numbers([] if heads is None else averaged_columns(heads))


SECTIONS: tuple[Section, ...] = (
    analysis(
        "training",
        "Over training",
        words="Every quantity at every checkpoint, one line per input set or model.",
        definition="Means over heads, then over texts; bands are 95 % bootstrap intervals over texts.",
        figures=("emergence",),
    ),
    analysis(
        "depth",
        "Over depth",
        words="The same quantities by layer at the last checkpoint.",
        definition="Means over a layer's heads, then over texts; 95 % bootstrap intervals over texts.",
        figures=("depth", "thresholds"),
        tables=("heads", "graphs", "baselines"),
        table=_every_number,
    ),
    analysis(
        "maps",
        "By layer and head",
        words="Every quantity for every head at the last checkpoint, mean over texts.",
        definition="Columns share the colour scale of their row, so input sets can be compared.",
        figures=("metric_maps",),
    ),
    analysis(
        "examples",
        "Single maps",
        words="Whole attention maps of the last checkpoint. They are examples, not evidence.",
        definition="Attention on a logarithmic scale beside what is computed from it.",
        figures=("examples",),
        tables=("examples", "bars"),
    ),
)


def strongest_heads(page: Page, ranked: str = "") -> Table | None:
    """Return the highest heads of each series at the last checkpoint, None where no quantity of heads has a
    value.

    The quantity `ranked` ranks them, the first stored one by default. Their intervals hold for
    all heads at once, because the highest of many are chosen.
    """
    heads = page.heads()
    if heads is None or not {"layer", "head", "sample"} <= set(heads):
        return None
    final = last_step(heads)
    names = [name for name in averaged_columns(final) if final[name].notna().any()]
    names = [name for name in names if quantity(name).kind == "value" and final[name].abs().max() > 0]
    names.sort(key=lambda name: name != ranked)
    if not names or final.groupby(["layer", "head"]).ngroups < 2:
        return None
    first, *others = names[: 1 + _BESIDE]
    several = final["series"].nunique() > 1
    baselines = optional(page.results, "baselines")
    rows = []
    # each series has texts of its own
    for series, rows_of_series in final.groupby("series", sort=False):
        means = rows_of_series.groupby(["layer", "head"])[others].mean()
        estimates = estimate(rows_of_series, first, ["layer", "head"], together=True)
        for row in estimates.nlargest(_ROWS, "mean").itertuples():
            # layers of one model may see different keys
            layer, beside = (
                rows_of_series[rows_of_series["layer"] == row.layer],
                means.loc[(row.layer, row.head)],
            )
            rows.append(
                {
                    **({page.apart: str(series)} if several else {}),
                    "head": f"L{row.layer}H{row.head}",
                    quantity(first).label: number(row.mean),
                    "95 % interval": interval_text(row.low, row.high) or "–",
                    "uniform": number(uniform_value(layer, baselines, first)),
                    **{quantity(name).label: number(mean) for name, mean in beside.items()},
                    "n": str(row.samples),
                }
            )
    frame = pd.DataFrame(rows)
    for name in ("95 % interval", "uniform"):
        if np.all(frame[name] == "–"):
            del frame[name]
    caption = (
        f"The heads with the highest {quantity(first).label}, mean over texts; n is the number of texts."
    )
    if "95 % interval" in frame:
        caption += " Intervals hold for all heads at once."
    elif frame["n"].astype(int).max() < FEWEST_TOGETHER:
        caption += f" Fewer than {FEWEST_TOGETHER} texts say too little for intervals of all heads at once."
    else:
        caption += " Too few of the texts differ for intervals of all heads at once."
    return Table("strongest", caption, frame, 2 if several else 1)
