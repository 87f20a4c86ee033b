# SPDX-License-Identifier: MIT
"""Figures of interventions: bypass curves over gains, and steering compared with random directions."""

from __future__ import annotations

from typing import Any

from attnscope.errors import NotDrawable
from attnscope.plots.figure import Drawn, Options, Results
from attnscope.plots.panels import LEVEL, PanelGrid, Panels, level_line
from attnscope.plots.selection import first_model
from attnscope.plots.style import MUTED, PALETTE
from attnscope.studies.hallucination_geometry.evidence import range_words
from attnscope.studies.hallucination_geometry.figures.declared import figure, legend, with_buckets
from attnscope.study_api.selection import where

DETECTORS = ("probe", "constant", "shuffled", "length", "random_weights")


@figure("interventions", "prompts")
def bypass_curve(results: Results, options: Options) -> Drawn:
    """Draw refusals of the other bucket against false refusals of the reference, over the gain."""
    table, subject = first_model(results, "interventions", "forced")
    table = with_buckets(results, where(table, arm="bypass"))
    if table.empty:
        raise NotDrawable("no detector was wired to a refusal")
    layers = sorted(table["layer"].unique())
    layer = layers[len(layers) // 2]
    table = where(table, layer=layer)
    drawn = Panels.by(table, "contrast", options, height=2.9, panel_width=3.0)
    controls = [name for name in DETECTORS if (table["control"] == name).any()]
    for contrast, (ax, rows_of_contrast) in zip(drawn.names, drawn.rows(table), strict=True):
        for at, control in enumerate(controls):
            rows = where(rows_of_contrast, control=control)
            rows = rows.assign(other=rows["bucket"] == contrast)
            rates = rows.pivot_table(index="strength", columns="other", values="forced", aggfunc="mean")
            if rates.shape[1] < 2:
                continue
            ax.plot(
                rates[False],
                rates[True],
                color=PALETTE[at],
                marker="o",
                markersize=3,
                label=control.replace("_", " "),
            )
        ax.plot([0, 1], [0, 1], **LEVEL)
        ax.set_xlabel("forced refusals, reference")
        ax.set_title(f"{contrast} (n = {rows_of_contrast['sample'].nunique()})")
    drawn.axes[0].set_ylabel("forced refusals, other bucket")
    legend(drawn.axes[0])
    return drawn.captioned(
        f"Layer {layer}; one point for each gain. On the diagonal a detector does not tell buckets apart: "
        "a constant one refuses as much as any when its gain is large.",
        subject,
    )


@figure("interventions")
def steering_curve(results: Results, options: Options) -> Drawn:
    """Draw the share of answers that change when the state moves along the boundary or random directions."""
    table, subject = first_model(results, "interventions", "changed")
    table = where(table, arm="steering")
    if table.empty:
        raise NotDrawable("no state was moved")
    table = table.assign(changed=table["changed"].astype(float)).sort_values("layer", kind="stable")
    drawn = Panels.by(table, "layer", options, height=2.6, panel_width=options.width)
    for layer, (ax, rows_of_layer) in zip(drawn.names, drawn.rows(table), strict=True):
        for at, (control, rows) in enumerate(rows_of_layer.groupby("control", sort=False)):
            mean = rows.groupby("strength")["changed"].mean()
            if control == "boundary":
                ax.plot(mean.index, mean, color=PALETTE[0], marker="o", markersize=3, label="boundary")
                continue
            draws = rows.groupby(["strength", "draw"])["changed"].mean().groupby("strength")
            low, high = draws.min().reindex(mean.index), draws.max().reindex(mean.index)
            ax.fill_between(
                mean.index, low, high, color=PALETTE[at + 1], alpha=0.2, linewidth=0.6, label=control
            )
        level_line(ax, 0)
        largest = rows_of_layer.groupby(["control", "draw", "strength"])["changed"].mean().max()
        ax.set_ylim(-0.02, max(0.1, 1.1 * float(largest)))
        ax.set_title(f"layer {layer} (n = {rows_of_layer['sample'].nunique()})")
        ax.set_xlabel("strength α")
    drawn.axes[0].set_ylabel("answers changed")
    contrasts = list(dict.fromkeys(map(str, table["contrast"])))
    together = f", mean over the contrasts {', '.join(contrasts)}" if len(contrasts) > 1 else ""
    legend(drawn.axes[0])
    return drawn.captioned(
        f"Share of {table['sample'].nunique()} prompts{together}; bands: random directions of the same "
        f"length, {range_words(int(table['draw'][table['draw'] >= 0].nunique()))}.",
        subject,
    )


@figure("interventions", "prompts")
def compression_curve(results: Results, options: Options) -> Drawn:
    """Draw refusals and changed answers when states are drawn to the reference's main directions."""
    table, subject = first_model(results, "interventions", "refused", "changed")
    table = with_buckets(results, where(table, arm="compression"))
    if table.empty:
        raise NotDrawable("no state was compressed")
    table = table[table["bucket"] == table["contrast"]]
    if table.empty:
        raise NotDrawable("no state of a contrast's own bucket was compressed")
    columns = {"refused": "refused", "changed": "answers changed"}
    names = {"reference": "the reference's", "other": "the other bucket's", "haar": "random"}
    grid = PanelGrid.by(table, "contrast", columns.items(), options, height=2.1, above=0.5)
    for ax, (column, label), rows_of_contrast in grid.panels(table):
        for at, (control, name) in enumerate(names.items()):
            rows = where(rows_of_contrast, control=control)
            draws = rows.assign(value=rows[column].astype(float)).groupby(["strength", "draw"])["value"]
            means = draws.mean().groupby("strength")
            if control == "haar":
                low, high = means.min(), means.max()
                ax.fill_between(low.index, low, high, color=MUTED, alpha=0.3, linewidth=0.8, label=name)
                ax.plot(low.index, means.mean(), "_", color=MUTED, markersize=9)
                continue
            mean = means.mean()
            marker: dict[str, Any] = {"marker": "os"[at], "markersize": 3 + 2 * at}
            marker["markerfacecolor"] = "none"
            ax.plot(mean.index, mean, color=PALETTE[at], label=name, **marker)
        ax.set_ylabel(label)
        ax.set_ylim(-0.02, None)
        ax.set_xlabel("strength λ")
    prompt_counts = table.groupby("contrast")["sample"].nunique()
    grid.title_rows(lambda contrast: f"{contrast} (n = {prompt_counts[contrast]})")
    legend(grid.axes[0][0])
    return grid.captioned(
        "Prompts of the other bucket, means over layers. Grey: range of random subspaces of the same size.",
        subject,
    )
