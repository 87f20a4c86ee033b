# SPDX-License-Identifier: MIT
"""The spectrum of one attention matrix against the law that random entries would follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from attnscope.metrics.spectra.null_law import null_spectrum
from attnscope.plots.style import INK, PALETTE, UNIFORM, axes_or_new, legend_above, styled


@styled
def spectrum_against_null(attention: Any, *, ax: Axes | None = None) -> Axes:
    """How far a map is from random entries: its spectrum's distribution over the null law's.

    Args:
        attention: `[n, n]`, causal or full.
        ax: axes to draw on; None makes them.

    Returns:
        The axes: the first line is the spectrum's empirical distribution, the second the null law; a bar
        marks the Kolmogorov–Smirnov distance.
    """
    ax = axes_or_new(ax)
    found = null_spectrum(torch.tensor(np.asarray(attention, dtype=float)))
    share = np.arange(1, len(found.values) + 1) / len(found.values)
    ax.step(found.values, share, where="post", color=PALETTE[0], label="this map", zorder=3)
    ax.plot(found.law_x, found.law_cdf, label=found.law, **UNIFORM)
    ax.plot([found.at] * 2, found.between, color=PALETTE[1], linewidth=2.0, solid_capstyle="butt", zorder=4)
    ax.annotate(
        f"KS {found.ks:.2f}", (found.at, sum(found.between) / 2), xytext=(4, 0), textcoords="offset points",
        color=PALETTE[1], va="center", fontsize=7, fontweight="bold", zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8},
    )  # fmt: skip
    ax.axvline(found.edge, color=INK, linewidth=0.5, linestyle=":")
    ax.annotate(
        "edge", (found.edge, 0.0), xytext=(2, 2), textcoords="offset points", fontsize=6, rotation=90,
        va="bottom",
    )  # fmt: skip
    ax.set_xscale("log")
    smallest = float(found.values[found.values > 0].min())
    ax.set_xlim(max(1e-4, 0.5 * smallest), 1.6 * float(max(found.values[-1], found.edge)))
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("eigenvalue")
    ax.set_ylabel("share below")
    legend_above(ax)
    return ax
