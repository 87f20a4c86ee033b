# SPDX-License-Identifier: MIT
"""Changes of the word's attention under replacement, paired over texts, and the layer of the largest."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from attnscope.statistics import holm, paired_test, sign_flips
from attnscope.statistics.groups import jackknife_bounds, mean_product
from attnscope.statistics.rounding import ROUNDED_FLOAT32
from attnscope.studies.attention_likelihood.associations import HOLM, Row, adjusted, mean_with_sign_test
from attnscope.studies.attention_likelihood.options import REAL, SWAP
from attnscope.studies.attention_likelihood.panel import MEASURES, Array, Panel, by_unit, correlations

if TYPE_CHECKING:
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions


def shifts(panel: Panel, options: LikelihoodOptions) -> list[Row]:
    """Return the mean of replaced − real for every layer, mode and measure; Holm over layers and modes."""
    rows = []
    real = panel.at(REAL)
    for mode in panel.modes[1:]:
        at = panel.at(mode)
        first = Counter(ids[at][0] for ids in panel.ids if ids[at])
        of_mode = {
            "log_likelihood_difference": change_of_likelihood(panel, at),
            "distinct": len(first),
            "commonest": max(first.values()) / sum(first.values()),
        }
        for measure in MEASURES:
            for place, layer in enumerate(panel.layers):
                values = panel.measures[measure][place]
                is_measured = np.isfinite(values[:, at]) & np.isfinite(values[:, real])
                pair = [
                    by_unit(np.where(is_measured, values[:, version], np.nan), panel.units)
                    for version in (at, real)
                ]
                test = paired_test(*pair, resolution=ROUNDED_FLOAT32)
                rows.append(
                    {
                        "layer": layer,
                        "mode": mode,
                        "measure": measure,
                        "difference": test.difference,
                        "low": test.low,
                        "high": test.high,
                        "p_value": test.p_value,
                        "n": test.n,
                        "real": float(np.nanmean(pair[1])) if is_measured.any() else np.nan,
                        **of_mode,
                    }
                )
    return adjusted(rows, ("measure",), holm, HOLM)


def overall(panel: Panel, options: LikelihoodOptions, seed: int) -> list[Row]:
    """Return the changes over all layers and less likely modes: of the share, and of the rest."""
    if not less_likely(panel):
        return []
    share = mean_with_sign_test(shift_of_share(panel), options, seed)
    return [
        {"statistic": "shift_of_share", **share},
        {"statistic": "shift_of_rest", **size_of_change(changes_of_rest(panel), options, seed)},
    ]


def change_of_likelihood(panel: Panel, at: int) -> float:
    """Return the mean of replaced − real of the texts that have the mode; NaN without one."""
    moved = by_unit(panel.x[:, at] - panel.x[:, panel.at(REAL)], panel.units)
    return float(np.nanmean(moved)) if np.isfinite(moved).any() else float("nan")


def less_likely(panel: Panel) -> list[int]:
    """Return the places of the modes that are less likely than the real words on average."""
    return [
        at
        for at, mode in enumerate(panel.modes)
        if mode not in (REAL, SWAP) and change_of_likelihood(panel, at) < 0
    ]


def shift_of_share(panel: Panel) -> Array:
    """Return each unit's change of the share, mean over layers and less likely modes."""
    values, real = panel.measures["share"], panel.at(REAL)
    change = (values[:, :, less_likely(panel)] - values[:, :, [real]]).mean((0, 2))
    return by_unit(change, panel.units)


def changes_of_rest(panel: Panel) -> Array:
    """Return replaced − real of attention to special tokens and to the rest, mean over less likely modes.

    [units, 2 · layers]; units without a value are left out.
    """
    real, lower = panel.at(REAL), less_likely(panel)
    rows = []
    for measure in ("special", "context"):
        values = panel.measures[measure]
        change = (values[:, :, lower] - values[:, :, [real]]).mean(-1)
        rows += [by_unit(layer, panel.units) for layer in change]
    changes = np.stack(rows, axis=-1)
    return np.asarray(changes[np.isfinite(changes).all(-1)])


def size_of_change(changes: Array, options: LikelihoodOptions, seed: int) -> Row:
    """Return the size of the mean change, with interval and one-sided sign flips of whole texts.

    The mean square is made of products of different texts, whose noise cancels: 0 on average without an
    effect. It is given as its root with its sign, in units of attention.

    Args:
        changes: one row a text.
        options: of the study.
        seed: of the draws.
    """
    undefined = {"estimate": np.nan, "low": np.nan, "high": np.nan, "p_value": np.nan, "n": len(changes)}
    if len(changes) < 3:
        return undefined
    products = changes @ changes.T / changes.shape[1]
    value, low, high, _ = jackknife_bounds(
        np.arange(len(changes)), lambda groups: mean_product(products[np.ix_(groups, groups)])
    )
    p_value = float(sign_flips(products[None], draws=options.permutations, seed=seed)[0])
    if not np.abs(changes).any():
        p_value = np.nan
    ends = {
        name: float(signed_root(end)) for name, end in (("estimate", value), ("low", low), ("high", high))
    }
    return undefined | ends | {"p_value": p_value}


def signed_root(value: Array | float) -> float:
    """Return √|value| with the sign of the value.

    >>> signed_root(-4.0), signed_root(9.0)
    (-2.0, 3.0)
    """
    return float(np.sign(value) * np.sqrt(np.abs(value)))


def best_layer(panel: Panel) -> Row:
    """Return the layer of the largest correlation within texts, chosen on even and reported on odd texts.

    Equal texts are one, so that none of them is chosen on and reported on.
    """
    units = np.unique(panel.units)
    r = by_unit(correlations(panel.x, panel.measures["share"], panel.distinct), panel.units)
    means = _means(r)
    if not np.isfinite(means).any():
        return {"mode": ""}
    best = int(np.nanargmax(means))
    row: Row = {"layer": panel.layers[best], "mode": "", "rho": means[best], "n": len(units)}
    even, odd = (_means(r[:, units % 2 == rest]) for rest in (0, 1))
    if np.isfinite(even).any():
        chosen = int(np.nanargmax(even))
        row |= {"held_out_layer": panel.layers[chosen], "held_out_mode": "", "held_out_rho": odd[chosen]}
    lowest = int(np.nanargmin(np.nanmean(panel.x, 0)))
    for name, at in (("real", panel.at(REAL)), ("perturbed", lowest)):
        for measure, values in (("likelihood", panel.x), ("inner", panel.measures["inner"][best])):
            finite = by_unit(values[:, at], panel.units)
            finite = finite[np.isfinite(finite)]
            row |= {f"{measure}_{name}": finite.mean(), f"{measure}_{name}_std": _deviation(finite)}
    return row


def _means(r: Array) -> Array:
    """Return means over texts, NaN where no text has one."""
    count = np.isfinite(r).sum(-1)
    return np.divide(np.nansum(r, -1), count, out=np.full(len(r), np.nan), where=count > 0)


def _deviation(values: Array) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")
