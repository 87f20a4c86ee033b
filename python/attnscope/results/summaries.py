# SPDX-License-Identifier: MIT
"""Stored tables in other shapes: arrays with named axes, averages of controls as a row for each, a statistic
for each column, two runs held against each other; and which of their rows and columns pages and figures show.

A value and a flag have a mean. A count and a ratio, whose denominator may come near to 0, have a median; a
position is a place, of which the most frequent one says something and a mean nothing.

Example:
    >>> import pandas as pd
    >>> from attnscope.results.results import Results
    >>> control = pd.DataFrame({"sample": [0], "variant": ["row_permutation"], "seed": [0],
    ...                         "scope": ["heads"], "entropy": [1.5]})
    >>> Results({"heads_variants": control}).variants()[["variant", "metric", "value"]].values.tolist()
    [['row_permutation', 'entropy', 1.5]]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from attnscope._warn import warn
from attnscope.errors import ResultsError
from attnscope.results.key_columns import NUMERIC, check_same_kind, check_single, kind_of, numeric_columns
from attnscope.results.schema import CHECKPOINT_KEYS, VARIANT_KEYS, check_columns, column_list, variants_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import xarray as xr


#: Keys of an average of a control, in order; tables that lack one have null there, a threshold NaN.
KEYS = (*CHECKPOINT_KEYS, "sample", "protocol", *VARIANT_KEYS, "threshold", "table", "metric")
#: By kind of a column; others have a mean.
STATISTIC = {"count": "median", "ratio": "median", "position": "most frequent"}
#: Columns in which infinity is a value: a bar that never ends.
ENDLESS = ("birth", "death")
#: Numbers that differ by less of themselves are one, which float32 rounds: the `ROUNDED_FLOAT32` of
#: `statistics.rounding`, which needs torch, and a folder is read without it.
ROUNDED = 2.0**-20
#: Whole numbers from here on are not all numbers of float64.
EXACT = 2.0**53
#: Measured nulls and what they are called: a copy of the model with random weights, and shuffled rows.
NULLS = {"random_weights": "random weights", "row_permutation": "rows shuffled"}


class StoredTables(Protocol):
    """The tables of a run, as `attnscope.results.results.Results` gives them."""

    def tables(self) -> list[str]:
        """Return the names of the tables."""

    def table(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one table, or these columns of it."""

    def column_names(self, name: str) -> list[str]:
        """Return the names of a table's columns."""

    def key_columns(self, name: str) -> list[str]:
        """Return the columns that tell the rows of a table apart."""

    def schema(self, name: str) -> pa.Schema:
        """Return names and types of a table's columns."""


def as_xarray(
    results: StoredTables, table: str, *, metrics: Sequence[str] | None = None, protocol: str = "exact"
) -> xr.Dataset:
    """Return the numeric columns of a table, as `attnscope.results.results.Results.to_xarray` documents."""
    import pandas as pd
    import xarray as xr

    if not isinstance(protocol, str):
        raise TypeError(f"to_xarray: protocol must be the name of one, got {protocol!r:.60}")
    frame = results.table(table)
    check_single("to_xarray", table, frame, results.key_columns(table))
    if "protocol" in frame:
        kinds = list(frame["protocol"].unique())
        frame = frame[frame["protocol"] == protocol]
        if frame.empty:
            raise ResultsError(
                f"to_xarray: table {table!r} has no rows of protocol {protocol!r}, only {kinds}"
            )
    axes = [key for key in results.key_columns(table) if key not in ("protocol", "step")]
    if not axes:
        raise ResultsError(
            f"to_xarray: table {table!r} has no columns that could be axes, only {list(frame)}"
        )
    metrics = column_list("to_xarray", "metrics", metrics)
    if metrics is None:
        metrics = [name for name in numeric_columns(frame) if name not in (*axes, "step", "protocol")]
    check_columns(table, metrics, frame.columns)
    for name in metrics:
        if name in axes:
            raise ResultsError(f"to_xarray: column {name!r} of table {table!r} is an axis")
        if (kind := kind_of(frame[name])) not in NUMERIC:
            raise ResultsError(f"to_xarray: column {name!r} of table {table!r} must hold numbers, got {kind}")
    if frame[axes].duplicated().any():
        raise ResultsError(f"to_xarray: two rows of table {table!r} share the same {', '.join(axes)}")
    # a missing key, such as the threshold of a number that has none, is a place of its own, the last; models
    # stand in the order of the table, which is that of the plan
    factors = [pd.factorize(frame[axis], sort=axis != "model", use_na_sentinel=False) for axis in axes]
    places = tuple(codes for codes, _ in factors)
    coordinates = {axis: np.asarray(values) for axis, (_, values) in zip(axes, factors, strict=True)}
    arrays = {}
    for name in metrics:
        cells = np.full([len(values) for values in coordinates.values()], np.nan)
        cells[places] = frame[name].to_numpy(float, na_value=np.nan)
        arrays[name] = (axes, cells)
    dataset = xr.Dataset(arrays, coords=coordinates)
    if "revision" in axes and "step" in frame:
        order = frame[["revision", "step"]].drop_duplicates().sort_values(["step", "revision"])
        dataset = dataset.reindex(revision=order["revision"].unique())
        if order["revision"].is_unique:
            dataset = dataset.assign_coords(step=("revision", order["step"])).set_xindex("step")
    return dataset.assign_attrs(protocol=protocol)


