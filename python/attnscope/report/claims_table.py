# SPDX-License-Identifier: MIT
"""The table of claims and their verdicts on a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from attnscope.report.section import Page
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.study_api.number_text import estimate_text, number

#: Rows of the table of claims from which it is folded.
LONGEST = 40


def claims_frame(page: Page, table: pd.DataFrame, sentences: Mapping[str, str]) -> None:
    """Write the table of claims; models and steps are named if there are several.

    Words are in the leading columns, which wrap, so that the table fits a narrow page. With several models a
    row that is the same for all of them is given once, what is computed is said once a claim, and a long
    table is folded behind a count of verdicts. Contrasts of a claim share its sentence, which stands at the
    first of them.
    """
    several = table.groupby([*CHECKPOINT_KEYS], dropna=False).ngroups > 1
    if several:
        order = {code: place for place, code in enumerate(dict.fromkeys(table["claim"]))}
        table = table.sort_values("claim", key=lambda codes: codes.map(order), kind="stable")
    columns: dict[str, Any] = {"model": _models(table)} if several else {}
    sentence = table["claim"].map(sentences)
    statistic = table["statistic"].fillna("")
    # the rows of another contrast of the same claim, which have a code of their own
    again = (sentence == sentence.shift()) & (table["claim"] != table["claim"].shift())
    columns |= {
        "claim": [
            code if pd.isna(words) or repeated else f"{code}: {words}"
            for code, words, repeated in zip(table["claim"], sentence, again, strict=True)
        ],
        "verdict": list(table["verdict"]),
        "what was measured": list(statistic.mask(again & (statistic == statistic.shift()), "")),
        "why": list(table["reason"].fillna("")),
    }
    values = zip(table["value"], table["low"], table["high"], strict=True)
    columns |= {
        "value [95 %]": [estimate_text(*parts) for parts in values],
        "range": _ranges(table, "range_low", "range_high"),
        "border or null": [number(value) for value in table["null"]],
        "control, range": _ranges(table, "control_low", "control_high"),
        "adjusted p": [number(value) for value in table["p_adjusted"]],
    }
    for column, source in (
        ("range", "range_low"),
        ("control, range", "control_low"),
        ("adjusted p", "p_adjusted"),
    ):
        if source not in table or table[source].isna().all():
            del columns[column]
    frame = pd.DataFrame(columns)
    if several:
        frame = once_for_all(frame)
        # a claim may be measured in another way in another model
        cells = frame[["claim", "what was measured"]]
        repeated = (cells == cells.shift()).all(axis="columns")
        frame["what was measured"] = frame["what was measured"].mask(repeated, "")
        if len(frame) > LONGEST:
            page.frame("verdicts", "Number of models and steps by verdict.", verdict_counts(table, sentences))
    words = [
        "; ".join(filter(None, cells)) for cells in zip(frame["what was measured"], frame["why"], strict=True)
    ]
    place = frame.columns.get_loc("what was measured")
    frame = frame.drop(columns=["what was measured", "why"])
    frame.insert(place, "what was measured; why", words)
    page.frame("claims", "Claims and verdicts.", frame, names=place + 1, folded=len(frame) > LONGEST)


def once_for_all(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with their models, each row that is the same for every model once.

    Args:
        frame: with the column `model` first.

    >>> once_for_all(pd.DataFrame({"model": ["a", "b", "a", "b"], "x": [1, 1, 2, 3]})).values.tolist()
    [['all 2', 1], ['a', 2], ['b', 3]]
    """
    others = [name for name in frame if name != "model"]
    models = frame["model"].nunique()
    shared = frame.groupby(others, dropna=False)["model"].transform("nunique") == models
    frame = frame.assign(model=frame["model"].mask(shared, f"all {models}"))
    return frame.drop_duplicates().reset_index(drop=True)


def verdict_counts(table: pd.DataFrame, sentences: Mapping[str, str]) -> pd.DataFrame:
    """Return how many models and steps have each verdict, one row a claim."""
    counts = table.groupby(["claim", "verdict"], sort=False).size().unstack(fill_value=0)
    named = {"claim": [f"{code}: {sentences[code]}" if code in sentences else code for code in counts.index]}
    return pd.DataFrame(named | {str(name): [str(count) for count in counts[name]] for name in counts})


def _ranges(table: pd.DataFrame, low: str, high: str) -> list[str]:
    """Return smallest and largest value of each row as "0.2 to 0.4", or "" where there is none."""
    if low not in table:
        return [""] * len(table)
    ends = zip(table[low], table[high], strict=True)
    return ["" if pd.isna(first) else f"{number(first)} to {number(last)}" for first, last in ends]


def _models(table: pd.DataFrame) -> list[str]:
    names = (table["model"] + " " + table["revision"].fillna("")).str.strip()
    steps = table["step"].astype(int)
    return [f"{name}, step {step}" if step >= 0 else name for name, step in zip(names, steps, strict=True)]
