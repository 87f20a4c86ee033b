# SPDX-License-Identifier: MIT
"""A study's claims: what was computed of each, beside its null, and a verdict.

A verdict is one of four words: `supported`, `contradicted`, `undecided` (the interval crosses the border of
the claim) and `not testable here`, which says why. p-values are adjusted over the claims that are
written together: by Holm over the primary ones, by Benjamini and Hochberg over the others.

    Table("claims", (*CHECKPOINT_KEYS, "protocol", "claim"), CLAIM_COLUMNS)
    write_claims(run, [Claim("C1", "mean difference", SUPPORTED, "", 1.2, .8, 1.6, null=0.0, p_value=.001)])
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnscope.engine.tables import Column, columns
from attnscope.inference import benjamini_hochberg, holm

if TYPE_CHECKING:
    from attnscope.engine.stage_run import StageRun

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
NOT_TESTABLE = "not testable here"

CLAIM_COLUMNS = (
    Column("statistic", "string", "text", meaning="What was computed."),
    *columns("value", "value", "low", "high"),
    Column("null", meaning="What no effect would give, or the border of the claim."),
    *columns("ratio", "p_value", "p_adjusted", low=0.0, high=1.0),
    Column("correction", "string", "text", meaning="Over the claims that have a p-value."),
    Column("verdict", "string", "text", meaning=f"{SUPPORTED}, {CONTRADICTED}, {UNDECIDED}, {NOT_TESTABLE}."),
    Column("reason", "string", "text", meaning="In words."),
)


@dataclass(frozen=True)
class Claim:
    """One row of the table `claims`.

    Attributes:
        claim: its code, such as "C1".
        statistic: what was computed, in words.
        verdict: one of the four.
        reason: in words; never empty where the verdict is `not testable here`.
        value: of the statistic.
        low: end of its interval.
        high: likewise.
        null: what no effect would give, or the border of the claim.
        p_value: against the null.
    """

    claim: str
    statistic: str
    verdict: str
    reason: str = ""
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    null: float = math.nan
    p_value: float = math.nan


def adjusted(
    claims: Sequence[Claim], secondary: Collection[str] = ()
) -> tuple[npt.NDArray[np.float64], list[str]]:
    """Adjusted p-values of claims that are written together, and how; NaN and "" where nothing was tested.

    Args:
        claims: all of them.
        secondary: codes of those that are not of the list which the study was made to test.
    """
    p_values = np.array([one.p_value for one in claims], dtype=float)
    primary = np.array([one.claim not in secondary for one in claims], dtype=bool)
    of_list = holm(np.where(primary, p_values, np.nan))
    others = benjamini_hochberg(np.where(primary, np.nan, p_values))
    values = np.where(primary, of_list, others)
    names = np.where(np.isnan(values), "", np.where(primary, "holm", "benjamini_hochberg"))
    return values, names.tolist()


def write_claims(
    run: StageRun, claims: Iterable[Claim], secondary: Collection[str] = (), /, **keys: Any
) -> None:
    """Writes the rows of one checkpoint or pair under its keys, p-values adjusted as `adjusted` does."""
    rows = list(claims)
    for one, value, correction in zip(rows, *adjusted(rows, secondary), strict=True):
        run.write(
            "claims",
            **{"protocol": "exact", **keys},
            **vars(one),
            p_adjusted=value,
            correction=correction,
        )
