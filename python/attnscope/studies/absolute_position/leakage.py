# SPDX-License-Identifier: MIT
"""The precursor's question (*Once upon a token*, Ruscio 2025): what position adds to the offset, by text.

Both fits of one text measure its content too, which is why `leakage_share` in the table `position` is made of
means over texts, and why every text is compared with itself with its tokens turned round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.metrics.positions.offset_fit import offset_fit
from attnscope.protocols import ruscio2025once
from attnscope.statistics.leakage import leakage_test
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.study_api.stage_run import StageRun

INPUTS = ("windows", "rotated")


def add(run: StageRun, scores: Tensor, *, input: str, samples: Sequence[int], layer: int) -> None:
    """Write the rows of one layer under both protocols.

    Args:
        scores: [B, h, n, n].
        input: windows, or the same with their tokens turned round.
    """
    fits: dict[str, tuple[Any, ...]] = {}
    if "exact" in run.settings.protocols:
        exact = offset_fit(scores, precision=run.settings.precision)
        fits["exact"] = (exact.r2, exact.r2 + exact.added, exact.added)
    if "ruscio2025once" in run.settings.protocols:
        fits["ruscio2025once"] = ruscio2025once.leakage(scores)
    heads = np.arange(scores.shape[1])
    for at, sample in enumerate(samples):
        for protocol, fit in fits.items():
            values = [part[at] for part in fit]
            columns: dict[str, Any] = dict(zip(("r2_relative", "r2_full", "leakage"), values, strict=True))
            run.write(
                "leakage", input=input, sample=sample, layer=layer, head=heads, protocol=protocol, **columns
            )


def tests(run: StageRun, options: Any) -> None:
    """Test every head against the same texts turned round: each text once, two sides, Benjamini–Hochberg."""
    if "leakage" not in run.stored.tables():
        return
    table = run.read("leakage")
    table = where(table, protocol="exact")
    index = ["sample", "layer", "head"]
    real, null = (where(table, input=name).set_index(index)["leakage"].sort_index() for name in INPUTS)
    if real.empty or null.empty:
        return
    texts = real.index.get_level_values("sample").nunique()
    test = leakage_test(
        real.to_numpy().reshape(texts, -1),
        null.to_numpy().reshape(texts, -1),
        draws=options.permutations,
        seed=run.settings.seed,
    )
    heads = real.loc[[real.index[0][0]]].index.droplevel("sample")
    run.write(
        "leakage_tests",
        layer=heads.get_level_values("layer").to_numpy(),
        head=heads.get_level_values("head").to_numpy(),
        protocol="exact",
        gap=test.gap,
        gap_low=test.low,
        gap_high=test.high,
        p_value=test.p_value,
        p_adjusted=test.p_adjusted,
        correction="Benjamini–Hochberg",
    )
