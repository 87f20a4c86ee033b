# SPDX-License-Identifier: MIT
"""The page's data of stored results: means over samples of the measured columns, and stored matrices.

A run keeps numbers of all maps and the matrices of few. Heads are coloured by the stored means, of positions
by the most frequent one; a matrix that was not stored is computed again from the model, if it is passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from attnscope.errors import ResultsError
from attnscope.metrics.discovery import quantity
from attnscope.results.equal_texts import of_distinct_texts
from attnscope.results.results import Results
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.results.summaries import (
    defined,
    grouped,
    in_series,
    in_training_order,
    measured_columns,
    optional,
    rows_of_protocol,
    uniform_value,
)
from attnscope.view.captured import captured_sentence
from attnscope.view.matrices import Maps, number, plain
from attnscope.view.measured import MOST_NUMBERS
from attnscope.view.table_checks import checked_optional, checked_table, read_matrix

#: Columns of `samples` that say where an answer is.
ANSWER_COLUMNS = ("answer_start", "start", "stop")
#: Model, revision and step of each.
_Checkpoints = list[tuple[str, str, int]]


class _Part(NamedTuple):
    """Rows of single heads and their measured columns, of the graphs at one threshold."""

    table: str
    level: float | None
    rows: pd.DataFrame
    columns: list[str]


def contents_of_results(
    results: Results,
    max_bytes: int,
    sample: int | None = None,
    model: Any = None,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Return the contents of the page from the stored tables."""
    names = results.tables()
    if "heads" not in names:
        raise ResultsError(f"view: these results have no table 'heads', only {', '.join(names) or 'none'}")
    table = checked_table(results, "heads")
    protocol = "exact" if "protocol" not in table else min(table["protocol"].dropna(), default="exact")
    checked_optional(results, "samples")
    parts = _parts_of(of_distinct_texts(results), protocol)
    heads = parts[0].rows
    if heads.empty:
        raise ResultsError("view: the table 'heads' has no row of a single head")

    checkpoint_rows = in_training_order(heads[[*CHECKPOINT_KEYS]].drop_duplicates())
    inputs = list(dict.fromkeys(heads["group"].astype(str)))
    layers, numbers = (sorted(int(at) for at in heads[name].unique()) for name in ("layer", "head"))
    metrics = [entry for part in parts for entry in _metrics(results, part)]
    notes = [] if protocol == "exact" else [f"The numbers are those of protocol {protocol}."]
    fits = max(2, MOST_NUMBERS // max(1, len(metrics) * len(inputs) * len(layers) * len(numbers)))
    if len(checkpoint_rows) > fits:
        shown_places = np.unique(np.linspace(0, len(checkpoint_rows) - 1, fits).astype(int))
        notes.append(
            f"{len(shown_places)} of {len(checkpoint_rows)} checkpoints are on this page; all are in the "
            "tables."
        )
        checkpoint_rows = checkpoint_rows.iloc[shown_places]
    checkpoints = [tuple(row) for row in checkpoint_rows.itertuples(index=False, name=None)]

    uniform = _uniform_values(results, parts, inputs, numbers[0])
    maps = Maps(max_bytes)
    examples = checked_optional(results, "examples")
    if sample is not None:
        examples = captured_sentence(results, sample, model, trust_remote_code=trust_remote_code)
    if examples is not None:
        _add_examples(maps, examples, results, checkpoints, inputs)
    cubes = [_means(part, checkpoints, inputs, layers, numbers) for part in parts]
    return {
        "notes": notes,
        "layers": layers,
        "heads": numbers,
        "checkpoints": _labels(checkpoints),
        "texts": [""],
        "inputs": inputs,
        "metrics": metrics,
        "values": plain(np.concatenate(cubes, axis=2)),
        "uniform": uniform,
        "laws": maps.laws,
        "maps": maps.stored,
        "without": _why(maps),
    }


def _parts_of(results: Results, protocol: str) -> list[_Part]:
    """Return the rows of single heads, those of the graphs by threshold."""
    parts: list[_Part] = []
    for name in ("heads", "graphs"):
        if name in results.tables():
            rows = defined(in_series(rows_of_protocol(checked_table(results, name), protocol), results))
            # columns of the other protocol are absent from all rows
            columns = [column for column in measured_columns(rows) if rows[column].notna().any()]
            levels: Any = rows.groupby("threshold") if name == "graphs" else [(None, rows)]
            parts += [_Part(name, level, rows_at_level, columns) for level, rows_at_level in levels]
    return parts


def _uniform_values(
    results: Results, parts: Sequence[_Part], inputs: list[str], head: int
) -> list[list[float | None]]:
    """Return the numbers of uniform attention, by input and column, from the rows of one head."""
    baselines = checked_optional(results, "baselines")
    uniform: list[list[float | None]] = [[] for _ in inputs]
    for _, level, rows, columns in parts:
        for group, values in zip(inputs, uniform, strict=True):
            rows_of_group = rows[(rows["group"] == group) & (rows["head"] == head)]
            values += [number(uniform_value(rows_of_group, baselines, column, level)) for column in columns]
    return uniform


def _why(maps: Maps) -> str:
    if maps.stored:
        stored_names = ", ".join(
            dict.fromkeys(f"L{stored_map['layer']}H{stored_map['head']}" for stored_map in maps.stored)
        )
        return f"This run kept the matrices of {stored_names} only (marked in the map). "
    return (
        "This run stored numbers, not attention matrices, which would take n² numbers for each head and "
        "text. To look at those of one text, capture it again: attnscope view DIR --sample 0, or "
        "attnscope.view(results, sample=0)."
    )


def _metrics(results: Results, part: _Part) -> list[dict[str, str]]:
    """Return the page's entry of each column: label of the stored file, or of the metric if the file has
    none.
    """
    schema, level = results.schema(part.table), part.level
    at = "" if level is None else f" at {level:g}"
    group = "heads" if level is None else f"graph of pairs at or above {level:g}"
    entries = []
    for column in part.columns:
        declared = quantity(column)
        label = (schema.field(column).metadata or {}).get(b"label", b"").decode(errors="replace")
        label = label or declared.label
        entries.append(
            {
                "name": column + at,
                "label": label + at,
                "meaning": declared.meaning,
                "group": group,
                "kind": declared.kind,
            }
        )
    return entries


def _means(
    part: _Part, checkpoints: _Checkpoints, inputs: list[str], layers: list[int], heads: list[int]
) -> np.ndarray[Any, Any]:
    """Return means over the samples, [checkpoint, input, column, layer, head], NaN without a row."""
    axes = {"checkpoint": range(len(checkpoints)), "group": inputs, "layer": layers, "head": heads}
    if not part.columns:
        return np.empty([len(axes["checkpoint"]), len(inputs), 0, len(layers), len(heads)])
    places = pd.MultiIndex.from_tuples(checkpoints, names=CHECKPOINT_KEYS)
    checkpoints_of_rows = pd.MultiIndex.from_frame(part.rows[[*CHECKPOINT_KEYS]])
    rows = part.rows.assign(checkpoint=places.get_indexer(checkpoints_of_rows))
    # the page shows means, and of positions, which have none, the most frequent
    kinds = {name: "position" if quantity(name).kind == "position" else "value" for name in part.columns}
    means = grouped(rows, list(axes), kinds).set_index(list(axes))
    cells = means.reindex(pd.MultiIndex.from_product(list(axes.values()))).to_numpy()
    return np.moveaxis(cells.reshape(*map(len, axes.values()), len(part.columns)), -1, 2)


def _labels(checkpoints: _Checkpoints) -> list[str]:
    """Return labels that distinguish the checkpoints."""
    several = len({model for model, _, _ in checkpoints}) > 1
    labels = []
    for model, revision, step in checkpoints:
        when = f"step {step}" if step >= 0 else revision
        labels.append(" · ".join(filter(None, (model if several or not when else "", when))))
    return labels


def _add_examples(
    maps: Maps, examples: pd.DataFrame, results: Results, checkpoints: _Checkpoints, inputs: list[str]
) -> None:
    """Add the matrices that the run kept, or that were captured again."""
    keys = [*CHECKPOINT_KEYS, "sample"]
    if "support" not in examples and "support" in results.schema("heads").names:
        places = [*keys, "layer", "head"]
        seen = results.table("heads", [*places, "support"]).drop_duplicates(places)
        examples = examples.merge(seen, on=places, how="left")
    if (samples := optional(results, "samples")) is not None:
        columns_of_samples = (*keys, "group", "tokens", *ANSWER_COLUMNS)
        present_columns = [name for name in columns_of_samples if name in samples]
        examples = examples.merge(samples[present_columns].drop_duplicates(keys), on=keys, how="left")
    for _, row in examples.iterrows():
        checkpoint = tuple(row[[*CHECKPOINT_KEYS]])
        if checkpoint not in checkpoints:
            continue
        n, group, layer, head = int(row["n_tokens"]), row.get("group"), int(row["layer"]), int(row["head"])
        tokens: Any = row.get("tokens", ())
        answer = answer_of_sample(row, n)
        if np.shape(tokens) != (n,):
            tokens = range(n)
        maps.add(
            torch.tensor(read_matrix(row["attention"], n, f"layer {layer}, head {head}"), device="cpu"),
            [str(token) for token in tokens],
            support=_support_of(row.get("support")),
            answer=answer,
            layer=layer,
            head=head,
            sample=int(row["sample"]),
            checkpoint=checkpoints.index(checkpoint),
            input=inputs.index(group) if group in inputs else 0,
        )


def answer_of_sample(row: Any, n: int) -> tuple[int, int] | None:
    """Return the answer of a sample among its n tokens, None where it is not known or has none."""
    start, stop = row.get("start"), row.get("stop")
    if start is None or stop is None:
        start, stop = row.get("answer_start"), n
    try:
        span = int(start), int(stop)
    except (TypeError, ValueError):  # a gap, or no number
        return None
    return span if 0 <= span[0] < span[1] <= n else None


def _support_of(name: Any) -> str:
    """Return the support of a stored matrix by its name, "auto" where none is stored."""
    return name if isinstance(name, str) and name else "auto"
