# SPDX-License-Identifier: MIT
"""The table of claims in a report: each in words, with its number, interval, null and verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from attnscope.report.numbers import interval_text, number

if TYPE_CHECKING:
    from attnscope.report.section import Page


def claims_frame(page: Page, table: pd.DataFrame, sentences: Mapping[str, str]) -> None:
    """Writes the table of claims; models and steps are named where there are several.

    Words stand in the leading columns, which wrap, so that the table fits a narrow page.
    """
    several = table.groupby(["model", "revision", "step"], dropna=False).ngroups > 1
    columns: dict[str, Any] = {"model": _models(table)} if several else {}
    words = zip(table["statistic"].fillna(""), table["reason"].fillna(""), strict=True)
    columns |= {
        "claim": [f"{code}: {sentences[code]}" if code in sentences else code for code in table["claim"]],
        "verdict": list(table["verdict"]),
        "what was measured; why": ["; ".join(filter(None, both)) for both in words],
    }
    names = len(columns)
    values = zip(table["value"], table["low"], table["high"], strict=True)
    columns |= {
        "value [95 %]": [_with_interval(*one) for one in values],
        "null": [number(value) for value in table["null"]],
        "adjusted p": [number(value) for value in table["p_adjusted"]],
    }
    if table["p_adjusted"].isna().all():
        del columns["adjusted p"]
    page.frame("claims", "Claims and verdicts.", pd.DataFrame(columns), names=names)


def interval(low: float, high: float) -> str:
    """An interval's ends in brackets, or a dash where there is none."""
    return interval_text(low, high) or "–"


def _with_interval(value: float, low: float, high: float) -> str:
    known = not (pd.isna(low) or pd.isna(high))
    return f"{number(value)} {interval(low, high)}" if known else number(value)


def _models(table: pd.DataFrame) -> list[str]:
    names = (table["model"] + " " + table["revision"].fillna("")).str.strip()
    steps = table["step"].astype(int)
    return [f"{name}, step {step}" if step >= 0 else name for name, step in zip(names, steps, strict=True)]
