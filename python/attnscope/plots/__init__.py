# SPDX-License-Identifier: MIT
"""Drawing: functions that take `ax=` and return it, and the figures that the study of some results declares.

This package and the figures of a study are the only ones that import matplotlib; `import attnscope` does not
reach them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.figure as mpl

from attnscope._nearest import nearest
from attnscope._warn import warn
from attnscope.config.study_folders import study_of
from attnscope.errors import NotDrawable
from attnscope.plots.drawable import drawable
from attnscope.plots.figure import Drawn, Figure, Options, Results
from attnscope.plots.latex import escaped, pdflatex
from attnscope.plots.lines import depth_profile, emergence_curve, head_emergence, threshold_curve
from attnscope.plots.maps import (
    attention_map,
    betti_curve,
    layer_head_map,
    persistence_diagram,
    spectrum_against_null,
)
from attnscope.plots.standard import figures_of_any_run
from attnscope.plots.style import check_files, save, style
from attnscope.results.files import refuse_links, write_bytes
from attnscope.study_api.table_versions import refuse_newer_tables

__all__ = [
    "Drawn",
    "Figure",
    "LeftOut",
    "NotDrawable",
    "Options",
    "attention_map",
    "betti_curve",
    "depth_profile",
    "draw",
    "draw_all",
    "emergence_curve",
    "figures",
    "figures_of",
    "head_emergence",
    "layer_head_map",
    "persistence_diagram",
    "save",
    "spectrum_against_null",
    "style",
    "threshold_curve",
]


#: The line of a caption of a figure in the file of captions.
_CAPTION = re.compile(r"\\expandafter\\def\\csname attnscope:([A-Za-z0-9_-]+)\\endcsname\{(.*)\}")


def figures_of(results: Results) -> Mapping[str, Figure]:
    """Return the figures of the study that made some results, by name; of no study, those that any run
    has.
    """
    study = study_of(results)
    module = study.part("figures") if study else None
    return figures_of_any_run() if module is None else module.FIGURES


class LeftOut(NamedTuple):
    """A figure that is not drawn and the reason: missing tables or columns, or, if drawing `failed`, the
    error.
    """

    name: str
    reason: str
    failed: bool

    def __str__(self) -> str:
        return f"figure {self.name} is left out: {self.reason}"


def draw_all(
    results: Results,
    names: str | Sequence[str] | None = None,
    options: Options | None = None,
    *,
    left_out: list[LeftOut] | None = None,
    say: Callable[[str], None] | None = None,
) -> dict[str, Drawn]:
    """Draw figures as `draw` does, each with its caption; `say` gets a line before each.

    An error of one figure does not end the others: that figure is left out and named.
    """
    refuse_newer_tables(results)
    declared, results = figures_of(results), drawable(results)
    names = [names] if isinstance(names, str) else names
    unknown = [name for name in names or () if name not in declared]
    if unknown:
        raise ValueError(f"figures: no figure {unknown[0]!r}{nearest(unknown[0], declared)}")
    drawn: dict[str, Drawn] = {}
    for place, name in enumerate(names or declared, 1):
        if say is not None:
            say(f"drawing {place}/{len(names or declared)} {name}")
        try:
            drawn[name] = declared[name](results, options)
        except Exception as error:
            if names and isinstance(error, NotDrawable):
                raise NotDrawable(f"figures: {name}: {error}") from error
            # one fault must not cost the other figures
            _leave_out(name, error, left_out)
    return drawn


def draw(
    results: Results,
    names: str | Sequence[str] | None = None,
    *,
    left_out: list[LeftOut] | None = None,
    **options: Any,
) -> dict[str, mpl.Figure]:
    """Draw figures of the study from its tables; arguments and errors are those of `figures`, without files.

    Returns:
        Figures by name.
    """
    drawn_figures = draw_all(results, names, Options(**options), left_out=left_out)
    return {name: drawn.figure for name, drawn in drawn_figures.items()}


def figures(
    results: Results,
    folder: str | os.PathLike[str] | None = None,
    names: str | Sequence[str] | None = None,
    *,
    formats: str | Sequence[str] = ("pdf", "png"),
    dpi: float | None = None,
    left_out: list[LeftOut] | None = None,
    drawn: Mapping[str, Drawn] | None = None,
    **options: Any,
) -> list[Path]:
    """Draw figures of the study, write each in some formats and the captions of all as `captions.tex`.

    Args:
        results: what `attnscope.load` returns.
        folder: where to write; None is `figures` in the run folder.
        names: keys of `figures_of(results)`; None draws every figure that the tables allow.
        formats: endings that matplotlib knows, or one of them.
        dpi: of PNG and other pixels, at most 4800; None is 200.
        left_out: gets the figures that were not drawn; None warns of those that failed.
        drawn: figures by name as `draw_all` gives them, to be written as they are.
        options: how, as `Options` takes them: width (inches, "single", "double"), font, font_size, palette,
            labels, letters.

    Returns:
        The files written.

    Raises:
        ValueError: for a name that does not exist, an option that cannot be, or without a folder for results
            in memory.
        NotDrawable: when a figure that was asked for by name lacks its tables.
        OSError: the files cannot be written.

    Example:
        >>> import tempfile, pandas as pd, attnscope as asc
        >>> heads = pd.DataFrame({"model": "m", "revision": "", "step": -1, "sample": 0, "layer": [0, 1],
        ...                       "head": 0, "protocol": "exact", "fiedler_value": [0.25, 0.5]})
        >>> results, folder = asc.Results({"heads": heads}), tempfile.mkdtemp()
        >>> [file.name for file in asc.figures(results, folder, ["depth"], formats=["svg"])]
        ['depth.svg', 'captions.tex']
    """
    how = Options(**options)
    formats = [formats] if isinstance(formats, str) else formats
    check_files(formats, dpi)
    if folder is None:
        home = getattr(results, "path", None)
        if home is None:
            raise ValueError("figures: these results have no run folder; name a folder")
        refuse_links(Path(home), "figures")
        folder = Path(home) / "figures"
    files: list[Path] = []
    if drawn is None:
        drawn = draw_all(results, names, how, left_out=left_out)
    captions: dict[str, str] = {}
    for name, drawn_figure in drawn.items():
        try:
            with style(how.font):
                files += save(
                    drawn_figure.figure, Path(folder) / name, formats, dpi=dpi, title=name.replace("_", " ")
                )
            captions[name] = pdflatex(escaped(drawn_figure.caption))
        except OSError:
            # a folder that cannot be written is no fault of one figure
            raise
        except Exception as error:  # noqa: BLE001  one fault must not cost the other figures
            _leave_out(name, error, left_out)
    if files:
        files.append(_write_captions(Path(folder), captions))
    return files


def _write_captions(folder: Path, captions: Mapping[str, str]) -> Path:
    """Write the LaTeX file of captions; figures that are in the folder from before keep theirs."""
    file = folder / "captions.tex"
    before = file.read_text("utf-8", "replace").splitlines() if file.is_file() else []
    stored = (_CAPTION.fullmatch(line) for line in before)
    remaining = {match[1]: match[2] for match in stored if match and any(folder.glob(f"{match[1]}.*"))}
    lines = [r"% \input{captions} in the preamble, then \caption{\figurecaption{NAME}} under a figure"]
    lines.append(r"\newcommand{\figurecaption}[1]{\csname attnscope:#1\endcsname}")
    for name, caption in {**remaining, **captions}.items():
        lines.append(rf"\expandafter\def\csname attnscope:{name}\endcsname{{{caption}}}")
    write_bytes(file, ("\n".join(lines) + "\n").encode())
    return file


def _leave_out(name: str, error: Exception, left_out: list[LeftOut] | None) -> None:
    failed = not isinstance(error, NotDrawable)
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}" if failed else str(error)
    omission = LeftOut(name, reason, failed)
    if left_out is not None:
        left_out.append(omission)
    elif failed:
        warn(str(omission), UserWarning)


def __dir__() -> list[str]:
    return [*__all__]