def in_rows(results: StoredTables, table: str | None = None) -> pd.DataFrame:
    """Return every average of a control, of one table or of all, as the columns of `KEYS` and `value`.

    No rows if no control was asked for. Controls whose rows are kept whole are not averages, and not among
    them.
    """
    import pandas as pd

    parts = []
    suffix = variants_of("")
    for name in results.tables():
        table_of_rows = name.removesuffix(suffix)
        if table_of_rows == name or table not in (None, table_of_rows):
            continue
        frame = results.table(name)
        if not set(VARIANT_KEYS) <= set(frame):
            continue
        numbers = frame.select_dtypes(["number", "bool", "boolean"]).columns
        numbers = numbers.drop([key for key in KEYS if key in numbers])
        values = frame[numbers].to_numpy(np.float64, na_value=np.nan).ravel("F")
        places = np.flatnonzero(~np.isnan(values))
        tall = frame[[key for key in KEYS if key in frame]].iloc[places % len(frame)]
        tall = tall.assign(metric=numbers.repeat(len(frame))[places], table=table_of_rows)
        parts.append(tall.assign(value=values[places]).reindex(columns=[*KEYS, "value"]))
    rows = pd.concat(parts or [pd.DataFrame(columns=[*KEYS, "value"])], ignore_index=True)
    return rows.astype({"threshold": np.float64, "value": np.float64})


def kinds_of(results: StoredTables, table: str) -> dict[str, str]:
    """Return the kind of each numeric column that is no key, as the stored file says or else what made the
    tables; "value" where neither does.
    """
    import pyarrow as pa

    keys = results.key_columns(table)
    facts = getattr(results, "provenance", {}).get("columns")
    declared = facts if isinstance(facts, dict) else {}
    kinds = {}
    for field in results.schema(table):
        numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        if field.name not in keys and (numeric or pa.types.is_boolean(field.type)):
            fact = declared.get(field.name)
            kind = str(fact.get("kind") or "") if isinstance(fact, dict) else ""
            kinds[field.name] = (field.metadata or {}).get(b"kind", b"").decode() or kind or "value"
    return kinds


