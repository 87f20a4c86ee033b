# SPDX-License-Identifier: MIT
"""The verdicts behind a report's main numbers, so that no sentence claims more than its claim."""

from __future__ import annotations

import math
from typing import Any

from attnscope.plots.figure import optional
from attnscope.plots.selection import last_step
from attnscope.study_api.claims import ClaimRow
from attnscope.study_api.number_text import estimate_text
from attnscope.study_api.rows import first_as
from attnscope.study_api.selection import where


def claim_of(results: Any, model: str, code: str) -> ClaimRow | None:
    """Return the row of a claim of a model's last checkpoint; None where none is stored."""
    table = optional(results, "claims")
    if table is None or table.empty:
        return None
    rows = where(last_step(table), model=model, claim=code)
    return None if rows.empty else first_as(ClaimRow, rows.iloc[-1:])


def with_verdicts(sentence: str, results: Any, model: str, *codes: str, with_estimate: bool = False) -> str:
    """Return a sentence with the verdicts on claims before its full stop; as it is where none is stored.

    Args:
        sentence: that ends in a full stop.
        results: of a run, or tables in memory.
        model: of the sentence.
        codes: of the claims that the sentence is about.
        with_estimate: the number that decided a claim stands behind its verdict, for sentences that
            describe other numbers.
    """
    claims = [claim for code in codes if (claim := claim_of(results, model, code)) is not None]
    words = [f"{claim.claim}: {claim.verdict}{_decided(claim) if with_estimate else ''}" for claim in claims]
    return f"{sentence.removesuffix('.')} ({'; '.join(words)})." if words else sentence


def _decided(claim: ClaimRow) -> str:
    """Return the estimate that decided a claim, with its interval; "" where there is none."""
    if math.isnan(claim.value):
        return ""
    return f", {estimate_text(claim.value, claim.low, claim.high)}"
