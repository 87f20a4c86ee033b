# SPDX-License-Identifier: MIT
"""What the page shows of stored results: means over samples of the measured columns, and kept matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnscope.engine.results import Results
from attnscope.engine.schema import ResultsError
from attnscope.metrics.quantity import quantity
from attnscope.view.maps import Maps, number

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 1_200_000
_CHECKPOINT = ["model", "revision", "step"]


def contents_of_results(
    results: Results, max_bytes: int, sample: int | None = None, model: Any = None
) -> dict[str, Any]:
    """Reads the tables."""
    from attnscope.plots.selection import defined, heads_only, uniform_value, with_groups

    names = results.tables()
    samples = results.table("samples") if "samples" in names else None
    baselines = results.table("baselines") if "baselines" in names else None
    if "heads" not in names:
        raise ResultsError(f"view: these results have no table 'heads', only {', '.join(names) or 'none'}")
    table = results.table("heads")
    protocol = "exact" if "protocol" not in table else min(table["protocol"], default="exact")
    heads = defined(with_groups(heads_only(table, protocol), samples))
    if heads.empty:
        raise ResultsError("view: the table 'heads' has no row of a single head")
    tables = [("heads", heads, [np.nan])]
    if "graphs" in names:
        graphs = defined(with_groups(heads_only(results.table("graphs"), protocol), samples))
        tables.append(("graphs", graphs, sorted(map(float, graphs["threshold"].unique()))))

    every = heads[_CHECKPOINT].drop_duplicates().sort_values(["model", "step", "revision"])
    inputs = list(dict.fromkeys(heads["group"].astype(str)))
    axes = {name: sorted(int(at) for at in heads[name].unique()) for name in ("layer", "head")}
    metrics = [entry for table in tables for entry in _metrics(results, *table)]
    notes = [] if protocol == "exact" else [f"The numbers are those of protocol {protocol}."]
    fits = max(2, _LARGEST // max(1, len(metrics) * len(inputs) * len(axes["layer"]) * len(axes["head"])))
    if len(every) > fits:
        kept = np.unique(np.linspace(0, len(every) - 1, fits).astype(int))
        notes.append(f"{len(kept)} of {len(every)} checkpoints are on this page; all are in the tables.")
        every = every.iloc[kept]
    checkpoints = [tuple(row) for row in every.itertuples(index=False, name=None)]

    places = _Places(checkpoints, inputs, axes["layer"], axes["head"])
    cubes, uniform = [], [[] for _ in inputs]  # type: list[Any], list[list[float | None]]
    for _, frame, levels in tables:
        cubes.append(places.means(frame, levels))
        for at, group in enumerate(inputs):
            one = frame[(frame["group"] == group) & (frame["head"] == axes["head"][0])]
            uniform[at] += [
                number(uniform_value(one, baselines, column, None if np.isnan(level) else level))
                for level in levels
                for column in _columns(frame)
            ]
    values = np.concatenate(cubes, axis=2)

    maps = Maps(max_bytes)
    if sample is not None:
        from attnscope.view.captured import captured_sentence

        _add_examples(maps, captured_sentence(results, sample, model), samples, checkpoints, inputs)
    elif "examples" in names:
        _add_examples(maps, results.table("examples"), samples, checkpoints, inputs)
    return {
        "notes": notes,
        "layers": axes["layer"],
        "heads": axes["head"],
        "checkpoints": _labels(checkpoints),
        "inputs": inputs,
        "metrics": metrics,
        "values": [[[_plain(grid) for grid in group] for group in checkpoint] for checkpoint in values],
        "uniform": uniform,
        "kind": "uniform",
        "laws": maps.laws,
        "maps": maps.stored,
        "without": _why(maps),
    }


def _why(maps: Maps) -> str:
    if maps.stored:
        kept = ", ".join(dict.fromkeys(f"L{one['layer']}H{one['head']}" for one in maps.stored))
        return f"This run kept the matrices of {kept} only (marked in the map). "
    return (
        "This run stored numbers, not attention matrices, which would take n² numbers for each head and "
        "text. To look at those of one text, capture it again: attnscope view DIR --sample 0, or "
        "attnscope.view(results, sample=0)."
    )


def _columns(frame: pd.DataFrame) -> list[str]:
    """The numbers that these rows hold; columns of the other protocol are absent from all of them."""
    from attnscope.plots.selection import measured_columns

    return [name for name in measured_columns(frame) if frame[name].notna().any()]


def _metrics(results: Results, table: str, frame: pd.DataFrame, levels: list[float]) -> list[dict[str, str]]:
    """What the page says of each column: words of the stored file, or of the metric where it has none."""
    schema = results.schema(table)
    entries = []
    for level in levels:
        for column in _columns(frame):
            about = quantity(column)
            stored = schema.field(column).metadata or {}
            label = stored.get(b"label", b"").decode() or about.label
            at, group = "", "heads"
            if table != "heads":
                at, group = f" at {level:g}", f"graph of pairs at or above {level:g}"
            entries.append(
                {"name": column + at, "label": label + at, "meaning": about.meaning, "group": group}
            )
    return entries


class _Places(NamedTuple):
    """The axes of the page."""

    checkpoints: list[tuple[str, str, int]]
    inputs: list[str]
    layers: list[int]
    heads: list[int]

    def means(self, frame: pd.DataFrame, levels: list[float]) -> np.ndarray[Any, Any]:
        """Means over samples, [checkpoint, input, level × column, layer, head], NaN where there is no row."""
        import pandas as pd

        columns = _columns(frame)
        data = frame[columns].astype(float)
        rows = pd.MultiIndex.from_frame(frame[_CHECKPOINT])
        codes = [
            pd.MultiIndex.from_tuples(self.checkpoints, names=_CHECKPOINT).get_indexer(rows),
            pd.Index(self.inputs).get_indexer(pd.Index(frame["group"])),
            np.zeros(len(frame), int)
            if np.isnan(levels[0])
            else pd.Index(levels).get_indexer(pd.Index(frame["threshold"])),
            pd.Index(self.layers).get_indexer(pd.Index(frame["layer"])),
            pd.Index(self.heads).get_indexer(pd.Index(frame["head"])),
        ]
        known = np.all([code >= 0 for code in codes], axis=0)
        mean = data[known].groupby([code[known] for code in codes]).mean()
        shape = (len(self.checkpoints), len(self.inputs), len(levels), len(self.layers), len(self.heads))
        cube = np.full((*shape, len(columns)), np.nan)
        cube[tuple(mean.index.get_level_values(axis) for axis in range(len(shape)))] = mean.to_numpy()
        return np.moveaxis(cube, -1, 3).reshape(*shape[:2], len(levels) * len(columns), *shape[3:])


def _plain(grid: np.ndarray[Any, Any]) -> list[list[float | None]]:
    return [[number(cell) for cell in row] for row in grid]


def _labels(checkpoints: list[tuple[str, str, int]]) -> list[str]:
    """What tells the checkpoints apart."""
    several = len({model for model, _, _ in checkpoints}) > 1
    labels = []
    for model, revision, step in checkpoints:
        when = f"step {step}" if step >= 0 else revision
        labels.append(" · ".join(filter(None, (model if several or not when else "", when))))
    return labels


def _add_examples(
    maps: Maps,
    examples: pd.DataFrame,
    samples: pd.DataFrame | None,
    checkpoints: list[tuple[str, str, int]],
    inputs: list[str],
) -> None:
    """Adds the matrices that the run kept."""
    import torch

    keys = [*_CHECKPOINT, "sample"]
    for _, row in examples.iterrows():
        checkpoint = (row["model"], row["revision"], row["step"])
        if checkpoint not in checkpoints:
            continue
        n = int(row["n_tokens"])
        tokens, group = [str(place) for place in range(n)], inputs[0]
        if samples is not None:
            own = samples[(samples[keys] == row[keys]).all(axis=1)]
            if len(own):
                group = str(own["group"].iloc[0]) if "group" in own else group
                if "tokens" in own and len(own["tokens"].iloc[0]) == n:
                    tokens = [str(token) for token in own["tokens"].iloc[0]]
        attention = torch.tensor(np.asarray(row["attention"], dtype=float).reshape(n, n))
        maps.add(
            attention, tokens, layer=int(row["layer"]), head=int(row["head"]),
            checkpoint=checkpoints.index(checkpoint), input=inputs.index(group) if group in inputs else 0,
            sample=int(row["sample"]),
        )  # fmt: skip
