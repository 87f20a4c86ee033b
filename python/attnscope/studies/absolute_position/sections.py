# SPDX-License-Identifier: MIT
"""Sections of the report: claims first, then the split, position 0, and the interventions."""

from __future__ import annotations

import numpy as np
import pandas as pd
from markupsafe import Markup

from attnscope.plots.figure import Results, optional, require_table
from attnscope.plots.selection import final, last_step
from attnscope.report.claims_table import claims_frame
from attnscope.report.report_tables import (
    Cells,
    count_cells,
    estimate_cells,
    layer_keys,
    number_cells,
    show,
)
from attnscope.report.section import NamedSentence, Page, Section
from attnscope.studies.absolute_position import encodings
from attnscope.studies.absolute_position.claims import CLAIMS
from attnscope.studies.absolute_position.options import PositionOptions
from attnscope.studies.absolute_position.removals import ALL_REPLACEMENTS
from attnscope.studies.absolute_position.sections_precursor import write_leakage
from attnscope.studies.absolute_position.tables import Fingerprint, RemovedArm
from attnscope.studies.stated_verdicts import with_verdicts
from attnscope.studies.stored_options import stored_options
from attnscope.study_api.number_text import counted, estimate_text, number, rounded
from attnscope.study_api.rows import first_as, rows_as
from attnscope.study_api.selection import where, without

#: Claims by code.
SENTENCES = {**CLAIMS.sentences, **encodings.CLAIMS.sentences}
TITLE = "Absolute position in causal attention"
INTERVALS = (
    "Intervals leave one group of texts out at a time (95 %, jackknife, Student's t), where a table names "
    "no other; "
    "of models with random weights they are over initialisations. Layers and heads are counted from 0."
)
#: Replacements as the report calls them.
_VECTORS = {
    "zero": "a zero vector",
    "mean": "the mean embedding",
    "token": "an ordinary token",
    "gaussian": "a Gaussian vector",
    "special": "another special token",
}


def findings(results: Results) -> list[str]:
    """Return the main numbers of each model in sentences, absent effects included."""
    means = optional(results, "layer_means")
    if means is None:
        return []
    lines: list[str] = []
    for model, rows_of_model in last_step(means).groupby("model", sort=False):
        rows = where(rows_of_model, queries="early")
        parts = {
            "C3": [_residuals(rows)],
            "": _control(results, str(model)),
            "C6": _readers(results, str(model)),
            "C5": _removed(results, str(model)),
        }
        for code, sentences in parts.items():
            codes = [code] if code else []
            stated = [
                with_verdicts(sentence, results, str(model), *codes, with_estimate=True)
                for sentence in sentences
            ]
            lines += [NamedSentence(model, sentence) for sentence in stated]
    return lines


def _residuals(rows: pd.DataFrame) -> str:
    base = where(rows, arm="base", input="windows").sort_values("layer")
    above = base[base["residual_low"] > 0]
    cells = ", ".join(
        estimate_text(*parts)
        for parts in zip(*(base[name] for name in ("residual", "residual_low", "residual_high")), strict=True)
    )
    layers = ", ".join(str(layer) for layer in above["layer"])
    place = (
        f"above 0 in layer{'s' if len(above) > 1 else ''} {layers}" if len(above) else "above 0 in no layer"
    )
    return f"the mean residual by layer is {cells} nats²: {place}."


def _control(results: Results, model: str) -> list[str]:
    table = optional(results, "controls")
    if table is None:
        return []
    rows = where(table, model=model, queries="early")
    if rows.empty:
        return []
    draws = counted(rows["draw"].nunique(), "initialisation")
    apart = abs(rows["mask_cut"].mean() / rows["uniform_cut"].mean() - 1)
    by_layer = rows.groupby("layer")
    residual, share = by_layer["residual"].mean(), by_layer["leakage_share"].mean()
    cells = ", ".join(map(number, residual))
    return [
        f"with random weights ({draws}) the mask cuts {number(rows['mask_cut'].mean())} "
        f"nats, "
        f"uniform attention among the visible keys {number(rows['uniform_cut'].mean())}, {100 * apart:.2g} % "
        f"apart. The residual of untrained models is {cells} nats² by layer, at most "
        f"{rounded(100 * share.max(), '.2g')} % of the variance of scores along keys (trained: "
        f"{_trained_share(results, model)}). Later layers may have one: attention that is nearly uniform "
        "weighs the first token 1/(i + 1), which writes the position into the states that they read; "
        f"{_shared(results, model)}."
    ]


