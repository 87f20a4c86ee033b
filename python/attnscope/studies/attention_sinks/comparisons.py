# SPDX-License-Identifier: MIT
"""Tests made from stored tables: against the nulls, of sink removal, between layers, of emergence.

A quantity emerges if it changes from one level to another during training. Quantities of all layers together
are tested, as one family of the run; single layers and heads are described by their first and last value: a
test of each would leave no power for any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd

from attnscope.metrics.information.sink_sets import PERCENTILES
from attnscope.protocols.ruscio2025 import combine_p_values, emergence_change
from attnscope.results.results import Results
from attnscope.results.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.results.summaries import kinds_of
from attnscope.statistics import benjamini_hochberg, control_test, holm, paired_test, welch_test
from attnscope.statistics.emergence import Curve, emergence_splits
from attnscope.statistics.rounding import ROUNDED_FLOAT32
from attnscope.studies.attention_sinks.published import compared_layers
from attnscope.studies.attention_sinks.shuffled_removal import SHARE, SHUFFLED
from attnscope.study_api.selection import where, without

#: What the numbers of a measured table are of.
SCOPES = {"heads": "heads", "head_means": "head_mean", "layers": "layers"}
#: Metrics that are described for every single head.
OF_EVERY_HEAD = ("sink_share", "sink_boost", "top_mass", "entropy", "alignment_value")
#: Columns of the measured tables that are no measurements.
_NO_NUMBERS = {*SHARE.values(), *SHUFFLED.values(), "n_tokens"}
#: The published change and its steps, which are taken in the order of their names; exact has none.
_NO_CHANGE = {"change": math.nan, "change_first_step": None, "change_last_step": None}


def checkpoints(frame: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield keys and rows of every checkpoint, in stored order."""
    for (model, revision, step), part in frame.groupby(list(CHECKPOINT_KEYS), sort=False):
        yield {"model": str(model), "revision": str(revision), "step": int(str(step))}, part


def numbers_of(results: Results, table: str, *, constants: bool = False) -> list[str]:
    """Return the measured columns of a table, in stored order; constants of the design or of the null if
    asked.

    Means of flags and of places have no meaning.
    """
    without = {"flag", "position"} if constants else {"flag", "position", "constant"}
    kinds = kinds_of(results, table)
    return [name for name, kind in kinds.items() if kind not in without and name not in _NO_NUMBERS]


def measured(results: Results, table: str) -> pd.DataFrame:
    """Return keys and numbers of a table; undefined and infinite values are NaN."""
    keys = [key for key in HEAD_KEYS if table == "heads" or key != "head"]
    metrics = numbers_of(results, table, constants=True)
    frame = results.table(table, [*keys, *metrics])
    columns = {name: frame[name].to_numpy(float, na_value=np.nan) for name in metrics}
    return frame.assign(
        **{name: np.where(np.isfinite(values), values, np.nan) for name, values in columns.items()}
    )


