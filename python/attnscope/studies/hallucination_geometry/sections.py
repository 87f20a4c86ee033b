# SPDX-License-Identifier: MIT
"""Sections of the study's report: first what the prompts allow, then claim by claim."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from attnscope.plots.selection import last_step
from attnscope.report.claims_table import claims_frame
from attnscope.report.report_tables import (
    count_cells,
    interval_cells,
    number_cells,
    show,
    text_cells,
)
from attnscope.report.section import NamedSentence, Page, Section
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.studies.hallucination_geometry.claims import CLAIMS
from attnscope.studies.hallucination_geometry.contrasts import buckets
from attnscope.studies.hallucination_geometry.evidence import DRAWS_OF_95, in_blocks, null_words
from attnscope.studies.hallucination_geometry.options import HallucinationOptions
from attnscope.studies.stored_options import stored_options
from attnscope.study_api.claims import CONTRADICTED, NOT_TESTABLE, SUPPORTED, UNDECIDED, ClaimRow
from attnscope.study_api.number_text import number
from attnscope.study_api.rows import first_as
from attnscope.study_api.selection import where

WORDS = CLAIMS.sentences
#: Quantities whose null is of random directions, as many as `labellings` says.
OF_DIRECTIONS = ("log_fisher_ratio", "log_transport_ratio", "log_gain_ratio", "refusal_alignment")
TITLE = "Signals of not knowing in a model's states"
INTERVALS = (
    "Intervals are 95 % with templates of questions as the unit: bootstrap for areas and differences of "
    "answers, a template left out at a time for dimensions, ranks and boundaries; none with fewer than five "
    "templates. Bars over prompts, in figures along the boundary, are named where they are drawn. Layers are "
    "counted from 0; −1 is what enters the first block."
)


def _place(code: str) -> tuple[int, str]:
    """Return the number of a claim and the letter behind it."""
    name = code.partition(" ")[0].removeprefix("C")
    digits = name.rstrip("abcdefgh")
    return int(digits), name[len(digits) :]


def _claim(table: pd.DataFrame, code: str, contrast: str) -> ClaimRow | None:
    """Return the row of a claim on a contrast; None where it was not made."""
    rows = where(table, claim=f"{code} {contrast}")
    return None if rows.empty else first_as(ClaimRow, rows)


def contrasts_of(table: pd.DataFrame) -> list[str]:
    """Return the contrasts of a table of claims, in their order."""
    return list(dict.fromkeys(code.partition(" ")[2] for code in table["claim"]))


def describe_contrast(rows: pd.DataFrame, contrast: str, reference: str) -> str:
    """Return one paragraph on a contrast of a checkpoint, from the cases that hold."""
    first = _claim(rows, "C1", contrast)
    if first is None:
        return ""
    if first.verdict == NOT_TESTABLE and math.isnan(first.value):
        return f"{contrast}: {first.reason}."
    interval = interval_words(first)
    numbers = f"excess {number(first.value)}, {interval}, p {number(first.p_adjusted)}"
    subject = f"tell {contrast} from {reference} beyond words and length"
    sentences = {
        SUPPORTED: f"States {subject} ({numbers}; {first.reason}); ",
        CONTRADICTED: f"States do not {subject}: {numbers}. ",
        UNDECIDED: f"It is undecided whether states {subject}: {first.reason} ({numbers}). ",
        NOT_TESTABLE: f"This run cannot say whether states {subject}: {first.reason} ({numbers}). ",
    }
    verdict = first.verdict
    if verdict not in sentences:
        return f"{contrast}: the verdict on C1, {verdict!r}, is unknown."
    first_sentence = sentences[verdict]
    if first.verdict != SUPPORTED:
        return f"{first_sentence}What follows may be chance."
    return first_sentence + describe_expression(_claim(rows, "C13", contrast))


def describe_expression(row: ClaimRow | None) -> str:
    """Return what the output makes of the difference, by the verdict on C13."""
    if row is None:
        return "whether the output uses the difference was not measured."
    if row.verdict == NOT_TESTABLE:
        return f"whether the output uses the difference was not measured: {row.reason}."
    ratio = f"× {number(np.exp(row.value))}, p {number(row.p_adjusted)}"
    if row.verdict == SUPPORTED:
        return (
            "putting the difference there moves the output more than random directions of its length and "
            f"differences of exchanged labels do ({ratio}): it is expressed."
        )
    if row.verdict == CONTRADICTED:
        return (
            "putting the difference there moves the output less than random directions of its length and "
            f"differences of exchanged labels do ({ratio}): it is silent."
        )
    return f"whether the output uses the difference is undecided ({ratio})."


def interval_words(row: ClaimRow) -> str:
    """Return the interval of a claim, or that it has none."""
    if math.isnan(row.low):
        return "no interval"
    return f"{number(row.low)} to {number(row.high)}"


def _reference(results: Any) -> str:
    """Return the bucket that the others are compared with: of outcomes the right answers."""
    return buckets(stored_options(results, HallucinationOptions))[0]


def _claims(page: Page) -> None:
    table = page.tables.get("claims")
    if table is None or table.empty:
        return
    page.words(
        "Does a model hold a signal of not knowing, and does its output use it? Before any model, what the "
        "prompts allow: buckets that length or words tell apart say nothing of uncertainty. Then every claim "
        "of arXiv 2603.13911 with its control."
    )
    page.figure("confounds")
    places = [_place(code) for code in table["claim"]]
    table = table.iloc[sorted(range(len(places)), key=places.__getitem__)]
    sentences = {code: WORDS.get(code.split()[0], "") for code in table["claim"]}
    claims_frame(page, table, sentences)
    page.figure("published")


def _prompts(page: Page) -> None:
    prompts = page.tables.get("prompts")
    if prompts is None or prompts.empty:
        return
    # each checkpoint has read them all
    means = (
        last_step(prompts)
        .groupby(["model", "bucket"], sort=False)
        .agg(
            prompts=("sample", "size"),
            templates=("template", "nunique"),
            tokens=("tokens", "mean"),
            surprisal=("surprisal", "mean"),
        )
    )
    cells = {
        "prompts": count_cells("prompts"),
        "templates": count_cells("templates"),
        "tokens": number_cells("tokens"),
        "surprisal": number_cells("surprisal"),
    }
    page.words("The prompts as the model reads them; the surprisal is of the questions’ tokens.")
    show(page, "prompts", "Prompts of each bucket.", means.reset_index(), ["model", "bucket"], cells)


def _greyed(page: Page) -> None:
    """Grey a section where the first claim is not supported, and say so."""
    table = page.tables.get("claims")
    if table is None or table.empty:
        return
    first = table[table["claim"].str.startswith("C1 ")]
    if not (first["verdict"] == SUPPORTED).any():
        page.grey()
        verdicts = ", ".join(dict.fromkeys(first["verdict"]))
        page.notes([f"C1 is {verdicts}, not supported: what follows may be chance."])


def _detection(page: Page) -> None:
    page.words(
        "Probes are fitted on some templates and scored on others. The projection on the difference of means "
        "is tested by exchanging labels within pairs; the probe is judged by its excess over the best of "
        "what is not a state."
    )
    _greyed(page)
    page.figure("detection_by_depth")
    table = page.tables.get("detection")
    # where no fold leaves both buckets to be fitted, no area has a value
    table = None if table is None else in_blocks(last_step(table[table["auc"].notna()]))
    if table is not None and not table.empty:
        best = table.loc[table.groupby(["model", "contrast", "score"], sort=False)["auc"].idxmax()]
        names = {heading: text_cells(heading) for heading in ("contrast", "score")}
        names["best layer"] = text_cells("layer")
        cells = {"AUC": number_cells("auc"), "95 % interval": interval_cells(), "n": text_cells("n")}
        caption = (
            "Held-out areas of the best layer; n prompts. The layer is the best on these prompts, and its "
            "interval does not allow for that choice; that of claim C1 does."
        )
        show(page, "scores", caption, best, names, cells)


def _geometry(page: Page) -> None:
    page.words(
        "Dimension and pieces of the buckets' clouds at equal n. Estimates of dimension are for comparison "
        "only: from about 10 on they fall short."
    )
    _greyed(page)
    for name in ("dimension_by_depth", "dimension_by_k", "betti_curves"):
        page.figure(name)
    table = page.tables.get("contrasts")
    if table is not None and not table.empty:
        rows = in_blocks(last_step(table))
        rows = rows[rows["p_value"].notna()]
        tests = ["model", "contrast", "quantity", "k"]
        # the layer that claims are about
        least = rows.sort_values(["p_adjusted", "p_value"], kind="stable").drop_duplicates(tests)
        best = rows[tests].drop_duplicates().merge(least, on=tests)
        for column in ("quantity", "correction"):
            best[column] = best[column].fillna("").str.replace("_", " ")
        names = {
            "contrast": text_cells("contrast"),
            "quantity": text_cells("quantity"),
            "k": lambda tests: [str(k) if k else "–" for k in tests["k"]],
            "layer": text_cells("layer"),
        }
        cells = {
            "value": number_cells("value"),
            "null": interval_cells("null_low", "null_high"),
            "p": number_cells("p_value"),
            "adjusted p": number_cells("p_adjusted"),
            "by": text_cells("correction", ""),
            "pairs": text_cells("n_pairs"),
        }
        caption = (
            "Tests by exchanged labels or random directions, layer of the smallest p. Null: ends that hold "
            f"95 % of draws{_fewer_draws(rows)}."
        )
        show(page, "tests", caption, best, names, cells)


def _fewer_draws(rows: pd.DataFrame) -> str:
    """Return what the null of tests by few random directions is, in words; "" where all have enough."""
    of_directions = where(rows, quantity=OF_DIRECTIONS)
    if of_directions.empty:
        return ""
    counts = {int(count) for count in of_directions["labellings"].dropna()}
    few = sorted(count for count in counts if count < DRAWS_OF_95)
    return "".join(f"; of few directions {null_words(count)}" for count in few)


def _along(page: Page) -> None:
    page.words(
        "What the next token does when the state moves along the boundary: per unit, per relative step "
        "(times ‖h‖²), and when the whole mean difference is put there."
    )
    _greyed(page)
    for name in ("sensitivity_by_depth", "amplification", "readout_by_depth", "refusal_slope", "lens"):
        page.figure(name)


def _interventions(page: Page) -> None:
    page.words(
        "A gain large enough on the token that a refusal is recognised by makes any detector refuse. What "
        "counts is whom it hits: refusals of the other bucket against false refusals of the reference, "
        "with a constant, a shuffled, a length and a random-weight detector."
    )
    _greyed(page)
    for name in ("bypass_curve", "steering_curve", "compression_curve", "training"):
        page.figure(name)


def findings(results: Any) -> list[str]:
    """Return the sentences at the top, absence of an effect included."""
    if "claims" not in results.tables():
        return []
    table, sentences = results.table("claims"), []
    several = table.groupby([*CHECKPOINT_KEYS], dropna=False).ngroups > 1
    for key, rows in table.groupby([*CHECKPOINT_KEYS], sort=False, dropna=False):
        for contrast in contrasts_of(rows):
            sentence = describe_contrast(rows, contrast, _reference(results))
            name = " ".join(str(part) for part in key[:2] if part)
            sentences.append(NamedSentence(name, sentence) if several else sentence)
    return [text for text in sentences if text]


def excess(table: pd.DataFrame) -> float:
    """Return the largest excess of a table of detection."""
    areas = where(table, score="auc_excess")["auc"]
    return float(areas.max()) if len(areas) else float(np.nan)


SECTIONS = (
    Section("found", "What was found", ("claims", "checks"), _claims),
    Section("prompts", "Prompts", ("prompts", "samples"), _prompts),
    Section("detection", "Detection", ("detection", "boundaries"), _detection),
    Section("geometry", "Dimension and pieces", ("clouds", "contrasts", "betti"), _geometry),
    Section("along", "Along the boundary", ("sensitivity", "readout", "lens"), _along),
    Section("interventions", "Interventions", ("interventions", "answers"), _interventions),
)
