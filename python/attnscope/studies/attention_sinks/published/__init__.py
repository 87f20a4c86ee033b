# SPDX-License-Identifier: MIT
"""The run's numbers beside those of arXiv 2508.02546, computed the same way, and beside the exact ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pandas as pd

from attnscope.engine.schema import MissingError, Tables
from attnscope.inference import bootstrap
from attnscope.published import Compared, another_model, beside, same_model

if TYPE_CHECKING:
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float64]


class Source(NamedTuple):
    """Where a quantity stands in the tables, and what to know about it."""

    table: str
    column: str
    about: str = ""


#: Quantity of the stored numbers -> its column. Those of maps are of the head mean.
SOURCES: dict[str, Source] = {
    "beta_0": Source(
        "head_means", "bar_count_0",
        "number of H0 bars: min(n, 30) for a causal model in the published protocol, n in the exact one",
    ),
    "beta_1": Source(
        "head_means", "bar_count_1", "number of H1 bars: 0 for every causal model in the published protocol"
    ),
    "attention_max": Source("head_means", "attention_max"),
    "attention_std": Source("head_means", "attention_std"),
    "attention_mean": Source("head_means", "attention_mean", "1/n, whatever is attended to"),
    "mean_persistence_0": Source(
        "head_means", "mean_persistence_0",
        "mean length of finite H0 bars: the mean self-attention of a causal model in the published protocol",
    ),
    "mean_persistence_1": Source("head_means", "mean_persistence_1"),
    "tokens": Source("samples", "n_tokens"),
    "entropy": Source("head_means", "entropy", "nats"),
    "magnitude": Source("layers", "transformation_magnitude"),
    "alignment": Source(
        "head_means", "alignment_hidden",
        "over all ordered pairs in the published protocol: the zeros above a causal diagonal shrink it",
    ),
    "entropy_magnitude_correlation": Source("head_means", "entropy_magnitude_correlation"),
    "pca_correlation": Source("head_means", "pca_correlation", "signs of principal components are arbitrary"),
    "sink_concentration": Source(
        "head_means", "sink_concentration", "keys at the 90th percentile of column sums"
    ),
    "specialised_heads": Source(
        "specialization", "specialised", "by token string; exact: by position"
    ),
    "consistency": Source("specialization", "consistency", "by token string; exact: by position"),
    "top_token": Source("heads", "sink_token", "share of heads and sentences with this token string as sink"),
    "same_key_in_all_heads": Source("heads", "sink_position", "share of sentences"),
    "significant_layer_pairs": Source(
        "layer_tests", "mean_persistence_0", "published: Welch, uncorrected; exact: paired, Holm; p < 0.05"
    ),
}  # fmt: skip

#: What tokenizers write for the token names that the published tables use.
_BOS = frozenset({"<|begin_of_text|>", "<s>", "<bos>", "[CLS]", "<|endoftext|>", "BOS"})
#: Sentences of more tokens are not those of the topology tables.
_TOPOLOGY_TOKENS = 48


def compare(results: Tables, numbers: pd.DataFrame, chosen: str | None, *, draws: int, seed: int) -> Compared:
    """The numbers of a run beside the published ones.

    Every number is computed from the run's rows of protocol "ruscio2025" in the way it was published (mean,
    median or spread over sentences and layers), and from its rows of protocol "exact" where the quantity
    exists there. A checkpoint series is taken at its last step. Layers of a model of another depth are
    matched by place: first, quarters, last.

    Args:
        chosen: the only published model to stand beside; None takes the run's own, or all of its kind.
    """
    if "heads" not in results.tables():
        raise MissingError("compare: the run has no table 'heads'")
    known = list(dict.fromkeys(numbers["model"]))
    run = _Run(results, draws, seed)
    rows: list[dict[str, Any]] = []
    statements: list[str] = []
    for model in run.models:
        own = next(
            (name for name in known if any(same_model(name, alias) for alias in run.names(model))), None
        )
        against = [chosen] if chosen else [own] if own else run.of_the_same_kind(model, known)
        statements += run.statements(model, against, own)
        for published in against:
            layers = sorted(set(numbers.loc[numbers["model"] == published, "layer"]) - {-1})
            for number in numbers[numbers["model"] == published].to_dict("records"):
                rows.append(
                    run.row(model, published, cast("dict[str, Any]", number), layers, published == own)
                )
    return Compared(pd.DataFrame(rows), statements)


class _Run:
    """The run's tables at each model's last step, and numbers made of them."""

    def __init__(self, results: Tables, draws: int, seed: int) -> None:
        self.draws, self.seed = draws, seed
        self.study = dict(getattr(results, "study", {}) or {})
        self.tables: dict[str, pd.DataFrame] = {
            name: _last(results.table(name))
            for name in ("heads", "head_means", "layers", "samples", "specialization", "layer_tests")
            if name in results.tables()
        }
        self.models = list(dict.fromkeys(self.tables["heads"]["model"]))
        # several published models ask for the same numbers, and several statistics for the same rows
        self._number = functools.cache(self._compute)
        self._rows = functools.cache(self._rows_of)
        self._every_layer = functools.cache(self._by_text_and_layer)
        self._depth = functools.cache(self._layers_of)

    def names(self, model: str) -> list[str]:
        """The model's label and, where the study has one entry for it, its path."""
        sources = self.study.get("models") or []
        paths = [str(source.get("path", "")) for source in sources if source.get("label") in (model, "")]
        return [model, *(paths if len(sources) == 1 else [])]

    def causal(self, model: str) -> bool | None:
        """Whether the model's maps are causal; None when the run does not say."""
        samples = self.tables.get("samples")
        if samples is None or "causal" not in samples:
            return None
        own = samples[samples["model"] == model]["causal"]
        return bool(own.all()) if len(own) else None

    def of_the_same_kind(self, model: str, known: Sequence[str]) -> list[str]:
        """Published models to put beside a model that was not published."""
        causal = self.causal(model)
        if causal is None:
            return list(known)
        return [name for name in known if ("XLM-R" not in name) == causal]

    def statements(self, model: str, against: Sequence[str], own: str | None) -> list[str]:
        """What has to be said before the numbers."""
        found = []
        if own is None or own not in against:
            found.append(another_model(model, against))
        else:
            found.append(f"{model} is the published {own} by name; its weights were read in 4 bits there.")
        heads = self._rows("heads", model, "ruscio2025")
        if heads.empty:
            found.append(
                f"{model}: the run has no rows of protocol ruscio2025; only exact numbers can stand beside "
                "the published ones (attnscope run … --protocol both)."
            )
        samples = self.tables.get("samples")
        if samples is not None:
            mine = samples[samples["model"] == model]
            longest = int(mine["n_tokens"].max()) if len(mine) else 0
            found.append(f"{model}: {len(mine)} sentences of at most {longest} tokens; published: 500.")
            if longest > _TOPOLOGY_TOKENS:
                found.append(
                    f"{model}: the published topology is of at most {_TOPOLOGY_TOKENS} tokens; run the study "
                    "with :topology, or --set max_tokens=48, for numbers of the same sentences."
                )
        return found

    def row(
        self, model: str, published: str, number: dict[str, Any], layers: Sequence[int], same: bool
    ) -> dict[str, Any]:
        """One published number with the run's own."""
        layer = self._place(model, int(number["layer"]), layers)
        source = SOURCES[number["quantity"]]
        ask = (model, number["quantity"], layer, number["token"], number["statistic"])
        measured, low, high, sentences = self._number("ruscio2025", *ask)
        exact, exact_low, exact_high, there = self._number("exact", *ask)
        return beside(
            model, number, measured=(measured, low, high), exact=(exact, exact_low, exact_high),
            sentences=max(sentences, there), about=source.about, layer=layer, published_model=published,
            same_model=same,
        )  # fmt: skip

    def _place(self, model: str, layer: int, published: Sequence[int]) -> int:
        """The run's layer at the place of a published one."""
        if layer < 0:
            return -1
        theirs = _quarters(max(published) + 1)
        return _quarters(self._depth(model))[theirs.index(layer)] if layer in theirs else -1

    def _layers_of(self, model: str) -> int:
        heads = self.tables["heads"]
        return int(heads[heads["model"] == model]["layer"].max()) + 1

    def _rows_of(self, table: str, model: str, protocol: str) -> pd.DataFrame:
        rows = self.tables[table]
        rows = rows[rows["model"] == model]
        return rows[rows["protocol"] == protocol] if "protocol" in rows else rows

    def _compute(
        self, protocol: str, model: str, quantity: str, layer: int, token: str, statistic: str
    ) -> tuple[float, float, float, int]:
        source, nothing = SOURCES[quantity], (math.nan, math.nan, math.nan, 0)
        if source.table not in self.tables:
            return nothing
        rows = self._rows(source.table, model, protocol)
        if source.table == "layer_tests":
            p = "p_value" if protocol == "ruscio2025" else "p_holm"
            own = rows[rows["metric"] == source.column]
            own = own[own[p].notna()]
            return (float((own[p] < 0.05).sum()), math.nan, math.nan, 0) if len(own) else nothing
        if source.column not in rows or rows.empty:
            return nothing
        if source.table == "samples":
            if protocol == "exact":
                return nothing
            return _summary(rows[[source.column]].to_numpy(float), statistic, self.draws, self.seed)
        if source.table == "specialization":
            rows = rows[["layer", source.column]]
            if layer >= 0:
                rows = rows[rows["layer"] == layer]
            else:
                rows = rows[rows["layer"].isin(_quarters(int(rows["layer"].max()) + 1))]
            values = rows[source.column].astype(float)
            return (float(values.mean()), math.nan, math.nan, 0) if values.notna().any() else nothing
        values_there = self._by_text(protocol, model, quantity, layer, token)
        return nothing if values_there is None else _summary(values_there, statistic, self.draws, self.seed)

    def _by_text(self, protocol: str, model: str, quantity: str, layer: int, token: str) -> Matrix | None:
        """A quantity as [sentences, layers], NaN where it has no value; None without rows."""
        whole = self._every_layer(protocol, model, quantity, token)
        if whole is None:
            return None
        values, layers = whole
        if layer < 0:
            return values
        return values[:, [layers.index(layer)]] if layer in layers else None

    def _by_text_and_layer(
        self, protocol: str, model: str, quantity: str, token: str
    ) -> tuple[Matrix, list[int]] | None:
        """A quantity as [sentences, layers], and the numbers of these layers."""
        table, column, _ = SOURCES[quantity]
        rows = self._rows(table, model, protocol)
        rows = rows[[name for name in ("sample", "layer", column) if name in rows]]
        if quantity == "top_token":
            rows = rows[rows[column].notna()]
            there = {found: float(_is_token(found, token)) for found in rows[column].unique()}
            rows = rows.assign(value=rows[column].map(there))
        elif quantity == "same_key_in_all_heads":
            rows = rows[rows[column].notna()]
            kinds = rows.groupby(["sample", "layer"])[column].nunique()
            rows = (kinds == 1).astype(float).rename("value").reset_index()
        else:
            rows = rows.assign(value=rows[column].to_numpy(float, na_value=np.nan))
        if rows.empty:
            return None
        wide = rows.groupby(["sample", "layer"])["value"].mean().unstack("layer")
        values = wide.to_numpy(float)
        return np.where(np.isfinite(values), values, np.nan), [int(one) for one in wide.columns]


