# SPDX-License-Identifier: MIT
"""Questions about a run that a test over sentences answers, each family corrected for its size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from attnscope.inference import Comparison, benjamini_hochberg, holm, paired_test, per_sample, welch_test
from attnscope.metrics.quantity import quantity
from attnscope.plots.selection import NULLS, last_step
from attnscope.report.numbers import interval_text, number
from attnscope.studies.attention_sinks.comparisons import against_control

#: What models are held against their nulls and each other in.
METRICS = (
    "sink_share", "entropy_normalized", "fiedler_value", "participation_ratio", "mp_ks", "alignment_value",
    "alignment_hidden",
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """One test: what is compared, in which quantity, and what came out."""

    compared: str
    quantity: str
    difference: str
    sentences: int
    interval: str = ""
    p: str = ""
    holm: str = ""
    bh: str = ""
    certain: bool = False


@dataclass(frozen=True)
class Question:
    """A family of tests under one question."""

    title: str
    words: str
    answers: tuple[Answer, ...]

    def frame(self) -> pd.DataFrame:
        """The answers as text; those without a p-value are counts of pairs."""
        if self.answers[0].p:
            columns = {
                "compared": "compared", "quantity": "quantity", "difference": "difference",
                "interval": "95 % interval", "p": "p", "holm": "Holm", "bh": "B-H", "sentences": "n",
            }  # fmt: skip
        else:
            columns = {
                "compared": "model", "quantity": "quantity", "difference": "pairs of layers that differ",
                "sentences": "n",
            }  # fmt: skip
        rows = pd.DataFrame([vars(one) for one in self.answers])[list(columns)]
        return rows.rename(columns=columns)


def questions(
    tables: Mapping[str, pd.DataFrame], heads: pd.DataFrame | None, controls: pd.DataFrame
) -> list[Question]:
    """Every question that the stored tables answer: of single exact heads, controls as `Results.variants`."""
    found: list[Question | None] = []
    if heads is not None and not heads.empty:
        heads = last_step(heads)
        if len(controls):
            found.append(_against_nulls(heads, controls))
        found.append(_between_series(heads))
    if "ablation" in tables:
        found.append(_ablation(last_step(tables["ablation"])))
    if "removal_tests" in tables:
        found.append(_removal(last_step(tables["removal_tests"])))
    if "layer_tests" in tables:
        found.append(_layers(last_step(tables["layer_tests"])))
    return [question for question in found if question is not None and question.answers]


def _against_nulls(heads: pd.DataFrame, nulls: pd.DataFrame) -> Question:
    """The model against random initialisations of itself, and paired over sentences with shuffled rows."""
    nulls = nulls[(nulls["protocol"] == "exact") & (nulls["scope"] == "heads") & nulls["threshold"].isna()]
    tests: list[tuple[str, str, Comparison]] = []
    for series, own in heads.groupby("series", sort=False):
        for kind, name in NULLS.items():
            for metric in METRICS:
                if metric not in own or own[metric].isna().all():
                    continue
                # random weights belong to a whole series, shuffled rows to their own checkpoint
                mine = own.groupby("sample")[metric].mean()
                whose = nulls["model"].isin(own["model"]) & (nulls["variant"] == kind)
                if kind != "random_weights":
                    whose &= nulls["revision"].isin(own["revision"])
                theirs = nulls[whose & (nulls["metric"] == metric) & nulls["sample"].isin(mine.index)]
                both = mine.rename("here").to_frame().join(theirs.set_index("sample")["value"], how="inner")
                a, b = both["here"].to_numpy(float), both["value"].to_numpy(float)
                # what a null leaves as it is (shuffling a row, its entropy) is no test of anything
                if len(both) > 1 and not np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True):
                    found = against_control(kind, mine, theirs)
                    count = found["controls"] if kind == "random_weights" else found["samples"]
                    test = _comparison(found, count)
                    tests.append((f"{series} − {name}", metric, test))
    return Question(
        "Does the model differ from its nulls?",
        "Mean over heads of each text. Shuffled rows are paired with the same text, and <i>n</i> is "
        "of texts. Of random weights <i>n</i> is of initialisations, which are the unit: with fewer than "
        "eight there is no interval and no <i>p</i>.",
        _answers(tests),
    )


def _between_series(heads: pd.DataFrame) -> Question:
    """Between input sets or models: paired where the sentences are the same, Welch where they are not."""
    tests: list[tuple[str, str, Comparison]] = []
    names = list(dict.fromkeys(heads["series"]))[:6]
    paired = False
    for one, other in combinations(names, 2):
        a, b = heads[heads["series"] == one], heads[heads["series"] == other]
        for metric in METRICS:
            if metric not in heads or a[metric].isna().all() or b[metric].isna().all():
                continue
            x, y = per_sample(a, metric), per_sample(b, metric)
            same = sorted(set(x.index) & set(y.index))
            if len(same) == len(x) == len(y):
                paired = True
                result = paired_test(x.loc[same], y.loc[same])
            else:
                result = welch_test(x, y)
            tests.append((f"{one} − {other}", metric, result))
    how = "the same texts, paired t-tests" if paired else "different texts, Welch's t-tests"
    return Question(
        "Do input sets or models differ?", f"Mean over heads of each text; {how}.", _answers(tests)
    )


def _ablation(table: pd.DataFrame) -> Question:
    """Paired over the sentences that have such keys: masking them against masking as many others nearby."""
    tests: list[tuple[str, str, Comparison]] = []
    for model, own in table.groupby("model", sort=False):
        for kind in ("sinks", "first"):
            for column in ("output_kl", "loss_change"):
                if column not in own:
                    continue
                # a sentence in which nothing is masked says nothing of masking
                masked = own[own["key_count"] > 0]
                if (own["keys"] == kind).any() and not (masked["keys"] == kind).any():
                    nothing = _comparison(dict.fromkeys(("difference", "low", "high", "p_value"), np.nan), 0)
                    tests.append((f"{model}: {ABLATED[kind]} − other keys", column, nothing))
                    continue
                wide = masked.pivot_table(index="sample", columns="keys", values=column)
                control = f"control_{kind}"
                if {kind, control} <= set(wide):
                    pair = wide[[kind, control]].dropna()
                    if len(pair):
                        name = f"{model}: {ABLATED[kind]} − other keys"
                        tests.append((name, column, paired_test(pair[kind], pair[control])))
    return Question(
        "Does the model need its sinks?",
        "Keys masked before the softmax in every layer and head, the sinks being those of the test on the "
        "mean over layers and heads. Each control masks as many other visible keys near them, mean of five "
        "draws; texts without such keys are left out, <i>n</i> is of those that are left. Without any there "
        "is no test.",
        _answers(tests),
    )


def _removal(table: pd.DataFrame) -> Question:
    """Each layer without its strongest keys, against as many random ones."""
    rows = table[(table["protocol"] == "exact") & (table["percentile"] == 90)]
    tests = [
        (
            f"{row['model']}: layer {row['layer']}, strongest − random keys",
            "kl_reduction",
            _comparison(row, int(row["samples"])),
        )
        for row in rows.to_dict("records")
        if "difference" in row
    ]  # fmt: skip
    return Question(
        "Do heads agree more without the strongest keys?",
        "How much the heads' divergence falls without the keys above the 90th percentile of incoming "
        "attention, less how much it falls without as many random visible keys near them, mean of five "
        "draws. <i>n</i> is of texts that have such keys. The keys are chosen by the attention that they "
        "receive, in an untrained model too.",
        _answers(tests),
    )


def _comparison(found: Mapping[Any, Any], count: int) -> Comparison:
    """A stored test of `count` units."""
    difference, low, high, p_value = (float(found[name]) for name in ("difference", "low", "high", "p_value"))
    return Comparison(difference, low, high, np.nan, np.nan, p_value, count)


def _layers(table: pd.DataFrame) -> Question | None:
    """How many pairs of layers differ: paired and corrected, and as published."""
    wanted = [name for name in ("mean_persistence_0", *METRICS) if (table["metric"] == name).any()]
    answers = []
    for model, own in table.groupby("model", sort=False):
        for metric in dict.fromkeys(wanted):
            rows = own[own["metric"] == metric]
            exact = rows[(rows["protocol"] == "exact") & rows["p_holm"].notna()]
            published = rows[(rows["protocol"] == "ruscio2025") & rows["p_value"].notna()]
            if exact.empty and published.empty:
                continue
            counts = []
            if len(exact):
                counts.append(f"{int((exact['p_holm'] < 0.05).sum())} of {len(exact)} (paired, Holm)")
            if len(published):
                counts.append(
                    f"{int((published['p_value'] < 0.05).sum())} of {len(published)} (Welch, uncorrected)"
                )
            rows_there = exact if len(exact) else published
            texts = int(rows_there["samples"].max())
            answers.append(Answer(str(model), quantity(metric).label, "; ".join(counts), texts))
    if not answers:
        return None
    return Question(
        "Which layers differ?",
        "Pairs among the first, the quarter and the last layers with <i>p</i> &lt; 0.05. The exact count is "
        "paired by text and corrected over the run's table. The published one is not corrected and treats "
        "the same text in two layers as two independent texts.",
        tuple(answers),
    )


def _answers(tests: Sequence[tuple[str, str, Comparison]]) -> tuple[Answer, ...]:
    """Tests with their corrected p-values; the family is all of them."""
    if not tests:
        return ()
    p = np.array([test.p_value for _, _, test in tests])
    strict, discovered = holm(p), benjamini_hochberg(p)
    return tuple(
        Answer(
            compared, LABELS.get(metric) or quantity(metric).label, number(test.difference), test.n,
            interval_text(test.low, test.high), p_text(test.p_value), p_text(strict[place]),
            p_text(discovered[place]), bool(strict[place] < 0.05),
        )
        for place, (compared, metric, test) in enumerate(tests)
    )  # fmt: skip


ABLATED = {"sinks": "sinks", "first": "first key"}
LABELS = {
    "kl_reduction": "KL reduction (nats)",
    "output_kl": "KL of the output (nats)",
    "loss_change": "change of loss (nats)",
}


def p_text(value: float) -> str:
    """A p-value as it is written.

    >>> p_text(0.2), p_text(0.0123), p_text(1e-9), p_text(float("nan"))
    ('0.20', '0.012', '< 0.001', '–')
    """
    if value != value:
        return "–"
    if value < 0.001:
        return "< 0.001"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
