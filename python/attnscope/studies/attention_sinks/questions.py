# SPDX-License-Identifier: MIT
"""Questions about a run that its report answers by tests over sentences, a family of tests each.

The p-values of a family are corrected for its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from attnscope.metrics.discovery import quantity
from attnscope.plots.selection import last_step
from attnscope.results.summaries import NULLS
from attnscope.statistics import benjamini_hochberg, holm, paired_test, per_sample, welch_test
from attnscope.statistics.rounding import ROUNDED_FLOAT32
from attnscope.studies.attention_sinks.comparisons import difference_of
from attnscope.studies.attention_sinks.figures.runs import ABLATED, CHANGES
from attnscope.study_api.number_text import interval_text, number, p_text
from attnscope.study_api.selection import where

#: What models are held against their nulls and each other in.
METRICS = (
    "sink_share",
    "entropy_normalized",
    "fiedler_value",
    "participation_ratio",
    "mp_ks",
    "alignment_value",
    "alignment_hidden",
)
_P_VALUES = {"p": "p_value", "Holm": "p_holm", "B-H": "p_bh"}
LABELS = {"kl_share": "share of the divergence"} | {name: label for name, (label, _) in CHANGES.items()}


class Question(NamedTuple):
    """A family of tests under one question: the answers as text, and the rows that are certain."""

    title: str
    words: str
    frame: pd.DataFrame
    certain: tuple[int, ...] = ()


def questions(tables: Mapping[str, pd.DataFrame], heads: pd.DataFrame | None) -> list[Question]:
    """Return every question that the stored tables answer; `heads` are those of the exact protocol."""
    asks = {
        "null_tests": _against_nulls,
        "heads": _between_series,
        "ablation": _ablation,
        "removal_tests": _removal,
        "layer_tests": _layers,
    }
    tables_of_run = {**tables, "heads": heads}
    stored = {name: frame for name in asks if (frame := tables_of_run.get(name)) is not None and len(frame)}
    answers = [asks[name](last_step(frame)) for name, frame in stored.items()]
    return [question for question in answers if len(question.frame)]


_OF_INITIALISATIONS = Markup(
    "Of random weights <i>n</i> is of initialisations, which are the unit: with fewer than eight there is no "
    "interval and no <i>p</i>. "
)


def _against_nulls(table: pd.DataFrame) -> Question:
    """Compare the model with random initialisations of itself, and, paired over sentences, with shuffled
    rows.
    """
    exact = where(table, protocol="exact", scope="heads")
    tests = []
    for kind, metric in product(NULLS, METRICS):
        # a number that a null cannot change (the entropy, by shuffling a row) is no test
        rows = where(exact, kind=kind, metric=metric)
        for row in rows[rows["difference"].abs() > 1e-12].to_dict("records"):
            count = row["controls" if row["unit"] == "initialisation" else "samples"]
            tests.append({**row, "compared": f"{row['model']} − {NULLS[kind]}", "n": count})
    return _answered(
        "Does the model differ from its nulls?",
        Markup("Mean over heads of each text. Shuffled rows are paired with it, and <i>n</i> is of texts. ")
        + _OF_INITIALISATIONS
        + Markup(
            "Corrected over the rows of a model in the table <code>null_tests</code>, which holds other "
            "quantities too."
        ),
        tests,
    )


def _between_series(heads: pd.DataFrame) -> Question:
    """Compare input sets or models: paired over the sentences of both, without any by Welch's test."""
    tests, ways = [], set()
    for series, other_series in combinations(list(dict.fromkeys(heads["series"]))[:6], 2):
        a, b = where(heads, series=series), where(heads, series=other_series)
        for metric in METRICS:
            if metric not in heads or a[metric].isna().all() or b[metric].isna().all():
                continue
            x, y = per_sample(a, metric), per_sample(b, metric)
            shared_texts = sorted(set(x.index) & set(y.index))
            if shared_texts:
                pair = x.loc[shared_texts], y.loc[shared_texts]
                result = paired_test(*pair, resolution=ROUNDED_FLOAT32)
            else:
                result = welch_test(x, y, resolution=ROUNDED_FLOAT32)
            ways.add("the same texts, paired t-tests" if shared_texts else "different texts, Welch's t-tests")
            keys = {"compared": f"{series} − {other_series}", "metric": metric, "n": result.n}
            tests.append({**keys, **difference_of(result)})
    how = "; ".join(sorted(ways, reverse=True))
    return _answered("Do input sets or models differ?", f"Mean over heads of each text; {how}.", tests)