def _trained_share(results: Results, model: str) -> str:
    """Return the share of the variance of scores that is the residual's, by layer of the model itself."""
    table = optional(results, "layer_means")
    if table is None or "leakage_share" not in table:
        return "not measured"
    rows = where(last_step(table), model=model, queries="early", arm="base", input="windows").sort_values(
        "layer"
    )
    return f"{', '.join(rounded(100 * share, '.2g') for share in rows['leakage_share'])} % by layer"


def _shared(results: Results, model: str) -> str:
    """Return the residual that models with random weights have in common."""
    table = optional(results, "control_residuals")
    rows = None if table is None else where(table, model=model).sort_values("layer")
    if rows is None or rows.empty:
        return "fewer than three initialisations tell nothing of what they share"
    columns = (rows["residual_shared"], rows["residual_shared_low"], rows["residual_shared_high"])
    cells = ", ".join(estimate_text(*parts) for parts in zip(*columns, strict=True))
    out = rows[(columns[1] > 0) | (columns[2] < 0)]["layer"]
    layers = ", ".join(map(str, out))
    judged = (
        f"0 is outside the intervals of layer{'s' if len(out) > 1 else ''} {layers}"
        if layers
        else "0 is in the interval of every layer"
    )
    return f"the residual that initialisations share is {cells} nats² by layer ({judged})"


def _readers(results: Results, model: str) -> list[str]:
    table = optional(results, "fingerprints")
    if table is None:
        return []
    rows = where(last_step(table), model=model, arm="base").dropna(subset="a0")
    if rows.empty:
        return []
    reader = stored_options(results, PositionOptions).reader
    best = first_as(Fingerprint, rows.sort_values("a0", ascending=False))
    count = int(((rows["a0"] > reader) & (rows["a0_low"] > rows["uniform"])).sum())
    who = f"{count} of {len(rows)} heads read" if count else "no head reads"
    return [
        f"{who} position 0 with more than {reader:g} and more than uniform attention gives it, beyond its "
        f"interval (largest L{best.layer}H{best.head} "
        f"{number(best.a0)}, uniform {number(best.uniform)})."
    ]


def _percent(value: float) -> str:
    """Return a share in whole per cent.

    >>> _percent(0.352), _percent(-0.36), _percent(-0.001)
    ('35 %', '−36 %', '0 %')
    """
    digits = f"{100 * value:.0f}"
    # what rounds to 0 has no sign
    return "0 %" if digits == "-0" else f"{digits} %".replace("-", "−")


def _removed(results: Results, model: str) -> list[str]:
    table = optional(results, "removed_arms")
    if table is None:
        return []
    rows = where(last_step(table), model=model)
    arms = where(rows, kind="replacement").sort_values("energy_removed")
    if arms["energy_removed"].isna().all():
        return ["there is no residual in the layers from 1 on that replacing position 0 could remove."]
    arms = arms.dropna(subset="energy_removed")
    patterns = _range([_percent(value) for value in sorted(arms["pattern_removed"])])
    lost = f"{patterns} of its original pattern {'is' if len(arms) == 1 else 'are'} gone"
    least, *_, most = rows_as(RemovedArm, pd.concat([arms[:1], arms[-1:]]))
    if most.energy_removed <= 0:
        larger = _range([_percent(-value) for value in arms["energy_removed"][::-1]])
        line = f"replacing the embedding at position 0 makes the residual {larger} larger, while {lost}."
    else:
        ends = [_of_arm(row) for row in ((least,) if len(arms) == 1 else (least, most))]
        line = (
            f"replacing the embedding at position 0 removes {' to '.join(ends)} of the residual's energy; "
            f"{lost}."
        )
    controls = where(rows, kind="control").dropna(subset="energy_removed")
    if len(controls):
        shares = [_percent(value) for value in sorted(controls["energy_removed"])]
        line += f" The same done to other positions removes {_range(shares)}."
    return [line]


def _of_arm(row: RemovedArm) -> str:
    """Return an arm's mean share with its name, and the range of its draws."""
    share = _percent(row.energy_removed)
    name = _VECTORS.get(row.arm, row.arm)
    if row.count < 2:
        return f"{share} ({name})"
    ends = f"{_percent(row.energy_least)} to {_percent(row.energy_most)}"
    return f"{share} ({name}: mean of {row.count}, {ends})"


def _range(cells: list[str]) -> str:
    """Return the first and the last of sorted cells, or the only value.

    >>> _range(["1 %", "2 %", "5 %"]), _range(["3 %"])
    ('1 % to 5 %', '3 %')
    """
    return cells[0] if cells[0] == cells[-1] else f"{cells[0]} to {cells[-1]}"


