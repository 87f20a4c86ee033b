# SPDX-License-Identifier: MIT
"""Published numbers, one row each, with the place where each was printed."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from attnscope._nearest import nearest
from attnscope.engine.discovery import StudyFolder, studies
from attnscope.engine.schema import MissingError

#: Letters of names that stand for one family: its other spellings.
_SPELLINGS = {"xlmroberta": "xlmr"}


def published_numbers(paper: str) -> pd.DataFrame:
    """Every stored number of a paper.

    Args:
        paper: a key of `papers()`.

    Returns:
        One row per number: `model`, `table` and `quantity` it belongs to, `layer` (−1: the whole model),
        `token`, `statistic` ("mean", "median", "std", "min", "max", "trend" for Spearman's correlation with
        depth, "share", "count"), `value` (NaN where only a range was given, `low` to `high`), `samples` (−1:
        not said), `printed` as it stands in the source, and its `origin`.

    Raises:
        MissingError: a paper without stored numbers.

    >>> all({"model", "quantity", "value", "origin"} <= set(published_numbers(one)) for one in papers())
    True
    """
    there = papers()
    if paper not in there:
        raise MissingError(f"there are no published numbers of {paper!r}{nearest(paper, there)}")
    return _read(there[paper].papers[paper]).copy()


def papers() -> dict[str, StudyFolder]:
    """The study that holds the numbers of each paper, by the paper's name."""
    return {paper: study for study in studies().values() for paper in study.papers}


@cache
def _read(file: Path) -> pd.DataFrame:
    kinds: Any = {"layer": "Int64", "samples": "Int64", "token": str, "printed": str}
    absent = {"layer": -1, "samples": -1, "token": "", "printed": ""}
    table = pd.read_csv(file, dtype=kinds).fillna(absent)
    return table.astype({"layer": "int64", "samples": "int64"})


def same_model(one: str, other: str) -> bool:
    """Whether two names are spellings of one model: hub id, label, with or without the organisation.

    Args:
        one: a name.
        other: another.

    >>> same_model("meta-llama/Llama-3.2-3B", "LLaMA-3.2-3B"), same_model("Qwen/Qwen2.5-7B", "Qwen-2.5-7B")
    (True, True)
    >>> same_model("Qwen2.5-7B-Instruct", "Qwen-2.5-7B"), same_model("xlm-roberta-large", "XLM-R-large")
    (False, True)
    """
    return _letters(one) == _letters(other)


def _letters(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.rstrip("/").rpartition("/")[2].lower())
    for long, short in _SPELLINGS.items():
        plain = plain.replace(long, short)
    return plain
