# SPDX-License-Identifier: MIT
"""A row of numbers for each text, from the tables of a run: what a classifier takes.

Tables hold a row per text, layer and head. `features_of` turns them so that every text is a row and every
column of every head a feature with a stable name: `lookback__l03h11`. Names hold small letters, digits and
underscores alone, because boosters refuse brackets.

Example:
    >>> import pandas as pd
    >>> from attnscope.results.results import Results
    >>> heads = pd.DataFrame({"sample": [0, 0, 1, 1], "layer": [0, 0, 0, 0], "head": [0, 1, 0, 1],
    ...                       "stable_rank": [1.0, 2.0, 3.0, 4.0]})
    >>> features_of(Results({"heads": heads})).X.to_dict("list")
    {'stable_rank__l00h00': [1.0, 3.0], 'stable_rank__l00h01': [2.0, 4.0]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnscope.errors import ResultsError
from attnscope.results.files import atomic_file
from attnscope.results.json_rows import json_rows
from attnscope.results.key_columns import NUMERIC, check_single, check_whole, kind_of, numeric_columns
from attnscope.results.schema import column_list

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: Tables of numbers per map or layer, in the order of their features, and the ending of their places.
TABLES = {
    "heads": "",
    "layers": "",
    "head_means": "mean",
    "graphs": "",
    "head_mean_graphs": "mean",
    "vectors": "",
    "head_mean_vectors": "mean",
}
#: Columns that say where a row belongs.
_PLACES = (
    "model",
    "revision",
    "step",
    "sample",
    "layer",
    "head",
    "protocol",
    "n_tokens",
    "threshold",
    "index",
)
#: Axes along which every text has an entry of the same meaning; entries along others belong to tokens.
RANKED = ("rank", "level", "scale", "dimension")
#: Kinds of which a classifier learns the design, or where a text has something.
LEFT_OUT = ("constant", "position")
#: Sites that single heads have, and their mean has not.
_OF_HEADS = frozenset({"value", "scores", "value_norms", "head_mean"})
#: Columns of `Features.index`.
INDEX = ("sample", "start", "stop", "n_tokens", "n_answer", "label", "group")
_NAME = re.compile(r"[a-z0-9_]+")
_FACTS = b"attnscope_features"


@dataclass(frozen=True, eq=False)
class Features:
    """Features of texts, or of their answers.

    Attributes:
        X: a row per text, a float64 column per feature; NaN where a metric has no value.
        index: a row per text: sample, start and stop of its answer (−1 without), n_tokens, n_answer, label,
            group; never a feature.
        about: a row per feature, in the order of X: name, metric, column, layer, head (null of a layer),
            place ("head", "layer" or "mean"), at (rank, level or threshold), options, kind, low, high, and
            the share of texts without a value.
        facts: model, commit, dtype and version that made the numbers.
    """

    X: pd.DataFrame
    index: pd.DataFrame
    about: pd.DataFrame
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Features({len(self.X):,} texts, {self.X.shape[1]:,} features)"

    def arrow(self) -> pa.Table:
        """Return index and features as an Arrow table, with the facts of each feature in its metadata."""
        import pyarrow as pa

        frame = pa.Table.from_pandas(self.index, preserve_index=False)
        for name in self.X:
            frame = frame.append_column(name, pa.array(self.X[name].to_numpy(), from_pandas=True))
        facts_of = {row["name"]: row for row in json_rows(self.about)}
        fields = [
            column.with_metadata({"attnscope": json.dumps(facts_of[column.name])})
            if column.name in facts_of
            else column
            for column in frame.schema
        ]
        metadata = {_FACTS: json.dumps({**self.facts, "index": list(self.index.columns)})}
        return frame.cast(pa.schema(fields, metadata))

    def to_parquet(self, path: str | Path) -> Path:
        """Write features, index and metadata into one Parquet file, and return its path.

        Raises:
            ResultsError: labels or groups of several types, which no column of a file holds.
        """
        import pyarrow as pa

        from attnscope.results.store import write_table

        target = Path(path)
        try:
            table = self.arrow()
        except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
            reason = " ".join(str(error).split())
            raise ResultsError(f"to_parquet: the index of the features cannot be stored: {reason}") from error
        with atomic_file(target) as out:
            write_table(table, out)
        return target

    @classmethod
    def from_parquet(cls, path: str | Path) -> Features:
        """Return what `to_parquet` wrote.

        Raises:
            ResultsError: another file, or a damaged one.
        """
        import pandas as pd
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ResultsError(f"{path} is not a readable Parquet file: {error}") from error
        if _FACTS not in (table.schema.metadata or {}):
            raise ResultsError(f"{path} holds no features")
        try:
            facts = json.loads(table.schema.metadata[_FACTS])
            index_columns = facts.pop("index")
            fields = [column for column in table.schema if column.name not in index_columns]
            rows = [json.loads((column.metadata or {})[b"attnscope"]) for column in fields]
            frame = table.to_pandas()
            x, index = frame[[column.name for column in fields]].astype(np.float64), frame[index_columns]
            description = _about_frame(pd.DataFrame(rows))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ResultsError(
                f"{path} holds features whose description is gone or damaged: a program that has written the "
                "file again has not kept its metadata"
            ) from error
        return cls(x, index, description, facts)


class _Block(NamedTuple):
    """The features of one column of a table."""

    values: np.ndarray[Any, Any]
    names: list[str]
    rows: list[dict[str, Any]]


def features_of(
    results: Any,
    columns: Sequence[str] | None = None,
    *,
    also: Sequence[str] = (),
    answers: bool | None = None,
    index: Mapping[str, Any] | None = None,
) -> Features:
    """Return a row of features for each text of a run.

    Args:
        results: of `analyze` or of a stored run, of one checkpoint.
        columns: only these columns of its tables; None: all but positions, constants and numbers per token.
        also: columns that become features whatever their kind.
        answers: True where the numbers are of answers, whose names then end in `__answer`; None: as the run
            says.
        index: label and group of each text, by column; None takes them from the table of samples.

    Raises:
        ResultsError: no table of maps or layers, several checkpoints, rows that share a place, an unknown
            column, columns whose features share a name.
    """
    import pandas as pd

    columns = column_list("features", "columns", columns)
    declared: Mapping[str, Any] = results.provenance.get("columns") or {}
    of_answers = answers
    if answers is None:
        options = results.study.get("options") or {}
        of_answers = bool(results.provenance.get("answers") or options.get("answer"))
    samples = _samples(results)
    blocks: list[_Block] = []
    used: set[str] = set()
    for table in (name for name in TABLES if name in results.tables()):
        facts_of = _ColumnFacts(declared, results, table)
        for column, block in _blocks(results, table, samples, facts_of, columns, also, bool(of_answers)):
            used.add(column)
            blocks.append(block)
    if missing := [column for column in columns or () if column not in used]:
        raise ResultsError(f"features: no numbers in a column {missing[0]!r} of tables of maps or layers")
    if not blocks:
        raise ResultsError(f"features: {results!r} has no table of maps or layers")
    names = [name for block in blocks for name in block.names]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ResultsError(f"features: two columns have features called {twice}")
    values = np.concatenate([block.values for block in blocks], 1)
    rows = pd.DataFrame([row for block in blocks for row in block.rows])
    rows["undefined"] = np.isnan(values).mean(0)
    facts: dict[str, Any] = {
        name: results.provenance[name] for name in ("model", "dtype", "commit") if name in results.provenance
    }
    facts["version"] = results.provenance.get("attnscope", _version())
    return Features(
        pd.DataFrame(values, columns=names), _index(results, samples, index), _about_frame(rows), facts
    )


def _version() -> str:
    from attnscope import __version__

    return __version__


def _samples(results: Any) -> np.ndarray[Any, Any]:
    """Return the numbers of all texts, in order."""
    present = [name for name in ("samples", *TABLES) if name in results.tables()]
    parts = []
    for name in ["samples"] if "samples" in present else present:
        column = results.table(name, ["sample"])
        check_whole("features", name, column, ["sample"])
        parts.append(column["sample"])
    if not parts:
        return np.zeros(0, np.int64)
    return np.unique(np.concatenate([part.to_numpy(np.int64) for part in parts]))


def _index(results: Any, samples: np.ndarray[Any, Any], labels: Mapping[str, Any] | None) -> pd.DataFrame:
    """Return the table of texts, their answers, sizes, labels and groups."""
    import pandas as pd

    index = pd.DataFrame({"sample": samples})
    if "samples" in results.tables():
        table = results.table("samples").drop_duplicates("sample").set_index("sample")
        for name in ("start", "stop", "n_tokens"):
            if name in table and (kind := kind_of(table[name])) not in NUMERIC:
                raise ResultsError(
                    f"features: column {name!r} of table 'samples' must hold whole numbers, got {kind}"
                )
        for name in ("start", "stop", "n_tokens", "label", "group"):
            if name in table:
                index[name] = table[name].reindex(samples).to_numpy()
    for name in ("label", "group"):
        if labels is not None and name in labels:
            index[name] = np.asarray(labels[name])
    for name in ("start", "stop"):
        if name not in index:
            index[name] = -1
    if "n_tokens" not in index:
        index["n_tokens"] = -1
    index["n_answer"] = np.where(index["start"] >= 0, index["stop"] - index["start"], 0)
    for name in ("label", "group"):
        if name not in index:
            index[name] = None
    return index[list(INDEX)]


def _blocks(
    results: Any,
    table: str,
    samples: np.ndarray[Any, Any],
    facts_of: _ColumnFacts,
    columns: Sequence[str] | None,
    also: Sequence[str],
    of_answers: bool,
) -> Iterator[tuple[str, _Block]]:
    """Yield the features of each column of a table."""
    frame = results.table(table)
    if "protocol" in frame and len(frame):
        frame = frame[frame["protocol"] == "exact"]
    _check_checkpoint(frame, table)
    # elsewhere an index is what pandas numbers rows by
    further = ("threshold", "index") if table.endswith("vectors") else ("threshold",)
    extra = next((name for name in further if name in frame), None)
    keys = [key for key in ("layer", "head", extra) if key is not None and key in frame]
    if "sample" not in frame or "layer" not in frame:
        return
    numeric = [
        name
        for name in numeric_columns(frame)
        if name not in _PLACES and _is_asked(name, table, columns, also, facts_of)
    ]
    if not numeric or not len(frame):
        return
    check_whole("features", table, frame, ["sample", *(key for key in keys if key != "threshold")])
    rows = np.searchsorted(samples, frame["sample"].to_numpy(np.int64))
    if (strange := ~np.isin(frame["sample"], samples)).any():
        sample = frame["sample"].to_numpy()[strange][0]
        raise ResultsError(
            f"features: table {table!r} has rows of sample {sample}, which table 'samples' lacks"
        )
    places, place_of_row = np.unique(frame[keys].to_numpy(np.float64), axis=0, return_inverse=True)
    place_of_row = np.asarray(place_of_row).reshape(-1)
    if len(np.unique(rows * len(places) + place_of_row)) < len(rows):
        raise ResultsError(f"features: table {table!r} has two rows of one text, layer and head")
    for name in numeric:
        values = np.full((len(samples), len(places)), np.nan)
        values[rows, place_of_row] = frame[name].to_numpy(np.float64, na_value=np.nan)
        facts = facts_of.of(name)
        levels = facts.get("levels")
        chosen = range(len(places))
        if extra == "index":
            last = len(levels) if levels else facts.get("size")
            # another column of the table may be longer
            chosen = [at for at in chosen if last is None or places[at][-1] < last]  # type: ignore[assignment]
        keys_of = [dict(zip(keys, place, strict=True)) for place in places]
        of_features = [
            _describe_feature(name, TABLES[table], keys_of[at], facts, of_answers) for at in chosen
        ]
        yield name, _Block(values[:, list(chosen)], [row["name"] for row in of_features], of_features)


def _check_checkpoint(frame: pd.DataFrame, table: str) -> None:
    """Raise where a table holds numbers of several checkpoints."""
    keys = [key for key in ("model", "revision", "step") if key in frame]
    check_single("features", table, frame, keys)
    if keys and len(frame[keys].drop_duplicates()) > 1:
        which = frame[keys].drop_duplicates().to_numpy().tolist()[:2]
        raise ResultsError(f"features: table {table!r} holds several checkpoints, got {which}; select one")


def _is_asked(
    column: str,
    table: str,
    columns: Sequence[str] | None,
    also: Sequence[str],
    facts_of: _ColumnFacts,
) -> bool:
    """Return True if a column of a table becomes features."""
    if columns is not None:
        return column in columns
    facts = facts_of.of(column)
    if facts.get("heads_only") and TABLES[table]:
        return False
    ranked = not table.endswith("vectors") or (bool(facts.get("axes")) and facts["axes"][0] in RANKED)
    return ranked and (column in also or facts.get("kind") not in LEFT_OUT)


@dataclass(frozen=True)
class _ColumnFacts:
    """Kinds, bounds and other facts of the columns of a table.

    Attributes:
        declared: by the run, by column; nothing else is asked of a column in it.
        results: that the table is of.
        table: its name.
    """

    declared: Mapping[str, Any]
    results: Any
    table: str

    def of(self, column: str) -> dict[str, Any]:
        """Return what the run says of a column; or else what its metric does, and the file's kind and bounds.

        A study may store something else under a metric's name, such as a rate over heads of what each head
        has or has not.
        """
        if column in self.declared:
            return dict(self.declared[column])
        return {**_metric_facts(column), **self._stored.get(column, {})}

    @cached_property
    def _stored(self) -> dict[str, dict[str, Any]]:
        """Kind and bounds of each column as the table's file says them; a table in memory may say none."""
        facts: dict[str, dict[str, Any]] = {}
        for column in self.results.schema(self.table):
            metadata = {key.decode(): text.decode() for key, text in (column.metadata or {}).items()}
            facts[column.name] = {"kind": metadata["kind"]} if "kind" in metadata else {}
            bounds = (name for name in ("low", "high") if name in metadata)
            facts[column.name] |= {name: json.loads(metadata[name]) for name in bounds}
        return facts