def _write_claims(page: Page) -> None:
    table = require_table(page.results, "claims")
    page.words(
        "What the paper claims and what these texts and this model say of it. A claim that cannot be tested "
        "here gives the reason; none is decided by a single head. C are claims of the paper, P those of its "
        "precursor."
    )
    order = {code: at for at, code in enumerate(sorted(SENTENCES, key=lambda code: (code[0], int(code[1:]))))}
    # codes of another version come last
    table = table.sort_values("claim", key=lambda codes: codes.map(order).fillna(len(order)), kind="stable")
    claims_frame(page, table, SENTENCES)


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
    rows = final(page.results, "layer_means", queries="early", arm="base", input="windows")
    cells = {
        f"{label} [95 %]": estimate_cells(column, f"{column}_low", f"{column}_high")
        for column, label in (("residual", "residual"), ("felt", "felt"), ("moved_l2", "moved, squared"))
    }
    cells |= {
        "not corrected for noise (nats²)": number_cells("plain"),
        "log of the attention cut by the mask (nats)": number_cells("mask_cut"),
        "score of key 0 above others (nats)": number_cells("sink_advantage"),
        "share of the scores' variance": number_cells("leakage_share"),
    }
    show(page, "layers", "Means over heads, early queries.", rows, layer_keys(rows), cells)
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
    names = {"residual": "residual", "sink_advantage": "score of key 0 above others"}
    rows = rows.assign(
        layer=np.where(rows["scope"] == "from_1", "all from 1", rows["layer"].astype(str)),
        quantity=rows["metric"].map(names),
    )
    page.words(
        "Over checkpoints: the step at which the residual goes from one level to another, with that of the "
        "score of key 0 above others, where the split explains more than in random orders of the checkpoints "
        "and more than a straight line, which is a trend."
    )
    cells = {
        "step": count_cells("step"),
        "p (Holm)": number_cells("p_holm"),
        "first": number_cells("start"),
        "last": number_cells("end"),
    }
    caption = "Residual and score of key 0 above others during training."
    show(page, "emergence", caption, rows, ["model", "layer", "quantity", "verdict"], cells)


def _write_position_0(page: Page) -> None:
    page.words(
        "The first token sees itself alone, so its states are the same whatever follows. With a BOS token "
        "a head "
        "passes on one and the same vector for every text; what can tell a query its position is how much of "
        "it arrives."
    )
    for name in ("trajectory", "fingerprints", "clock"):
        page.figure(name)
    rows = final(page.results, "position_shares", arm="base")
    grid = rows.pivot_table(index=["model", "layer"], columns="site", values="position_share").reset_index()
    keys = ["model", "layer"]
    cells = {str(site): number_cells(str(site)) for site in grid if site not in keys}
    show(page, "shares", "Share of the variance of states between positions.", grid, keys, cells)
    _write_dynamics(page)


def _write_removed(page: Page) -> None:
    page.words(
        "The token at position 0 is replaced, left out, or not read, and the residual is measured again "
        "on the "
        "same texts. Energy is how much smaller it is; pattern how much of the original one is gone: a "
        "replacement can remove it and write its own."
    )
    page.figure("removed")
    table = optional(page.results, "removed_arms")
    if table is not None:
        arms = last_step(table)
        _removed_frame(page, without(arms, kind="difference"))
        pooled = where(arms, arm=ALL_REPLACEMENTS)
        if len(pooled) and pooled["energy_least"].notna().all():
            page.notes(
                [
                    NamedSentence(
                        row.model,
                        f"by what is put at position 0 the share is {_percent(row.energy_least)} to "
                        f"{_percent(row.energy_most)} (means of {row.count} kinds of vectors).",
                    )
                    for row in rows_as(RemovedArm, pooled)
                ]
            )
    _reads_frame(page, final(page.results, "removed"))
    page.notes(
        [
            "The one published share, 40 %, names neither its vector nor its statistic where they could be "
            "read, so no number here is its reproduction.",
            "Heads of the last layer act on no score; they are left out of the sets that do not read "
            "position 0. The other sets hold as many heads of the same layers and may share some with the "
            "readers: among all sets of their size the readers' is as likely as any other where heads do not "
            "differ.",
        ]
    )
    _write_placements(page)


