# SPDX-License-Identifier: MIT
"""A tiny run of every study that discovery finds, and its tables with next to nothing in them.

`RUNS` holds how a study is run here. A study without an entry gets tables made from what it declares: every
column of its type, keys of two values, so that its figures are drawn or refused from those.
"""

from __future__ import annotations

import ast
import itertools
import json
import random
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import likelihood_study
import position_study
from attnscope.config.run_config import RunConfig
from attnscope.config.study_folders import find_study, studies
from attnscope.engine.run_study import run
from attnscope.results.results import Results
from attnscope.studies.attention_sinks.tables import PROFILES
from attnscope.study_api.study import study_class
from attnscope.study_api.tables import Table, arrow_type
from folders import model_folder, sentences, series
from weight_models import tiny

#: Studies of this package by name; a folder that is added is among them.
NAMES = sorted(
    name
    for name, study in studies().items()
    if study.package.startswith("attnscope.studies.") and study.part("study")
)


def done(settings: RunConfig) -> Results:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(settings, say=lambda text: None, progress=False)


def also(results: Results, model: str, name: str, steps: list[int]) -> Results:
    """The results with a model's rows once more under another name, at each of some steps."""
    tables = {name: results.table(name) for name in results.tables()}
    for table_name, table in tables.items():
        if "model" in table:
            rows = table[table["model"] == model]
            copies = [rows.assign(model=name, step=step, revision=str(step)) for step in steps]
            tables[table_name] = pd.concat([table, *copies], ignore_index=True)
    return Results(tables, study=results.study, provenance=results.provenance)


def of_maps(name: str, shortest: int, **run_options: Any) -> Callable[..., Results]:
    """A study of attention maps over a series of two checkpoints, or of one model."""

    def run_study(home: Path, *, steps=(0, 4), count=3, text: str | None = None, **options: Any) -> Results:
        models = f"{series(home / 'series', steps=steps)}/step*" if steps else model_folder(home / "one")
        texts = sentences(home / "texts.txt", count, shortest=shortest)
        if text is not None:
            texts.write_text(text, "utf-8")
        settings = {"models": str(models), "texts": str(texts), "output": str(home / "runs"), "name": "a"}
        return done(RunConfig(study=name, **settings, **{**run_options, **options}))

    return run_study


def of_positions(home: Path) -> Results:
    models = model_folder(home / "m", num_hidden_layers=3)
    texts = sentences(home / "texts.txt", 40)
    return also(done(position_study.settings(models, texts, home / "runs")), "m", "the same again", [-1])


def of_likelihoods(home: Path) -> Results:
    models = [str(model_folder(home / "m")), str(likelihood_study.encoder_folder(home / "e"))]
    texts = likelihood_study.texts_of(home / "texts.txt", 6)
    return done(likelihood_study.settings("", texts, home / "runs", models=models))


def of_weights(home: Path) -> Results:
    """A base and two copies with noise, as checkpoints of a series and as the arms of a comparison."""
    import torch

    drawn = random.Random(5)
    rows = [[drawn.randrange(3, 97) for _ in range(20)] for _ in range(6)]
    texts = home / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"token_ids": row}) for row in rows), "utf-8")
    names = ("base", "few", "many")
    for at, name in enumerate(names):
        model, draw = tiny("llama", num_hidden_layers=2), torch.Generator().manual_seed(at)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1e-3 * at * torch.randn(parameter.shape, generator=draw))
        model.save_pretrained(home / name)
    arms = {"few": "contrastive_1", "many": "contrastive_4"}
    quick = {"random_weights": 2, "rank_one": {"texts": 2, "directions": 3}, "arms": arms}
    settings = RunConfig(
        study="pretraining_writes",
        models=[str(home / name) for name in names],
        texts=str(texts),
        output=str(home / "runs"),
        name="a",
        block=3,
        options=quick,
    )
    return also(done(settings), "many", "a series", [1, 2])


#: Tokens that a whole set of figures needs: eight for a spectrum, sixteen of a beginning for a signal.
RUNS: Mapping[str, Callable[..., Results]] = {
    "attention_sinks": of_maps(
        "attention_sinks",
        12,
        thresholds=[0.02, 0.1],
        protocols="both",
        bars=True,
        options={"extra": "all", "controls": 1},
    ),
    "wavelet_heads": of_maps("wavelet_heads", 50, options={"nulls": ["row_permutation"], "prefixes": [0.8]}),
    "absolute_position": of_positions,
    "attention_likelihood": of_likelihoods,
    "pretraining_writes": of_weights,
}

