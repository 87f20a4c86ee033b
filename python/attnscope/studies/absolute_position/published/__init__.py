# SPDX-License-Identifier: MIT
"""The run's removals beside the one share that arXiv 2606.06160 prints where it could be read."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from attnscope.engine.schema import MissingError
from attnscope.plots.selection import last_step
from attnscope.published import Compared, same_model
from attnscope.published.comparison import Tables
from attnscope.studies.absolute_position.options import REPLACEMENTS


def compare(results: Tables, numbers: pd.DataFrame, chosen: str | None, *, draws: int, seed: int) -> Compared:
    """The published share beside the energy removed by every replacement, since it does not name its own.

    Args:
        results: with the table `removed`.
        numbers: as they were printed.
        chosen: the only published model to stand beside; None takes all.
        draws: not used.
        seed: not used.

    Raises:
        MissingError: a run without `removed`.
    """
    if "removed" not in results.tables():
        raise MissingError("compare: the run has no table 'removed'")
    removed = last_step(results.table("removed"))
    removed = removed[
        (removed["scope"] == "from_1") & (removed["queries"] == "early") & (removed["measure"] == "uniform")
    ]
    statements = [
        "The published share names neither its vector nor its statistic where they could be read: it "
        "stands beside "
        "each replacement, as energy, and none of them reproduces it.",
    ]
    rows: list[dict[str, Any]] = []
    for model, own in removed.groupby("model", sort=False):
        for number in numbers.to_dict("records"):
            if chosen is not None and number["model"] != chosen:
                continue
            same = same_model(str(number["model"]), str(model))
            if not same:
                statements.append(
                    f"{model} is not {number['model']}: the differences below are between models and say "
                    f"nothing "
                    "about whether the published number can be reproduced."
                )
            for arm in (*REPLACEMENTS, "no_bos"):
                found = own[own["arm"] == arm]
                if len(found):
                    rows.append(_row(str(model), arm, found, number, same=same))
    return Compared(pd.DataFrame(rows), list(dict.fromkeys(statements)))


def _row(model: str, arm: str, found: pd.DataFrame, number: dict[Any, Any], *, same: bool) -> dict[str, Any]:
    """The published number beside one arm, the mean over its draws."""
    means = found[["energy_removed", "energy_removed_low", "energy_removed_high"]].mean()
    value, low, high = (float(one) for one in means)
    return {
        "model": model,
        "published_model": number["model"],
        "same_model": same,
        "quantity": number["quantity"],
        "layer": -1,
        "published_layer": -1,
        "token": arm,
        "statistic": number["statistic"],
        "published": number["value"],
        "published_low": number["low"],
        "published_high": number["high"],
        "measured": math.nan,
        "low": math.nan,
        "high": math.nan,
        "sentences": 0,
        "difference": value - number["value"],
        "exact": value,
        "exact_low": low,
        "exact_high": high,
        "printed": number["printed"],
        "about": "1 − the residual's energy with what is put at position 0, layers from 1, early queries",
        "origin": number["origin"],
    }
