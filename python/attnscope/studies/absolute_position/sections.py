# SPDX-License-Identifier: MIT
"""What the report says: claims first, then the split, position 0, and what interventions remove."""

from __future__ import annotations

import numpy as np
import pandas as pd
from markupsafe import Markup

from attnscope.plots.figure import Results, optional, stored
from attnscope.plots.selection import last_step
from attnscope.report.numbers import claims_frame, interval, number
from attnscope.report.section import NamedSentence, Page, Section
from attnscope.studies.absolute_position.options import REPLACEMENTS
from attnscope.studies.absolute_position.sections_precursor import write_leakage

#: Claims by code.
SENTENCES = {
    "C1": "a rotary score depends on positions through their offset alone",
    "C2": "the causal mask alone moves attention where no position is in the states",
    "C3": "the residual stream is the other source of position",
    "C4": "the state at position 0 follows from the first token alone",
    "C5": "the first token supplies the residual: replacing its embedding removes it",
    "C6": "heads that read position 0 pass it on",
    "C7": "encodings differ in how position grows with depth",
    "C8": "what a head takes from position 0 is one vector for every text",
    "P1": "leakage of position falls as a power of the length of texts",
    "P2": "a larger model has leakage in fewer heads",
    "P3": "feed-forward layers filter position out",
    "P4": "entropy goes through transitions over depth",
}


def findings(results: Results) -> list[str]:
    """The main numbers of each model in sentences that say what is there and what is not."""
    means = optional(results, "layer_means")
    if means is None:
        return []
    lines: list[str] = []
    for model, own in last_step(means).groupby("model", sort=False):
        rows = own[own["queries"] == "early"]
        lines.append(NamedSentence(model, _residuals(rows)))
        lines += [NamedSentence(model, line) for line in _control(results, str(model))]
        lines += [NamedSentence(model, line) for line in _readers(results, str(model))]
        lines += [NamedSentence(model, line) for line in _removed(results, str(model))]
    return lines


def _residuals(rows: pd.DataFrame) -> str:
    base = rows[(rows["arm"] == "base") & (rows["input"] == "windows")].sort_values("layer")
    above = base[base["residual_low"] > 0]
    cells = ", ".join(
        f"{number(one.residual)} [{number(one.residual_low)}, {number(one.residual_high)}]"
        for one in base.itertuples()
    )
    layers = ", ".join(str(layer) for layer in above["layer"])
    there = (
        f"above 0 in layer{'s' if len(above) > 1 else ''} {layers}" if len(above) else "above 0 in no layer"
    )
    return f"the mean residual by layer is {cells} nats²: {there}."


def _control(results: Results, model: str) -> list[str]:
    table = optional(results, "controls")
    if table is None:
        return []
    rows = table[(table["model"] == model) & (table["queries"] == "early")]
    if rows.empty:
        return []
    draws = rows["draw"].nunique()
    apart = abs(rows["mask_cut"].mean() / rows["uniform_cut"].mean() - 1)
    by_layer = rows.groupby("layer")
    own, share = by_layer["residual"].mean(), by_layer["leakage_share"].mean()
    cells = ", ".join(map(number, own))
    return [
        f"with random weights ({draws} drawn) the mask cuts {number(rows['mask_cut'].mean())} nats, uniform "
        f"attention among the visible keys {number(rows['uniform_cut'].mean())}, {100 * apart:.2g} % apart; "
        f"{_shared(results, model)}. Within one drawing it is {cells} nats² by layer, "
        f"{100 * share.max():.2g} % at most of the variance of scores along keys: attention that is nearly "
        "uniform gives the query at position i about 1/(i + 1) of the first token while it sees it, so that "
        "the mask writes positions into the states that layers from 1 on read, each drawing in its own way."
    ]


def _shared(results: Results, model: str) -> str:
    """The residual that models with random weights have in common."""
    table = optional(results, "control_residuals")
    own = None if table is None else table[table["model"] == model].sort_values("layer")
    if own is None or own.empty:
        return "fewer than three drawings tell nothing of what drawings share"
    columns = (own["residual_shared"], own["residual_shared_low"], own["residual_shared_high"])
    cells = ", ".join(
        f"{number(value)} {interval(low, high)}" for value, low, high in zip(*columns, strict=True)
    )
    out = own[(columns[1] > 0) | (columns[2] < 0)]["layer"]
    where = ", ".join(map(str, out))
    judged = f"0 lies outside those of layer {where}" if where else "0 lies within that of every layer"
    return f"the residual that drawings share is {cells} nats² by layer (intervals over drawings; {judged})"


