# SPDX-License-Identifier: MIT
"""The stored numbers of one checkpoint as arrays: texts along one axis, their versions along another.

Example:
    >>> import numpy as np
    >>> x = np.array([[-3.0, -2.0, -1.0]])
    >>> correlations(x, np.array([[0.1, 0.2, 0.3]]), np.isfinite(x)).tolist()
    [1.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from attnscope.studies.attention_likelihood.options import REAL, SWAP
from attnscope.study_api.selection import where, without

Array = np.ndarray[Any, Any]
#: Fields of a span's attention that are compared, by the name of their column.
MEASURES = ("share", "boost", "diagonal", "special", "context", "received")


@dataclass(frozen=True)
class Panel:
    """One checkpoint, one protocol; T texts, K versions, L layers.

    Attributes:
        samples: numbers of the texts [T], without those that repeat a text and its word.
        units: the same number where texts are equal [T].
        modes: of the versions; the first is the text as it is.
        words: columns of `words`, [T, K] each.
        ids: of the pieces in the word's place, [T][K].
        partner: the text that each exchanges words with [T], −1 for none.
        layers: their numbers.
        measures: columns of `head_mean_spans`, [L, T, K] each.
    """

    samples: Array
    units: Array
    modes: list[str]
    words: dict[str, Array]
    ids: list[list[tuple[int, ...]]]
    partner: Array
    layers: list[int]
    measures: dict[str, Array]

    @property
    def x(self) -> Array:
        """Log-likelihoods [T, K]."""
        return self.words["log_likelihood"]

    def at(self, mode: str) -> int:
        """Return the place of a mode."""
        return self.modes.index(mode)

    @property
    def distinct(self) -> Array:
        """The versions that enter a correlation within texts: each replacement once, exchanged words
        never.
        """
        is_distinct = np.isfinite(self.x)
        for text, ids in enumerate(self.ids):
            seen: set[tuple[int, ...]] = set()
            for at, pieces in enumerate(ids):
                is_distinct[text, at] &= pieces not in seen and self.modes[at] != SWAP
                seen.add(pieces)
        return is_distinct

    def pairs(self) -> Array:
        """Return places of the texts that exchange words, [pairs, 2]."""
        place = {int(sample): at for at, sample in enumerate(self.samples)}
        return np.array(
            [
                (at, place[int(other)])
                for at, other in enumerate(self.partner)
                if other >= 0 and int(other) in place and at < place[int(other)]
            ],
            dtype=np.int64,
        ).reshape(-1, 2)


def panel_of(words: pd.DataFrame, spans: pd.DataFrame) -> Panel | None:
    """Return the arrays of one checkpoint under one protocol, None where no word was measured.

    The first of equal texts with one word stands for them: a text that is given twice has no more weight.
    """
    if words.empty or spans.empty:
        return None
    repeated = repeated_words(words)
    words, spans = without(words, sample=repeated), without(spans, sample=repeated)
    modes = [REAL, *(mode for mode in dict.fromkeys(words["mode"]) if mode not in (REAL, SWAP)), SWAP]
    modes = [mode for mode in modes if (words["mode"] == mode).any()]
    samples = np.sort(words["sample"].unique())
    rows, columns = _places(words, samples, modes)
    shape = (len(samples), len(modes))
    named = ("log_likelihood", "per_piece", "own_probability", "place", "start", "pieces", "n_tokens")
    grids = {name: np.full(shape, np.nan) for name in named if name in words}
    for name, grid in grids.items():
        grid[rows, columns] = words[name].to_numpy(dtype=float)
    ids: list[list[tuple[int, ...]]] = [[()] * shape[1] for _ in samples]
    for row, column, pieces in zip(rows, columns, words["replacement_ids"], strict=True):
        ids[row][column] = tuple(int(piece) for piece in pieces)
    real = where(words, mode=REAL).set_index("sample")
    layers = sorted(int(layer) for layer in spans["layer"].unique())
    place = {layer: at for at, layer in enumerate(layers)}
    depth = spans["layer"].map(place).to_numpy()
    rows, columns = _places(spans, samples, modes)
    measures = {}
    for name in spans.columns:
        if name.startswith("span_") or name in ("inner", "outer"):
            grid_of_layers = np.full((len(layers), *shape), np.nan)
            grid_of_layers[depth, rows, columns] = spans[name].to_numpy(dtype=float)
            measures[name.removeprefix("span_")] = grid_of_layers
    if "share" in measures:
        measures["inner"] = measures["share"] / grids["pieces"]
    return Panel(
        samples,
        real["text_unit"].reindex(samples).to_numpy(),
        modes,
        grids,
        ids,
        real["partner"].reindex(samples).fillna(-1).to_numpy(dtype=np.int64),
        layers,
        measures,
    )


def repeated_words(words: pd.DataFrame) -> list[int]:
    """Return the numbers of the texts that repeat an earlier text and its word.

    >>> columns = {"mode": "real", "sample": [0, 1, 2], "text_unit": 0, "start": [2, 2, 4], "pieces": 1}
    >>> repeated_words(pd.DataFrame(columns))
    [1]
    """
    real = where(words, mode=REAL).sort_values("sample", kind="stable")
    return [int(sample) for sample in real["sample"][real.duplicated(["text_unit", "start", "pieces"])]]


def _places(table: pd.DataFrame, samples: Array, modes: Sequence[str]) -> tuple[Array, Array]:
    """Return the row and column of each row of a table."""
    return np.searchsorted(samples, table["sample"].to_numpy()), pd.Index(modes).get_indexer(table["mode"])


def centred_ranks(values: Array, has_value: Array) -> Array:
    """Return mean ranks along the last axis less their mean, 0 where a value is missing.

    Args:
        values: [..., K].
        has_value: values that count, of the same shape or one that broadcasts.
    """
    from scipy import stats

    masked = np.where(has_value, values, np.nan)
    ranks = stats.rankdata(masked, axis=-1, nan_policy="omit")
    count = np.maximum(np.isfinite(masked).sum(-1, keepdims=True), 1)
    ranks = np.where(np.isfinite(masked), ranks, 0.0)
    return np.where(np.isfinite(masked), ranks - ranks.sum(-1, keepdims=True) / count, 0.0)


def correlations(x: Array, y: Array, has_value: Array) -> Array:
    """Return Spearman's correlation within each text [..., T]; NaN below 3 versions or for constant values.

    Args:
        x: [T, K].
        y: [..., T, K].
        has_value: versions that count [T, K].
    """
    has_both = has_value & np.isfinite(x) & np.isfinite(y)
    first, second = centred_ranks(np.broadcast_to(x, y.shape), has_both), centred_ranks(y, has_both)
    size = np.sqrt(np.square(first).sum(-1) * np.square(second).sum(-1))
    enough = (has_both.sum(-1) >= 3) & (size > 0)
    return np.divide((first * second).sum(-1), size, out=np.full(size.shape, np.nan), where=enough)


def slope(x: Array, y: Array, has_value: Array) -> Array:
    """Return the least squares slope with text effects, y per unit of x [...]; NaN where x varies in no text.

    Args:
        x: [T, K].
        y: [..., T, K].
        has_value: versions that count [T, K].
    """
    has_both = has_value & np.isfinite(x) & np.isfinite(y)
    count = np.maximum(has_both.sum(-1, keepdims=True), 1)

    def centred(values: Array) -> Array:
        present = np.where(has_both, values, 0.0)
        return np.where(has_both, present - present.sum(-1, keepdims=True) / count, 0.0)

    first, second = centred(np.broadcast_to(x, y.shape)), centred(y)
    size = np.square(first).sum((-1, -2))
    total = (first * second).sum((-1, -2))
    return np.divide(total, size, out=np.full(size.shape, np.nan), where=size > 0)


def by_unit(values: Array, units: Array) -> Array:
    """Return means over texts that are equal [..., units], in their order; NaN is left out.

    Args:
        values: [..., T].
        units: of the texts [T].
    """
    rows = pd.DataFrame(values.reshape(-1, values.shape[-1]).T).groupby(units, sort=True).mean()
    return np.asarray(rows.to_numpy().T.reshape(*values.shape[:-1], len(rows)))
