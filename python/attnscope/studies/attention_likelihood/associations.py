# SPDX-License-Identifier: MIT
"""Associations of attention and likelihood: within texts, between texts, and where two texts exchange words.

The unit is the text, and equal texts are one; heads and layers are no replicates. Within a text length and
place are the same for every version, but each version is another token; only an exchange of words holds the
tokens too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.statistics import (
    benjamini_hochberg,
    bootstrap,
    holm,
    partial_correlation,
    sign_flips,
    within_correlation,
)
from attnscope.studies.attention_likelihood.options import REAL, SWAP
from attnscope.studies.attention_likelihood.panel import (
    Array,
    Panel,
    by_unit,
    centred_ranks,
    correlations,
    slope,
)

if TYPE_CHECKING:
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions

Row = dict[str, Any]
#: What is correlated between texts: of the word, of the map.
BETWEEN = (("per_piece", "boost"), ("per_piece", "inner"), ("log_likelihood", "inner"))
#: What is compared when two texts exchange words.
EXCHANGED = ("share", "special", "context", "received")
MAX_T, HOLM, BH = "max-T over layers", "Holm", "Benjamini–Hochberg"
#: Permutations that are held in memory at a time.
_DRAWS = 100


def association_row(layer: int, design: str, mode: str, predictor: str, measure: str) -> Row:
    """Return the keys of a row of `associations`."""
    return {"layer": layer, "design": design, "mode": mode, "predictor": predictor, "measure": measure}


def interval(estimate: Any) -> Row:
    """Return an estimate with the ends of its interval and its number of values."""
    return {"estimate": estimate.estimate, "low": estimate.low, "high": estimate.high, "n": estimate.n}


def within(panel: Panel, options: LikelihoodOptions, seed: int) -> Iterator[Row]:
    """Yield the correlation of likelihood and attention over the versions of each text, one row a layer."""
    distinct, share = panel.distinct, panel.measures["share"]
    r = correlations(panel.x, share, distinct)
    slopes = slope(panel.x, share, distinct)
    z = z_of(r, distinct, panel.units)
    largest = permuted(panel.x, share, distinct, panel.units, options.permutations, seed)
    for at, layer in enumerate(panel.layers):
        mean = bootstrap(by_unit(r[at], panel.units), draws=options.bootstrap, seed=seed)
        reached = np.nan
        if np.isfinite(z[at]):
            reached = (1 + (largest >= abs(z[at]) - 1e-12).sum()) / (1 + options.permutations)
        tested = {"z": z[at], "p_value": two_sided(z[at]), "p_adjusted": reached, "correction": MAX_T}
        row = association_row(layer, "within", "", "log_likelihood", "share")
        yield {**row, **interval(mean), "slope": slopes[at], **tested}


def z_of(r: Array, distinct: Array, units: Array) -> Array:
    """Return the sum of the correlations in units of its spread under permutation.

    The variance of a text's is 1/(k − 1). Equal texts are one, of their mean correlation, which varies no
    more than that of one of them.
    """
    with np.errstate(invalid="ignore"):
        deviate: Array = np.nansum(by_unit(r, units), -1) / _spread(np.isfinite(r), distinct, units)
    return deviate


def _spread(counted: Array, distinct: Array, units: Array) -> Array:
    """Return the deviation under permutation of the sum of correlations over units [...]; NaN without one.

    Args:
        counted: texts that have a correlation [..., T].
        distinct: versions that count [T, K].
        units: the same number where texts are equal [T].
    """
    variances = by_unit(np.where(counted, 1 / np.maximum(distinct.sum(-1) - 1, 1), np.nan), units)
    variance = np.where(np.isfinite(variances), variances, 0.0).sum(-1)
    return np.asarray(np.sqrt(np.where(variance > 0, variance, np.nan)))


def two_sided(z: float) -> float:
    """Return the two-sided p of a normal deviate."""
    from scipy import special

    return float(2 * special.ndtr(-abs(z)))


def permuted(x: Array, y: Array, distinct: Array, units: Array, draws: int, seed: int) -> Array:
    """Return the largest |z| over layers when versions change places within their text, [draws].

    Every layer sees the same permutation, and so do equal texts.

    Args:
        x: [T, K].
        y: [L, T, K].
        distinct: versions that count [T, K].
        units: the same number where texts are equal [T].
        draws: permutations.
        seed: of them.
    """
    counted = np.isfinite(correlations(x, y, distinct))
    order = np.argsort(~distinct, axis=-1, kind="stable")
    distinct = np.take_along_axis(distinct, order, -1)
    first = _unit_length(centred_ranks(np.take_along_axis(x, order, -1), distinct))
    order_of_layers = np.broadcast_to(order, y.shape)
    second = _unit_length(centred_ranks(np.take_along_axis(y, order_of_layers, -1), distinct))
    spread = _spread(counted, distinct, units)
    numbers = np.unique(units, return_inverse=True)[1]
    # the mean over the equal texts that have a correlation
    texts_of_unit = np.stack([np.bincount(numbers, layer) for layer in counted])[:, numbers]
    second *= np.divide(counted, texts_of_unit, out=np.zeros(counted.shape), where=counted)[..., None]
    rng = np.random.default_rng(seed)
    largest = np.zeros(draws)
    for start in range(0, draws, _DRAWS):
        count = min(_DRAWS, draws - start)
        drawn = rng.random((count, numbers.max() + 1, distinct.shape[-1]))
        keys = np.where(distinct, drawn[:, numbers], 2.0)
        moved = np.take_along_axis(np.broadcast_to(first, keys.shape), keys.argsort(-1), -1)
        sums = np.einsum("dtk,ltk->dl", moved, second)
        with np.errstate(invalid="ignore"):
            largest[start : start + count] = np.nanmax(np.abs(sums) / spread, -1, initial=0.0)
    return largest


def _unit_length(ranks: Array) -> Array:
    size = np.sqrt(np.square(ranks).sum(-1, keepdims=True))
    return np.divide(ranks, size, out=np.zeros_like(ranks), where=size > 0)


def conditional_correlations(panel: Panel, options: LikelihoodOptions, seed: int) -> Iterator[Row]:
    """Yield, for encoders, the correlation of likelihood given the probability at its position, and the
    reverse.
    """
    probability = panel.words.get("own_probability")
    if probability is None or not np.isfinite(probability).any():
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        named = {"masked": panel.x, "own": np.log(probability)}
    # of equal texts the first, because the correlation of each text is one of its own versions
    first_of_unit = np.zeros((len(panel.units), 1), dtype=bool)
    first_of_unit[np.unique(panel.units, return_index=True)[1]] = True
    distinct = panel.distinct & np.isfinite(named["own"]) & first_of_unit
    texts = np.repeat(panel.samples[:, None], distinct.shape[1], axis=1)[distinct]
    for at, layer in enumerate(panel.layers):
        share = panel.measures["share"][at]
        for first, second in (("masked", "own"), ("own", "masked")):
            row = {
                "layer": layer,
                "mode": "",
                "measure": "share",
                "slope": slope(named[first], share, distinct),
            }
            for design, control in (("within", None), ("within_given", named[second])):
                if design == "within" and first == "masked":
                    continue
                correlation = within_correlation(
                    named[first][distinct],
                    share[distinct],
                    texts,
                    covariates=None if control is None else control[distinct],
                    draws=options.bootstrap,
                    seed=seed,
                )
                predictor = first if control is None else f"{first} given {second}"
                yield row | {
                    "design": design,
                    "predictor": predictor,
                    "estimate": correlation.r,
                    "low": correlation.low,
                    "high": correlation.high,
                    "p_value": correlation.p_value,
                    "n": correlation.n,
                }


def between(panel: Panel, options: LikelihoodOptions, seed: int) -> list[Row]:
    """Return correlations over texts, plain and given length, place and pieces; Holm over layers and
    modes.
    """
    rows = []
    for predictor, measure in BETWEEN:
        for mode in panel.modes if predictor == "per_piece" else [REAL]:
            x = panel.words[predictor][:, panel.at(mode)]
            for at, layer in enumerate(panel.layers):
                y = panel.measures[measure][at][:, panel.at(mode)]
                for design, covariates in designs(panel):
                    correlation = over_texts(x, y, covariates, panel.units)
                    rows.append(
                        {
                            **association_row(layer, design, mode, predictor, measure),
                            "estimate": correlation.r,
                            "low": correlation.low,
                            "high": correlation.high,
                            "slope": partial_slope(x, y, covariates),
                            "p_value": correlation.p_value,
                            "n": correlation.n,
                        }
                    )
    return adjusted(rows, ("design", "predictor", "measure"), holm, HOLM)


def over_texts(x: Array, y: Array, covariates: Array, units: Array) -> Any:
    """Return Spearman's correlation over texts given covariates [T, c], equal texts drawn as one."""
    return partial_correlation(x, y, covariates, units=units)