def _readers(results: Results, model: str) -> list[str]:
    table = optional(results, "fingerprints")
    if table is None:
        return []
    rows = last_step(table)
    rows = rows[(rows["model"] == model) & (rows["arm"] == "base")]
    if rows.empty or rows["a0"].isna().all():
        return []
    best = rows.sort_values("a0").iloc[-1]
    count = int((rows["a0"] > 0.3).sum())
    who = f"{count} of {len(rows)} heads read" if count else "no head reads"
    return [
        f"{who} position 0 with more than 0.3 (largest L{best['layer']:.0f}H{best['head']:.0f} "
        f"{number(best['a0'])}, uniform {number(best['uniform'])})."
    ]


def _removed(results: Results, model: str) -> list[str]:
    table = optional(results, "removed")
    if table is None:
        return []
    rows = last_step(table)
    rows = rows[
        (rows["model"] == model) & (rows["scope"] == "from_1") & (rows["queries"] == "early")
        & (rows["measure"] == "uniform")
    ]  # fmt: skip
    own = rows[rows["arm"].isin(REPLACEMENTS)]
    if own["energy_removed"].isna().all():
        return ["there is no residual in the layers from 1 on that replacing position 0 could remove."]
    arms = own.groupby("arm")["energy_removed"].mean().sort_values()
    control = rows[rows["kind"] == "control"]["energy_removed"]
    beside = (
        f" The same done to other positions removes {number(control.min())} to {number(control.max())}."
        if control.notna().any()
        else ""
    )
    return [
        f"replacing the embedding at position 0 removes between {number(arms.iloc[0])} ({arms.index[0]}) and "
        f"{number(arms.iloc[-1])} ({arms.index[-1]}) of the residual's energy, by what is put there.{beside}"
    ]


def _write_claims(page: Page) -> None:
    table = stored(page.results, "claims")
    page.words(
        "What the paper claims and what these texts and this model say of it. A claim that cannot be tested "
        "here says why; none is decided by a single head. C are claims of the paper, P those of its "
        "precursor."
    )
    claims_frame(page, table.sort_values("claim", kind="stable"), SENTENCES)


def _write_split(page: Page) -> None:
    page.words(
        Markup(
            "Rotary scores know the offset of query and key alone, yet attention at one offset changes along "
            "the text. Part of it is the causal mask: a query sees <i>i</i> + 1 keys. The rest has to come "
            "from the residual stream, in which queries and keys have become different."
        )
    )
    page.definition(
        Markup(
            "Late queries give the profile <i>T<sub>D</sub></i>, the mean score at an offset; early scores "
            "less it are the residual. Its size is the variance over the keys 1 … <i>i</i>, so that "
            "constants of a row, which no softmax sees, do not count. Sizes are products of the means of "
            "different groups of texts: unbiased, and negative where there is nothing. <i>Felt</i> weighs "
            "keys by the attention that the mask leaves; <i>moved</i> is how far attention itself goes. "
            "Intervals leave one group of texts out at a time (jackknife, Student's t)."
        )
    )
    for name in ("residual_depth", "position_balance", "residual_maps", "score_split", "encodings"):
        page.figure(name)
    rows = last_step(stored(page.results, "layer_means"))
    rows = rows[(rows["queries"] == "early") & (rows["arm"] == "base") & (rows["input"] == "windows")]
    several = rows["model"].nunique() > 1
    columns: dict[str, list[str]] = {"model": list(rows["model"])} if several else {}
    columns |= {"layer": [str(one) for one in rows["layer"]]}
    for column, label in (("residual", "residual"), ("felt", "felt"), ("moved_l2", "moved, squared")):
        columns[f"{label} [95 %]"] = [
            f"{number(value)} {interval(low, high)}"
            for value, low, high in zip(
                *(rows[f"{column}{end}"] for end in ("", "_low", "_high")), strict=True
            )
        ]
    columns |= {
        "with its noise": [number(value) for value in rows["plain"]],
        "cut by the mask": [number(value) for value in rows["mask_cut"]],
        "key 0 preferred": [number(value) for value in rows["sink_advantage"]],
    }
    page.frame("layers", "Means over heads, early queries.", pd.DataFrame(columns), names=2 if several else 1)
    _write_emergence(page)
    page.notes(
        [
            "Windows start anywhere in the text. Where sentences start at their beginning, content depends "
            "on "
            "position and layer 0 has a residual too.",
            "Scores scale freely between models: compare models by felt and moved, not by the residual.",
            "One token repeated without BOS must have no residual in any layer; shuffled tokens none in "
            "layer 0.",
        ]
    )


