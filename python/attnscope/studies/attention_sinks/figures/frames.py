# SPDX-License-Identifier: MIT
"""Reference frames: which sink rules which third of the layers."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from attnscope.plots.figure import Drawn, NotDrawable, Options, Tables, captioned, stored
from attnscope.plots.maps import printable
from attnscope.plots.selection import last_step
from attnscope.plots.style import DASHES, MUTED, PALETTE, axes_or_new, grid, legend_row, style
from attnscope.studies.attention_sinks.figures.declared import PROTOCOL_NAMES, figure


@style()
def frame_shares(evidence: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """The share of the most frequent sink in each third of the layers, by position and by token."""
    ax = axes_or_new(ax)
    thirds = [third for third in ("early", "middle", "late") if (evidence["third"] == third).any()] or ["all"]
    shares = evidence.pivot_table(index="third", columns="kind", values="top_1", dropna=False).reindex(thirds)
    # of two names at one place the higher share's stands above
    above = [
        "token" if one.get("token", 0) > one.get("position", 0) else "position"
        for _, one in shares.iterrows()
    ]
    for place, (kind, label) in enumerate((("position", "by position"), ("token", "by token"))):
        rows = evidence[evidence["kind"] == kind].set_index("third").reindex(thirds)
        # both lines can run through the same points
        beside = np.arange(len(thirds)) + 0.05 * (2 * place - 1)
        ax.plot(
            beside, rows["top_1"], label=label, color=PALETTE[place], marker="os"[place],
            linestyle=DASHES[place] if not place else (0, (4, 1.5)), markersize=4, zorder=3,
        )  # fmt: skip
        for x, (_, row) in enumerate(rows.iterrows()):
            if isinstance(row.get("top"), str) and np.isfinite(row["top_1"]):
                name = f"key {row['top']}" if kind == "position" else f"“{printable(row['top'])}”"
                ax.annotate(
                    name, (beside[x], row["top_1"]), xytext=(0, 5 if above[x] == kind else -5),
                    textcoords="offset points", ha="center", va="bottom" if above[x] == kind else "top",
                    fontsize=6, color=PALETTE[place], zorder=4,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6},
                )  # fmt: skip
    ax.axhline(0.8, color=MUTED, linestyle=(0, (1, 1.5)), linewidth=1.0, zorder=1, gid="centralized")
    ax.set_xticks(range(len(thirds)), thirds)
    ax.set_xlim(-0.35, len(thirds) - 0.65)
    # room for the names of low and of high shares
    ax.set_ylim(-0.09, 1.16)
    ax.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    ax.set_ylabel("share of the most frequent sink")
    return ax


@figure("frame_evidence", "frames")
def frames(results: Tables, options: Options) -> Drawn:
    """Share of the most frequent sink in each third of the layers, by position and by token; the verdict."""
    evidence = stored(results, "frame_evidence", "group", "protocol", "kind", "third", "top_1")
    verdicts = stored(results, "frames", "group", "protocol", "frame", "token_frame")
    evidence, verdicts = last_step(evidence), last_step(verdicts)
    evidence, verdicts = (
        rows[rows["group"] == "all"] if (rows["group"] == "all").any() else rows
        for rows in (evidence[evidence["top_1"].notna()], verdicts)
    )
    cases = [
        (model, protocol)
        for model in list(dict.fromkeys(verdicts["model"]))[:3]
        for protocol in ("exact", "ruscio2025")
        if all(
            ((table["model"] == model) & (table["protocol"] == protocol)).any()
            for table in (verdicts, evidence)
        )
    ]
    if not cases:
        raise NotDrawable("no verdict on a frame has its evidence stored")
    several = verdicts["model"].nunique() > 1
    columns = min(len(cases), 2)
    width = min(options.width, 2.6 * columns + 0.6)
    figure_, axes = grid(len(cases), columns, height=2.45, above=0.3, width=width)
    for ax, (model, protocol) in zip(axes, cases, strict=True):
        own = evidence[(evidence["model"] == model) & (evidence["protocol"] == protocol)]
        frame_shares(own, ax=ax)
        row = verdicts[(verdicts["model"] == model) & (verdicts["protocol"] == protocol)].iloc[0]
        both = len({protocol for _, protocol in cases}) > 1
        named = [str(model)] if several or not both else []
        named += [PROTOCOL_NAMES[protocol]] if both else []
        probability = row.get("probability", np.nan)
        certain = f" ({probability:.0%})" if pd.notna(probability) else ""
        frame, of_tokens = (
            row[name] if isinstance(row[name], str) else "unknown" for name in ("frame", "token_frame")
        )
        ax.set_title(f"{', '.join(named)}: {frame}{certain}\nby token: {of_tokens}")
        ax.set_xlabel("third of the layers" if len(ax.get_xticks()) > 1 else "")
    for ax in axes[1::2]:
        ax.set_ylabel("")
    legend_row(figure_)
    return captioned(
        figure_,
        "Share of the most frequent sink by position and by token; dotted: the bound of a centralized frame. "
        "Titles: the frame by position, with the share of resampled texts that give it, and by token.",
        "The published computation stands beside the exact one."
        if len({protocol for _, protocol in cases}) > 1
        else "",
    )
