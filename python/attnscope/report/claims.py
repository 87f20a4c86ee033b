# SPDX-License-Identifier: MIT
"""The table of claims in a report: each in words, with its number, interval, null and verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from attnscope.report.numbers import number

if TYPE_CHECKING:
    from attnscope.report.section import Page


def claims_frame(page: Page, table: pd.DataFrame, sentences: Mapping[str, str]) -> None:
    """Writes the table of claims; models and steps are named where there are several."""
    several = table.groupby(["model", "revision", "step"], dropna=False).ngroups > 1
    columns: dict[str, Any] = {"model": _models(table)} if several else {}
    columns |= {
        "claim": [f"{code}: {sentences[code]}" if code in sentences else code for code in table["claim"]],
        "verdict": list(table["verdict"]),
        "value": [number(value) for value in table["value"]],
        "95 % interval": [interval(*ends) for ends in zip(table["low"], table["high"], strict=True)],
        "null": [number(value) for value in table["null"]],
        "adjusted p": [number(value) for value in table["p_adjusted"]],
        "of": list(table["statistic"].fillna("")),
        "why": list(table["reason"].fillna("")),
    }
    for name in ("95 % interval", "adjusted p"):
        if all(cell == "–" for cell in columns[name]):
            del columns[name]
    page.frame("claims", "Claims and verdicts.", pd.DataFrame(columns), names=1 + several)


def interval(low: float, high: float) -> str:
    """An interval's ends in brackets, or a dash where there is none."""
    return "–" if pd.isna(low) or pd.isna(high) else f"[{number(low)}, {number(high)}]"


def _models(table: pd.DataFrame) -> list[str]:
    names = (table["model"] + " " + table["revision"].fillna("")).str.strip()
    steps = table["step"].astype(int)
    return [f"{name}, step {step}" if step >= 0 else name for name, step in zip(names, steps, strict=True)]
