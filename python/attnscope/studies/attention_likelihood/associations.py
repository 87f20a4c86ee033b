# SPDX-License-Identifier: MIT
"""Whether attention follows likelihood: within texts, between texts, and when two texts exchange words.

The unit is the text; heads and layers are no replicates. Within a text length and place are the same for
every version, but each version is another token; only an exchange of words holds the tokens too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.inference import (
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


def placed(layer: int, design: str, mode: str, predictor: str, measure: str) -> Row:
    """What a row of `associations` is about."""
    return {"layer": layer, "design": design, "mode": mode, "predictor": predictor, "measure": measure}


def interval(found: Any) -> Row:
    """An estimate with the ends of its interval and what it is made from."""
    return {"estimate": found.estimate, "low": found.low, "high": found.high, "n": found.n}


def within(panel: Panel, options: LikelihoodOptions, seed: int) -> Iterator[Row]:
    """Correlation of likelihood and attention over the versions of each text, one row a layer."""
    there, share = panel.distinct, panel.measures["share"]
    r = correlations(panel.x, share, there)
    slopes = slope(panel.x, share, there)
    z = z_of(r, there)
    largest = permuted(panel.x, share, there, options.permutations, seed)
    for at, layer in enumerate(panel.layers):
        found = bootstrap(by_unit(r[at], panel.units), draws=options.bootstrap, seed=seed)
        reached = np.nan
        if np.isfinite(z[at]):
            reached = (1 + (largest >= abs(z[at]) - 1e-12).sum()) / (1 + options.permutations)
        tested = {"z": z[at], "p_value": two_sided(z[at]), "p_adjusted": reached, "correction": MAX_T}
        row = placed(layer, "within", "", "log_likelihood", "share")
        yield {**row, **interval(found), "slope": slopes[at], **tested}


def z_of(r: Array, there: Array) -> Array:
    """Sum of the correlations in units of their spread under permutation, whose variance is 1/(k − 1)."""
    variance = np.where(np.isfinite(r), 1 / np.maximum(there.sum(-1) - 1, 1), 0.0).sum(-1)
    with np.errstate(invalid="ignore"):
        found: Array = np.nansum(r, -1) / np.sqrt(np.where(variance > 0, variance, np.nan))
    return found


def two_sided(z: float) -> float:
    """The p of a normal deviate, two-sided."""
    from scipy import special

    return float(2 * special.ndtr(-abs(z)))


def permuted(x: Array, y: Array, there: Array, draws: int, seed: int) -> Array:
    """Largest |z| over layers when versions change places within their text, [draws].

    Every layer sees the same permutation.

    Args:
        x: [T, K].
        y: [L, T, K].
        there: versions that count [T, K].
    """
    order = np.argsort(~there, axis=-1, kind="stable")
    there = np.take_along_axis(there, order, -1)
    first = _unit_length(centred_ranks(np.take_along_axis(x, order, -1), there))
    whole = np.broadcast_to(order, y.shape)
    second = _unit_length(centred_ranks(np.take_along_axis(y, whole, -1), there))
    spread = np.sqrt(
        (np.where(np.abs(second).sum(-1) > 0, 1 / np.maximum(there.sum(-1) - 1, 1), 0.0)).sum(-1)
    )
    rng = np.random.default_rng(seed)
    found = np.zeros(draws)
    for start in range(0, draws, _DRAWS):
        count = min(_DRAWS, draws - start)
        keys = np.where(there, rng.random((count, *there.shape)), 2.0)
        moved = np.take_along_axis(np.broadcast_to(first, keys.shape), keys.argsort(-1), -1)
        sums = np.einsum("dtk,ltk->dl", moved, second)
        with np.errstate(invalid="ignore", divide="ignore"):
            found[start : start + count] = np.nanmax(
                np.abs(sums) / np.where(spread > 0, spread, np.nan), -1, initial=0.0
            )
    return found


def _unit_length(ranks: Array) -> Array:
    size = np.sqrt(np.square(ranks).sum(-1, keepdims=True))
    return np.divide(ranks, size, out=np.zeros_like(ranks), where=size > 0)


def given(panel: Panel, options: LikelihoodOptions, seed: int) -> Iterator[Row]:
    """Of encoders: likelihood given the probability at its own position, and the other way round."""
    own = panel.words.get("own_probability")
    if own is None or not np.isfinite(own).any():
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        named = {"masked": panel.x, "own": np.log(own)}
    there = panel.distinct & np.isfinite(named["own"])
    texts = np.repeat(panel.samples[:, None], there.shape[1], axis=1)[there]
    for at, layer in enumerate(panel.layers):
        share = panel.measures["share"][at]
        for first, second in (("masked", "own"), ("own", "masked")):
            row = {
                "layer": layer, "mode": "", "measure": "share", "slope": slope(named[first], share, there)
            }  # fmt: skip
            for design, control in (("within", None), ("within_given", named[second])):
                if design == "within" and first == "masked":
                    continue
                found = within_correlation(
                    named[first][there], share[there], texts,
                    covariates=None if control is None else control[there],
                    draws=options.bootstrap, seed=seed,
                )  # fmt: skip
                predictor = first if control is None else f"{first} given {second}"
                yield row | {
                    "design": design, "predictor": predictor, "estimate": found.r, "low": found.low,
                    "high": found.high, "p_value": found.p_value, "n": found.n,
                }  # fmt: skip


def between(panel: Panel, options: LikelihoodOptions, seed: int) -> list[Row]:
    """Correlation over texts, plain and given length, place and pieces; Holm over layers and modes."""
    rows = []
    for predictor, measure in BETWEEN:
        for mode in panel.modes if predictor == "per_piece" else [REAL]:
            x = panel.words[predictor][:, panel.at(mode)]
            for at, layer in enumerate(panel.layers):
                y = panel.measures[measure][at][:, panel.at(mode)]
                for design, more in designs(panel):
                    found = over_texts(x, y, more, panel.units)
                    rows.append(
                        {
                            **placed(layer, design, mode, predictor, measure),
                            "estimate": found.r,
                            "low": found.low,
                            "high": found.high,
                            "slope": straight(x, y, more),
                            "p_value": found.p_value,
                            "n": found.n,
                        }
                    )
    return adjusted(rows, ("design", "predictor", "measure"), holm, HOLM)


def over_texts(x: Array, y: Array, covariates: Array, units: Array) -> Any:
    """Spearman's correlation over texts given covariates [T, c], equal texts drawn as one."""
    return partial_correlation(x, y, covariates, units=units)


