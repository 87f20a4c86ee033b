# SPDX-License-Identifier: MIT
"""Sections of the study's report: claims in words, then figures, then nulls."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from attnscope.report.claims_table import LONGEST, claims_frame
from attnscope.report.report_tables import Cells, show, text_cells
from attnscope.report.section import NamedSentence, Page, Section
from attnscope.studies.pretraining_writes.claims import sentences
from attnscope.study_api.claims import NOT_TESTABLE, ClaimRow
from attnscope.study_api.number_text import counted, estimate_text, rounded
from attnscope.study_api.rows import rows_as
from attnscope.study_api.selection import where, without

TITLE = "What training changes in the weights that read and write"
INTERVALS = (
    "Intervals are 95 %: of one pair, the error of the texts (a group left out at a time, jackknife) with "
    "that of the change, which is a single draw (random subspaces); over pairs and training runs, Student's "
    "t. Of rank-one changes they are over texts. Layers are counted from 0; −1 is the embedding or "
    "unembedding."
)
#: Pairs that the sentences at the top are about.
_MOST = 6
#: Models whose roles are listed one by one.
_SHOWN = 3
#: Claims by code, in the words of the report.
WORDS = sentences()
#: Units of the claims' values.
UNITS = {
    "C1": "times an isotropic change",
    "C1b": "octaves",
    "C1c": "octaves",
    "C2": "times an isotropic change",
    "C2b": "octaves",
    "C3": "of log2 r",
    "C4": "times an isotropic change",
    "C5": "octaves for each doubling of K",
    "C7": "times an isotropic change",
}


def _claims(page: Page) -> None:
    table = page.tables.get("claims")
    if table is None or table.empty:
        return
    page.words(
        "Did training change what the model reads, or what it writes? Each claim of arXiv 2605.16600 with "
        "what was computed of it. Neither the full text nor code of the paper could be read: definitions are "
        "this library’s, there is one protocol, and no published number to compare with. 95 % intervals of "
        "one pair hold the error of the texts (a group left out at a time) and that of the change, which is "
        "a single draw (random subspaces); over pairs and training runs they are t intervals."
    )
    page.definition(
        Markup(
            "<i>f</i> = ‖ΔW U‖²/‖ΔW‖² is the share of a change’s energy in the directions <i>U</i> [d, k] of "
            "what the matrix reads; <i>f·d/k</i> is 1 for a change without preferred directions. On the "
            "prediction subspace it must be read against what independent errors of all logits would give: "
            "with few tokens the unembedding has few main directions, and any gradient writes concentrated; "
            "an isotropic change does not."
        )
    )
    pairs = table[~is_of_the_run(table) & (table["reference"].fillna("") != "")]
    if len(pairs.drop_duplicates(["model", "revision", "step"])) <= _MOST:
        claims_frame(page, table, WORDS)
    else:
        claims_frame(page, table.drop(pairs.index), WORDS)
        page.frame("pairs", "Claims of each pair.", pair_rows(pairs), names=1)
    for name in ("asymmetry", "objectives", "graded"):
        page.figure(name)


def is_of_the_run(table: pd.DataFrame) -> pd.Series[bool]:
    """Return True for rows of all pairs or all arms together."""
    return table["model"].str.startswith("all ")


def pair_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return a line for every pair: value, interval and verdict of each claim."""
    keys = ["model", "revision", "step", "reference"]
    lines: list[dict[str, str]] = []
    for key, rows in table.groupby(keys, sort=False, dropna=False):
        title = f"{key[0]} {key[1] if isinstance(key[1], str) else ''}".strip()
        line = {"change of": title}
        for row in rows_as(ClaimRow, rows):
            estimate = estimate_text(row.value, row.low, row.high, rounded)
            value = "" if math.isnan(row.value) else f"{estimate} "
            line[row.claim] = f"{value}{row.verdict}"
        lines.append(line)
    return pd.DataFrame(lines).fillna("–")


def _changes(page: Page) -> None:
    deltas = page.tables.get("deltas")
    if deltas is None or deltas.empty:
        return
    blocks = deltas[deltas["layer"] >= 0]
    keys = ["model", "revision", "role"]
    columns = ["relative_norm", "unchanged_share", "step_ratio", "noise_share", "decay_share"]
    means = blocks.groupby(keys, sort=False, dropna=False)[columns].median(numeric_only=True).reset_index()
    cells = {
        "‖ΔW‖/‖W‖": three_digits("relative_norm"),
        "unchanged": three_digits("unchanged_share"),
        "change / step": three_digits("step_ratio"),
        "rounding": three_digits("noise_share"),
        "along W": three_digits("decay_share"),
    }
    page.words(
        "How far every role’s matrices moved, and how much of that is rounding: below one step most changes "
        "are too small to be stored, and large weights lose theirs first."
    )
    names = {"change of": change_cells, "role": text_cells("role")}
    show(page, "sizes", "Medians over layers.", means, names, cells, folded=len(means) > LONGEST)
    page.figure("rounding")
    page.notes(_large(blocks))


def three_digits(column: str) -> Cells:
    """Return cells of numbers with three significant digits."""
    return lambda rows: [rounded(value) for value in rows[column]]