def _removed_frame(page: Page, arms: pd.DataFrame) -> None:
    """Write energy and pattern of every arm, its draws taken together."""
    names = [
        f"all {arm}" if kind == "all" else str(arm)
        for arm, kind in zip(arms["arm"], arms["kind"], strict=True)
    ]
    cells: dict[str, Cells] = {"of": count_cells("count")}
    for name in ("energy", "pattern"):
        ends = (f"{name}_removed_low", f"{name}_removed_high")
        cells[f"{name} [95 %]"] = estimate_cells(f"{name}_removed", *ends)
    cells["energy, range"] = range_cells("energy_least", "energy_most", "count")
    caption = (
        "Removed in the layers from 1 on, early queries; of: draws of an arm, or arms; range: over them."
    )
    show(page, "removed", caption, arms.assign(arm=names), ["model", "arm"], cells)


def _reads_frame(page: Page, rows: pd.DataFrame) -> None:
    """Write what reads of position 0 carry: of its readers, of other sets, of all heads."""
    rows = where(rows, scope="from_1", queries="early", measure="uniform", kind="read")
    if rows.empty:
        return
    heads = np.select([rows["draw"] == 0, rows["draw"] > 0], ["readers", "other sets"], "all heads")
    by_set = rows.assign(heads=heads).groupby(["model", "arm", "heads"], sort=False)["energy_removed"]
    table = by_set.agg(["mean", "min", "max", "count"]).reset_index()
    cells = {
        "sets": count_cells("count"),
        "energy": number_cells("mean"),
        "range": range_cells("min", "max", "count"),
    }
    caption = "Energy removed when heads do not read position 0."
    show(page, "reads", caption, table, ["model", "arm", "heads"], cells)


def range_cells(low: str, high: str, count: str = "") -> Cells:
    """Return cells of ranges; a dash where the column `count` says that they are of a single value."""

    def fill(rows: pd.DataFrame) -> list[str]:
        counts = rows[count] if count else [2] * len(rows)
        ends = zip(rows[low], rows[high], counts, strict=True)
        return [_range([number(least), number(most)]) if n > 1 else "–" for least, most, n in ends]

    return fill


#: Placements as the report calls them.
_PLACED = {
    "as_read": "as it reads",
    "moved": "BOS in the middle, none before",
    "twice": "BOS at position 0 and in the middle",
    "ordinary_front": "an ordinary token at position 0",
    "ordinary_middle": "an ordinary token in the middle",
}


def _write_placements(page: Page) -> None:
    table = optional(page.results, "placements")
    if table is None or table.empty:
        return
    columns = ["first", "middle", "loss", "norm_first", "norm_others"]
    means = last_step(table).groupby(["model", "placement"], sort=False)[columns].mean().reset_index()
    page.heading("Token or position")
    page.words(
        "The beginning token is in the middle, at both places or nowhere; the tokens behind the middle "
        "and "
        "their positions are the same in every row. Attention is of the heads that read position 0, of the "
        "queries behind the middle; the loss is of the tokens behind it. An ordinary token in the middle "
        "is the "
        "control of the loss."
    )
    means = means.assign(text=[_PLACED.get(str(name), str(name)) for name in means["placement"]])
    cells = {
        "attention to position 0": number_cells("first"),
        "to the middle": number_cells("middle"),
        "loss (nats)": number_cells("loss"),
        "norm of position 0": number_cells("norm_first"),
        "median norm of others": number_cells("norm_others"),
    }
    show(page, "placements", "Means over texts; norms of the last states.", means, ["model", "text"], cells)


def _write_dynamics(page: Page) -> None:
    table = optional(page.results, "dynamics")
    if table is None or table.empty:
        return
    rows = last_step(table)
    page.heading("The path of position 0")
    page.words(
        "Position 0 sees itself alone, so that each block maps its state to the next one. Tokens read alone "
        "show whether the paths of different tokens come together (distance, relative to the norms); a "
        "step is "
        "how far a block moves the state of the first token, 0 at a fixed point; the gain is the size of the "
        "Jacobian along its path, for small random disturbances relative to the norms: below 1 they shrink."
    )
    cells = {
        "distance between tokens": number_cells("distance"),
        "step": number_cells("relative_step"),
        "gain": number_cells("gain"),
    }
    show(page, "dynamics", "The states of position 0, block by block.", rows, ["model", "layer"], cells)


SECTIONS: tuple[Section, ...] = (
    Section("claims", "Claims", ("claims", "checks", "overall"), _write_claims),
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
            "control_overall",
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
        ("trajectory", "trajectories", "fingerprints", "reads", "clocks", "position_shares", "dynamics"),
        _write_position_0,
    ),
    Section(
        "removed",
        "What interventions remove",
        ("removed", "removed_arms", "placements", "ordinary_tokens"),
        _write_removed,
    ),
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
