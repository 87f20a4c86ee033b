# SPDX-License-Identifier: MIT
"""Section of the report on the precursor: leakage, its test, lengths, probes, softmax statistics, bands."""

from __future__ import annotations

import numpy as np
import pandas as pd
from markupsafe import Markup

from attnscope.plots.figure import optional
from attnscope.plots.selection import final, last_step
from attnscope.report.numbers import number
from attnscope.report.section import Page
from attnscope.studies.absolute_position.options import PositionOptions
from attnscope.studies.absolute_position.published import Q_VALUES
from attnscope.studies.stored_options import stored_options


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
    columns = {
        "model": [str(key[0]) for key in means.index],
        "layer": [str(key[1]) for key in means.index],
        "protocol": [str(key[2]) for key in means.index],
        "leakage": [number(value) for value in means["windows"]],
        "turned round": [number(value) for value in means["rotated"]],
        f"heads at {alpha:g}": [str(int(significant.get(key, 0))) for key in means.index],
        "smallest p": _smallest(tests, means.index, "p_value"),
        "smallest adjusted p": _smallest(tests, means.index, "p_adjusted"),
    }
    page.frame("leakage", "ΔR² of positions given the offset, means.", pd.DataFrame(columns), names=3)
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
    columns = {
        name.replace("_", " "): [str(x) if name in ("model", "layer") else number(x) for x in rows[name]]
        for name in rows
    }
    page.frame("probes", "In-sample R² of the probe.", pd.DataFrame(columns), names=2)


def _smallest(tests: pd.DataFrame, index: pd.Index, column: str) -> list[str]:
    least = tests.groupby(["model", "layer", "protocol"])[column].min()
    return [number(least.get(key, np.nan)) for key in index]


def _write_lengths(page: Page) -> None:
    slopes = optional(page.results, "leakage_slopes")
    if slopes is None or slopes.empty:
        return
    rows = last_step(slopes)
    columns = {
        "model": list(rows["model"]),
        "layer": [str(layer) for layer in rows["layer"]],
        "slope": [number(value) for value in rows["slope"]],
        "95 %": [
            f"[{number(a)}, {number(b)}]" for a, b in zip(rows["slope_low"], rows["slope_high"], strict=True)
        ],
    }
    page.words(
        "How the leakage share falls with the length of texts: the slope of its logarithm on that of the "
        "length, where −1 halves the share when texts double. Every length reads the same tokens."
    )
    page.frame("lengths", "Slope of the leakage share on the length.", pd.DataFrame(columns), names=2)


def _write_softmax(page: Page) -> None:
    table = optional(page.results, "softmax_statistics")
    if table is None or table.empty:
        return
    keys = ["model", "layer", "temperature"]
    statistics = ["softmax_entropy", "top_1", "top_5", "margin"]
    means = last_step(table).groupby(keys)[statistics].mean().reset_index()
    columns = {name: [number(x) if name == "temperature" else str(x) for x in means[name]] for name in keys}
    columns |= {
        name.replace("softmax_", "").replace("_", " "): [number(value) for value in means[name]]
        for name in statistics
    }
    page.frame(
        "softmax", "The precursor's softmax of scores over a temperature, means over heads, rows from 5 on.",
        pd.DataFrame(columns), names=3,
    )  # fmt: skip


def _write_bands(page: Page) -> None:
    table = optional(page.results, "bands")
    if table is None or table.empty:
        return
    rows = last_step(table)
    means = (
        rows.groupby(["model", "protocol", "layout", "band"])[["share", "norm_share", "kl"]]
        .mean()
        .reset_index()
    )
    columns = {
        name: [str(value) for value in means[name]] for name in ("model", "protocol", "layout", "band")
    }
    columns |= {
        name.replace("_", " "): [number(value) for value in means[name]]
        for name in ("share", "norm_share", "kl")
    }
    page.words(
        "Bands of rotary frequencies from high to low, means over heads. The layout is measured on one token "
        "repeated; the precursor pairs dimensions 2p and 2p + 1 whatever the model does, and its share is of "
        "norms."
    )
    page.frame("bands", "Bands of rotary frequencies.", pd.DataFrame(columns), names=4)