def change_cells(rows: pd.DataFrame) -> list[str]:
    """Return cells of the checkpoints whose change a row is about."""
    return list((rows["model"] + " " + rows["revision"].fillna("")).str.strip())


def _large(blocks: pd.DataFrame) -> list[str]:
    far = blocks[blocks["relative_norm"] > 1]
    if far.empty:
        return []
    pronoun = "its" if len(far) == 1 else "their"
    count = counted(len(far), "matrix", "matrices")
    return [f"{count} changed by more than {pronoun} own size: is it tuned from another base?"]


def _fractions(page: Page) -> None:
    table = page.tables.get("fractions")
    if table is None or table.empty:
        return
    tested = table[table["tested"].astype(bool)]
    models = list(dict.fromkeys(tested["model"]))
    tested = where(tested, model=models[:_SHOWN])
    controls = page.tables.get("fractions_variants")
    rows = []
    keys = ["model", "revision", "side", "subspace", "role"]
    for key, rows_of_role in tested.groupby(keys, sort=False, dropna=False):
        model, revision, side, subspace, role = key
        row = {
            "change of": f"{model} {revision or ''}".strip(),
            "subspace": f"{subspace} ({side})",
            "role": role,
            "k": rounded(rows_of_role["k"].median()),
            "fraction / isotropic": rounded(2 ** np.log2(rows_of_role["relative"].clip(lower=1e-12)).mean()),
            "± Haar": rounded(
                (rows_of_role["deviation"] * rows_of_role["relative"] / rows_of_role["fraction"]).mean()
            ),
            "best possible": rounded(
                (rows_of_role["ceiling"] * rows_of_role["relative"] / rows_of_role["fraction"]).mean()
            ),
        }
        for variant in ("other_layer", "random_weights", "weights"):
            null = _null(controls, dict(zip(keys, key, strict=True)), variant)
            row[variant.replace("_", " ")] = null
        rows.append(row)
    page.words(
        "A random subspace is a weak null: any gradient that passed through these inputs beats it. The "
        "stronger ones are inputs of another layer, a model of random weights, and the base’s own matrices "
        "on the same directions; C1 is not supported where one of them reaches its interval."
    )
    caption = "2^mean log2 over layers at the tested k."
    page.frame("numbers", caption, pd.DataFrame(rows), names=3, folded=len(rows) > LONGEST)
    if len(models) > _SHOWN:
        page.notes([f"The first {_SHOWN} of {len(models)} models; all are in the table fractions."])
    for name in ("fraction_curves", "depth", "trajectory"):
        page.figure(name)


def _null(controls: pd.DataFrame | None, keys: dict[str, Any], variant: str) -> str:
    if controls is None:
        return "–"
    rows = where(controls, variant=variant, **keys)
    return rounded(2 ** np.log2(rows["relative"].clip(lower=1e-12)).mean()) if len(rows) else "–"


def _mechanism(page: Page) -> None:
    page.words(
        "A plain gradient step is a sum over tokens of output gradient times input. Were the two "
        "independent, the fraction would be the subspace’s own share of the inputs’ energy; what exceeds it "
        "is a signal that texts share."
    )
    page.figure("mechanism")
    page.figure("rank_one")
    page.notes(
        [
            "With the closed form equal to the measured value, changes of rank one say that the unembedding "
            "amplifies its own main directions, which no training of o or down is needed for."
        ]
    )


def findings(results: Any) -> list[str]:
    """Return the sentences at the top: claims over all pairs or arms, or C1, C1b and C2 of the first "
    "pairs.
    """
    if "claims" not in results.tables():
        return []
    table = results.table("claims")
    of_run = without(table[is_of_the_run(table)], verdict=NOT_TESTABLE)
    chosen = of_run
    if of_run.empty:
        chosen = where(table[~is_of_the_run(table)], claim=["C1", "C1b", "C2"])
    names = (chosen["model"] + " " + chosen["revision"].fillna("")).str.strip()
    shown = list(dict.fromkeys(names))[:_MOST]
    lines: list[str] = [
        NamedSentence(name, describe_claim(row), ", ")
        for name, row in zip(names, rows_as(ClaimRow, chosen), strict=True)
        if name in shown
    ]
    if left_out := names.nunique() - len(shown):
        are = "is" if left_out == 1 else "are"
        lines.append(f"{counted(left_out, 'more pair')} {are} in the table of claims.")
    return lines


def describe_claim(row: ClaimRow) -> str:
    """Return a claim with its verdict, its value with unit and interval, and the reason."""
    value = ""
    if not math.isnan(row.value):
        estimate = estimate_text(row.value, row.low, row.high, rounded)
        value = f" {estimate} {UNITS.get(row.claim, '')}".rstrip()
    reason = f" ({row.reason})" if row.reason else ""
    return f"{row.claim}: {WORDS[row.claim]}: {row.verdict};{value}{reason}."


SECTIONS = (
    Section("claims", "Reading or writing", ("claims", "fractions", "checks"), _claims),
    Section("changes", "Size and rounding of the changes", ("deltas",), _changes),
    Section(
        "fractions", "Directions of the changes", ("fractions", "fractions_variants", "gains"), _fractions
    ),
    Section("mechanism", "Why changes are where they are", ("mechanism", "rank_one"), _mechanism),
)
