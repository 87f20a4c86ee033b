# SPDX-License-Identifier: MIT
"""One published number and what a run has of it, as a row of a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import pandas as pd

from attnscope.published.numbers import same_model


class Measured(NamedTuple):
    """A number of the run with its interval; NaN is what it does not hold."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan


def beside(
    model: str,
    number: Mapping[str, Any],
    *,
    measured: Sequence[float] = Measured(),
    exact: Sequence[float] = Measured(),
    sentences: int = 0,
    about: str = "",
    **others: Any,
) -> dict[str, Any]:
    """A row of `Compared.table`: the published number, and the run's own under both protocols.

    Args:
        about: what the quantity is, where its name does not say it.
        others: columns that are not as published, as the layer here.
    """
    measured, exact = Measured(*measured), Measured(*exact)
    row = {
        "model": model,
        "published_model": number["model"],
        "same_model": same_model(str(number["model"]), model),
        "quantity": number["quantity"],
        "layer": int(number["layer"]),
        "published_layer": int(number["layer"]),
        "token": number["token"],
        "statistic": number["statistic"],
        "published": number["value"],
        "published_low": number["low"],
        "published_high": number["high"],
        "measured": measured.value,
        "low": measured.low,
        "high": measured.high,
        "sentences": sentences,
        "difference": measured.value - number["value"],
        "exact": exact.value,
        "exact_low": exact.low,
        "exact_high": exact.high,
        "printed": number["printed"],
        "about": about or number["quantity"].replace("_", " "),
        "origin": number["origin"],
    }
    return row | others


def pairs(
    models: Iterable[Any], numbers: pd.DataFrame, chosen: str | None, statements: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every model of a run with every number of the published model `chosen`, or of all.

    Where the two models differ, `statements` gets the sentence that says so, once.
    """
    if chosen is not None:
        numbers = numbers[numbers["model"] == chosen]
    for model in models:
        statements += [
            another_model(str(model), [name])
            for name in dict.fromkeys(numbers["model"])
            if not same_model(str(name), str(model))
        ]
        for number in numbers.to_dict("records"):
            yield str(model), cast("dict[str, Any]", number)


def another_model(model: str, published: Iterable[str]) -> str:
    """What a comparison of different models is worth."""
    return (
        f"{model} is not {' or '.join(published)}: the differences below are between models and say nothing "
        "about whether the published numbers can be reproduced."
    )