def corrected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add p_holm and p_bh over the exact rows of each checkpoint; the authors corrected nothing."""
    families: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        row |= {"p_holm": math.nan, "p_bh": math.nan}
        if row["protocol"] == "exact":
            families.setdefault(tuple(row[key] for key in CHECKPOINT_KEYS), []).append(row)
    for family in families.values():
        # an undefined test is in no family
        p_values = [row["p_value"] for row in family]
        for row, by_holm, by_bh in zip(family, holm(p_values), benjamini_hochberg(p_values), strict=True):
            row |= {"p_holm": float(by_holm), "p_bh": float(by_bh)}
    return rows


def layer_tests(results: Results) -> list[dict[str, Any]]:
    """Return rows of `layer_tests`: the exact protocol pairs sentences and corrects for the family, the
    authors' does neither.
    """
    tests: list[dict[str, Any]] = []
    tables = [name for name in ("head_means", "layers") if name in results.tables()]
    # a column of both tables, such as the divergence, is tested once, on the table of layers
    metrics: dict[str, str] = {metric: name for name in tables for metric in numbers_of(results, name)}
    for name in tables:
        frame = measured(results, name)
        metrics_of_table = [
            metric for metric in metrics if metrics[metric] == name and frame[metric].notna().any()
        ]
        for keys, rows in checkpoints(frame):
            for protocol, part in rows.groupby("protocol", sort=True):
                wide = part.pivot(index="sample", columns="layer", values=metrics_of_table)
                tests += [{**keys, **test} for test in _between_layers(wide, metrics_of_table, str(protocol))]
    order = {metric: at for at, metric in enumerate(metrics)}
    return corrected(sorted(tests, key=lambda row: order[row["metric"]]))


def _between_layers(wide: pd.DataFrame, metrics: list[str], protocol: str) -> Iterator[dict[str, Any]]:
    """Yield tests of the layers in pairs, of texts by metrics and layers."""
    test_of = partial(paired_test, resolution=ROUNDED_FLOAT32) if protocol == "exact" else welch_test
    for metric in metrics:
        values = wide[metric]
        columns = dict(zip(values.columns, values.to_numpy(float).T, strict=True))
        layers = sorted(set(compared_layers(max(columns) + 1)) & set(columns))
        for layer, other_layer in combinations(layers, 2):
            test = test_of(columns[other_layer], columns[layer])
            first, second = (~np.isnan(columns[number]) for number in (layer, other_layer))
            # Welch's test takes the texts of either layer
            texts = first & second if protocol == "exact" else first | second
            if not math.isnan(test.p_value):
                yield {
                    "metric": metric,
                    "layer": layer,
                    "other_layer": other_layer,
                    "protocol": protocol,
                    "difference": test.difference,
                    "p_value": test.p_value,
                    "samples": int(texts.sum()),
                }


def removal_tests(results: Results) -> list[dict[str, Any]]:
    """Return rows of `removal_tests`: does taking the sinks out bring the heads together?

    Exact: a paired t-test over sentences of the share of the divergence that goes, against that of shuffled
    rows, whose strongest keys are chosen in the same way, because keys that are chosen as the strongest leave
    any heads with less to differ in. The authors' way: each sentence's p-value over its heads, combined by
    Fisher's method.
    """
    layers = results.table("layers")
    tests: list[dict[str, Any]] = []
    for percentile in PERCENTILES:
        if f"kl_reduction_{percentile}" not in layers:
            continue
        names = f"kl_reduction_{percentile}", SHARE[percentile], SHUFFLED[percentile]
        for checkpoint, rows_of_checkpoint in checkpoints(layers):
            for (layer, protocol), rows in rows_of_checkpoint.groupby(["layer", "protocol"], sort=True):
                values = {name: rows[name].to_numpy(float, na_value=np.nan) for name in names if name in rows}
                if protocol == "exact":
                    test = paired_test(values[names[1]], values[names[2]], resolution=ROUNDED_FLOAT32)
                else:
                    test = paired_test(values[names[0]], np.zeros(len(rows)))
                test_columns = difference_of(test)
                if protocol == "ruscio2025":
                    p_values = rows[f"p_value_{percentile}"].dropna()
                    test_columns["p_value"] = (
                        combine_p_values(p_values.tolist()) if len(p_values) else math.nan
                    )
                keys = {"layer": layer, "percentile": percentile, "protocol": protocol}
                means = ("kl_reduction", "kl_share", "kl_share_shuffled")
                keys |= {mean: _mean(values.get(name)) for mean, name in zip(means, names, strict=True)}
                tests.append({**checkpoint, **keys, **test_columns, "samples": test.n})
    return corrected(tests)


def _mean(values: np.ndarray[Any, np.dtype[np.float64]] | None) -> float:
    """Return the mean of the defined values; NaN if there are none."""
    defined = values[~np.isnan(values)] if values is not None else np.empty(0)
    return float(defined.mean()) if len(defined) else math.nan


def null_tests(results: Results) -> list[dict[str, Any]]:
    """Return rows of `null_tests`: every number of `heads` against each empirical null.

    Shuffled rows are paired with the same sentences. The unit of random weights is the initialisation: an
    interval over texts of one of them shrinks with the number of texts and does not include other
    initialisations.
    """
    nulls = results.variants()
    nulls = without(nulls[nulls["threshold"].isna()], scope="layers")
    tests: list[dict[str, Any]] = []
    if nulls.empty:
        return tests
    metrics = [name for name in numbers_of(results, "heads") if (nulls["metric"] == name).any()]
    nulls = where(nulls, metric=metrics)
    measured_tables = [
        measured(results, table).assign(scope=SCOPES[table]) for table in ("heads", "head_means")
    ]
    for checkpoint, rows_of_checkpoint in checkpoints(pd.concat(measured_tables)):
        sample_means = rows_of_checkpoint.groupby(["protocol", "scope", "sample"], sort=True)[metrics].mean()
        means_by_scope = {
            at: values.droplevel([0, 1]) for at, values in sample_means.groupby(["protocol", "scope"])
        }
        # random weights belong to the whole series, shuffled rows to their own checkpoint
        nulls_of_model = where(nulls, model=checkpoint["model"], revision=[checkpoint["revision"], ""])
        keys = ["metric", "variant", "protocol", "scope"]
        for (metric, kind, protocol, scope), control in nulls_of_model.groupby(keys, sort=True):
            if (protocol, scope) not in means_by_scope:
                continue
            tested = against_control(str(kind), means_by_scope[protocol, scope][metric], control)
            if tested["samples"]:
                test_keys = {"kind": kind, "metric": metric, "scope": scope, "protocol": protocol}
                tests.append({**checkpoint, **test_keys, **tested})
    return corrected(tests)


def against_control(kind: str, text_means: pd.Series[float], control: pd.DataFrame) -> dict[str, Any]:
    """Return numbers of texts and of a control (rows of `Results.variants`): difference, interval,
    p-value, unit.
    """
    if kind == "random_weights":
        seeds, values = control["seed"].to_numpy(), control["value"].to_numpy(float)
        values_by_seed = [values[seeds == seed] for seed in np.unique(seeds)]
        drawn = control_test(text_means.to_numpy(float), values_by_seed, resolution=ROUNDED_FLOAT32)
        counts = {"samples": drawn.texts, "controls": drawn.controls, "unit": "initialisation"}
        return {**difference_of(drawn), **counts}
    paired = text_means.reindex(control["sample"])  # a missing text is NaN, which leaves its pair out
    pairs = paired.to_numpy(float), control["value"].to_numpy(float)
    test = paired_test(*pairs, resolution=ROUNDED_FLOAT32)
    return {**difference_of(test), "samples": test.n, "controls": 1, "unit": "text"}


def difference_of(test: Any) -> dict[str, float]:
    """Return the columns of a test's difference."""
    return {name: getattr(test, name) for name in ("difference", "low", "high", "p_value")}


