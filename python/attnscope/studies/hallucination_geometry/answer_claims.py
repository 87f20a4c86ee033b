# SPDX-License-Identifier: MIT
"""Claims about answers: a detector wired to a refusal, moves along the difference, compressed states.

Raising the refusal token's logit far enough makes any model refuse anything. A detector is worth Youden's J:
refusals of the other bucket less false refusals of the reference, at the gain where that is most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.statistics import bootstrap, exchange_labels, max_t
from attnscope.statistics.exchange import FEWEST
from attnscope.statistics.intervals import Interval
from attnscope.studies.hallucination_geometry.evidence import Evidence, widen_by_draws
from attnscope.study_api.claims import Control, Estimate, Untestable, above
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions

FEW_TEMPLATES = "prompts of fewer than 5 templates have no interval"
ONE_DRAW = "random draws differ among themselves, and one of each kind does not show how much"
KIND_NAMES = {"isotropic": "isotropic", "covariance": "covariance-matched", "labels": "exchanged-label"}
Array = np.ndarray[Any, Any]


def youden(forced: Array, labels: Array) -> Array:
    """Return the largest refusal rate of ones less that of zeros, over gains: [m] of labellings [m, n].

    >>> forced = np.array([[True, True, False, False], [True, True, True, False]])  # of two gains
    >>> youden(forced, np.array([[1, 1, 0, 0], [0, 0, 1, 1]])).tolist()
    [1.0, 0.0]
    """
    weights_of_ones = np.asarray(labels, dtype=float)
    weights_of_zeros = 1 - weights_of_ones
    hit = forced.T.astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = weights_of_ones @ hit / weights_of_ones.sum(
            1, keepdims=True
        ) - weights_of_zeros @ hit / weights_of_zeros.sum(1, keepdims=True)
    return np.asarray(np.maximum(gaps.max(1), 0.0))


def bypass_separates(evidence: Evidence, options: HallucinationOptions) -> Estimate | Untestable:
    """Measure the probe's J over its best control's; labels are exchanged alike in all layers."""
    rows = evidence.rows("interventions", arm="bypass")
    if rows.empty:
        reason = evidence.check_reason("refusal_token") if options.interventions is not False else ""
        return Untestable(reason or "options.interventions is off")
    prompts = evidence.tables["prompts"].set_index("sample")
    samples = rows["sample"].unique()
    labels = (prompts["bucket"].reindex(samples) == evidence.contrast).to_numpy().astype(int)
    templates = pd.factorize(prompts["template"].reindex(samples))[0]
    layers = {layer: _forced(where(rows, layer=layer), samples) for layer in sorted(set(rows["layer"]))}
    if len(set(labels.tolist())) < 2:
        return Untestable("one bucket alone was asked")
    test = exchange_labels(
        lambda drawn: np.column_stack([_excess(detectors, drawn) for detectors in layers.values()]),
        labels,
        clusters=templates,
        draws=options.permutations,
    )
    if test.permutations < FEWEST:
        return Untestable(f"{test.permutations:.0f} labellings are too few for a test: at least {FEWEST}")
    family = max_t(test.observed, test.drawn)
    best = int(np.argmax(np.nan_to_num(family.statistic, nan=-np.inf)))
    layer = [*layers][best]
    detectors = layers[layer]
    strongest = _strongest(detectors, labels)

    def gap(places: Array) -> float:
        chosen = places.astype(int)
        drawn = labels[None, chosen]
        excess = youden(detectors["probe"][:, chosen], drawn) - youden(detectors[strongest][:, chosen], drawn)
        return float(excess[0])

    interval = bootstrap(np.arange(len(samples), dtype=float), gap, clusters=templates)
    return Estimate(
        float(test.observed[best]),
        interval.low,
        interval.high,
        above(0.0),
        p_value=float(family.p_adjusted[best]),
        draws=int(min(len(test.drawn), 1e9)),
        words=f"layer {layer}, best control {strongest.replace('_', ' ')}: a forced token is a refusal by "
        "construction; what counts is whom it hits",
    )


def steering_changes(evidence: Evidence, options: HallucinationOptions) -> Estimate | Untestable:
    """Measure how many more answers change along the difference than along random moves of its length."""
    rows = evidence.rows("interventions", arm="steering")
    if rows.empty:
        return Untestable("options.interventions is off")
    rows = rows.assign(changed=rows["changed"].astype(float))
    shares = rows.pivot_table(index="sample", columns=["control", "draw"], values="changed")
    boundary = shares["boundary"].iloc[:, 0]
    random = [kind for kind in ("isotropic", "covariance", "labels") if kind in shares]
    if not random:
        return Untestable("no random direction to compare with")
    others = pd.concat([shares[kind] for kind in random], axis=1).mean(axis=1)
    draws = {kind: shares[kind].mean().to_numpy(dtype=float) for kind in random}
    # the same difference, of each random direction
    controls = [
        Control(f"{KIND_NAMES[kind]} directions", (values - others.mean()).tolist())
        for kind, values in draws.items()
    ]
    words = f"{boundary.mean():.2f} of answers change, {others.mean():.2f} along random directions"
    interval = _over_templates(evidence, boundary - others)
    return _beyond_draws(interval, [*draws.values()], controls, words)


def compression_refuses(evidence: Evidence, options: HallucinationOptions) -> Estimate | Untestable:
    """Measure how many more prompts of the other bucket are refused when states are compressed."""
    rows = evidence.rows("interventions", arm="compression")
    prompts = evidence.tables["prompts"].set_index("sample")["bucket"]
    rows = rows[(prompts.reindex(rows["sample"]) == evidence.contrast).to_numpy()] if len(rows) else rows
    if rows.empty:
        return Untestable("options.interventions is off")
    rows = rows.assign(refused=rows["refused"].astype(float), loop=rows["loop"].astype(float))
    shares = rows.pivot_table(index="sample", columns=["control", "draw"], values="refused")
    loops = rows.groupby("control")["loop"].mean()
    reference, random = shares["reference"].iloc[:, 0], shares["haar"]
    draws = random.mean().to_numpy(dtype=float)
    words = (
        f"{reference.mean():.2f} are refused, {draws.mean():.2f} under random subspaces; loops "
        f"{loops['reference']:.2f} and {loops['haar']:.2f}"
    )
    controls = [Control("random subspaces", (draws - draws.mean()).tolist())]
    interval = _over_templates(evidence, reference - random.mean(axis=1))
    return _beyond_draws(interval, [draws], controls, words)


def _beyond_draws(
    interval: Interval, draws: list[Array], controls: list[Control], words: str
) -> Estimate | Untestable:
    """Return the estimate of a difference from random draws, with an interval over templates and draws.

    Args:
        interval: of the difference, over templates.
        draws: statistic of each draw, by kind.
        controls: the same draws.
        words: that are true in every case.
    """
    low, high = widen_by_draws(interval.estimate, interval.low, interval.high, draws)
    estimate = Estimate(interval.estimate, low, high, above(0.0), controls=controls, words=words)
    if estimate.has_interval:
        return estimate
    few = FEW_TEMPLATES if np.isnan(interval.low) else ONE_DRAW
    return Untestable(few, estimate)


def _over_templates(evidence: Evidence, values: pd.Series[float]) -> Interval:
    """Return the mean over prompts with its interval over templates."""
    templates = evidence.tables["prompts"].set_index("sample")["template"].reindex(values.index)
    return bootstrap(values.to_numpy(dtype=float), clusters=templates.to_numpy())


def _forced(rows: pd.DataFrame, samples: Array) -> dict[str, Array]:
    """Return which prompts each gain of each detector forces, [gains, n]."""
    return {
        str(name): rows_of_detector.pivot_table(
            index="strength", columns="sample", values="forced", aggfunc="max"
        )
        .reindex(columns=samples)
        .to_numpy()
        .astype(bool)
        for name, rows_of_detector in rows.assign(forced=rows["forced"].astype(float)).groupby("control")
    }


def _strongest(detectors: dict[str, Array], labels: Array) -> str:
    """Return the control of the largest J."""
    controls = [name for name in detectors if name != "probe"]
    return max(controls, key=lambda name: float(youden(detectors[name], labels[None])[0]))


def _excess(detectors: dict[str, Array], drawn: Array) -> Array:
    """Return the probe's J less the largest of its controls', of labellings [m, n] -> [m]."""
    controls = [youden(forced, drawn) for name, forced in detectors.items() if name != "probe"]
    return np.asarray(youden(detectors["probe"], drawn) - np.max(controls, axis=0))
