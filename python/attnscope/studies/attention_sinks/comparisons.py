# SPDX-License-Identifier: MIT
"""Tests over sentences, made from stored tables: against the nulls, of sink removal, between layers."""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.engine.results import Results
from attnscope.engine.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.inference import benjamini_hochberg, control_test, holm, paired_test, welch_test
from attnscope.studies.attention_sinks.matched_keys import RANDOM

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

#: Whole numbers that are places, of which a mean says nothing.
PLACES = ("sink_position", "sink_position_test", "strongest_query", "strongest_key")
#: Columns of the measured tables that are no measurements.
_NO_NUMBERS = {*HEAD_KEYS, *PLACES, *RANDOM.values(), "n_tokens"}


def checkpoints(frame: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Keys and rows of every checkpoint, in stored order."""
    for keys, part in frame.groupby(list(CHECKPOINT_KEYS), sort=False):
        model, revision, step = keys
        yield {"model": str(model), "revision": str(revision), "step": int(str(step))}, part


def numbers_of(results: Results, table: str) -> list[str]:
    """The measured columns of a table, in stored order."""
    import pyarrow as pa

    return [
        field.name
        for field in results.schema(table)
        if field.name not in _NO_NUMBERS
        and (pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
    ]


def tested_numbers(results: Results, table: str) -> list[str]:
    """The measured columns of a table that a model can change: no constants of the design or of the null."""
    about = {field.name: field.metadata or {} for field in results.schema(table)}
    return [name for name in numbers_of(results, table) if about[name].get(b"kind") != b"constant"]


def measured(results: Results, table: str) -> pd.DataFrame:
    """Keys and numbers of a table; what is undefined or infinite is NaN."""
    keys = [key for key in HEAD_KEYS if table == "heads" or key != "head"]
    metrics = numbers_of(results, table)
    frame = results.table(table, [*keys, *metrics])
    columns = {name: frame[name].to_numpy(float, na_value=np.nan) for name in metrics}
    return frame.assign(
        **{name: np.where(np.isfinite(values), values, np.nan) for name, values in columns.items()}
    )


def corrected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds p_holm and p_bh over the exact rows of each checkpoint; the authors corrected nothing."""
    families: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(rows):
        row |= {"p_holm": math.nan, "p_bh": math.nan}
        if row["protocol"] == "exact":
            families.setdefault(tuple(row[key] for key in CHECKPOINT_KEYS), []).append(index)
    for family in families.values():
        # an undefined test is in no family
        p_values = [rows[index]["p_value"] for index in family]
        for index, by_holm, by_bh in zip(family, holm(p_values), benjamini_hochberg(p_values), strict=True):
            rows[index] |= {"p_holm": float(by_holm), "p_bh": float(by_bh)}
    return rows


def compared_layers(count: int) -> list[int]:
    """The layers that the paper reports: first, quarters, last.

    >>> compared_layers(28), compared_layers(2)
    ([0, 7, 14, 21, 27], [0, 0, 0, 0, 1])
    """
    return [0, count // 4, 2 * (count // 4), 3 * (count // 4), count - 1]


def layer_tests(results: Results) -> list[dict[str, Any]]:
    """Rows of `layer_tests`: exact pairs sentences and corrects for the family, the authors do neither."""
    made: list[dict[str, Any]] = []
    tables = [name for name in ("head_means", "layers") if name in results.tables()]
    # what both tables hold, as the divergence, is tested once, on the table that is about layers
    metrics: dict[str, str] = {metric: name for name in tables for metric in tested_numbers(results, name)}
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
        layers = sorted(set(compared_layers(max(columns) + 1)) & set(columns))
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

    Exact: a paired t-test over sentences against as many random visible keys near them, because any keys that
    are taken out leave heads with less to differ in; texts without such keys are not in the test. The
    authors' way: each sentence's p-value over its heads, combined by Fisher's method.
    """
    from attnscope.protocols.ruscio2025 import combine_p_values

    keys = [*CHECKPOINT_KEYS, "sample", "layer", "protocol"]
    there = set(results.schema("layers").names)
    made: list[dict[str, Any]] = []
    for percentile, control in RANDOM.items():
        if f"kl_reduction_{percentile}" not in there:
            continue
        wanted = [f"kl_reduction_{percentile}", f"p_value_{percentile}", control]
        frame = results.table("layers", [*keys, *(name for name in wanted if name in there)])
        for named, own in checkpoints(frame):
            for (layer, protocol), rows in own.groupby(["layer", "protocol"], sort=True):
                values = rows[wanted[0]].to_numpy(float, na_value=np.nan)
                random = np.zeros(len(values))
                if protocol == "exact":
                    random = rows[control].to_numpy(float, na_value=np.nan)
                test = paired_test(values, random)
                p_value, both = test.p_value, ~np.isnan(values) & ~np.isnan(random)
                if protocol == "ruscio2025":
                    each = rows[wanted[1]].dropna()
                    p_value = combine_p_values(each.tolist()) if len(each) else math.nan
                made.append(
                    {
                        **named,
                        "layer": int(str(layer)),
                        "percentile": percentile,
                        "protocol": str(protocol),
                        "kl_reduction": float(values[both].mean()) if both.any() else math.nan,
                        "kl_random": float(random[both].mean())
                        if both.any() and protocol == "exact"
                        else math.nan,
                        **difference_of(test),
                        "p_value": p_value,
                        "samples": test.n,
                    }
                )
    return corrected(made)


def null_tests(results: Results) -> list[dict[str, Any]]:
    """Rows of `null_tests`: every number of `heads` against each empirical null.

    Shuffled rows are paired with the same sentences. Of random weights the unit is the initialisation: an
    interval over texts of one of them shrinks with the texts and says nothing of others.
    """
    import pandas as pd

    nulls = results.variants()
    nulls = nulls[nulls["threshold"].isna() & (nulls["scope"] != "layers")]
    made: list[dict[str, Any]] = []
    if nulls.empty:
        return made
    metrics = [name for name in tested_numbers(results, "heads") if (nulls["metric"] == name).any()]
    nulls = nulls[nulls["metric"].isin(metrics)]
    tables = (("heads", "heads"), ("head_means", "head_mean"))
    frame = pd.concat([measured(results, table).assign(scope=scope) for table, scope in tables])
    for named, own in checkpoints(frame):
        every = own.groupby(["protocol", "scope", "sample"], sort=True)[metrics].mean()
        there = {
            place: values.droplevel(["protocol", "scope"])
            for place, values in every.groupby(["protocol", "scope"])
        }
        # random weights belong to the whole series, shuffled rows to their own checkpoint
        where = (nulls["model"] == named["model"]) & nulls["revision"].isin([named["revision"], ""])
        keys = ["metric", "variant", "protocol", "scope"]
        for (metric, kind, protocol, scope), control in nulls[where].groupby(keys, sort=True):
            if (protocol, scope) not in there:
                continue
            tested = against_control(str(kind), there[protocol, scope][metric], control)
            if tested["samples"]:
                about = {"kind": str(kind), "metric": str(metric), "scope": str(scope)}
                made.append({**named, **about, "protocol": str(protocol), **tested})
    return corrected(made)


def against_control(kind: str, here: pd.Series[float], control: pd.DataFrame) -> dict[str, Any]:
    """A model's numbers of texts against those of a control: difference, interval, p-value and their unit.

    Args:
        control: rows of `Results.variants` of one metric, with `seed`, `sample` and `value`.
    """
    if kind == "random_weights":
        seeds, values = control["seed"].to_numpy(), control["value"].to_numpy(float)
        each = [values[seeds == seed] for seed in np.unique(seeds)]
        drawn = control_test(here.to_numpy(float), each)
        found = {"samples": drawn.texts, "controls": drawn.controls, "unit": "initialisation"}
        return {**difference_of(drawn), **found}
    paired = here.reindex(control["sample"])  # one that is not here is NaN, which leaves its pair out
    test = paired_test(paired.to_numpy(float), control["value"].to_numpy(float))
    return {**difference_of(test), "samples": test.n, "controls": 1, "unit": "text"}


def difference_of(test: Any) -> dict[str, float]:
    """The columns of a test's difference."""
    return {name: getattr(test, name) for name in ("difference", "low", "high", "p_value")}