def _summary(values: Matrix, statistic: str, draws: int, seed: int) -> tuple[float, float, float, int]:
    """A statistic of [sentences, layers] with its bootstrap interval over sentences."""
    values = values[np.isfinite(values).any(axis=1)]
    count = len(values)
    if not count:
        return math.nan, math.nan, math.nan, 0
    function = _STATISTICS[statistic]
    if statistic in ("min", "max") or count < 2:
        # resampled extremes never leave the sample: a percentile interval of them covers nothing
        return float(function(values[None])[0]), math.nan, math.nan, count

    def of(index: npt.NDArray[Any]) -> Any:
        rows = index.astype(int)
        if rows.ndim == 1:
            return function(values[rows][None])[0]
        # a few hundred resampled runs at a time stay in megabytes
        each = max(1, 4_000_000 // values.size)
        return np.concatenate([function(values[rows[at : at + each]]) for at in range(0, len(rows), each)])

    found = bootstrap(np.arange(count, dtype=float), of, draws=draws, seed=seed)
    return found.estimate, found.low, found.high, count


def _over_all(function: Callable[..., Any]) -> Callable[[Matrix], Any]:
    """A NumPy function over [draws, sentences, layers]: the faster plain one where nothing is NaN."""
    plain = getattr(np, function.__name__.removeprefix("nan"))

    def of(values: Matrix) -> Any:
        flat = values.reshape(len(values), -1)
        return (function if np.isnan(flat).any() else plain)(flat, axis=1)

    return of


def _trend(values: Matrix) -> Any:
    """Spearman's correlation of the layer means of [draws, sentences, layers] with depth."""
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
_STATISTICS: dict[str, Callable[[Matrix], Any]] = {
    "mean": _over_all(np.nanmean),
    "share": _over_all(np.nanmean),
    "median": _over_all(np.nanmedian),
    "std": _over_all(np.nanstd),
    "min": _over_all(np.nanmin),
    "max": _over_all(np.nanmax),
    "trend": _trend,
}


def _quarters(depth: int) -> list[int]:
    """The layers that the paper reports: first, quarters, last.

    >>> _quarters(28), _quarters(24)
    ([0, 7, 14, 21, 27], [0, 6, 12, 18, 23])
    """
    return [0, depth // 4, 2 * (depth // 4), 3 * (depth // 4), depth - 1]


def _is_token(found: str, name: str) -> bool:
    if name == "BOS":
        return found in _BOS
    plain = found.replace("Ġ", "").replace("▁", "").strip()
    return plain == "" and found != "" if name == "space" else plain == name


def _last(table: pd.DataFrame) -> pd.DataFrame:
    if "step" not in table:
        return table
    return table[table["step"] == table.groupby("model")["step"].transform("max")]