def designs(panel: Panel) -> tuple[tuple[str, Array], ...]:
    """Return names of the designs between texts with what is held: nothing, or length, place and pieces
    [T, 3].
    """
    named = ("n_tokens", "start", "pieces")
    covariates = np.stack([panel.words[name][:, panel.at(REAL)] for name in named], -1)
    return ("between", covariates[:, :0]), ("between_partial", covariates)


def partial_slope(x: Array, y: Array, covariates: Array) -> float:
    """Return the least squares slope of y on x over texts, given a constant and the covariates."""
    has_values = np.isfinite(x) & np.isfinite(y)
    if has_values.sum() < 3 + covariates.shape[1] or np.ptp(x[has_values]) == 0:
        return float("nan")
    design = np.column_stack([x[has_values], np.ones(has_values.sum()), covariates[has_values]])
    return float(np.linalg.lstsq(design, y[has_values], rcond=None)[0][0])


def swap_effects(panel: Panel, options: LikelihoodOptions, seed: int) -> list[Row]:
    """Return the effect of the swap: a word's share in its own text minus its share in the partner's.

    Each token and each text is once at home and once away.
    """
    pairs = panel.pairs()
    if SWAP not in panel.modes or not len(pairs):
        return []
    rows = []
    for measure in EXCHANGED:
        for at, layer in enumerate(panel.layers):
            gain = unit_gain(panel, panel.measures[measure][at], pairs)
            rows.append(
                {
                    **association_row(layer, "swap", SWAP, "at home", measure),
                    **mean_with_sign_test(gain, options, seed),
                }
            )
    return adjusted(rows, ("measure",), holm, HOLM)


