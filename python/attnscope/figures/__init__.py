# SPDX-License-Identifier: MIT
"""Figures drawn from stored tables: functions that take `ax=` and return it, and the study's figures by name.

This package is the only one that imports matplotlib; `import attnscope` does not reach it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from attnscope._nearest import nearest
from attnscope._warn import warn
from attnscope.figures import overview, single_maps  # noqa: F401
from attnscope.figures.analyses import fisher_profile, frame_shares, kl_by_threshold
from attnscope.figures.lines import depth_profile, emergence_curve, head_emergence, threshold_curve
from attnscope.figures.maps import attention_map, layer_head_map
from attnscope.figures.protocols import protocol_profile
from attnscope.figures.registry import FIGURES, NotDrawable, Tables
from attnscope.figures.spectra import spectrum_against_null
from attnscope.figures.style import save, settled, style
from attnscope.figures.topology import betti_curve, persistence_diagram

__all__ = [
    "FIGURES",
    "LeftOut",
    "NotDrawable",
    "attention_map",
    "betti_curve",
    "depth_profile",
    "draw",
    "emergence_curve",
    "figures",
    "figures_of",
    "fisher_profile",
    "frame_shares",
    "head_emergence",
    "kl_by_threshold",
    "layer_head_map",
    "persistence_diagram",
    "protocol_profile",
    "save",
    "spectrum_against_null",
    "style",
    "threshold_curve",
]


#: The registry: name of a study -> module that holds its `FIGURES`. A new study adds a file and a line here;
#: every other study draws the figures above.
STUDIES: dict[str, str] = {"wavelet_study": "attnscope.figures.wavelets"}


def figures_of(results: Tables) -> dict[str, Callable[[Tables], Figure]]:
    """The figures of the study that made some results, by name.

    Args:
        results: what `attnscope.load` returns.

    Returns:
        Functions from results to a figure.
    """
    name = dict(getattr(results, "study", {})).get("study", "")
    if name not in STUDIES:
        return FIGURES
    own: dict[str, Callable[[Tables], Figure]] = importlib.import_module(STUDIES[name]).FIGURES
    return own


class LeftOut(NamedTuple):
    """A figure that is not there.

    Attributes:
        name: of the figure.
        reason: what the tables lack, or the error.
        failed: whether it was an error of drawing, which is a fault of this package.
    """

    name: str
    reason: str
    failed: bool

    def __str__(self) -> str:
        return f"figure {self.name} is left out: {self.reason}"


def draw(
    results: Tables, names: Sequence[str] | None = None, *, left_out: list[LeftOut] | None = None
) -> dict[str, Figure]:
    """Draws figures of the study from its tables.

    An error of one figure does not end the others: that figure is left out and named.

    Args:
        results: what `attnscope.load` returns.
        names: keys of `figures_of(results)`; None draws every figure that the tables allow.
        left_out: gets the figures that were not drawn; None warns of those that failed.

    Returns:
        Figures by name.

    Raises:
        ValueError: for a name that does not exist.
        NotDrawable: when a figure that was asked for by name lacks its tables.
    """
    own = figures_of(results)
    unknown = [name for name in names or () if name not in own]
    if unknown:
        raise ValueError(f"figures: no figure {unknown[0]!r}{nearest(unknown[0], own)}")
    drawn: dict[str, Figure] = {}
    missing: list[LeftOut] = []
    for name in names or own:
        try:
            drawn[name] = settled(own[name](results))
        except NotDrawable as error:
            if names:
                raise NotDrawable(f"figures: {name}: {error}") from error
            missing.append(LeftOut(name, str(error), failed=False))
        except Exception as error:  # noqa: BLE001  one fault must not cost the other figures
            missing.append(_failed(name, error))
    _tell(missing, left_out)
    return drawn


def figures(
    results: Tables,
    folder: str | os.PathLike[str] | None = None,
    names: Sequence[str] | None = None,
    *,
    formats: Sequence[str] = ("pdf", "png"),
    left_out: list[LeftOut] | None = None,
) -> list[Path]:
    """Draws figures of the study and writes each as vector PDF and as PNG.

    Args:
        results: what `attnscope.load` returns.
        folder: where to write; None is `figures` in the run folder.
        names: keys of `figures_of(results)`; None draws every figure that the tables allow.
        formats: endings that matplotlib knows.
        left_out: gets the figures that were not drawn; None warns of those that failed.

    Returns:
        The files written.

    Raises:
        ValueError: for a name that does not exist, or without a folder for results in memory.
        NotDrawable: when a figure that was asked for by name lacks its tables.
        OSError: the files cannot be written.
    """
    if folder is None:
        home = getattr(results, "path", None)
        if home is None:
            raise ValueError("figures: these results have no run folder; say where to write")
        folder = Path(home) / "figures"
    files: list[Path] = []
    missing: list[LeftOut] = []
    for name, figure in draw(results, names, left_out=left_out).items():
        try:
            files += save(figure, Path(folder) / name, formats)
        except OSError:
            # a folder that cannot be written is no fault of one figure
            raise
        except Exception as error:  # noqa: BLE001  one fault must not cost the other figures
            missing.append(_failed(name, error))
    _tell(missing, left_out)
    return files


def _failed(name: str, error: Exception) -> LeftOut:
    return LeftOut(name, f"{type(error).__name__}: {' '.join(str(error).split())}", failed=True)


def _tell(missing: list[LeftOut], left_out: list[LeftOut] | None) -> None:
    if left_out is not None:
        left_out += missing
        return
    for one in missing:
        if one.failed:
            warn(str(one), UserWarning)