def typical(values: np.ndarray[Any, Any], kind: str) -> float:
    """Return the statistic of the finite values of a kind; NaN if there are none.

    >>> typical(np.array([1.0, 1.0, 7.0]), "position"), typical(np.array([1.0, 1.0, 7.0]), "value")
    (1.0, 3.0)
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan")
    if STATISTIC.get(kind) == "most frequent":
        finite, counts = np.unique(finite, return_counts=True)
        return float(finite[counts.argmax()])
    return float(np.median(finite) if kind in STATISTIC else finite.mean())


def grouped(frame: pd.DataFrame, by: Sequence[str], kinds: Mapping[str, str]) -> pd.DataFrame:
    """Return the statistic of every column within groups, undefined and infinite entries left out.

    Groups are sorted, models in the order in which the table first has them, which is that of the plan. A
    missing key, such as the threshold of a number that has none, is a group of its own.
    """
    import pandas as pd

    plain = frame[list(kinds)].apply(lambda column: column.to_numpy(float, na_value=np.nan))
    plain = plain.where(np.isfinite(plain.to_numpy()) | plain.columns.isin(ENDLESS))
    keys, models = [frame[key] for key in by], None
    if "model" in by:
        places, models = pd.factorize(frame["model"], use_na_sentinel=False)
        keys[list(by).index("model")] = pd.Series(places, frame.index, name="model")
    groups = plain.groupby(keys, sort=True, dropna=False, observed=True)
    how = {"mean": "mean", "median": "median", "most frequent": partial(typical, kind="position")}
    columns = {name: groups[name].agg(how[STATISTIC.get(kind, "mean")]) for name, kind in kinds.items()}
    table = pd.DataFrame(columns).reset_index()
    return table if models is None else table.assign(model=models.take(table["model"].to_numpy()))


def in_training_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows by model, in the order in which the table first has them, step and revision.

    >>> import pandas as pd
    >>> rows = pd.DataFrame({"model": ["b", "b", "a"], "revision": "", "step": [9, 1, 0]})
    >>> in_training_order(rows)["step"].tolist()
    [1, 9, 0]
    """
    import pandas as pd

    places = pd.factorize(rows["model"], use_na_sentinel=False)[0]
    order = rows[["step", "revision"]].assign(model=places).reset_index(drop=True)
    return rows.iloc[order.sort_values(["model", "step", "revision"], kind="stable").index]


def compared(results: StoredTables, other: StoredTables, table: str = "heads") -> pd.DataFrame:
    """Return two runs, metric by metric, over the rows that both have.

    Rows are matched on the key columns (two runs of one model under two names: on all keys but model).
    Samples are matched by number; a warning says so where their sentences differ.

    Returns:
        one row per numeric metric, and where rows of several protocols match per protocol, whose columns of
        one name are other quantities: rows matched, rows only here, rows only there, finite pairs of values,
        which statistic its kind allows (mean, median, most frequent), that of both runs, the mean and the
        largest absolute difference, the correlation, and whether all matched values are equal. A text that
        repeats an earlier one in either run, as `text_unit` of its table `samples` says, is in the rows, the
        largest difference and whether all are equal; its exact rows are in no mean, median or correlation,
        and no finite pairs.
    """
    import pandas as pd

    rows_here, rows_there = results.table(table), other.table(table)
    # a file that another program has written again names no keys
    named = dict.fromkeys([*results.key_columns(table), *other.key_columns(table)])
    keys = [key for key in named if key in rows_here and key in rows_there]
    _check_comparable(table, rows_here, rows_there, keys, kinds_of(results, table))
    one_model_each = "model" in keys and rows_here["model"].nunique() == rows_there["model"].nunique() == 1
    if one_model_each and not set(rows_here["model"]) & set(rows_there["model"]):
        keys.remove("model")
    if not keys:
        raise ResultsError(f"compare: table {table!r} has no key columns to match its rows by")
    try:
        matched = rows_here.merge(rows_there, on=keys, suffixes=("", "\0other"), validate="one_to_one")
    except (pd.errors.MergeError, TypeError) as error:
        names = ", ".join(keys)
        raise ResultsError(f"compare: {names} do not tell the rows of table {table!r} apart") from error
    if matched.empty:
        raise ResultsError(f"compare: no row of table {table!r} has the same {', '.join(keys)} in both runs")
    if "sample" in keys and (differ := _other_sentences(results, other, set(matched["sample"]))):
        warn(
            f"compare: the two runs read different texts ({len(differ)} of {matched['sample'].nunique()} "
            f"differ, first: sample {differ[0]}); rows are still paired by sample number, so differences mix "
            "texts and models",
            UserWarning,
        )
    several = "protocol" in keys and matched["protocol"].nunique() > 1
    is_counted = ~(_is_repeated(results, matched, "") | _is_repeated(other, matched, "\0other"))
    rows = []
    kinds = kinds_of(results, table)
    for protocol, part in matched.groupby("protocol", sort=True) if several else [("", matched)]:
        sides = [
            rows_of_protocol(frame, str(protocol)) if several else frame for frame in (rows_here, rows_there)
        ]
        sizes = len(sides[0]), len(sides[1])
        for row in _compared_metrics(part, is_counted[part.index], kinds, sizes):
            if not several:
                rows.append(row)
            elif row["finite"] or not row["equal"]:  # a column of the other protocol is missing in both
                rows.append({"metric": row.pop("metric"), "protocol": str(protocol), **row})
    return pd.DataFrame(rows)


