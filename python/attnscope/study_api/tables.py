# SPDX-License-Identifier: MIT
"""Tables as a study declares them, and rows on their way into one.

A stored table explains itself: its file holds the engine's schema, the study, the table's version and keys,
and of each column what it is, so that a table can be read where the package of its study is gone. Missing
values are null: NaN, the masked entries of a `numpy.ma` array, and "" in a column of kind text are stored as
null, a column that a call does not give is null in its rows, infinity stays. Keys are never null; where one
is −1, `about` says what that means.

A table of single heads has two companions, declared from it:

* `table.head_means()`, the same columns of each layer's mean over its heads: its keys lack `head`; its name
  is `head_means` for `heads` and `head_mean_T` for any other T. A study puts it among its `tables`, and a
  stage among its `writes`.
* `table.controls()`, which the engine declares by itself. Rows that are written with a variant
  (`run.write("heads", variant="row_permutation", ...)`, and every row of a `random_weights` unit) go to
  `T_variants`: one row per text, variant and scope, each number the mean over layers and heads of its finite
  entries. The scope is `heads`, `head_mean` (what is written to the table of head means, whose controls stand
  with T's), `layers` (no head in the keys) or `whole` (no layer either). Positions and texts have no mean and
  are left out; counts and flags become their means. Readers take `Results.variants()`, a row for each number.

Example:
    >>> from attnscope.study_api.tables import Column, Rows, Table
    >>> rows = Rows(Table("norms", keys=("layer",), columns=(Column("norm", kind="value"),)), "norms")
    >>> rows.add(layer=[1, 0], norm=[2.0, float("nan")])
    >>> rows.arrow().to_pydict()
    {'layer': [0, 1], 'norm': [None, 2.0]}
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnscope._nearest import nearest
from attnscope.results.schema import VARIANT_KEYS, head_means_of, variants_of, without_empty

if TYPE_CHECKING:
    import pyarrow as pa

#: Types of a column that says none, by its kind; the others are numbers.
_KINDS = {"count": "int64", "position": "int64", "flag": "bool"}
#: What keys of every study count.
_MEANINGS_OF_KEYS = dict.fromkeys(("step", "base_step"), "Of training; −1: not known.")
#: Kinds of which a mean over heads says something.
_AVERAGED = ("value", "ratio", "count", "flag", "constant")


@dataclass(frozen=True)
class Column:
    """A column that no metric measures.

    Args:
        name: of the column.
        dtype: as Arrow names it: `float64`, `int64`, `bool`, `string`, `list<float64>`; "" goes by the kind.
        kind: which statistics make sense: value, ratio, count, position, flag, or text.
        label: for axes and tables.
        meaning: one sentence.
        symbol: as in formulas.
        low, high: bounds.
        empty: whether "" is a text like others; elsewhere it says that there is none, and is stored as null.
    """

    name: str
    dtype: str = ""
    kind: str = "value"
    label: str = ""
    meaning: str = ""
    symbol: str = ""
    low: float | None = None
    high: float | None = None
    empty: bool = False


def columns(kind: str, *names: str, **bounds: float) -> tuple[Column, ...]:
    """Return columns of one kind whose names say enough."""
    return tuple(Column(name, "string" if kind == "text" else "", kind, **bounds) for name in names)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Table:
    """A table of a study.

    Args:
        name: of the table and of its file.
        keys: columns that tell its rows apart, in order; rows are sorted by them, checkpoints by step.
        columns: what is measured: `Column`s, or quantities of metrics; None takes whatever is written.
        version: raised when the meaning of a column changes.
        variants: how rows of a control are kept in the table `NAME_variants`: "reduced" to their means over
            layers and heads, or "full".
        heads: the table of single heads that this one holds the head means of, "" where it holds none.
        about: what a key counts, by its name, where that is more than its name says, such as a layer −1.
    """

    name: str
    keys: tuple[str, ...]
    columns: tuple[Any, ...] | None = ()
    version: int = 1
    variants: Literal["reduced", "full"] = "reduced"
    heads: str = ""
    about: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

    def head_means(self) -> Table:
        """Return the table of the same numbers of each layer's mean over its heads."""
        keys = tuple(key for key in self.keys if key != "head")
        return replace(self, name=head_means_of(self.name), keys=keys, heads=self.name)

    def controls(self) -> Table:
        """Return the table that holds this one's rows of controls."""
        if self.variants == "full":
            name, keys = variants_of(self.name), (*self.keys, *VARIANT_KEYS[:2])
            return Table(name, keys, self.columns, self.version, about=self.about)
        keys = tuple(key for key in self.keys if key not in ("layer", "head"))
        numbers = ("", "bool", "float64", "int64")
        columns = tuple(
            Column(
                column.name,
                "float64",
                "ratio" if column.kind == "ratio" else "value",
                column.label,
                symbol=column.symbol,
            )
            for column in self.columns or ()
            if str(column.kind) in _AVERAGED and getattr(column, "dtype", "") in numbers
        )
        return Table(variants_of(self.heads or self.name), (*keys, *VARIANT_KEYS), columns, self.version)

    @property
    def scope(self) -> str:
        """Keys averaged out in a control's reduced rows."""
        if self.heads:
            return "head_mean"
        return "heads" if "head" in self.keys else "layers" if "layer" in self.keys else "whole"


