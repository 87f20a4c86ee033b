# SPDX-License-Identifier: MIT
"""The run's numbers next to those of arXiv 2508.02546, computed the same way, and the exact numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.errors import MissingError
from attnscope.published import Compared, Measured, another_model, comparison_row, same_model
from attnscope.results.equal_texts import of_distinct_texts
from attnscope.results.results import Results
from attnscope.statistics import bootstrap
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float64]

#: For each quantity of the stored numbers a note, if its name is not enough, and the table
#: (of maps that of head means) and the column that hold the run's own.
_FILE = Path(__file__).with_name("quantities.tsv")
SOURCES = pd.read_table(_FILE, index_col="quantity", keep_default_na=False)

#: What tokenizers write for the token names that the published tables use.
_BOS = frozenset({"<|begin_of_text|>", "<s>", "<bos>", "[CLS]", "<|endoftext|>", "BOS"})
#: Sentences of more tokens are not those of the topology tables.
_TOPOLOGY_TOKENS = 48


def compare(
    results: Results, numbers: pd.DataFrame, chosen: str | None, *, draws: int, seed: int
) -> Compared:
    """Return the numbers of a run next to the published ones.

    Every number is computed from the run's rows of protocol "ruscio2025" in the way it was published (mean,
    median or spread over sentences and layers), and from its rows of protocol "exact" where the quantity
    exists there. A checkpoint series is taken at its last step. Layers of a model of another depth are
    matched by place: first, quarters, last. Without a `chosen` published model a model is compared with its
    published self, or with all of its kind.
    """
    if "heads" not in results.tables():
        raise MissingError("compare: the run has no table 'heads'")
    published_models = list(dict.fromkeys(numbers["model"]))
    depths = numbers.groupby("model")["layer"].max() + 1
    run = _Run(results, draws, seed)
    rows: list[dict[str, Any]] = []
    statements: list[str] = []
    for model in run.depths:
        names = run.names(model)
        itself = next(
            (name for name in published_models if any(same_model(name, alias) for alias in names)), None
        )
        against = (
            [chosen] if chosen else [itself] if itself else run.of_the_same_kind(model, published_models)
        )
        statements += run.statements(model, against, itself)
        rows += [
            {**run.row(model, number, int(depths[published])), "same_model": published == itself}
            for published in against
            for number in where(numbers, model=published).to_dict("records")
        ]
    return Compared(pd.DataFrame(rows), statements)


class _Run:
    """The run's tables at each model's last step, and numbers computed from them."""

    def __init__(self, results: Results, draws: int, seed: int) -> None:
        from attnscope.plots.selection import last_step  # drawing is not loaded with the study

        self.draws, self.seed = draws, seed
        self.sources = dict(getattr(results, "study", None) or {}).get("models") or []
        results = of_distinct_texts(results)
        stored_tables = set(SOURCES["table"]) & set(results.tables())
        self.tables = {name: last_step(results.table(name)) for name in stored_tables}
        last = self.tables["heads"].groupby("model", sort=False)["layer"].max()
        self.depths = {str(model): int(layer) + 1 for model, layer in last.items()}
        # several published models ask for the same numbers, and several statistics for the same rows
        self._number = functools.cache(self._compute)
        self._rows = functools.cache(self._rows_of)
        self._every_layer = functools.cache(self._by_text_and_layer)

    def names(self, model: str) -> list[str]:
        """Return the model's label and, where the study has one entry for it, its path."""
        paths = [str(source.get("path", "")) for source in self.sources if source.get("label") in (model, "")]
        return [model, *(paths if len(self.sources) == 1 else [])]

    def of_the_same_kind(self, model: str, published_models: Sequence[str]) -> list[str]:
        """Return the published models of the same kind, causal or not; all of them if the run does not
        record it.
        """
        samples = self._rows("samples", model, "")
        if "causal" not in samples or samples.empty:
            return list(published_models)
        return [name for name in published_models if ("XLM-R" not in name) == bool(samples["causal"].all())]

    def statements(self, model: str, against: Sequence[str], itself: str | None) -> list[str]:
        """Return the notes that precede the numbers."""
        notes = [another_model(model, against)]
        if itself in against:
            notes = [f"{model} is the published {itself} by name; its weights were read in 4 bits there."]
        if self._rows("heads", model, "ruscio2025").empty:
            notes.append(
                f"{model}: the run has no rows of protocol ruscio2025; only exact numbers can stand beside "
                "the published ones (attnscope run … --protocol both)."
            )
        if "samples" in self.tables:
            samples = self._rows("samples", model, "")
            longest = int(samples["n_tokens"].max()) if len(samples) else 0
            notes.append(f"{model}: {len(samples)} sentences of at most {longest} tokens; published: 500.")
            if longest > _TOPOLOGY_TOKENS:
                notes.append(
                    f"{model}: the published topology is of at most {_TOPOLOGY_TOKENS} tokens; run the study "
                    "with :topology, or --set max_tokens=48, for numbers of the same sentences."
                )
        return notes

    def row(self, model: str, number: dict[Any, Any], depth: int) -> dict[str, Any]:
        """Return a number published of a model of so many layers, with the run's number at the same place."""
        quantity, layer = number["quantity"], int(number["layer"])
        theirs = compared_layers(depth)
        own_layer = compared_layers(self.depths[model])[theirs.index(layer)] if layer in theirs else -1
        ask = (model, quantity, own_layer, number["token"], number["statistic"])
        measured, sentences = self._number("ruscio2025", *ask)
        exact, exact_sentences = self._number("exact", *ask)
        count, note = max(sentences, exact_sentences), SOURCES["about"][quantity]
        return comparison_row(
            model, number, measured=measured, exact=exact, sentences=count, note=note, layer=own_layer
        )

    def _rows_of(self, table: str, model: str, protocol: str) -> pd.DataFrame:
        rows = self.tables.get(table, pd.DataFrame(columns=["model"]))
        rows = where(rows, model=model)
        return where(rows, protocol=protocol) if "protocol" in rows else rows

    def _compute(
        self, protocol: str, model: str, quantity: str, layer: int, token: str, statistic: str
    ) -> tuple[Measured, int]:
        """Return a number of the run, and the number of its sentences."""
        table, column = SOURCES.loc[quantity, ["table", "column"]]
        rows = self._rows(table, model, protocol)
        if table == "layer_tests" and len(rows):
            p_values = where(rows, metric=column)[
                "p_value" if protocol == "ruscio2025" else "p_holm"
            ].dropna()
            return Measured(float((p_values < 0.05).sum()) if len(p_values) else math.nan), 0
        if column not in rows or rows.empty or (table == "samples" and protocol == "exact"):
            return Measured(), 0
        if table == "specialization":
            chosen = [layer] if layer >= 0 else compared_layers(int(rows["layer"].max()) + 1)
            return Measured(float(where(rows, layer=chosen)[column].astype(float).mean())), 0
        wide = rows[[column]]
        if table != "samples":
            wide = self._every_layer(protocol, model, quantity, token)
        wide = wide if layer < 0 else wide.reindex(columns=[layer])
        return _summary(wide.to_numpy(float), statistic, self.draws, self.seed)

    def _by_text_and_layer(self, protocol: str, model: str, quantity: str, token: str) -> pd.DataFrame:
        """Return a quantity as sentences by layers, NaN where it has no value."""
        table, column = SOURCES.loc[quantity, ["table", "column"]]
        rows = self._rows(table, model, protocol)[["sample", "layer", column]].dropna()
        values = rows[column]
        if quantity == "top_token":
            values = values.map({token_text: _is_token(token_text, token) for token_text in values.unique()})
        elif quantity == "same_key_in_all_heads":
            values = rows.groupby(["sample", "layer"])[column].transform("nunique") == 1
        return values.astype(float).groupby([rows["sample"], rows["layer"]]).mean().unstack("layer")


