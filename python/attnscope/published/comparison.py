# SPDX-License-Identifier: MIT
"""A run's numbers beside those that its paper printed; each study says how its own are computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pandas as pd

from attnscope._nearest import nearest
from attnscope.engine.discovery import study_of
from attnscope.engine.schema import MissingError, ResultsError
from attnscope.engine.schema import Tables as Tables
from attnscope.published.numbers import papers, published_numbers, same_model


@dataclass(frozen=True)
class Compared:
    """A comparison, and the sentences that must be read before its numbers.

    Attributes:
        table: one row per published number: `model`, `published_model`, `same_model`, `quantity`, `layer`,
            `published_layer`, `token`, `statistic`, `published`, `published_low`, `published_high`,
            `measured` (by the published protocol) with `low` and `high` (95 % bootstrap over sentences) and
            `sentences`, `difference` (measured − published), `exact` with `exact_low` and `exact_high`,
            `printed`, `about`, `origin`. NaN: the run holds no such number.
        statements: what the numbers may not be taken for.
    """

    table: pd.DataFrame
    statements: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = list(self.statements)
        for (model, published), rows in self.table.groupby(["model", "published_model"], sort=False):
            lines += ["", f"{model} beside {published}", _text(rows)]
        return "\n".join(lines)


def compare_published(
    results: Tables, paper: str = "", against: str | None = None, *, draws: int = 1000, seed: int = 0
) -> Compared:
    """A run's numbers beside those of a paper.

    Args:
        paper: whose numbers; empty takes the paper of the run's own study.
        against: a published model; None takes the run's own where it was published, and otherwise those that
            the study takes for comparable.
    """
    there, study = papers(), study_of(results)
    if not paper:
        own = [name for name, folder in there.items() if folder == study]
        if not own:
            named = f"the study {study.name}" if study else "this run's study"
            raise ResultsError(
                f"compare: {named} has no published numbers; there are those of {', '.join(there)}"
            )
        paper = own[0]
    numbers, home = published_numbers(paper), there[paper]
    if study not in (None, home):
        raise ResultsError(f"compare: {paper} publishes numbers of {home.name}; this run is of {study.name}")
    known = list(dict.fromkeys(numbers["model"]))
    chosen = None
    if against is not None:
        chosen = next((name for name in known if same_model(name, against)), None)
        if chosen is None:
            raise MissingError(f"compare: {against!r} was not published{nearest(against, known)}")
    compare = getattr(home.part("published"), "compare", None)
    if compare is None:
        raise ResultsError(f"compare: {home.name} stores numbers of {paper} and no way to compare them")
    return compare(results, numbers, chosen, draws=draws, seed=seed)


def _text(rows: pd.DataFrame) -> str:
    """The rows as aligned text."""
    head = ("quantity", "layer", "statistic", "published", "measured", "difference", "exact")
    lines: list[Sequence[str]] = [head]
    for row in cast("list[dict[str, Any]]", rows.to_dict("records")):
        here, theirs = row["layer"], row["published_layer"]
        layer = "all" if theirs < 0 else str(theirs) if here == theirs else f"{theirs} (here {here})"
        printed = f"{row['published']:.4g}"
        if math.isnan(row["published"]):
            printed = f"{row['published_low']:g} to {row['published_high']:g}"
        lines.append(
            (
                row["quantity"] + (f" {row['token']!r}" if row["token"] else ""),
                layer,
                row["statistic"],
                printed,
                _with_interval(row["measured"], row["low"], row["high"]),
                "" if math.isnan(row["difference"]) else f"{row['difference']:+.4g}",
                _with_interval(row["exact"], row["exact_low"], row["exact_high"]),
            )
        )
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < 3 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _with_interval(value: float, low: float, high: float) -> str:
    if value != value:
        return "–"
    return f"{value:.4g}" if low != low else f"{value:.4g} [{low:.4g}, {high:.4g}]"
