# SPDX-License-Identifier: MIT
"""Whom a detector that is wired to a refusal hits, beside the detectors that should know nothing.

Raising the refusal token's logit far enough makes any model refuse anything. What a detector is worth is
Youden's J: refusals of the other bucket less false refusals of the reference, at the gain where that is most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from attnscope.engine.claims import CONTRADICTED, SUPPORTED, UNDECIDED, Claim
from attnscope.inference import bootstrap, exchange_labels, max_t
from attnscope.inference.exchange import FEWEST
from attnscope.studies.hallucination_geometry.evidence import ALPHA, Evidence, missing

Array = np.ndarray[Any, Any]


def youden(forced: Array, labels: Array) -> Array:
    """Largest refusal rate of the ones less that of the zeros, over gains: [m] of labellings [m, n].

    >>> forced = np.array([[True, True, False, False], [True, True, True, False]])  # of two gains
    >>> youden(forced, np.array([[1, 1, 0, 0], [0, 0, 1, 1]])).tolist()
    [1.0, 0.0]
    """
    ones = np.asarray(labels, dtype=float)
    zeros = 1 - ones
    hit = forced.T.astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = ones @ hit / ones.sum(1, keepdims=True) - zeros @ hit / zeros.sum(1, keepdims=True)
    return np.asarray(np.maximum(gaps.max(1), 0.0))


def bypass(evidence: Evidence) -> Claim:
    """The probe's J over its best control's; labels are exchanged within templates, alike in all layers."""
    statistic = "Youden's J of forced refusals, the probe's minus its best control's"
    rows = evidence.rows("interventions", arm="bypass")
    if rows.empty:
        return missing("C10", statistic)
    prompts = evidence.tables["prompts"].set_index("sample")
    samples = rows["sample"].unique()
    labels = (prompts["bucket"].reindex(samples) == evidence.contrast).to_numpy().astype(int)
    templates = pd.factorize(prompts["template"].reindex(samples))[0]
    layers = {layer: _forced(rows[rows["layer"] == layer], samples) for layer in sorted(set(rows["layer"]))}
    if len(set(labels.tolist())) < 2:
        return missing("C10", statistic, "one bucket alone was asked")
    test = exchange_labels(
        lambda drawn: np.column_stack([_excess(own, drawn) for own in layers.values()]),
        labels, clusters=templates, draws=evidence.options.permutations,
    )  # fmt: skip
    family = max_t(test.observed, test.drawn)
    best = int(np.argmax(np.nan_to_num(family.statistic, nan=-np.inf)))
    layer = [*layers][best]
    own = layers[layer]
    strongest = _strongest(own, labels)

    def gap(places: Array) -> float:
        at = places.astype(int)
        some = labels[None, at]
        found = youden(own["probe"][:, at], some) - youden(own[strongest][:, at], some)
        return float(found[0])

    reach = bootstrap(np.arange(len(samples), dtype=float), gap, clusters=templates)
    numbers = {
        "value": float(test.observed[best]), "low": reach.low, "high": reach.high, "null": 0.0,
        "p_value": float(family.p_adjusted[best]) if test.permutations >= FEWEST else np.nan,
    }  # fmt: skip
    reason = (
        f"layer {layer}, best control {strongest.replace('_', ' ')}: a forced token is a refusal by "
        "construction; what counts is whom it hits"
    )
    verdict = UNDECIDED
    if numbers["value"] <= 0:
        verdict = CONTRADICTED
    elif numbers["low"] > 0 and evidence.level("C10", numbers["p_value"]) <= ALPHA:
        verdict = SUPPORTED
    return Claim("C10", statistic, verdict, reason, **numbers)


def _forced(rows: pd.DataFrame, samples: Array) -> dict[str, Array]:
    """Of each detector, whether each gain forces each prompt [gains, n]."""
    return {
        str(name): own.pivot_table(index="strength", columns="sample", values="forced", aggfunc="max")
        .reindex(columns=samples).to_numpy().astype(bool)
        for name, own in rows.assign(forced=rows["forced"].astype(float)).groupby("control")
    }  # fmt: skip


def _strongest(own: dict[str, Array], labels: Array) -> str:
    """The control of the largest J."""
    controls = [name for name in own if name != "probe"]
    return max(controls, key=lambda name: float(youden(own[name], labels[None])[0]))


def _excess(own: dict[str, Array], drawn: Array) -> Array:
    """The probe's J less the largest of its controls', of labellings [m, n] -> [m]."""
    controls = [youden(forced, drawn) for name, forced in own.items() if name != "probe"]
    return np.asarray(youden(own["probe"], drawn) - np.max(controls, axis=0))
