# SPDX-License-Identifier: MIT
"""A head among all heads as one picture: what stays of a page where no script runs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attnscope.plots.maps import attention_map, layer_head_map, printable
from attnscope.plots.style import MUTED, PALETTE, SPARSE, style
from attnscope.untrusted.safe_text import mark_controls

#: Pixels for each inch, and letters of a title.
_RESOLUTION, _LETTERS = 140, 80


class HeadMatrix(NamedTuple):
    """The attention of a head: [queries, keys] with the names of both."""

    entries: np.ndarray[Any, Any]
    keys: Sequence[str]
    queries: Sequence[str] | None = None  # None where they are the keys


@style()
def draw_still(
    values: pd.DataFrame, metric: str, head: tuple[int, int], matrix: HeadMatrix | None, title: str
) -> bytes:
    """Return a PNG of a metric's map with a head marked in it, and of that head's attention.

    Args:
        values: columns layer, head and `metric`.
        metric: its label.
        head: layer and head.
        matrix: of that head; None where there is none.
        title: above both.
    """
    figure = Figure(
        figsize=(3.4 if matrix is None else 7.0, 3.4),
        dpi=_RESOLUTION,
        layout="constrained",
        facecolor="white",
    )
    FigureCanvasAgg(figure)
    first, *others = figure.subplots(1, 1 if matrix is None else 2, squeeze=False)[0]
    layer_head_map(values, metric, ax=first, label=metric, numbers=False)
    row, column = (
        sorted(values[name].unique()).index(head[axis]) for axis, name in enumerate(("layer", "head"))
    )
    first.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=PALETTE[1], linewidth=2))
    if matrix is not None:
        _draw_matrix(others[0], matrix)
        others[0].set_title(f"layer {head[0]}, head {head[1]}", fontsize=8)
    words = mark_controls(title.replace("$", r"\$"))
    figure.suptitle(words if len(words) <= _LETTERS else words[: _LETTERS - 1] + "…", fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_RESOLUTION)
    return buffer.getvalue()


def _draw_matrix(ax: Axes, matrix: HeadMatrix) -> None:
    """Draw the attention of a head; of queries of another text as a rectangle."""
    if matrix.queries is None:
        attention_map(np.nan_to_num(matrix.entries), matrix.keys, ax=ax)
        return
    ax.imshow(matrix.entries, cmap=SPARSE, vmin=0, aspect="auto", interpolation="nearest")
    for axis, names in ((ax.xaxis, matrix.keys), (ax.yaxis, matrix.queries)):
        places = range(0, len(names), -(-len(names) // 40))
        axis.set_ticks(places, [printable(names[place]) for place in places], fontsize=6.0)
    ax.tick_params(axis="x", rotation=90)
    ax.tick_params(length=1, color=MUTED)
    ax.set(xlabel="key", ylabel="query")
