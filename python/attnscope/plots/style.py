# SPDX-License-Identifier: MIT
"""One look for every figure: sizes, colours that the colour-blind can tell apart, and PDFs with real text.

Widths are those of one and two columns of a paper, letters have the size that is printed, and marks differ by
shape as well as by colour.
"""

from __future__ import annotations

import functools
import io
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import cbook, font_manager
from matplotlib.artist import ArtistInspector
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from attnscope._nearest import nearest
from attnscope._warn import warn
from attnscope.results.files import atomic_file
from attnscope.results.summaries import NULLS
from attnscope.untrusted.safe_text import mark_controls

#: Inches: the text width of a two-column page, which figures of several panels have; a panel with its labels.
WIDTH, NARROWEST = 7.0, 1.45
#: Dots an inch: of image setters, the finest that prints; a page of more takes tens of gigabytes.
_FINEST = 4800
#: Inches of paper above and below a picture.
_PAD = 0.04
#: Formats without pixels.
_VECTORS = ("pdf", "svg", "svgz", "eps", "ps", "pgf")
#: Points: of the labels of axes.
FONT_SIZE = 8.0
#: For quantities from low to high: even in lightness and the same to all colour vision.
SEQUENTIAL = "cividis"
#: For maps that are mostly empty: what is small fades into the paper.
SPARSE = "Blues"
INK, MUTED, GRID = "#1a1a1a", "#6b6b6b", "#e4e4e4"
#: Okabe and Ito's colours, dark ones first so that lines stay legible on white.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a5195", "#1a1a1a")
#: Line styles paired with the colours, so that a grey print tells series apart as well.
DASHES = ("-", "-", "-", "-", "--", "--", "--", "--")

#: How uniform attention, the closed-form baseline, is drawn everywhere.
UNIFORM: dict[str, Any] = {"color": MUTED, "linestyle": (0, (5, 2)), "linewidth": 1.0, "zorder": 1.5}
#: How the untrained model is drawn everywhere, and what legends call it.
UNTRAINED: dict[str, Any] = {"color": MUTED, "linestyle": (0, (1, 1.5)), "linewidth": 1.0, "zorder": 1.5}
BEFORE = "before training"
#: How measured nulls are drawn everywhere, by the names of `selection.NULLS`.
NULL_LINES: dict[str, dict[str, Any]] = {
    "random_weights": {"color": INK, "linestyle": (0, (6, 1.5, 1, 1.5)), "linewidth": 0.9, "zorder": 1.6},
    "row_permutation": {"color": "#9a9a9a", "linestyle": (0, (2, 1)), "linewidth": 1.1, "zorder": 1.6},
}

_TICKS = {"labelsize": 7.0, "color": MUTED, "labelcolor": INK, "minor.size": 1.5}
_TICKS |= {"major.size": 2.5, "major.width": 0.7}
_RC: dict[str, Any] = {
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.0,
    "text.color": INK,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 5.0,
    "axes.labelsize": 8.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    **{f"{axis}tick.{part}": value for axis in "xy" for part, value in _TICKS.items()},
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 7.0,
    "legend.handlelength": 2.4,
    "legend.borderaxespad": 0.2,
    "figure.titlesize": 9.5,
    "figure.titleweight": "bold",
    "image.cmap": SEQUENTIAL,
    "savefig.facecolor": "white",
    "savefig.dpi": 200.0,
    # Type 42 keeps letters as letters: the PDF can be searched and its labels edited.
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.hashsalt": "attnscope",
}


@contextmanager
def style(font: str = "") -> Iterator[None]:
    """Apply the style, in a `with` block or to a decorated function; values of the user's rcParams stay.

    Args:
        font: family in the place of the style's.

    >>> import matplotlib
    >>> before = matplotlib.rcParams["font.size"]
    >>> with style():
    ...     matplotlib.rcParams["pdf.fonttype"]
    42
    >>> matplotlib.rcParams["font.size"] == before
    True
    """
    style_settings = {
        name: value for name, value in _RC.items() if mpl.rcParams[name] == mpl.rcParamsDefault[name]
    }
    if font:
        style_settings |= font_settings(font)
    with mpl.rc_context(style_settings):
        yield


@functools.cache
def font_settings(font: str) -> Mapping[str, Any]:
    """Return the settings of a family of letters, formulas in it too; none, after one line, of a missing one.

    >>> font_settings("serif")["mathtext.fontset"], font_settings("DejaVu Sans")["mathtext.it"]
    ('dejavuserif', 'DejaVu Sans:italic')
    """
    generic = {"serif": "dejavuserif", "sans-serif": "dejavusans", "monospace": "dejavusans"}
    if font in (*generic, "cursive", "fantasy"):
        return {"font.family": [font], "mathtext.fontset": generic.get(font, "dejavusans")}
    try:
        font_manager.findfont(font_manager.FontProperties(family=[font]), fallback_to_default=False)
    except ValueError:
        families = sorted({entry.name for entry in font_manager.fontManager.ttflist})
        warn(
            f"figures: there is no font {font!r}{nearest(font, families)}; the style's is taken", UserWarning
        )
        return {}
    # all of them, because matplotlib complains of each default that a machine has not
    formulas = {"rm": font, "it": f"{font}:italic", "bf": f"{font}:bold", "sf": font, "cal": font, "tt": font}
    formulas["bfit"] = f"{font}:italic:bold"
    return {
        "font.family": [font],
        "mathtext.fontset": "custom",
        **{f"mathtext.{kind}": family for kind, family in formulas.items()},
    }


