# SPDX-License-Identifier: MIT
"""Section of the report on the precursor: leakage, its test, lengths, probes, softmax statistics, bands."""

from __future__ import annotations

from markupsafe import Markup

from attnscope.plots.figure import optional
from attnscope.plots.selection import final, last_step
from attnscope.report.report_tables import count_cells, interval_cells, number_cells, show, text_cells
from attnscope.report.section import Page
from attnscope.studies.absolute_position.options import PositionOptions
from attnscope.studies.absolute_position.published import Q_VALUES
from attnscope.studies.stored_options import stored_options
from attnscope.study_api.number_text import number


def write_leakage(page: Page) -> None:
    """Write the section on the precursor."""
    page.words(
        Markup(
            "The precursor (<i>Once upon a token</i>) fits the scores of one text without BOS by the offset, "
            "and again by the offset and the positions. The difference measures the text's content too: each "
            "text is compared with itself, its tokens turned round. The column leakage_share of the table "
            "position is made of means over texts instead."
        )
    )
    table = final(page.results, "leakage")
    means = table.groupby(["model", "layer", "protocol", "input"])["leakage"].mean().unstack("input")
    tests = final(page.results, "leakage_tests")
    alpha = stored_options(page.results, PositionOptions).alpha
    significant = (
        (tests["p_adjusted"] <= alpha).groupby([tests["model"], tests["layer"], tests["protocol"]]).sum()
    )
    if (tests["protocol"] == "ruscio2025once").any():
        page.words(Q_VALUES)
    least = tests.groupby(["model", "layer", "protocol"])[["p_value", "p_adjusted"]].min()
    rows = means.join(least).join(significant.rename("heads")).fillna({"heads": 0}).reset_index()
    cells = {
        "leakage": number_cells("windows"),
        "turned round": number_cells("rotated"),
        f"heads at {alpha:g}": count_cells("heads"),
        "smallest p": number_cells("p_value"),
        "smallest adjusted p": number_cells("p_adjusted"),
    }
    caption = "ΔR² of positions given the offset, means."
    show(page, "leakage", caption, rows, ["model", "layer", "protocol"], cells)
    _write_lengths(page)
    _write_probes(page)
    _write_softmax(page)
    _write_bands(page)


def _write_probes(page: Page) -> None:
    table = optional(page.results, "probes")
    if table is None or table["r2"].isna().all():
        return
    rows = last_step(table).pivot_table(index=["model", "layer"], columns="site", values="r2").reset_index()
    page.words(
        "The precursor's probe: how well waves along one text fit what an MLP reads and writes, in sample. "
        f"White noise gives {number(table['null'].iloc[0])} at this length; at the notebook's 256 tokens "
        ".063, to be compared with its .108."
    )
    keys = ["model", "layer"]
    cells = {str(site).replace("_", " "): number_cells(str(site)) for site in rows if site not in keys}
    show(page, "probes", "In-sample R² of the probe.", rows, keys, cells)


def _write_lengths(page: Page) -> None:
    slopes = optional(page.results, "leakage_slopes")
    if slopes is None or slopes.empty:
        return
    rows = last_step(slopes)
    page.words(
        "How the leakage share falls with the length of texts: the slope of its logarithm on that of the "
        "length, where −1 halves the share when texts double. Every length reads the same tokens."
    )
    cells = {"slope": number_cells("slope"), "95 %": interval_cells("slope_low", "slope_high")}
    show(page, "lengths", "Slope of the leakage share on the length.", rows, ["model", "layer"], cells)


def _write_softmax(page: Page) -> None:
    table = optional(page.results, "softmax_statistics")
    if table is None or table.empty:
        return
    keys = ["model", "layer", "temperature"]
    statistics = ["softmax_entropy", "top_1", "top_5", "margin"]
    means = last_step(table).groupby(keys)[statistics].mean().reset_index()
    names = {
        "model": text_cells("model"),
        "layer": text_cells("layer"),
        "temperature": number_cells("temperature"),
    }
    cells = {name.replace("softmax_", "").replace("_", " "): number_cells(name) for name in statistics}
    caption = "The precursor's softmax of scores over a temperature, means over heads, rows from 5 on."
    show(page, "softmax", caption, means, names, cells)


def _write_bands(page: Page) -> None:
    table = optional(page.results, "bands")
    if table is None or table.empty:
        return
    rows = last_step(table)
    keys, shares = ["model", "protocol", "layout", "band"], ["share", "norm_share", "kl"]
    means = rows.groupby(keys)[shares].mean().reset_index()
    page.words(
        "Bands of rotary frequencies from high to low, means over heads. The layout is measured on one token "
        "repeated; the precursor pairs dimensions 2p and 2p + 1 whatever the model does, and its share is of "
        "norms."
    )
    cells = {name.replace("_", " "): number_cells(name) for name in shares}
    show(page, "bands", "Bands of rotary frequencies.", means, keys, cells)