def _write_emergence(page: Page) -> None:
    table = optional(page.results, "emergence")
    if table is None or table.empty:
        return
    rows = table.sort_values(["model", "scope", "layer", "metric"], kind="stable")
    where = np.where(rows["scope"] == "from_1", "all from 1", rows["layer"].astype(str))
    names = {"residual": "residual", "sink_advantage": "key 0 preferred"}
    columns = {
        "model": list(rows["model"]),
        "layer": list(where),
        "quantity": [names[one] for one in rows["metric"]],
        "verdict": list(rows["verdict"]),
        "step": ["–" if pd.isna(one) else str(int(one)) for one in rows["step"]],
        "p (Holm)": [number(one) for one in rows["p_holm"]],
        "first": [number(one) for one in rows["start"]],
        "last": [number(one) for one in rows["end"]],
    }
    page.words(
        "Over checkpoints: the step at which the residual goes from one level to another beside that of the "
        "preference for key 0, where the split explains more than in random orders of the checkpoints."
    )
    page.frame(
        "emergence", "Residual and preference for key 0 during training.", pd.DataFrame(columns), names=4
    )


def _write_position_0(page: Page) -> None:
    page.words(
        "The first token sees itself alone, so its states are the same whatever follows. With a BOS token "
        "a head "
        "passes on one and the same vector for every text; what can tell a query its position is how much of "
        "it arrives."
    )
    for name in ("trajectory", "fingerprints", "clock"):
        page.figure(name)
    rows = last_step(stored(page.results, "position_shares"))
    rows = rows[rows["arm"] == "base"]
    grid = rows.pivot_table(index=["model", "layer"], columns="site", values="position_share").reset_index()
    shown = {
        str(column): [number(one) if column not in ("model", "layer") else str(one) for one in grid[column]]
        for column in grid
    }
    page.frame("shares", "Share of the variance of states between positions.", pd.DataFrame(shown), names=2)


def _write_removed(page: Page) -> None:
    page.words(
        "What stands at position 0 is replaced, left out, or not read, and the residual is measured again "
        "on the "
        "same texts. Energy is how much smaller it is; pattern how much of the original one is gone: a "
        "replacement can remove it and write its own."
    )
    page.figure("removed")
    rows = last_step(stored(page.results, "removed"))
    rows = rows[(rows["scope"] == "from_1") & (rows["queries"] == "early") & (rows["measure"] == "uniform")]
    whose = np.select([rows["draw"] == 0, rows["draw"] > 0], [": readers", ": as many others"], ": all heads")
    rows = rows.assign(arm=rows["arm"] + np.where(rows["kind"] == "read", whose, ""))
    own = rows.groupby(["model", "arm", "kind"], sort=False)[["energy_removed", "pattern_removed"]]
    table = own.agg(["mean", "min", "max"]).reset_index()
    columns = {
        "model": list(table["model"]),
        "arm": list(table["arm"]),
        "kind": list(table["kind"]),
        "energy": [number(one) for one in table["energy_removed", "mean"]],
        "over draws": [
            f"{number(low)} to {number(high)}"
            for low, high in zip(table["energy_removed", "min"], table["energy_removed", "max"], strict=True)
        ],
        "pattern": [number(one) for one in table["pattern_removed", "mean"]],
    }
    page.frame("removed", "Removed in the layers from 1 on, early queries.", pd.DataFrame(columns), names=3)
    page.notes(
        [
            "The share depends on what is put at position 0 more than on the model. The one published share, "
            "40 %, names neither its vector nor its statistic where they could be read, so no number here is "
            "its reproduction.",
            "Heads of the last layer act on no score; they are left out of the sets that do not read "
            "position 0.",
        ]
    )


SECTIONS: tuple[Section, ...] = (
    Section("claims", "Claims", ("claims", "checks"), _write_claims),
    Section(
        "split",
        "Mask and residual",
        (
            "position",
            "layer_means",
            "offsets",
            "offset_means",
            "residual_maps",
            "controls",
            "control_residuals",
            "encodings",
            "depth_slopes",
            "emergence",
            "sums",
        ),
        _write_split,
    ),
    Section(
        "position-0",
        "Position 0",
        ("trajectory", "trajectories", "fingerprints", "reads", "clocks", "position_shares"),
        _write_position_0,
    ),
    Section("removed", "What interventions remove", ("removed",), _write_removed),
    Section(
        "precursor",
        "The precursor's leakage",
        (
            "leakage",
            "leakage_tests",
            "leakage_lengths",
            "leakage_slopes",
            "probes",
            "softmax_statistics",
            "bands",
        ),
        write_leakage,
    ),
)
