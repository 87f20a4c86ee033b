# SPDX-License-Identifier: MIT
"""Published numbers as data, and a run's numbers next to them.

Each study stores the numbers of its papers, one row each, and computes its numbers of the same name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import pandas as pd

from attnscope._nearest import nearest
from attnscope.config.study_folders import StudyFolder, studies, study_of
from attnscope.errors import MissingError, ResultsError
from attnscope.results.results import Results
from attnscope.study_api.table_versions import refuse_newer_tables


def published_numbers(paper: str) -> pd.DataFrame:
    """Return every stored number of a paper.

    Args:
        paper: a key of `papers()`.

    Returns:
        One row per number: `model`, `table` and `quantity` it belongs to, `layer` (−1: the whole model),
        `token`, `statistic` ("mean", "median", "std", "min", "max", "trend" for Spearman's correlation with
        depth, "share", "count"), `value` (NaN where only a range was given, `low` to `high`), `samples` (−1:
        not said), `printed` as in the source, and its `origin`.

    Raises:
        MissingError: a paper without stored numbers.

    >>> all({"model", "quantity", "value", "origin"} <= set(published_numbers(one)) for one in papers())
    True
    """
    studies_by_paper = papers()
    if paper not in studies_by_paper:
        raise MissingError(f"there are no published numbers of {paper!r}{nearest(paper, studies_by_paper)}")
    return _read(studies_by_paper[paper].papers[paper]).copy()


def papers() -> dict[str, StudyFolder]:
    """Return the study that holds the numbers of each paper, by the paper's name."""
    return {paper: study for study in studies().values() for paper in study.papers}


@cache
def _read(file: Path) -> pd.DataFrame:
    absent = {"layer": -1, "samples": -1, "token": "", "printed": ""}
    table = pd.read_csv(file, dtype={"token": str, "printed": str}).fillna(absent)
    return table.astype({"layer": "int64", "samples": "int64"})


def same_model(name: str, other_name: str) -> bool:
    """Return True if two names are spellings of one model: hub id, label, with or without the organisation.

    >>> same_model("meta-llama/Llama-3.2-3B", "LLaMA-3.2-3B"), same_model("Qwen/Qwen2.5-7B", "Qwen-2.5-7B")
    (True, True)
    >>> same_model("Qwen2.5-7B-Instruct", "Qwen-2.5-7B"), same_model("xlm-roberta-large", "XLM-R-large")
    (False, True)
    """
    return _letters(name) == _letters(other_name)


def _letters(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.rstrip("/").rpartition("/")[2].lower())
    return plain.replace("xlmroberta", "xlmr")  # two spellings of one family


@dataclass(frozen=True)
class Compared:
    """A comparison, and the sentences that must be read before its numbers.

    Attributes:
        table: one row per published number: `model`, `published_model`, `same_model`, `quantity`, `layer`,
            `published_layer`, `token`, `statistic`, `published`, `published_low`, `published_high`,
            `measured` (by the published protocol) with `low` and `high` (95 % bootstrap over sentences) and
            `sentences`, `difference` (measured − published), `exact` with `exact_low` and `exact_high`,
            `printed`, `about`, `origin`. NaN: the run holds no such number.
        statements: limits of the comparison.
    """

    table: pd.DataFrame
    statements: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.table.empty:
            return "\n".join([*self.statements, "The run holds no model to compare."])
        lines = list(self.statements)
        for (model, published), rows in self.table.groupby(["model", "published_model"], sort=False):
            lines += ["", f"{model} beside {published}", _text(rows)]
        return "\n".join(lines)


def compare_published(
    results: Results, paper: str = "", against: str | None = None, *, draws: int = 1000, seed: int = 0
) -> Compared:
    """Return a run's numbers next to those of a paper.

    Args:
        paper: whose numbers; empty takes the paper of the run's own study.
        against: a published model; None takes the run's own where it was published, and otherwise those that
            the study takes for comparable.
    """
    refuse_newer_tables(results)
    studies_by_paper, study = papers(), study_of(results)
    if not paper:
        papers_of_study = [name for name, folder in studies_by_paper.items() if folder == study]
        if not papers_of_study:
            named = f"the study {study.name}" if study else "this run's study"
            raise ResultsError(
                f"compare: {named} has no published numbers; there are those of {', '.join(studies_by_paper)}"
            )
        paper = papers_of_study[0]
    numbers, home = published_numbers(paper), studies_by_paper[paper]
    if study not in (None, home):
        raise ResultsError(f"compare: {paper} publishes numbers of {home.name}; this run is of {study.name}")
    published_models = list(dict.fromkeys(numbers["model"]))
    chosen = None
    if against is not None:
        chosen = next((name for name in published_models if same_model(name, against)), None)
        if chosen is None:
            raise MissingError(f"compare: {against!r} was not published{nearest(against, published_models)}")
    compare = getattr(home.part("published"), "compare", None)
    if compare is None:
        raise ResultsError(f"compare: {home.name} stores numbers of {paper} and no way to compare them")
    return compare(results, numbers, chosen, draws=draws, seed=seed)


def _text(rows: pd.DataFrame) -> str:
    """Return the rows as aligned text."""
    lines = [("quantity", "layer", "statistic", "published", "measured", "difference", "exact")]
    for row in rows.to_dict("records"):
        run_layer, theirs = row["layer"], row["published_layer"]
        layer = (
            "all" if theirs < 0 else str(theirs) if run_layer == theirs else f"{theirs} (here {run_layer})"
        )
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
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    layout = "  ".join(f"{{:{'<' if place < 3 else '>'}{width}}}" for place, width in enumerate(widths))
    return "\n".join(layout.format(*line).rstrip() for line in lines)


def _with_interval(value: float, low: float, high: float) -> str:
    if value != value:
        return "–"
    return f"{value:.4g}" if low != low else f"{value:.4g} [{low:.4g}, {high:.4g}]"


class Measured(NamedTuple):
    """A number of the run with its interval; NaN if the run does not hold it."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan


def comparison_row(
    model: str,
    number: Mapping[str, Any],
    *,
    measured: Sequence[float] = Measured(),
    exact: Sequence[float] = Measured(),
    sentences: int = 0,
    note: str = "",
    **others: Any,
) -> dict[str, Any]:
    """Return a row of `Compared.table`: the published number, and the run's number under both protocols.

    `others` are columns that are not as published, as the layer here.
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
        "about": note or number["quantity"].replace("_", " "),
        "origin": number["origin"],
    }
    return row | others


def pairs(
    models: Iterable[Any], numbers: pd.DataFrame, chosen: str | None, statements: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every model of a run with every number of the published model `chosen`, or of all.

    Where the two models differ, a sentence about it is added to `statements`, once.
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
    """Return the sentence on the limits of a comparison of different models."""
    return (
        f"{model} is not {' or '.join(published)}: the differences below are between models and say nothing "
        "about whether the published numbers can be reproduced."
    )