def designs(panel: Panel) -> tuple[tuple[str, Array], ...]:
    """Names of the designs between texts with what is held: nothing, or length, place and pieces [T, 3]."""
    named = ("n_tokens", "start", "pieces")
    covariates = np.stack([panel.words[name][:, panel.at(REAL)] for name in named], -1)
    return ("between", covariates[:, :0]), ("between_partial", covariates)


def straight(x: Array, y: Array, covariates: Array) -> float:
    """Least squares slope of y on x over texts, beside a constant and the covariates."""
    both = np.isfinite(x) & np.isfinite(y)
    if both.sum() < 3 + covariates.shape[1] or np.ptp(x[both]) == 0:
        return float("nan")
    design = np.column_stack([x[both], np.ones(both.sum()), covariates[both]])
    return float(np.linalg.lstsq(design, y[both], rcond=None)[0][0])


def exchanged(panel: Panel, options: LikelihoodOptions, seed: int) -> list[Row]:
    """What words gain at home over the other text: tokens and texts each stand once at home and once away."""
    pairs = panel.pairs()
    if SWAP not in panel.modes or not len(pairs):
        return []
    rows = []
    for measure in EXCHANGED:
        for at, layer in enumerate(panel.layers):
            gain = unit_gain(panel, panel.measures[measure][at], pairs)
            rows.append({**placed(layer, "swap", SWAP, "at home", measure), **gained(gain, options, seed)})
    return adjusted(rows, ("measure",), holm, HOLM)