#: Tables that no other run of a study writes, by the study: measured without maps.
WITHOUT_MAPS: Mapping[str, tuple[Callable[..., Results], Iterable[str]]] = {
    "attention_sinks": (of_maps("attention_sinks", 12, options={"attention": "lazy"}), PROFILES),
}


def whole_run(name: str, home: Path) -> Results:
    """A study's tables in memory; what a tiny random model has none of is drawn at random."""
    if name not in RUNS:
        return Results(declared_tables(name), study={"study": name, "models": [{"path": "m"}]})
    results = RUNS[name](home)
    tables = {table: results.table(table) for table in results.tables()}
    if name in WITHOUT_MAPS:
        run_study, further = WITHOUT_MAPS[name]
        tables |= {table: run_study(home / "without maps").table(table) for table in further}
    tables = {table: _filled(rows, keep_all=table in LEFT_OPEN) for table, rows in tables.items()}
    return Results(tables, study=results.study, provenance=results.provenance)


#: Tables in which a tiny random model leaves single cells open.
LEFT_OPEN = ("heads", "removed")


def _filled(table: pd.DataFrame, *, keep_all: bool) -> pd.DataFrame:
    """A table whose empty columns, or all of whose missing numbers, are random numbers below 1."""
    draw = np.random.default_rng(len(table))
    for column in table.columns:
        missing = table[column].isna()
        if len(table) and table[column].dtype.kind == "f" and (keep_all or missing.all()):
            table[column] = table[column].where(~missing, draw.random(len(table)))
    return table


#: Values of keys that mean the same in every study.
KEYS: Mapping[str, Iterable[Any]] = {
    "model": ["m"],
    "revision": [""],
    "step": [-1],
    "sample": [0, 1, 2],
    "layer": [0, 1],
    "head": [0, 1],
    "protocol": ["exact"],
    "group": ["all"],
    "null": ["", "gaussian"],
}


def declared_tables(name: str) -> dict[str, pd.DataFrame]:
    """Tables of a study as it declares them: rows of every combination of its keys, numbers from 0 to 1."""
    folder = find_study(name)
    assert folder is not None
    values = {**_compared(folder.path), **KEYS}
    return {table.name: _table(table, values) for table in study_class(name).tables}


def _compared(folder: Path) -> dict[str, list[Any]]:
    """Column -> the constants that a study's files compare it with or write into it."""
    result: dict[str, dict[Any, None]] = {}
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            pairs: list[tuple[Any, Any]] = []
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Subscript):
                pairs = [
                    (getattr(node.left.slice, "value", None), comparator) for comparator in node.comparators
                ]
            elif isinstance(node, ast.keyword):
                pairs = [(node.arg, node.value)]
            for column, value in pairs:
                if isinstance(column, str) and isinstance(value, ast.Constant):
                    result.setdefault(column, {})[value.value] = None
    kinds = {column: {type(value) for value in values} for column, values in result.items()}
    return {column: list(values) for column, values in result.items() if len(kinds[column]) == 1}


def _table(table: Table, values: Mapping[str, Iterable[Any]], most: int = 2000) -> pd.DataFrame:
    draw = np.random.default_rng(len(table.name))
    keys = [list(values.get(key, [0, 1])) for key in table.keys]
    rows = list(itertools.product(*keys))
    step = -(-len(rows) // most)
    frame = pd.DataFrame(rows[::step], columns=list(table.keys))
    for column in table.columns or ():
        if column.name not in frame:
            frame[column.name] = _column(column, len(frame), draw)
    return frame


def _column(column: Any, size: int, draw: np.random.Generator) -> Any:
    import pyarrow as pa

    kind = arrow_type(column)
    if pa.types.is_list(kind):
        return [draw.random(8) for _ in range(size)]
    if pa.types.is_string(kind):
        return ["word"] * size
    if pa.types.is_boolean(kind):
        return draw.random(size) < 0.5
    # the ends of an interval hold what lies between them
    shift = -1.0 if column.name.endswith("low") else 1.0 if column.name.endswith("high") else 0.0
    return draw.integers(0, 9, size) if pa.types.is_integer(kind) else draw.random(size) + shift