def _summary(values: Matrix, statistic: str, draws: int, seed: int) -> tuple[Measured, int]:
    """Return a statistic of [sentences, layers], without infinite values, with its interval over
    sentences.
    """
    values = np.where(np.isfinite(values), values, np.nan)
    values = values[np.isfinite(values).any(axis=1)]
    count, function = len(values), _STATISTICS[statistic]
    if not count:
        return Measured(), 0
    if statistic in ("min", "max"):
        # resampled extremes never leave the sample: a percentile interval of them covers nothing
        return Measured(float(function(values[None])[0])), count

    def of(index: npt.NDArray[Any]) -> Any:
        rows = np.atleast_2d(index.astype(int))
        # a few hundred resampled runs at a time stay in megabytes
        rows_at_once = max(1, 4_000_000 // values.size)
        statistics = [
            function(values[rows[at : at + rows_at_once]]) for at in range(0, len(rows), rows_at_once)
        ]
        return np.concatenate(statistics).reshape(index.shape[:-1])

    interval = bootstrap(np.arange(count, dtype=float), of, draws=draws, seed=seed)
    return Measured(interval.estimate, interval.low, interval.high), count


def _over_all(name: str) -> Callable[[Matrix], Any]:
    """Return a NumPy function over [draws, sentences, layers]: the faster plain one where nothing is NaN."""

    def of(values: Matrix) -> Any:
        flat = values.reshape(len(values), -1)
        return getattr(np, f"nan{name}" if np.isnan(flat).any() else name)(flat, axis=1)

    return of


def _trend(values: Matrix) -> Any:
    """Return Spearman's correlation of the layer means of [draws, sentences, layers] with depth."""
    from scipy.stats import rankdata

    means = np.nanmean(values[..., np.isfinite(values).any(axis=(0, 1))], axis=1)
    if means.shape[1] < 3:
        return np.full(len(means), np.nan)
    ranks = rankdata(means, axis=1)
    ranks -= ranks.mean(axis=1, keepdims=True)
    depth = np.arange(means.shape[1]) - (means.shape[1] - 1) / 2
    scale = np.sqrt((ranks**2).sum(axis=1) * (depth**2).sum())
    return np.divide(ranks @ depth, scale, out=np.full(len(means), np.nan), where=scale > 0)


#: From [draws, sentences, layers] to one number a draw.
_STATISTICS = {name: _over_all(name) for name in ("mean", "median", "std", "min", "max")}
_STATISTICS |= {"share": _STATISTICS["mean"], "trend": _trend}


def compared_layers(count: int) -> list[int]:
    """Return the layers that the paper reports: first, quarters, last.

    >>> compared_layers(28), compared_layers(2)
    ([0, 7, 14, 21, 27], [0, 0, 0, 0, 1])
    """
    return [0, count // 4, 2 * (count // 4), 3 * (count // 4), count - 1]


def _is_token(token_text: str, name: str) -> bool:
    if name == "BOS":
        return token_text in _BOS
    plain = token_text.replace("Ġ", "").replace("▁", "").strip()
    return plain == "" and token_text != "" if name == "space" else plain == name