def axes_or_new(ax: Axes | None, width: float = 3.4, height: float = 2.5) -> Axes:
    """Return the given axes, or new ones on a pyplot figure, which a notebook shows by itself."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def line_keywords(function: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords of a line under their full names.

    Raises:
        TypeError: a keyword that matplotlib's lines do not have, or the same one twice.

    >>> line_keywords("f", {"c": "red", "lw": 2})
    {'color': 'red', 'linewidth': 2}
    """
    names = ArtistInspector(Line2D).get_setters()
    line = cbook.normalize_kwargs(dict(keywords), Line2D)
    for name in line:
        if name not in names:
            raise TypeError(f"{function}: a line has no {name!r}{nearest(name, names)}")
    return line


def legend_above(ax: Axes) -> None:
    """Put a legend above the axes, hiding no data: in one line, or one name a line where it is narrow."""
    names = ax.get_legend_handles_labels()[1]
    columns, place = len(names), ax.get_subplotspec()
    if place is not None:
        # inches to the next axes, or to the end of the figure; a part of a figure knows the whole one,
        # which matplotlib before 3.10 gives under no other name
        across = place.get_gridspec().ncols
        cell = float(ax.figure.figure.get_figwidth()) / across
        room = cell - (0.45 if place.colspan.stop == across else 0.1)
        # inches of a name with its line, in letters of 6.5 points; a formula is about two letters wide
        wide = sum(0.042 * len(re.sub(r"\$[^$]*\$", "xx", name)) + 0.23 for name in names)
        columns = columns if wide <= room else 1
    legend = ax.legend(
        loc="lower left",
        bbox_to_anchor=(-0.04, 0.99),
        ncols=columns,
        columnspacing=0.8,
        handletextpad=0.4,
        handlelength=1.4,
        borderpad=0.1,
        fontsize=6.5,
    )
    # A legend wider than its axes must not make them narrower; the title keeps its height free.
    legend.set_in_layout(False)
    if not ax.get_title(loc="left"):
        ax.set_title("\n".join(" " * (1 if columns > 1 else len(names))))


