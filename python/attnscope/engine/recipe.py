# SPDX-License-Identifier: MIT
"""What a study is to the engine: the sites it captures, what it measures on a layer, the tables it fills."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attnscope.engine.results import Results
from attnscope.engine.schema import KEYS

if TYPE_CHECKING:
    import pyarrow as pa

    from attnscope.capture import Layer
    from attnscope.engine.config import Study
    from attnscope.models import Encoder, LoadedModel


#: Rows of a map that are averaged at a time: few enough to stay in the cache.
_BAND = 128


@dataclass(frozen=True)
class Batch:
    """The sentences of one forward pass, in the order of the batch axis."""

    samples: Sequence[int]
    lengths: Sequence[int]
    token_ids: Sequence[Sequence[int]]
    tokens: Sequence[Sequence[str]]
    groups: Sequence[str]


class Rows:
    """Rows of tables, added as columns of equal length, sorted by their keys at the end.

    Args:
        constants: key columns that are the same in every row: model, revision, step.
        null: whether they belong to a null, of which only averages are kept.
    """

    def __init__(self, constants: Mapping[str, Any], *, null: bool = False) -> None:
        self.constants = dict(constants)
        self.null = null
        self._nulls: dict[str, Rows] = {}
        self._parts: dict[str, list[dict[str, np.ndarray[Any, Any]]]] = {}

    def add(self, table: str, columns: Mapping[str, Any]) -> None:
        """Adds rows to a table; single values are repeated.

        Args:
            table: name of the table.
            columns: arrays, or tensors on the CPU, of one length. Where calls differ in columns, as two
                protocols do, what a row lacks is NaN, −1, False or "" by the kind of the column.

        Raises:
            ValueError: columns of different lengths.
        """
        arrays = {name: np.asarray(values) for name, values in columns.items()}
        lengths = {len(values) for values in arrays.values() if values.ndim}
        if len(lengths) > 1:
            found = {name: values.shape for name, values in arrays.items()}
            raise ValueError(f"table {table!r}: columns of different lengths: {found}")
        length = lengths.pop() if lengths else 1
        arrays = {
            name: values if values.ndim else np.full(length, values.item(), dtype=_dtype(values))
            for name, values in arrays.items()
        }
        self._parts.setdefault(table, []).append(arrays)

    def nulls(self, kind: str) -> Rows:
        """The rows of a null of the same sentences.

        Args:
            kind: name of the null.
        """
        return self._nulls.setdefault(kind, Rows(self.constants, null=True))

    def kinds(self) -> list[str]:
        """Names of the nulls that have rows."""
        return sorted(self._nulls)

    def finish(self) -> dict[str, pa.Table]:
        """The tables, keys first, rows in the order of their keys."""
        import pyarrow as pa

        tables = {}
        for table, parts in self._parts.items():
            columns = _joined(parts)
            length = len(next(iter(columns.values())))
            constants = {} if table == "baselines" else self.constants
            # equal values of a constant column need no sorting, and neither does one that is no key
            keys = [key for key in KEYS.get(table, ()) if key in columns]
            if keys:
                order = np.lexsort([columns[key] for key in reversed(keys)])
                columns = {name: values[order] for name, values in columns.items()}
            whole: dict[str, Any] = {
                name: pa.array([value] * length, pa.string() if isinstance(value, str) else pa.int64())
                for name, value in constants.items()
            }
            first = [*KEYS.get(table, ())]
            whole.update({name: _arrow(columns[name]) for name in first if name in columns})
            whole.update({name: _arrow(values) for name, values in columns.items() if name not in whole})
            tables[table] = pa.table(whole)
        return tables


class Recipe(ABC):
    """A study's own part; the engine does the rest.

    Args:
        study: the configuration.
    """

    #: Name in `Study.study` and in the registry.
    name: ClassVar[str]
    #: Protocols that it can follow.
    protocols: ClassVar[tuple[str, ...]] = ("exact",)
    #: Whether it reads `Study.options`; its constructor then checks them and raises `ConfigError`.
    takes_options: ClassVar[bool] = False

    def __init__(self, study: Study) -> None:
        self.study = study
        self.notes: list[str] = []

    @classmethod
    @abstractmethod
    def metrics(cls) -> list[str]:
        """Names that `Study.metrics` may hold."""

    @abstractmethod
    def sites(self) -> tuple[str, ...]:
        """What `attnscope.capture` is asked for."""

    def extra_sites(self) -> tuple[str, ...]:
        """Sites that are welcome where a model lets them be captured; what needs them is NaN elsewhere."""
        return ()

    def passes(self, model: Any, batch: Batch) -> Iterator[tuple[Any, Batch]]:
        """The forward passes that a batch takes, in order; each layer of each is given to `measure`.

        A recipe that compares a sentence with its own beginning, or a model with another, yields more than
        the model on the batch.

        Args:
            model: the checkpoint.
            batch: the sentences.
        """
        yield model, batch

    def of_weights(self, model: Any) -> Mapping[str, Mapping[str, Any]]:
        """What needs no sentence, measured once per checkpoint: columns by name of the table.

        Args:
            model: the checkpoint.
        """
        return {}

    @abstractmethod
    def measure(self, layer: Layer, number: int, batch: Batch, rows: Rows) -> None:
        """Measures one captured layer of a batch.

        Args:
            layer: self-attention over the whole sentences, valid during this call only.
            number: of the layer, unique in the model.
            batch: the sentences.
            rows: takes the results.
        """

    def after(  # noqa: B027  (most studies need nothing more)
        self,
        loaded: LoadedModel,
        inputs: Mapping[str, Tensor],
        batch: Batch,
        encoder: Encoder,
        last: Tensor | None,
        rows: Rows,
    ) -> None:
        """Called when all layers of a batch are measured, for what needs the whole or other runs.

        Args:
            loaded: the model.
            inputs: of the forward pass.
            batch: the sentences.
            encoder: of the model.
            last: the last hidden state [b, n, D], None where the model gives none.
            rows: takes the results.
        """

    def twins(self) -> bool:
        """Whether a twin of each model with random weights is wanted, as a null."""
        return False

    def pads(self) -> bool:
        """Whether a sentence's numbers depend on the length of the longest, to which it is padded."""
        return False

    def note(self, text: str) -> None:
        """Remembers what a person should know; each text is said once a run.

        Args:
            text: "" is nothing.
        """
        if text and text not in self.notes:
            self.notes.append(text)

    def reduced(self, tables: Mapping[str, pa.Table], kind: str) -> dict[str, Any]:
        """What is kept of the tables of a null: columns of the table `nulls`.

        Args:
            tables: as a unit has them.
            kind: of the null.
        """
        return {}

    def baselines(self, n_tokens: int, causal: bool) -> list[dict[str, Any]]:
        """The same metrics on uniform attention: rows of the table `baselines`.

        Args:
            n_tokens: size of the map.
            causal: whether keys after the query are hidden.
        """
        return []

    def finish(self, results: Results) -> dict[str, pa.Table]:
        """Tables that are made from the stored ones when every unit is done.

        Args:
            results: the run's tables so far.
        """
        return {}