def _metric_facts(column: str) -> dict[str, Any]:
    """Return what the metric says that declares a column; {} without one, or where torch is not installed."""
    try:
        from attnscope.metrics.discovery import registry
    except ImportError:  # a folder is read where torch is not installed
        return {}
    quantities = [
        quantity
        for quantity in registry().quantities
        if quantity.name == column and quantity.protocol == "exact"
    ]
    return describe_column(quantities[0]) if quantities else {}


def describe_column(quantity: Any) -> dict[str, Any]:
    """Return the facts of a quantity that features carry, as plain data."""
    from attnscope.metrics.signatures import reads_layers

    options = {
        name: value
        for name, value in quantity.options.items()
        if isinstance(value, (bool, int, float, str)) or _is_list_of_numbers(value)
    }
    bounds = {
        name: value
        for name, value in (("low", quantity.low), ("high", quantity.high))
        if isinstance(value, (int, float))
    }
    facts = {
        "metric": quantity.metric.lstrip("_"),
        "options": {
            name: list(value) if isinstance(value, tuple) else value for name, value in options.items()
        },
        "kind": quantity.kind,
        "axes": list(quantity.axes),
        **bounds,
    }
    if reads_layers(quantity) or not _OF_HEADS.isdisjoint(quantity.needs):
        facts["heads_only"] = True
    if "level" in quantity.axes:
        facts["levels"] = list(options.get("levels", ()))
    if "rank" in quantity.axes and quantity.metric == "causal_spectrum":
        facts["size"] = 10
    return facts