def exchanged_overall(panel: Panel, options: LikelihoodOptions, seed: int) -> Row:
    """Return the mean over pairs of the gain in share at home, with interval and sign flips."""
    return mean_with_sign_test(gain_overall(panel), options, seed)


def gain_overall(panel: Panel) -> Array:
    """Return the gain in share at home of every pair, mean over layers."""
    pairs = panel.pairs()
    return np.asarray(
        np.mean([unit_gain(panel, values, pairs) for values in panel.measures["share"]], axis=0)
    )


def mean_with_sign_test(gain: Array, options: LikelihoodOptions, seed: int) -> Row:
    """Return the mean over pairs with its interval and the p of sign flips."""
    mean = bootstrap(gain, draws=options.bootstrap, seed=seed)
    finite = gain[np.isfinite(gain)]
    p_value = np.nan
    if len(finite) > 1 and np.ptp(finite) > 0:
        p_value = float(sign_flips(finite, draws=options.permutations, seed=seed))
    return {**interval(mean), "p_value": p_value}


def unit_gain(panel: Panel, values: Array, pairs: Array) -> Array:
    """Return ½[v(s, w) + v(s', w') − v(s, w') − v(s', w)] of every pair of texts; pairs of equal texts are
    one.
    """
    real, away = values[:, panel.at(REAL)], values[:, panel.at(SWAP)]
    gain = (real[pairs] - away[pairs]).sum(-1) / 2
    return by_unit(gain, np.array([f"{a}-{b}" for a, b in np.sort(panel.units[pairs], -1)]))


def swap_cost(panel: Panel, options: LikelihoodOptions, seed: int) -> Row | None:
    """Return the cost of the exchange of words in nats; None without pairs."""
    pairs = panel.pairs()
    if SWAP not in panel.modes or not len(pairs):
        return None
    return mean_with_sign_test(unit_gain(panel, panel.x, pairs), options, seed)


def within_overall(panel: Panel) -> Array:
    """Return each text's correlation of likelihood and share, mean over layers, one number a unit."""
    r = correlations(panel.x, panel.measures["share"], panel.distinct)
    is_finite = np.isfinite(r)
    count = is_finite.sum(0)
    means = np.where(count > 0, np.where(is_finite, r, 0.0).sum(0) / np.maximum(count, 1), np.nan)
    return by_unit(means, panel.units)


def depth_of_texts(panel: Panel) -> Array:
    """Return each text's correlation in the last third of the layers less that in the first, one number a
    unit.

    NaN for fewer than three layers.
    """
    count = len(panel.layers)
    if count < 3:
        return np.full(len(np.unique(panel.units)), np.nan)
    r = correlations(panel.x, panel.measures["share"], panel.distinct)
    return by_unit(r[2 * count // 3 :].mean(0) - r[: count // 3].mean(0), panel.units)


def depth(panel: Panel, options: LikelihoodOptions, seed: int) -> Row:
    """Return the mean over texts of what `depth_of_texts` gives, with interval and sign flips."""
    if len(panel.layers) < 3:
        return {"estimate": np.nan, "low": np.nan, "high": np.nan, "p_value": np.nan, "n": 0}
    return mean_with_sign_test(depth_of_texts(panel), options, seed)


def of_heads(panel: Panel, shares: Array, layers: Sequence[int], heads: Sequence[int]) -> list[Row]:
    """Return the correlation within texts of every head, Benjamini–Hochberg over them.

    Args:
        shares: [layers · heads, T, K].
    """
    distinct = panel.distinct
    r, slopes = correlations(panel.x, shares, distinct), slope(panel.x, shares, distinct)
    z = z_of(r, distinct, panel.units)
    rows = []
    for at, (layer, head) in enumerate(zip(layers, heads, strict=True)):
        means = by_unit(r[at], panel.units)
        finite = means[np.isfinite(means)]
        rows.append(
            {
                **association_row(layer, "within", "", "log_likelihood", "share"),
                "head": head,
                "estimate": finite.mean() if len(finite) else np.nan,
                "slope": slopes[at],
                "z": z[at],
                "p_value": two_sided(z[at]),
                "n": len(finite),
            }
        )
    return adjusted(rows, (), benjamini_hochberg, BH)


def adjusted(rows: list[Row], by: Sequence[str], correct: Any, name: str) -> list[Row]:
    """Return the rows with p-values corrected over each family."""
    families: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        families.setdefault(tuple(row[key] for key in by), []).append(row)
    for family in families.values():
        values = correct([row["p_value"] for row in family])
        for row, value in zip(family, values, strict=True):
            row |= {"p_adjusted": value, "correction": name}
    return rows
