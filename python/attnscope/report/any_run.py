# SPDX-License-Identifier: MIT
"""What a report says of a study without sections: every measured quantity, over what the run varies."""

from __future__ import annotations

from attnscope.plots.selection import measured_columns
from attnscope.report.section import Page, Section, analysis


def _every_number(page: Page) -> None:
    heads = page.heads()
    page.numbers([] if heads is None else measured_columns(heads))


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
