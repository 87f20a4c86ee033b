# SPDX-License-Identifier: MIT
"""An author's options of a drawn figure: colours, words, the size of letters, letters of panels."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase
from typing import Any

from matplotlib.colors import is_color_like, to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnscope.arguments.scalars import flag
from attnscope.plots.drawable import drawable_name
from attnscope.plots.style import FONT_SIZE, INK, PALETTE, WIDTH

#: Widths by name, in inches: a column and the text of a two-column page.
WIDTHS = {"single": 3.4, "double": WIDTH}
#: How many of a unit make an inch; the point is that of LaTeX.
_UNITS = {"": 1.0, "in": 1.0, "cm": 2.54, "mm": 25.4, "pt": 72.27}
#: Points of the largest letters: an inch, of which a panel holds none.
_LARGEST_FONT = 72
#: Share of its size below which a title is not made smaller.
SMALLEST = 0.6
#: Inches between a title and its neighbour.
_APART = 0.06
#: Inches of a panel's place that its labels take; the width of a bold letter in sizes of letters; how many
#: times as wide as its panel a title in one line may be, by that estimate.
_BESIDE, _LETTER, _WIDER = 0.35, 0.62, 1.25
_SPACES_IN_MATH = re.compile(r" (?=[^$]*\$(?:[^$]*\$[^$]*\$)*[^$]*$)")
_FORMULA = re.compile(r"((?<!\\)\$.*?(?<!\\)\$)")
_MARKS_OF_MATH = re.compile(r"\\[a-z]+(?=[^a-z])\s?|[${}_^]|\\")
#: Setters and getters of an artist's colours.
_COLOURS = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")


@dataclass(frozen=True)
class Options:
    """Options of how figures are drawn.

    Args:
        width: of a figure that fills the text, in inches, or with a unit ("8.6cm", "246pt"), or "single"
            (3.4, a column) or "double" (7, the text of a two-column page). Panels that would be too narrow
            wrap into more rows.
        font: family, such as "serif" or "Times New Roman"; "" takes the style's, or the user's rcParams.
        font_size: of labels, in points; all other letters keep their proportion to them.
        palette: colours in the place of the style's, in its order; it may be shorter.
        labels: words of a figure -> words in their place, such as a model's name.
        letters: True letters the panels a, b, c.

    Raises:
        ValueError: a width outside 2 to 20 inches, a size of letters outside 0 to 72 points, no colour.

    >>> Options(width="single").width, Options(width=5).width, Options(width="3.25in").width
    (3.4, 5.0, 3.25)
    """

    width: float = WIDTH
    font: str = ""
    font_size: float = FONT_SIZE
    palette: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    letters: bool = False

    def __post_init__(self) -> None:
        flag("figures", "letters", self.letters)
        width: Any = self.width
        try:
            inches = _inches(width) if isinstance(width, str) else float(width)
        except (TypeError, ValueError):
            words = " or ".join(repr(name) for name in WIDTHS)
            raise ValueError(
                f"figures: width must be inches, a number with in, cm, mm or pt, {words}, got {width!r}"
            ) from None
        if not 2 <= inches <= 20:
            raise ValueError(f"figures: width must lie between 2 and 20 inches, got {width!r}")
        object.__setattr__(self, "width", inches)
        if not 0 < self.font_size < math.inf:
            raise ValueError(f"figures: font_size must be positive, got {self.font_size!r}")
        if self.font_size > _LARGEST_FONT:
            raise ValueError(
                f"figures: font_size must be at most {_LARGEST_FONT} points, got {self.font_size!r}"
            )
        for color in self.palette:
            if not is_color_like(color):
                raise ValueError(f"figures: palette holds {color!r}, which is no colour")


def _inches(width: str) -> float:
    """Return a width in inches; ValueError for what is none.

    >>> _inches("single"), _inches("3.25in"), round(_inches("246 pt"), 3)
    (3.4, 3.25, 3.404)
    """
    if width in WIDTHS:
        return WIDTHS[width]
    match = re.fullmatch(r"\s*([\d.]+)\s*(in|cm|mm|pt|)\s*", width)
    if match is None:
        raise ValueError(width)
    return float(match[1]) / _UNITS[match[2]]


def adapt(figure: Figure, options: Options) -> None:
    """Change a drawn figure in place."""
    if options.palette:
        _recolour(figure, options.palette)
    scale = options.font_size / FONT_SIZE
    for text in figure.findobj(Text):
        if scale != 1:
            text.set_fontsize(float(text.get_fontsize()) * scale)
        for old, new in options.labels.items():
            for shown in dict.fromkeys((old, drawable_name(old))):
                if shown and shown in text.get_text():
                    text.set_text(_with_words(text.get_text(), shown, new))
    if scale != 1:
        for ax in figure.axes:
            for axis in (ax.xaxis, ax.yaxis):
                size = axis.get_tick_params().get("labelsize")
                if isinstance(size, (int, float)):
                    axis.set_tick_params(labelsize=size * scale)
    if options.letters:
        _letter(figure, options.font_size)


def _with_words(text: str, old: str, new: str) -> str:
    r"""Return a text with other words in the place of old ones; inside of a formula only of one that is old.

    >>> _with_words(r"a gap, $\lambda_2$", "a", "my"), _with_words(r"$\lambda_2$", r"$\lambda_2$", "gap")
    ('my gmyp, $\\lambda_2$', 'gap')
    """
    if "$" in old:
        return text.replace(old, new)
    parts = _FORMULA.split(text)
    return "".join(part if at % 2 else part.replace(old, new) for at, part in enumerate(parts))


def wrap_titles(figure: Figure) -> None:
    """Put the words of a title in two lines where one would be far wider than its panel.

    Args:
        figure: not laid out yet, so that there will be room above.
    """
    for ax in figure.axes:
        place, title = ax.get_subplotspec(), ax._left_title  # type: ignore[attr-defined]
        words = _SPACES_IN_MATH.sub("\N{NO-BREAK SPACE}", title.get_text())
        if place is None or " " not in words or "\n" in words:
            continue
        room = figure.get_figwidth() * len(place.colspan) / place.get_gridspec().ncols - _BESIDE
        shown = len(_MARKS_OF_MATH.sub("", words))
        if shown * _LETTER * float(title.get_fontsize()) / 72 > _WIDER * room:
            middle = min((abs(at - len(words) / 2), at) for at, letter in enumerate(words) if letter == " ")[
                1
            ]
            title.set_text(f"{words[:middle]}\n{words[middle + 1 :]}")


def fit_titles(figure: Figure) -> None:
    """Make the letters of all titles smaller where one would run into its neighbour or off the page.

    All have one size: a panel whose title is large beside small ones would look more important than they.

    Args:
        figure: laid out already.
    """
    end = figure.get_figwidth() * figure.dpi
    boxes = {ax: ax.get_window_extent() for ax in figure.axes}
    share, titles = 1.0, []
    for ax, box in boxes.items():
        neighbours = [
            other.x0
            for other in boxes.values()
            if other.x0 > box.x1 and min(other.y1, box.y1) - max(other.y0, box.y0) > 0
        ]
        limit = min(neighbours, default=end + _APART * figure.dpi) - _APART * figure.dpi
        for title in (ax._left_title, ax.title):  # type: ignore[attr-defined]
            if not title.get_text() or not title.get_visible():
                continue
            titles.append(title)
            box_of_title = title.get_window_extent()
            if box_of_title.x1 > limit and box_of_title.width > 0:
                share = min(share, (limit - box_of_title.x0) / box_of_title.width)
    for title in titles if share < 1 else ():
        title.set_fontsize(float(title.get_fontsize()) * max(SMALLEST, share))


def _letter(figure: Figure, size: float) -> None:
    """Write letters at the panels in the order in which they were made; a colour bar is no panel."""
    panels = [ax for ax in figure.axes if ax.get_visible() and not hasattr(ax, "_colorbar")]
    if len(panels) < 2:
        return
    pairs = map("".join, itertools.product(ascii_lowercase, repeat=2))
    for name, ax in zip([*ascii_lowercase, *pairs], panels, strict=False):
        ax.annotate(
            name,
            (0, 1),
            (-0.9 * size, 0.55 * size),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontweight="bold",
            fontsize=size + 1,
            color=INK,
            annotation_clip=False,
        )


def _recolour(figure: Figure, palette: Sequence[str]) -> None:
    """Put the colours of a palette in the places of the style's."""
    places = {to_rgba(old)[:3]: to_rgba(new)[:3] for old, new in zip(PALETTE, palette, strict=False)}
    for artist in figure.findobj():
        for name in _COLOURS:
            getter, setter = getattr(artist, f"get_{name}", None), getattr(artist, f"set_{name}", None)
            if getter is None or setter is None:
                continue
            color: Any = getter()
            if isinstance(color, str) and color in ("none", "auto"):
                continue
            several = getattr(color, "ndim", 1) == 2
            try:
                colours = [to_rgba(entry) for entry in color] if several else [to_rgba(color)]
            except (ValueError, TypeError):
                continue
            changed = [(*places[rgba[:3]], rgba[3]) if rgba[:3] in places else rgba for rgba in colours]
            if changed != colours:
                setter(changed if several else changed[0])