def _ablation(table: pd.DataFrame) -> Question:
    """Compare masking the sinks with masking as many other keys nearby, paired over the sentences that
    have such keys.
    """
    tests = []
    columns, kinds = [change for change in CHANGES if change in table], ("sinks", "first")
    for (model, rows_of_model), kind, column in product(table.groupby("model", sort=False), kinds, columns):
        # a sentence without masked keys tells nothing of masking
        masked = rows_of_model[rows_of_model["key_count"] > 0]
        wide = masked.pivot_table(index="sample", columns="keys", values=column)
        pair = wide.reindex(columns=[kind, f"control_{kind}"]).dropna()
        nowhere = (rows_of_model["keys"] == kind).any() and not (masked["keys"] == kind).any()
        if len(pair) or nowhere:
            keys = {"compared": f"{model}: {ABLATED[kind]} − other keys", "metric": column, "n": len(pair)}
            test = paired_test(*pair.to_numpy().T, resolution=ROUNDED_FLOAT32)
            tests.append({**keys, **difference_of(test)})
    return _answered(
        "Does the model need its sinks?",
        Markup(
            "Keys masked before the softmax in every layer and head, the sinks being those of the test on "
            "the mean over layers and heads. Each control masks as many other visible keys near them, mean "
            "of five draws; texts without such keys are left out, <i>n</i> is of those that are left. "
            "Without any there is no test."
        ),
        tests,
    )


def _removal(table: pd.DataFrame) -> Question:
    """Compare each layer without its strongest keys with the same of shuffled rows."""
    title = "Do heads agree more without the strongest keys?"
    rows = where(table, protocol="exact", percentile=90)
    tests = [
        {**row, "compared": f"{row['model']}: layer {row['layer']}, maps − shuffled rows"}
        | {"metric": "kl_share", "n": int(row["samples"])}
        for row in rows.to_dict("records")
        if "difference" in row
    ]
    return _answered(
        title,
        Markup(
            "The share of the heads' divergence that goes with the keys above the 90th percentile of "
            "incoming attention, less that of maps with shuffled rows without the strongest keys of these, "
            "mean of two draws. <i>n</i> is of texts. An untrained model has keys that its queries prefer "
            "too. Corrected over the rows of a model in the table <code>removal_tests</code>, which holds "
            "other percentiles too."
        ),
        tests,
    )


def _layers(table: pd.DataFrame) -> Question:
    """Count the pairs of layers that differ: paired and corrected, and as published."""
    rows = []
    for (model, rows_of_model), metric in product(
        table.groupby("model", sort=False), ("mean_persistence_0", *METRICS)
    ):
        tests = where(rows_of_model, metric=metric)
        exact = where(tests[tests["p_holm"].notna()], protocol="exact")
        published = where(tests[tests["p_value"].notna()], protocol="ruscio2025")
        counts = [
            f"{int((p < 0.05).sum())} of {len(p)} ({how})"
            for p, how in ((exact["p_holm"], "paired, Holm"), (published["p_value"], "Welch, uncorrected"))
            if len(p)
        ]
        if counts:
            row = {"model": str(model), "quantity": quantity(metric).label}
            row["pairs of layers that differ"] = "; ".join(counts)
            rows.append({**row, "n": int((exact if len(exact) else published)["samples"].max())})
    return Question(
        "Which layers differ?",
        Markup(
            "Pairs among the first, the quarter and the last layers with <i>p</i> &lt; 0.05. The exact count "
            "is paired by text and corrected over a model's rows of the run's table. The published one is "
            "not corrected and treats the same text in two layers as two independent texts."
        ),
        pd.DataFrame(rows),
    )


def _answered(title: str, words: str, tests: list[dict[Any, Any]]) -> Question:
    """Return a question with the results of its tests and corrected p-values: stored ones, else of all
    tests.
    """
    if not tests:
        return Question(title, words, pd.DataFrame())
    rows = pd.DataFrame(tests)
    if "p_holm" not in rows:
        rows = rows.assign(p_holm=holm(rows["p_value"]), p_bh=benjamini_hochberg(rows["p_value"]))
    strict = rows["p_holm"].to_numpy(float)
    columns = {
        "compared": rows["compared"],
        "quantity": [LABELS.get(metric) or quantity(metric).label for metric in rows["metric"]],
        "difference": rows["difference"].map(number),
        "95 % interval": [interval_text(*ends) for ends in zip(rows["low"], rows["high"], strict=True)],
        **{name: rows[column].map(p_text) for name, column in _P_VALUES.items()},
        "n": rows["n"],
    }
    return Question(title, words, pd.DataFrame(columns), tuple(np.flatnonzero(strict < 0.05).tolist()))