class Rows:
    """Rows of one table of a study, added as columns of equal length, sorted by their keys at the end.

    Args:
        table: that they are of.
        study: its name.
        constants: columns that are the same in all rows.
        models: in the order of the plan, which rows of several have too; any other comes behind them.
    """

    def __init__(
        self,
        table: Table,
        study: str,
        constants: Mapping[str, Any] | None = None,
        models: Sequence[str] = (),
    ) -> None:
        self.table = table
        self.study = study
        self.constants = dict(constants or {})
        self.models = list(dict.fromkeys(models))
        columns = [column for column in table.columns or () if column.name not in table.keys]
        self._types = {column.name: arrow_type(column) for column in columns}
        self._texts = {column.name for column in columns if column.kind == "text" and not column.empty}
        self._parts: list[pa.Table] = []

    def add(self, **columns: Any) -> None:
        """Add rows: arrays, or tensors on the CPU, of one length; single values are repeated."""
        import pyarrow as pa

        title = f"table {self.table.name!r}"
        if self.table.columns is not None:
            declared = [*self.table.keys, *(column.name for column in self.table.columns)]
            if unknown := [name for name in columns if name not in declared]:
                raise ValueError(f"{title} declares no column {unknown[0]!r}{nearest(unknown[0], declared)}")
            present = {*columns, *self.constants}
            if missing := [key for key in self.table.keys if key not in present]:
                raise ValueError(f"{title}: the key {missing[0]!r} is missing")
        arrays = {name: _array(values) for name, values in columns.items()}
        lengths = {len(values) for values in arrays.values() if values.ndim}
        if len(lengths) > 1:
            shapes = {name: values.shape for name, values in arrays.items()}
            raise ValueError(f"{title}: columns of different lengths: {shapes}")
        part = {}
        for name, values in arrays.items():
            column = arrow_of(np.atleast_1d(values), self._types.get(name), key=name in self.table.keys)
            column = without_empty(column) if name in self._texts else column
            part[name] = column if values.ndim or not lengths else pa.repeat(column[0], *lengths)
        self._parts.append(pa.table(part))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def arrow(self) -> pa.Table:
        """Return the table, keys first, rows in the order of their keys."""
        import pyarrow as pa

        table = pa.concat_tables(self._parts, promote_options="permissive").combine_chunks()
        present = table.column_names
        if keys := by_step([key for key in self.table.keys if key in present]):
            order = [part for key in keys for part in self._order_of(key, table[key].to_numpy())]
            table = table.take(np.lexsort(order[::-1]))
        columns = {}
        declared = self.table.columns
        names = present if declared is None else [column.name for column in declared]
        for name in dict.fromkeys([*self.constants, *self.table.keys, *names]):
            if name in present:
                columns[name] = table[name]
            elif name in self.constants:
                columns[name] = pa.repeat(self.constants[name], len(table))
            elif name in self._types:
                columns[name] = pa.nulls(len(table), self._types[name])
        return with_metadata(pa.table(columns), self.table, self.study)

    def _order_of(self, key: str, values: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Return what rows are sorted by for one of their keys: of models their places in the plan first."""
        if key != "model" or not self.models:
            return [values]
        names, codes = np.unique(values, return_inverse=True)
        places = {name: place for place, name in enumerate(self.models)}
        return [np.array([places.get(name, len(places)) for name in names], np.int64)[codes], values]


def by_step(keys: Sequence[str]) -> list[str]:
    """Return keys to sort by, so that checkpoints are in the order of their steps: step10 is behind step2.

    >>> by_step(["model", "revision", "step", "sample"])
    ['model', 'step', 'revision', 'sample']
    """
    ordered = list(keys)
    for prefix in ("", "base_"):
        revision, step = f"{prefix}revision", f"{prefix}step"
        if revision in ordered and step in ordered:
            ordered.remove(step)
            ordered.insert(ordered.index(revision), step)
    return ordered


def arrow_type(column: Any) -> pa.DataType:
    """Return the Arrow type of a declared column."""
    import pyarrow as pa

    named = getattr(column, "dtype", "") or _KINDS.get(str(column.kind), "float64")
    if named.startswith("list<"):
        return pa.list_(pa.type_for_alias(named[5:-1]))
    return pa.type_for_alias(named)


def arrow_of(values: np.ndarray[Any, Any], kind: Any = None, *, key: bool = False) -> pa.Array:
    """Return values as Arrow, NaN as null; the NaN of a key stays."""
    import pyarrow as pa

    if values.dtype == object:
        return pa.array(values.tolist(), kind, from_pandas=not key)
    hidden = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    if key and hidden is not None and hidden.any():
        raise ValueError("a key is never null")
    if hidden is not None and values.dtype.kind == "f" and not key:
        hidden = hidden | np.isnan(np.ma.getdata(values))
    array = pa.array(np.ma.getdata(values), mask=hidden, from_pandas=not key)
    return array if kind in (None, array.type) else array.cast(kind)


def with_metadata(table: pa.Table, declared: Table, study: str) -> pa.Table:
    """Return the table with the metadata that explain it."""
    import pyarrow as pa

    columns = {
        key: Column(key, kind="", meaning=text)
        for key, text in {**_MEANINGS_OF_KEYS, **declared.about}.items()
    }
    columns |= {column.name: column for column in declared.columns or ()}
    fields = []
    for field in table.schema:
        meanings = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name in ("kind", "label", "symbol", "meaning", "low", "high", "empty")
            if (value := getattr(columns.get(field.name), name, None)) not in (None, "")
            and value is not False
            and not callable(value)
        }
        fields.append(pa.field(field.name, field.type, metadata=meanings or None))
    facts = {"name": declared.name, "version": declared.version, "keys": list(declared.keys)}
    metadata = {"attnscope_study": study, "attnscope_table": json.dumps(facts)}
    return table.cast(pa.schema(fields, metadata))


def control_rows(tables: Sequence[tuple[Rows, str]], seed: int) -> Rows:
    """Return the rows of one table `NAME_variants`, from rows with the name of their control."""
    rows = tables[0][0]
    reduced = Rows(rows.table.controls(), rows.study)
    columns = [column.name for column in reduced.table.columns or ()]
    for rows, variant in tables:
        table, frame = rows.table, rows.arrow().to_pandas()
        if table.variants == "reduced":
            keys = [frame[key] for key in table.keys if key not in ("layer", "head")]
            finite = frame[columns].astype(np.float64).replace([np.inf, -np.inf], np.nan)
            means = finite.groupby(keys, sort=True, dropna=False).mean()
            frame = means.reset_index().assign(scope=table.scope)
        reduced.add(**dict(frame.items()), variant=variant, seed=seed)
    return reduced


def _array(values: Any) -> np.ndarray[Any, Any]:
    """Return values as an array; lists of lists and of texts as objects."""
    if hasattr(values, "to_numpy") and not isinstance(values, np.ndarray):
        return np.asarray(values.to_numpy())
    if isinstance(values, (list, tuple)) and values and isinstance(values[0], (list, tuple, np.ndarray)):
        lists = np.empty(len(values), dtype=object)
        lists[:] = [list(entries) for entries in values]
        return lists
    array = values if isinstance(values, np.ma.MaskedArray) else np.asarray(values)
    return array.astype(object) if array.dtype.kind in "UO" else array