def exchanged_overall(panel: Panel, options: LikelihoodOptions, seed: int) -> Row:
    """Return the mean over pairs of the gain in share at home, with interval and sign flips."""
    return gained(gain_overall(panel), options, seed)


def gain_overall(panel: Panel) -> Array:
    """Return the gain in share at home of every pair, mean over layers."""
    pairs = panel.pairs()
    return np.asarray(
        np.mean([unit_gain(panel, values, pairs) for values in panel.measures["share"]], axis=0)
    )


def gained(gain: Array, options: LikelihoodOptions, seed: int) -> Row:
    """Mean over pairs with interval and sign flips."""
    found = bootstrap(gain, draws=options.bootstrap, seed=seed)
    finite = gain[np.isfinite(gain)]
    p_value = np.nan
    if len(finite) > 1 and np.ptp(finite) > 0:
        p_value = float(sign_flips(finite, draws=options.permutations, seed=seed))
    return {**interval(found), "p_value": p_value}


def unit_gain(panel: Panel, values: Array, pairs: Array) -> Array:
    """½[v(s, w) + v(s', w') − v(s, w') − v(s', w)] of every pair of texts; pairs of equal texts are one."""
    real, away = values[:, panel.at(REAL)], values[:, panel.at(SWAP)]
    gain = (real[pairs] - away[pairs]).sum(-1) / 2
    return by_unit(gain, np.array([f"{a}-{b}" for a, b in np.sort(panel.units[pairs], -1)]))


def manipulation(panel: Panel, options: LikelihoodOptions, seed: int) -> Row | None:
    """What the exchange of words costs in nats; None without pairs."""
    pairs = panel.pairs()
    if SWAP not in panel.modes or not len(pairs):
        return None
    return gained(unit_gain(panel, panel.x, pairs), options, seed)


def within_overall(panel: Panel) -> Array:
    """Return each text's correlation of likelihood and share, mean over layers, one number a unit."""
    r = correlations(panel.x, panel.measures["share"], panel.distinct)
    known = np.isfinite(r)
    count = known.sum(0)
    means = np.where(count > 0, np.where(known, r, 0.0).sum(0) / np.maximum(count, 1), np.nan)
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
    return gained(depth_of_texts(panel), options, seed)


def of_heads(panel: Panel, shares: Array, layers: Sequence[int], heads: Sequence[int]) -> list[Row]:
    """Correlation within texts of every head, Benjamini–Hochberg over them.

    Args:
        shares: [layers · heads, T, K].
    """
    there = panel.distinct
    r, slopes = correlations(panel.x, shares, there), slope(panel.x, shares, there)
    z = z_of(r, there)
    rows = []
    for at, (layer, head) in enumerate(zip(layers, heads, strict=True)):
        means = by_unit(r[at], panel.units)
        known = means[np.isfinite(means)]
        rows.append(
            {
                **placed(layer, "within", "", "log_likelihood", "share"),
                "head": head,
                "estimate": known.mean() if len(known) else np.nan,
                "slope": slopes[at],
                "z": z[at],
                "p_value": two_sided(z[at]),
                "n": len(known),
            }
        )
    return adjusted(rows, (), benjamini_hochberg, BH)


def adjusted(rows: list[Row], by: Sequence[str], correct: Any, name: str) -> list[Row]:
    """The rows with p-values corrected over each family."""
    families: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        families.setdefault(tuple(row[key] for key in by), []).append(row)
    for family in families.values():
        values = correct([row["p_value"] for row in family])
        for row, value in zip(family, values, strict=True):
            row |= {"p_adjusted": value, "correction": name}
    return rows