def _joined(parts: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of all parts, in the order in which they first appear."""
    kinds: dict[str, np.ndarray[Any, Any]] = {}
    for part in parts:
        for name, values in part.items():
            kinds.setdefault(name, values)
    return {
        name: np.concatenate(
            [part[name] if name in part else absent(kind, len(next(iter(part.values())))) for part in parts]
        )
        for name, kind in kinds.items()
    }


def absent(like: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """What stands where a column has no value: NaN, −1, False or "" by its kind.

    Args:
        like: of the column.
        count: how many.
    """
    nothing: Any = {"f": np.nan, "i": -1, "b": False}.get(like.dtype.kind, "")
    return np.full(count, nothing, dtype=_dtype(like))


def head_mean(heads: Tensor) -> Tensor:
    """The mean over heads of [batch, h, n, n], [batch, 1, n, n] in float64.

    By bands of rows: `torch.mean` with another dtype first copies all heads into it, which is two layers'
    worth of memory, and a sum of two dtypes copies the one of them.

    Args:
        heads: one layer's maps.
    """
    mean = torch.zeros(heads.shape[0], *heads.shape[2:], dtype=torch.float64, device=heads.device)
    for first in range(0, heads.shape[2], _BAND):
        band = mean[:, first : first + _BAND]
        for head in heads[:, :, first : first + _BAND].unbind(1):
            band += head
    return mean.div_(heads.shape[1]).unsqueeze(1)


def bar_columns(barcodes: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of `bars` from the barcodes of maps in the order of the keys.

    Args:
        barcodes: what `attnscope.persistence` returns.
        keys: key columns, one entry per map or one for all.
    """
    each = np.diff(barcodes.offsets.numpy())
    return {
        **{key: np.repeat(values, each) if np.ndim(values) else values for key, values in keys.items()},
        "dimension": barcodes.dimension.numpy().astype(np.int64),
        "birth": barcodes.birth.numpy(),
        "death": barcodes.death.numpy(),
    }


def _dtype(value: np.ndarray[Any, Any]) -> Any:
    return object if value.dtype.kind in "UO" else value.dtype


def _arrow(values: np.ndarray[Any, Any]) -> pa.Array:
    import pyarrow as pa

    if values.dtype == object:
        return pa.array(values.tolist())
    return pa.array(values)