def legend_columns(figure: Figure, names: Iterable[str], most: int = 8) -> int:
    """Return the number of columns of a legend of these names in the width of the figure."""
    # inches of a name with its line, in the style's letters
    widths = [0.058 * len(name) + 0.45 for name in names] or [1.0]
    columns = max(1, min(len(widths), most, int(figure.get_figwidth() / max(widths))))
    # as many rows as needed, of one length
    return -(-len(widths) // -(-len(widths) // columns))


def legend_over(figure: Figure, named: Mapping[str, Any], most: int = 8, **options: Any) -> Legend:
    """Draw one legend above all panels, in at most so many columns."""
    columns = legend_columns(figure, named, most)
    options = {"loc": "outside upper center", "ncols": columns, **options}
    return figure.legend(named.values(), named.keys(), **options)


def named_artists(axes: Iterable[Axes]) -> dict[str, Any]:
    """Return the artists of some axes by label, each label once; of untrained models a line that has
    values.
    """
    artists: dict[str, Any] = {}
    for ax in axes:
        for artist, name in zip(*ax.get_legend_handles_labels(), strict=True):
            artists.setdefault(name, artist)
        for line in ax.get_lines():
            untrained = str(line.get_gid()).startswith("untrained:")
            if untrained and np.isfinite(np.asarray(line.get_ydata(), dtype=float)).any():
                artists.setdefault(BEFORE, line)
    return artists


def legend_row(figure: Figure, first: Iterable[str] = ()) -> None:
    """Draw one legend above all panels, some names first; a single name needs none."""
    artists = named_artists(figure.axes)
    if len(artists) > 1:
        names = [name for name in dict.fromkeys([*first, *artists]) if name in artists]
        legend = legend_over(figure, {name: artists[name] for name in names})
        neutral = {BEFORE: MUTED, "uniform attention": UNIFORM["color"]}
        neutral |= {name: NULL_LINES[kind]["color"] for kind, name in NULLS.items()}
        for name, handle in zip(names, legend.legend_handles, strict=True):
            if name in neutral:  # a line of several colours is called by none of them
                handle.set_color(neutral[name])  # type: ignore[union-attr]


@style()
def panels(
    rows: int,
    columns: int,
    *,
    height: float,
    width: float = WIDTH,
    narrowest: float = NARROWEST,
    most: int = 100,
    above: float = 0.0,
    **options: Any,
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of `rows` x `columns` axes that needs no backend and no closing.

    Where the columns would be narrower than `narrowest` or more than `most`, each row of axes stands in
    several rows; `above` is the height of a legend.
    """
    across = min(columns, most, max(1, int(width / narrowest)))
    down = -(-columns // across)
    figure = Figure(figsize=(width, height * down + above), layout="constrained")
    if down == 1:
        axes = figure.subplots(rows, columns, squeeze=False, **options)
        return figure, [list(row) for row in axes]
    shared = {name: options.pop(name, False) for name in ("sharex", "sharey")}
    grid = figure.subplots(rows * down, across, squeeze=False, **options)
    axes = [[grid[row * down + at // across][at % across] for at in range(columns)] for row in range(rows)]
    for spare in {*grid.ravel()} - {ax for row in axes for ax in row}:
        spare.remove()
    for name, how in shared.items():
        for row, column in itertools.product(range(rows), range(columns)) if how else ():
            first = axes[row if how == "row" else 0][column if how == "col" else 0]
            if axes[row][column] is not first:
                getattr(axes[row][column], name)(first)
    return figure, axes


@style()
def freeze_layout(figure: Figure) -> Figure:
    """Lay a figure out once; otherwise every format saved afterwards would do it again."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for ax in figure.axes:
        info: Any = getattr(ax, "_colorbar_info", None)
        if info and info["location"] in ("right", "left"):
            # maps of square cells do not fill their place, which the layout takes for the scale's height
            boxes = [parent.get_position() for parent in info["parents"]]
            low, high = min(box.y0 for box in boxes), max(box.y1 for box in boxes)
            place = ax.get_position()
            right_edge = max(box.x1 for box in boxes) + 0.1 / figure.get_figwidth()
            left = min(place.x0, right_edge) if info["location"] == "right" else place.x0
            ax.set_box_aspect(None)
            ax.set_position((left, low, place.width, high - low))
    return figure


def check_files(formats: Sequence[str], dpi: float | None) -> None:
    """Raise ValueError for a format that matplotlib does not write, or a resolution that no picture has."""
    supported = Figure().canvas.get_supported_filetypes()
    for ending in formats:
        if ending not in supported:
            raise ValueError(f"figures: there is no format {ending!r:.80}{nearest(str(ending), supported)}")
    if dpi is not None and not 0 < dpi < math.inf:
        raise ValueError(f"figures: dpi must be positive, got {dpi!r}")
    if dpi is not None and dpi > _FINEST:
        raise ValueError(f"figures: dpi must be at most {_FINEST}, got {dpi!r}")


@style()
def save(
    figure: Figure,
    path: str | os.PathLike[str],
    formats: Sequence[str] = ("pdf", "png"),
    *,
    dpi: float | None = None,
    title: str = "",
) -> list[Path]:
    """Write a figure once per format, without a date in it: the same tables give the same bytes.

    Args:
        path: folder and name without an ending.
        dpi: of pixels; None takes the style's 200.
        title: stored in the file, where its format has a place for it.
    """
    stem = Path(path)
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = []
    for ending in formats:
        file = stem.with_name(f"{stem.name}.{ending}")
        metadata: Any = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(ending)
        if title and ending in ("pdf", "svg", "png"):
            metadata = {**(metadata or {}), "Title": title}
        picture = io.BytesIO()
        figure.savefig(
            picture,
            format=ending,
            bbox_inches=_exact_box(figure, None if ending in _VECTORS else dpi),
            pad_inches=0,
            metadata=metadata,
            dpi=dpi,
        )
        with atomic_file(file) as out:
            out.write(valid_xml(picture.getvalue()) if ending == "svg" else picture.getvalue())
        files.append(file)
    return files


def _exact_box(figure: Figure, dpi: float | None) -> Bbox:
    """Return the place of a picture in inches: as wide as the figure, its contents in the middle.

    A paper that sets a figure at its width then sets letters at their size. Contents that are wider than the
    figure are not cut.

    Args:
        dpi: of the pixels, to whose grid letters are fitted: in coarse ones words are wider. None takes the
            figure's.
    """
    before = figure.dpi
    figure.set_dpi(dpi or before)
    try:
        figure.draw_without_rendering()
        box = figure.get_tightbbox()
    finally:
        figure.set_dpi(before)
    spare = max(0.0, figure.get_figwidth() - box.width) / 2
    return Bbox.from_extents(box.x0 - spare, box.y0 - _PAD, box.x1 + spare, box.y1 + _PAD)


def valid_xml(picture: bytes) -> bytes:
    r"""Return an SVG picture without the control characters of its texts, which XML does not allow.

    >>> valid_xml("<!-- a\x1bb -->".encode())
    b'<!-- a\xc2\xb7b -->'
    """
    return mark_controls(picture.decode("utf-8", "replace")).encode()