def emergence(results: Results, seed: int) -> list[dict[str, Any]]:
    """Return rows of `emergence`, for models with two checkpoints or more of known step."""
    samples = results.table("samples", [*CHECKPOINT_KEYS, "sample", "group"])
    counted = samples[samples["step"] >= 0].groupby("model")["step"].nunique()
    series = sorted(counted[counted >= 2].index)
    rows: list[dict[str, Any]] = []
    curves: list[Curve] = []
    stored_scopes = [name for name in SCOPES if name in results.tables()]
    for name in stored_scopes if series else ():
        frame = measured(results, name)
        frame = where(frame[frame["step"] >= 0], model=series)
        frame = frame.merge(samples, on=[*CHECKPOINT_KEYS, "sample"], how="left", validate="many_to_one")
        others = numbers_of(results, "heads") if name == "layers" and "heads" in stored_scopes else []
        metrics = [metric_name for metric_name in numbers_of(results, name) if metric_name not in others]
        parts = [
            (part, means, {"model": str(model), "protocol": str(protocol), **where})
            for (model, protocol), rows_of_model in frame.groupby(["model", "protocol"], sort=True)
            for part, means, where in _parts(rows_of_model, SCOPES[name], metrics, str(protocol))
        ]
        for metric, (part, means, keys) in product(metrics, parts):
            if metric in means:
                rows.append({**keys, "metric": metric, **_NO_CHANGE})
                if keys["protocol"] == "ruscio2025":
                    rows[-1] |= zip(_NO_CHANGE, emergence_change(part, metric)[:3], strict=True)
                step_means = means[metric].unstack("sample")
                curves.append((step_means.index.to_numpy(np.int64), step_means.to_numpy(np.float64)))
    # tests are of exact quantities of models, by group of texts if there are several
    several = {row["model"] for row in rows if row["group"] != "all"}
    family = [
        row["protocol"] == "exact"
        and row["scope"] in ("heads", "layers")
        and (row["group"] != "all" or row["model"] not in several)
        for row in rows
    ]
    splits = emergence_splits(
        [curve for curve, in_family in zip(curves, family, strict=True) if in_family],
        seed=seed,
        resolution=ROUNDED_FLOAT32,
    )
    judged = iter(splits)
    for row, curve, in_family in zip(rows, curves, family, strict=True):
        # a curve outside the family is described only: a single order, whose p-value is not used
        split = next(judged) if in_family else emergence_splits([curve], draws=1, seed=seed)[0]
        row |= (
            split
            if in_family
            else {**split, "verdict": None, "step": None, "p_value": math.nan, "p_holm": math.nan}
        )
    return rows


def _parts(
    rows_of_model: pd.DataFrame, scope: str, metrics: list[str], protocol: str
) -> list[tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]]:
    """Return rows, means by step and sample, and keys of all layers, each group, each layer and each head."""
    metrics = [metric for metric in metrics if rows_of_model[metric].notna().any()]
    all_layers: dict[str, Any] = {"group": "all", "scope": scope, "place": "", "layer": None, "head": None}
    parts = [(rows_of_model, metrics, all_layers)]
    groups = sorted(rows_of_model["group"].unique())
    if len(groups) > 1:
        parts += [
            (where(rows_of_model, group=group), metrics, {**all_layers, "group": group}) for group in groups
        ]
    of_layer = {"heads": "layer", "head_mean": "layer_head_mean", "layers": "layer"}[scope]
    for layer, part in rows_of_model.groupby("layer", sort=True):
        parts.append((part, metrics, {**all_layers, "scope": of_layer, "place": f"L{layer}", "layer": layer}))
    single = [metric for metric in metrics if metric in OF_EVERY_HEAD]
    if scope == "heads" and protocol == "exact" and single:
        for (number, head), part in rows_of_model.groupby(["layer", "head"], sort=True):
            at = {"place": f"L{number}H{head}", "layer": number, "head": head}
            parts.append((part, single, {**all_layers, "scope": "head", **at}))
    units = ["step", "sample"]
    return [(part, part.groupby(units, sort=True)[names].mean(), where) for part, names, where in parts]