def repeated_texts(results: StoredTables) -> pd.MultiIndex:
    """Return model and number of each text that repeats an earlier one, as the table `samples` says.

    In a shard, or in rows that were chosen, the first of equal texts may be missing: then it is the first of
    those that are there which counts.
    """
    import pandas as pd

    columns = ["model", "sample", "text_unit"]
    if "samples" not in results.tables() or not {*columns} <= {*results.column_names("samples")}:
        return pd.MultiIndex.from_arrays([[], []])
    samples = results.table("samples", columns).dropna(subset="text_unit").drop_duplicates()
    samples = samples.sort_values("sample", kind="stable")
    repeated = samples[samples.duplicated(["model", "text_unit"])]
    return pd.MultiIndex.from_frame(repeated[["model", "sample"]].drop_duplicates())


def _is_repeated(results: StoredTables, matched: pd.DataFrame, suffix: str) -> pd.Series[bool]:
    """Return which matched rows are exact ones of a text that repeats an earlier one in these results.

    The columns of the other run end in the suffix where the two differ.
    """
    import pandas as pd

    model = f"model{suffix}" if f"model{suffix}" in matched else "model"
    if not {model, "sample"} <= set(matched):
        return pd.Series(data=False, index=matched.index)
    is_repeated = pd.MultiIndex.from_frame(matched[[model, "sample"]]).isin(repeated_texts(results))
    if "protocol" in matched:
        is_repeated &= (matched["protocol"] == "exact").to_numpy()
    return pd.Series(is_repeated, matched.index)


