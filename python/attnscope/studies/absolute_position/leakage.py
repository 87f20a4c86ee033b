# SPDX-License-Identifier: MIT
"""The precursor's question (*Once upon a token*, Ruscio 2025): what position adds to the offset, by text.

Both fits of one text measure its content too, which is why `leakage_share` in the table `position` is made of
means over texts, and why every text is compared with itself with its tokens turned round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.capture.sites import INTERFACE
from attnscope.metrics.positions.offset_fit import offset_fit
from attnscope.protocols import ruscio2025once
from attnscope.statistics.leakage import leakage_test
from attnscope.studies.absolute_position.sums import softmax_of
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture import Layer
    from attnscope.study_api.stage_run import StageRun

INPUTS = ("windows", "rotated")


#: Sites of the notebook's scores, which no softcap, bias or mask has changed.
PRODUCTS = ("query", "key")


def products(layer: Layer) -> Tensor:
    """Return the notebook's scores [B, h, n, n]: unscaled q·k behind the rotation."""
    keys = layer.tensors["key"][:, list(layer.kv_heads)]
    scores: Tensor = layer.tensors["query"].double() @ keys.double().mT
    return scores


def has_products(run: StageRun, tier: int) -> bool:
    """Return True if the notebook's scores can be had; else note that its numbers are left out."""
    if tier == INTERFACE:
        return True
    run.note(
        "absolute_position: no leakage of ruscio2025once: it is of q·k, and the model's queries are out of "
        "reach"
    )
    return False


def add(run: StageRun, layer: Layer, tier: int, *, input: str, samples: Sequence[int]) -> None:
    """Write the rows of one layer under both protocols.

    Args:
        run: of the pass.
        layer: with what `softmax_of` reads, and queries and keys for the notebook's protocol.
        tier: of the capture.
        input: windows, or the same with their tokens turned round.
        samples: numbers of the texts.
    """
    scores, _ = softmax_of(layer)
    fits: dict[str, tuple[Any, ...]] = {}
    if "exact" in run.settings.protocols:
        exact = offset_fit(scores, precision=run.settings.precision)
        fits["exact"] = (exact.r2, exact.r2 + exact.added, exact.added)
    if "ruscio2025once" in run.settings.protocols and has_products(run, tier):
        fits["ruscio2025once"] = ruscio2025once.leakage(products(layer))
    heads = np.arange(scores.shape[1])
    for at, sample in enumerate(samples):
        for protocol, fit in fits.items():
            values = [part[at] for part in fit]
            columns: dict[str, Any] = dict(zip(("r2_relative", "r2_full", "leakage"), values, strict=True))
            run.write(
                "leakage",
                input=input,
                sample=sample,
                layer=layer.index,
                head=heads,
                protocol=protocol,
                **columns,
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
