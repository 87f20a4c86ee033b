# SPDX-License-Identifier: MIT
"""Claims about objectives: several training runs of each arm, all from one start."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attnscope.engine.claims import (
    CONTRADICTED,
    NOT_TESTABLE,
    SUPPORTED,
    UNDECIDED,
    Claim,
)
from attnscope.studies.pretraining_writes.evidence import Pair
from attnscope.studies.pretraining_writes.fractions import spread_over
from attnscope.studies.pretraining_writes.options import MATCHED

if TYPE_CHECKING:
    from attnscope.studies.pretraining_writes.options import WeightsOptions

#: An arm that is a preference objective, in the order in which one is taken.
PREFERENCE = ("dpo", "preference")
#: The change that made the start, which is no arm from it.
PRETRAINING = "pretraining"
_RUN = re.compile(r"(\d+)$")


def arm_claims(pairs: list[Pair], options: WeightsOptions, *, matched: bool = False) -> Iterator[Claim]:
    """C1b against continued pretraining, C2b, C3, C4 and C5; the training run is the unit.

    Args:
        matched: of the arms that were stopped where all have moved as far, instead of the others.
    """
    runs: dict[str, dict[str, Pair]] = defaultdict(dict)
    for pair in pairs:
        model = str(pair.keys["model"])
        arm = options.arms.get(model, PRETRAINING)
        if arm != PRETRAINING and arm.endswith(MATCHED) == matched:
            found = _RUN.search(model)
            runs[arm.removesuffix(MATCHED)][found[1] if found else model] = pair
    tuned = next((name for name in PREFERENCE if name in runs), None)
    yield _difference(
        "C1b", "D1 of the preference arm less D1 of ce (octaves)", runs, tuned, "ce",
        lambda pair: _contrast(pair),
    )  # fmt: skip
    yield _difference(
        "C2b", "D2: o, down on the prediction subspace, ce less preference (octaves)", runs, "ce", tuned,
        lambda pair: _mean(pair, ("o", "down"), "out", "prediction"),
    )  # fmt: skip
    yield _whitened(runs)
    yield _agnostic(runs)
    yield _graded(runs)


def _mean(pair: Pair, roles: tuple[str, ...], side: str, subspace: str) -> float:
    mean = pair.mean(roles, side, subspace)
    return math.nan if mean is None else mean.value


def _contrast(pair: Pair) -> float:
    mean = pair.contrast(("q", "k"), ("o", "down"), "in", "inputs")
    return math.nan if mean is None else mean.value


def _interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % t interval over training runs."""
    own = [value for value in values if math.isfinite(value)]
    return (float(np.mean(own)) if own else math.nan, *spread_over(own))


def _verdict(low: float, high: float) -> str:
    return SUPPORTED if low > 0 else CONTRADICTED if high <= 0 else UNDECIDED


def _difference(
    claim: str,
    statistic: str,
    runs: dict[str, dict[str, Pair]],
    one: str | None,
    other: str | None,
    value: object,
) -> Claim:
    shared = sorted(set(runs.get(one or "", {})) & set(runs.get(other or "", {})))
    if one is None or other is None or not shared:
        return Claim(claim, statistic, NOT_TESTABLE, "needs the arms ce and dpo from one start")
    assert callable(value)
    differences = [value(runs[one][run]) - value(runs[other][run]) for run in shared]
    mean, low, high = _interval(differences)
    reason = (
        f"{len(shared)} training runs of each arm" if len(shared) > 1 else "one training run: no interval"
    )
    return Claim(claim, statistic, _verdict(low, high), reason, mean, low, high, 0.0)


def _whitened(runs: dict[str, dict[str, Pair]]) -> Claim:
    """Whitening one side of every gradient must take away at least half of that side alone."""
    statistic = "share of log2 r that whitening the inputs leaves, of q, k on their inputs"
    sides = {"white_in": (("q", "k"), "in", "inputs"), "white_out": (("o", "down"), "out", "prediction")}
    if not {"plain", *sides} <= set(runs):
        return Claim("C3", statistic, NOT_TESTABLE, "needs the arms plain, white_in and white_out")
    left: dict[tuple[str, str], list[float]] = defaultdict(list)
    for arm in sides:
        for run, pair in runs[arm].items():
            if run in runs["plain"]:
                for side, where in sides.items():
                    plain = _mean(runs["plain"][run], *where)
                    left[arm, side].append(_mean(pair, *where) / plain)
    shares = {key: float(np.mean(values)) for key, values in left.items()}
    own = max(shares["white_in", "white_in"], shares["white_out", "white_out"])
    other = min(shares["white_in", "white_out"], shares["white_out", "white_in"])
    words = ", ".join(
        f"{arm} leaves {share:.2f} of the {'inputs' if side == 'white_in' else 'prediction'} side"
        for (arm, side), share in shares.items()
    )
    verdict = SUPPORTED if own <= 0.5 < other else CONTRADICTED
    mean, low, high = _interval(left["white_in", "white_in"])
    return Claim("C3", statistic, verdict, words, mean, low, high, 0.5)


def _agnostic(runs: dict[str, dict[str, Pair]]) -> Claim:
    statistic = "smallest over arms of q, k on their own inputs (octaves above isotropic)"
    arms = {
        arm: [_mean(pair, ("q", "k"), "in", "inputs") for pair in own.values()]
        for arm, own in runs.items()
        if not arm.startswith("white")
    }
    if len(arms) < 2:
        return Claim("C4", statistic, NOT_TESTABLE, "needs two arms or more")
    least = min(arms, key=lambda arm: float(np.mean(arms[arm])))
    mean, low, high = _interval(arms[least])
    words = ", ".join(f"{arm} {2 ** float(np.mean(values)):.1f}" for arm, values in arms.items())
    return Claim("C4", statistic, _verdict(low, high), words, mean, low, high, 0.0)


def _graded(runs: dict[str, dict[str, Pair]]) -> Claim:
    statistic = "slope of o, down on the prediction subspace over log2 of the number of negatives"
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for arm, own in runs.items():
        name, _, number = arm.rpartition("_")
        if name == "contrastive" and number.isdigit():
            for run, pair in own.items():
                points[run].append((math.log2(int(number)), _mean(pair, ("o", "down"), "out", "prediction")))
    slopes = [_slope(own) for own in points.values() if len(own) > 1]
    if not slopes:
        return Claim("C5", statistic, NOT_TESTABLE, "needs arms contrastive_K of several K")
    mean, low, high = _interval(slopes)
    verdict = SUPPORTED if low > 0 else CONTRADICTED if math.isfinite(high) else UNDECIDED
    return Claim("C5", statistic, verdict, f"{len(slopes)} training runs", mean, low, high, 0.0)


def _slope(points: list[tuple[float, float]]) -> float:
    x, y = np.array(points).T
    return float(np.polyfit(x, y, 1)[0])