def _is_list_of_numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(number, (int, float)) for number in value)


def _describe_feature(
    column: str, ending: str, place: Mapping[str, float], facts: Mapping[str, Any], of_answers: bool
) -> dict[str, Any]:
    """Return the row of a feature, its name among it."""
    at, words = None, column
    if "threshold" in place:
        at = float(place["threshold"])
        words += f"_t{spell_number(at)}"
    elif "index" in place:
        rank = int(place["index"])
        levels = facts.get("levels")
        at = float(levels[rank]) if levels else rank
        words += f"_t{spell_number(at)}" if levels else f"_r{rank:02d}"
    layer = int(place["layer"])
    where = f"l{layer:02d}" + (f"h{int(place['head']):02d}" if "head" in place else ending)
    name = f"{words}__{where}" + ("__answer" if of_answers else "")
    if not _NAME.fullmatch(name):
        raise ResultsError(f"features: names hold small letters, digits and underscores, got {name!r}")
    return {
        "name": name,
        "metric": facts.get("metric", ""),
        "column": column,
        "layer": layer,
        "head": int(place["head"]) if "head" in place else None,
        "place": "head" if "head" in place else ending or "layer",
        "at": at,
        "options": json.dumps(facts.get("options", {}), sort_keys=True),
        "kind": facts.get("kind", ""),
        "low": facts.get("low"),
        "high": facts.get("high"),
    }


def spell_number(number: float) -> str:
    """Return a number in letters and digits.

    >>> spell_number(0.05), spell_number(1e-5), spell_number(2.0)
    ('0p05', '1em05', '2')
    """
    return f"{number:g}".replace(".", "p").replace("-", "m").replace("+", "")


def _about_frame(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the table of features with one type per column."""
    types = {"layer": "Int64", "head": "Int64", "at": "float64", "low": "float64", "high": "float64"}
    return rows.astype({name: kind for name, kind in types.items() if name in rows})