def _compared_metrics(
    matched: pd.DataFrame, is_counted: pd.Series[bool], kinds: Mapping[str, str], sizes: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    """Yield a row per metric of matched rows; `sizes` are the rows of both runs."""
    for name, kind in kinds.items():
        if f"{name}\0other" not in matched:
            continue
        sides = matched[name], matched[f"{name}\0other"]
        a, b = (column.to_numpy(float, na_value=np.nan) for column in sides)
        is_finite = np.isfinite(a) & np.isfinite(b)
        good = is_finite & is_counted.to_numpy()
        x, y = a[good], b[good]
        differences = _differences(*sides, a, b)
        gaps = np.abs(differences[is_finite])
        # what a model computes in float32 differs by rounding from one text to the next
        is_related = kind != "position" and len(x) > 1 and _varies(x) and _varies(y)
        yield (
            {
                "metric": name,
                "rows": len(matched),
                "only_here": sizes[0] - len(matched),
                "only_there": sizes[1] - len(matched),
                "finite": int(good.sum()),
                "statistic": STATISTIC.get(kind, "mean"),
                "here": typical(x, kind),
                "there": typical(y, kind),
                "mean_difference": float(differences[good].mean())
                if len(x) and kind != "position"
                else np.nan,
                "max_difference": float(gaps.max()) if len(gaps) else np.nan,
                "correlation": float(np.corrcoef(x, y)[0, 1]) if is_related else np.nan,
                "equal": bool(np.array_equal(a, b, equal_nan=True)) and not gaps.any(),
            }
        )


def _differences(
    first: pd.Series[Any], second: pd.Series[Any], a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return by how much two columns differ, whole numbers that float64 rounds exactly.

    Args:
        first: of these results.
        second: of the others.
        a: the first as floats, missing ones as NaN.
        b: the second likewise.
    """
    with np.errstate(invalid="ignore"):  # two infinities
        differences = b - a
    if first.dtype.kind in "iu" and second.dtype.kind in "iu":
        for at in np.flatnonzero((np.abs(a) >= EXACT) & (np.abs(b) >= EXACT)):
            differences[at] = int(second.iloc[at]) - int(first.iloc[at])
    return differences


def _varies(values: np.ndarray[Any, Any]) -> bool:
    """Return True if numbers differ by more than what float32 rounds."""
    with np.errstate(over="ignore"):  # the difference of the largest numbers is infinite
        return not bool(np.isclose(values.max(), values.min(), rtol=ROUNDED, atol=0.0))


def _check_comparable(
    table: str, rows: pd.DataFrame, other_rows: pd.DataFrame, keys: Sequence[str], numbers: Iterable[str]
) -> None:
    """Raise where keys of two runs hold other things than single values of one kind, or numbers none."""
    for frame in (rows, other_rows):
        check_single("compare", table, frame, keys)
    check_same_kind("compare", table, rows, other_rows, keys)
    for name in numbers:
        if name in other_rows and (kind := kind_of(other_rows[name])) not in NUMERIC:
            raise ResultsError(
                f"compare: column {name!r} of table {table!r} must hold numbers in both runs, got {kind}"
            )


def _other_sentences(results: StoredTables, other: StoredTables, numbers: set[int]) -> list[int]:
    """Return the samples that are not the same text in both runs; none where a run does not say."""
    texts = []
    for run in (results, other):
        table = optional(run, "samples")
        if table is None or not {"sample", "text"} <= set(table):
            return []
        texts.append(dict(zip(table["sample"], table["text"], strict=True)))
    return sorted(int(at) for at in numbers if texts[0].get(at) != texts[1].get(at))


def optional(results: StoredTables, name: str) -> pd.DataFrame | None:
    """Return a table, infinite measurements as missing ones; None when the run has no rows of it."""
    if name not in results.tables():
        return None
    table = results.table(name)
    for column in table.columns:
        if table[column].dtype.kind == "f" and column not in ENDLESS and np.isinf(table[column]).any():
            table[column] = table[column].where(np.isfinite(table[column]))
    return None if table.empty else table


def with_groups(frame: pd.DataFrame, samples: pd.DataFrame | None) -> pd.DataFrame:
    """Add input set (`group`), length (`n_tokens`) and kind (`causal`) of each row's sample, and a `series`.

    A series is an input set of a model; the part that all rows share is left out of its name.
    """
    keys = [*CHECKPOINT_KEYS, "sample"]
    if samples is not None:
        missing = [name for name in ("group", "n_tokens", "causal") if name not in frame and name in samples]
        of_samples = samples[[*keys, *missing]].drop_duplicates(keys)
        frame = frame.merge(of_samples, on=keys, how="left", validate="many_to_one")
    frame = frame.assign(group=frame["group"].fillna("text") if "group" in frame else "text")
    models, groups = frame["model"].astype(str), frame["group"].astype(str)
    if groups.nunique() <= 1 and models.ne("").all():
        return frame.assign(series=models)
    return frame.assign(series=groups if models.nunique() <= 1 else models + ", " + groups)


def in_series(frame: pd.DataFrame, results: StoredTables) -> pd.DataFrame:
    """Return `with_groups` of rows of some results."""
    return with_groups(frame, optional(results, "samples"))


def rows_of_protocol(frame: pd.DataFrame, protocol: str = "exact") -> pd.DataFrame:
    """Return the rows under one protocol; all rows of a table that has no protocols."""
    return frame[frame["protocol"] == protocol] if "protocol" in frame else frame


def measured_columns(frame: pd.DataFrame) -> list[str]:
    """Return columns with numbers but keys, what `with_groups` adds, and values of uniform attention."""
    keys = {*CHECKPOINT_KEYS, "sample", "layer", "head", "protocol", "threshold", "n_tokens", "causal"}
    names = map(str, numeric_columns(frame))
    return [name for name in names if name not in keys and not name.endswith("_uniform")]


def defined(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose counts of −1, which stand for "undefined", are missing and enter no mean."""
    counts = [
        name for name in table.select_dtypes("integer") if name not in (*CHECKPOINT_KEYS, "layer", "head")
    ]
    return table.assign(**{name: table[name].where(table[name] >= 0) for name in counts})


def uniform_value(
    frame: pd.DataFrame, baselines: pd.DataFrame | None, metric: str, threshold: float | None = None
) -> float:
    """Return the metric on uniform attention, averaged over the lengths of the frame's samples.

    Each row is held against uniform attention among the keys that its queries see, causal samples against
    causal and others against full attention; where the frame does not say which they are, the table must hold
    one support only.
    """
    if f"{metric}_uniform" in frame:
        return float(frame[f"{metric}_uniform"].mean())
    table = _baseline_rows(frame, baselines, "uniform", metric, threshold)
    if table is None:
        return float("nan")
    if "support" in frame and frame["support"].notna().all():
        # layers of one model differ: a window has its own uniform attention
        supports = frame["support"]
    elif "causal" in frame and frame["causal"].notna().all():
        supports = frame["causal"].astype(bool).map({True: "causal", False: "full"})
    elif table["support"].nunique() == 1:
        supports = table["support"].iloc[0]
    else:
        return float("nan")
    frame = frame.assign(support=supports)
    if not set(frame["support"]) <= set(table["support"]):
        return float("nan")  # of masks nothing is stored, and a mean over the other layers is none of all
    return _mean_at(frame, table, ["n_tokens", "support"])


def null_value(
    frame: pd.DataFrame,
    baselines: pd.DataFrame | None,
    kind: str,
    metric: str,
    threshold: float | None = None,
) -> float:
    """Return the metric under a measured null, averaged over the lengths of the frame's samples.

    Texts of one input set are held against controls of the same set; rows that do not know their set, against
    those of all.
    """
    table = _baseline_rows(frame, baselines, kind, metric, threshold)
    if table is None or "scope" not in table:
        return float("nan")
    # a number of a whole text, such as a correlation over its heads, has no other scope
    scope = "heads" if (table["scope"] == "heads").any() else "whole"
    table = table[table["scope"] == scope]
    # the model with random weights belongs to a whole series, shuffled rows to their own checkpoint
    checkpoint = ("model",) if kind == "random_weights" else CHECKPOINT_KEYS
    keys = [key for key in (*checkpoint, "group", "n_tokens") if key in frame and key in table]
    if "group" in keys and not set(frame["group"]) <= set(table["group"]):
        keys.remove("group")
    return _mean_at(frame, _mean_of_texts(table, keys), keys)


def _mean_of_texts(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return a null's means at some keys, each stored mean as often as it has texts."""
    with_values = table.assign(texts=table.get("count", 1))[table["value"].notna()]
    sums = with_values.assign(total=with_values["value"] * with_values["texts"]).groupby(keys, dropna=False)
    totals = sums[["total", "texts"]].sum()
    return (totals["total"] / totals["texts"]).rename("value").reset_index()


def _mean_at(frame: pd.DataFrame, table: pd.DataFrame, keys: list[str]) -> float:
    """Return the mean of a baseline's values at the keys of a frame's rows."""
    values = table.drop_duplicates(keys)[[*keys, "value"]]
    return float(frame[keys].merge(values, on=keys, how="left")["value"].mean())


def _baseline_rows(
    frame: pd.DataFrame, baselines: pd.DataFrame | None, kind: str, metric: str, threshold: float | None
) -> pd.DataFrame | None:
    """Return rows of a metric at a threshold under the exact protocol; None when lengths or values are
    missing.
    """
    if baselines is None or "n_tokens" not in frame or not {"value", "kind", "support"} <= set(baselines):
        return None
    table = baselines[(baselines["metric"] == metric) & (baselines["kind"] == kind)]
    if "protocol" in table:
        table = table[table["protocol"].isin(["exact", ""])]
    if threshold is None:
        return table[table["threshold"].isna()]
    return table[np.isclose(table["threshold"].astype(float), threshold, rtol=1e-6, atol=0)]
