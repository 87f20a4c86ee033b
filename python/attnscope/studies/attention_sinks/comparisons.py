# SPDX-License-Identifier: MIT
"""Tests over sentences, made from stored tables: against the nulls, of sink removal, between layers."""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.engine.results import Results
from attnscope.engine.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.inference import benjamini_hochberg, holm, paired_test, welch_test

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

#: Whole numbers that are places, of which a mean says nothing.
PLACES = ("sink_position", "strongest_query", "strongest_key")
#: Columns of the measured tables that are no measurements.
_NO_NUMBERS = {*HEAD_KEYS, *PLACES, "n_tokens"}
PERCENTILES = (80, 90, 95)


def checkpoints(frame: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Keys and rows of every checkpoint, in stored order."""
    for keys, part in frame.groupby(list(CHECKPOINT_KEYS), sort=False):
        model, revision, step = keys
        yield {"model": str(model), "revision": str(revision), "step": int(str(step))}, part


def numbers_of(results: Results, table: str) -> list[str]:
    """The measured columns of a table, in stored order.

    Args:
        results: the run.
        table: `heads`, `head_means` or `layers`.
    """
    import pyarrow as pa

    return [
        field.name
        for field in results.schema(table)
        if field.name not in _NO_NUMBERS
        and (pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
    ]


def measured(results: Results, table: str) -> pd.DataFrame:
    """Keys and numbers of a table; what is undefined or infinite is NaN.

    Args:
        results: the run.
        table: `heads`, `head_means` or `layers`.
    """
    keys = [key for key in HEAD_KEYS if table == "heads" or key != "head"]
    metrics = numbers_of(results, table)
    frame = results.table(table, [*keys, *metrics])
    columns = {name: frame[name].to_numpy(float, na_value=np.nan) for name in metrics}
    made: pd.DataFrame = frame.assign(
        **{name: np.where(np.isfinite(values), values, np.nan) for name, values in columns.items()}
    )
    return made


def corrected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds p_holm and p_bh over the exact rows of each checkpoint; the authors corrected nothing.

    Args:
        rows: with the checkpoint's keys, protocol and p_value.
    """
    families: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(rows):
        row |= {"p_holm": math.nan, "p_bh": math.nan}
        if row["protocol"] == "exact":
            families.setdefault(tuple(row[key] for key in CHECKPOINT_KEYS), []).append(index)
    for family in families.values():
        p_values = [rows[index]["p_value"] for index in family]
        for index, by_holm, by_bh in zip(family, holm(p_values), benjamini_hochberg(p_values), strict=True):
            rows[index] |= {"p_holm": float(by_holm), "p_bh": float(by_bh)}
    return rows


def compared_layers(count: int) -> list[int]:
    """The layers that the topology notebook looks at: 0, the quarters, and the last.

    Args:
        count: number of layers.

    >>> compared_layers(28), compared_layers(2)
    ([0, 7, 14, 21, 27], [0, 1])
    """
    quarter = count // 4
    return sorted({0, quarter, 2 * quarter, 3 * quarter, count - 1})


def layer_tests(results: Results) -> list[dict[str, Any]]:
    """Rows of `layer_tests`: exact pairs the sentences and corrects for the family, the authors do neither.

    Args:
        results: the run.
    """
    made: list[dict[str, Any]] = []
    tables = [name for name in ("head_means", "layers") if name in results.tables()]
    # what both tables hold, as the divergence, is tested once, on the table that is about layers
    metrics: dict[str, str] = {metric: name for name in tables for metric in numbers_of(results, name)}
    for name in tables:
        frame = measured(results, name)
        own = [metric for metric in metrics if metrics[metric] == name and frame[metric].notna().any()]
        for keys, rows in checkpoints(frame):
            for protocol, part in rows.groupby("protocol", sort=True):
                wide = part.pivot(index="sample", columns="layer", values=own)
                made += [{**keys, **test} for test in _between_layers(wide, own, str(protocol))]
    order = {metric: at for at, metric in enumerate(metrics)}
    return corrected(sorted(made, key=lambda row: order[row["metric"]]))


def _between_layers(wide: pd.DataFrame, metrics: list[str], protocol: str) -> Iterator[dict[str, Any]]:
    """Tests of the layers in pairs, of texts by metrics and layers."""
    test_of = paired_test if protocol == "exact" else welch_test
    for metric in metrics:
        values = wide[metric]
        columns = dict(zip(values.columns, values.to_numpy(float).T, strict=True))
        layers = [one for one in compared_layers(max(columns) + 1) if one in columns]
        for one, other in combinations(layers, 2):
            test = test_of(columns[other], columns[one])
            if not math.isnan(test.p_value):
                yield {
                    "metric": metric,
                    "layer": one,
                    "other_layer": other,
                    "protocol": protocol,
                    "difference": test.difference,
                    "p_value": test.p_value,
                    "samples": int((~np.isnan(columns[one]) & ~np.isnan(columns[other])).sum()),
                }


def removal_tests(results: Results) -> list[dict[str, Any]]:
    """Rows of `removal_tests`: does taking the sinks out bring the heads together?

    Exact: a paired t-test over sentences. The authors' way: each sentence's p-value over its heads, combined
    by Fisher's method.

    Args:
        results: the run.
    """
    from attnscope.protocols.ruscio2025 import combine_p_values

    keys = [*CHECKPOINT_KEYS, "sample", "layer", "protocol"]
    there = set(results.schema("layers").names)
    made: list[dict[str, Any]] = []
    for percentile in (one for one in PERCENTILES if f"kl_reduction_{one}" in there):
        wanted = [f"kl_reduction_{percentile}", f"p_value_{percentile}"]
        frame = results.table("layers", [*keys, *(name for name in wanted if name in there)])
        for named, own in checkpoints(frame):
            for (layer, protocol), rows in own.groupby(["layer", "protocol"], sort=True):
                values = rows[wanted[0]].to_numpy(float)
                test = paired_test(values, np.zeros(len(values)))
                p_value = test.p_value
                if protocol == "ruscio2025":
                    each = rows[wanted[1]].dropna()
                    p_value = combine_p_values(each.tolist()) if len(each) else math.nan
                made.append(
                    {
                        **named,
                        "layer": int(str(layer)),
                        "percentile": percentile,
                        "protocol": str(protocol),
                        "kl_reduction": test.difference,
                        "low": test.low,
                        "high": test.high,
                        "p_value": p_value,
                        "samples": test.n,
                    }
                )
    return corrected(made)


def null_tests(results: Results) -> list[dict[str, Any]]:
    """Rows of `null_tests`: every number of `heads` against the same sentences under each empirical null.

    Args:
        results: the run.
    """
    import pandas as pd

    nulls = results.variants()
    nulls = nulls[nulls["threshold"].isna() & (nulls["scope"] != "layers")]
    made: list[dict[str, Any]] = []
    if nulls.empty:
        return made
    metrics = [name for name in numbers_of(results, "heads") if (nulls["metric"] == name).any()]
    nulls = nulls[nulls["metric"].isin(metrics)]
    tables = (("heads", "heads"), ("head_means", "head_mean"))
    frame = pd.concat([measured(results, table).assign(scope=scope) for table, scope in tables])
    for named, own in checkpoints(frame):
        every = own.groupby(["protocol", "scope", "sample"], sort=True)[metrics].mean()
        # random weights belong to the whole series, shuffled rows to their own checkpoint
        where = (nulls["model"] == named["model"]) & nulls["revision"].isin([named["revision"], ""])
        wide = nulls[where].pivot_table(
            index=every.index.names, columns=["metric", "variant"], values="value", sort=True
        )
        places: dict[Any, Any] = every.groupby(["protocol", "scope"], sort=True).indices
        here, there = every.to_numpy(float), wide.reindex(every.index).to_numpy(float)
        for column, (metric, kind) in enumerate(wide.columns.tolist()):
            for (protocol, scope), rows in places.items():
                test = paired_test(here[rows, metrics.index(metric)], there[rows, column])
                if test.n:
                    made.append(
                        {
                            **named,
                            "kind": str(kind),
                            "metric": str(metric),
                            "scope": str(scope),
                            "protocol": str(protocol),
                            "difference": test.difference,
                            "low": test.low,
                            "high": test.high,
                            "p_value": test.p_value,
                            "samples": test.n,
                        }
                    )
    return corrected(made)
