# SPDX-License-Identifier: MIT
"""Claims about objectives: several training runs of each arm, all from one start; the run is the unit."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnscope.statistics.groups import Array
from attnscope.studies.pretraining_writes.evidence import Mean, Pair, interval_over
from attnscope.studies.pretraining_writes.options import MATCHED
from attnscope.study_api.claims import ClaimSet, Estimate, Region, Untestable, above

if TYPE_CHECKING:
    from attnscope.studies.pretraining_writes.options import WeightsOptions

#: Arms that are preference objectives, in the order in which one is taken.
PREFERENCE = ("dpo", "preference")
#: The change that made the start, which is no arm from it.
PRETRAINING = "pretraining"
NO_ARMS = "needs training runs of several objectives from one start (options.arms): attnscope.demo.tuning"
ONE_RUN = "one training run: no interval"
_RUN = re.compile(r"(\d+)$")
_CONTRASTIVE = re.compile(r"contrastive_0*([1-9][0-9]*)")
ARM_CLAIMS = ClaimSet()
Measured = Estimate | Untestable


class Arms(NamedTuple):
    """Training runs by arm.

    Attributes:
        runs: arm -> number of the run -> pair.
    """

    runs: dict[str, dict[str, Pair]]

    @property
    def preference(self) -> str:
        """The preference arm, "" without any."""
        return next((name for name in PREFERENCE if name in self.runs), "")


def arm_runs(
    pairs: list[Pair], options: WeightsOptions, *, matched: bool = False
) -> dict[str, dict[str, Pair]]:
    """Return arm -> run -> pair.

    Args:
        pairs: of the run of the study.
        options: of the study.
        matched: of the arms that were stopped where all have moved as far, instead of the others.
    """
    runs: dict[str, dict[str, Pair]] = defaultdict(dict)
    for pair in pairs:
        model = str(pair.keys["model"])
        arm = options.arms.get(model, PRETRAINING)
        if arm != PRETRAINING and arm.endswith(MATCHED) == matched:
            number = _RUN.search(model)
            runs[arm.removesuffix(MATCHED)][number[1] if number else model] = pair
    return dict(runs)


def _octaves(mean: Mean | None) -> Array:
    """Return a mean as it is, and less what random subspaces give."""
    return np.full(2, math.nan) if mean is None else np.array([mean.value, mean.value - mean.expected])


def _mean(pair: Pair, roles: tuple[str, ...], side: str, subspace: str) -> Array:
    return _octaves(pair.mean(roles, side, subspace))


def _contrast(pair: Pair) -> Array:
    return _octaves(pair.contrast(("q", "k"), ("o", "down"), "in", "inputs"))


def _over_runs(values: list[Array], region: Region, words: str, choices: int = 1) -> Measured:
    """Return the mean over training runs with its t interval, widened for a choice among several arms."""
    finite = [value for value in values if np.isfinite(value).all()]
    if len(finite) < 2:
        estimate = Estimate(float(finite[0][0]), region=region, words=words) if finite else None
        return Untestable(f"{words}; {ONE_RUN}" if words else ONE_RUN, estimate)
    octaves, unbiased = np.transpose(finite).tolist()
    low, high = interval_over(octaves, unbiased, 0.05 / choices)
    return Estimate(float(np.mean(octaves)), low, high, region, words=words)


def _difference(arms: Arms, first: str, second: str, value: Callable[[Pair], Array]) -> Measured:
    """Return the paired difference of two arms over their common runs."""
    shared = sorted(set(arms.runs.get(first, {})) & set(arms.runs.get(second, {})))
    if not shared:
        return Untestable(NO_ARMS if not arms.runs else "needs the arms ce and dpo from one start")
    differences = [value(arms.runs[first][run]) - value(arms.runs[second][run]) for run in shared]
    return _over_runs(
        differences, above(0.0), f"{first} less {second}, {len(shared)} training runs of each arm"
    )


@ARM_CLAIMS.claim(
    "C1c",
    "preference training favours the read pathway more than continued pretraining does",
    "D1 of the preference arm less D1 of ce (octaves); t interval over training runs",
)
def preference_reads(arms: Arms, options: WeightsOptions) -> Measured:
    """Measure the contrast of the pathways against continued pretraining."""
    return _difference(arms, arms.preference, "ce", _contrast)


@ARM_CLAIMS.claim(
    "C2b",
    "continued pretraining writes more concentrated than preference training",
    "D2: o, down on the prediction subspace, ce less preference (octaves); t interval over training runs",
)
def pretraining_writes(arms: Arms, options: WeightsOptions) -> Measured:
    """Measure the difference of the write sides."""
    return _difference(
        arms, "ce", arms.preference, lambda pair: _mean(pair, ("o", "down"), "out", "prediction")
    )


@ARM_CLAIMS.claim(
    "C3",
    "changes inherit the concentration of inputs and gradients",
    "smallest margin: .5 less the share of log2 r that whitening leaves on its own side, or the share that "
    "it leaves on the other side less .5; t interval over training runs",
)
def whitening_removes(arms: Arms, options: WeightsOptions) -> Measured:
    """Measure by how much whitening a side of every gradient removes that side alone.

    Four margins must be above 0; the one whose interval reaches lowest decides.
    """
    sides = {"white_in": (("q", "k"), "in", "inputs"), "white_out": (("o", "down"), "out", "prediction")}
    if not {"plain", *sides} <= set(arms.runs):
        return Untestable("needs the arms plain, white_in and white_out" if arms.runs else NO_ARMS)
    shares: dict[tuple[str, str], list[Array]] = defaultdict(list)
    for arm in sides:
        for run, pair in arms.runs[arm].items():
            if run in arms.runs["plain"]:
                for side, where in sides.items():
                    plain = _mean(arms.runs["plain"][run], *where)
                    # in all directions of a space every fraction is 1, which leaves nothing to share
                    share = _mean(pair, *where) / plain if plain.all() else np.full(2, math.nan)
                    shares[arm, side].append(share)
    names = {"white_in": "inputs", "white_out": "prediction"}
    words = ", ".join(
        f"{arm} leaves {np.mean(values, 0)[0]:.2f} of the {names[side]} side"
        for (arm, side), values in shares.items()
    )
    margins = {
        (arm, side): [0.5 - value if arm == side else value - 0.5 for value in values]
        for (arm, side), values in shares.items()
    }
    estimates = [_over_runs(values, above(0.0), words, len(margins)) for values in margins.values()]
    measured = [estimate for estimate in estimates if isinstance(estimate, Estimate)]
    if len(measured) < len(estimates) or not estimates:
        return Untestable(f"{words}; {ONE_RUN}" if words else "no run of plain has its whitened counterpart")
    wrong = [estimate for estimate in measured if estimate.high < 0]
    return wrong[0] if wrong else min(measured, key=lambda estimate: estimate.low)


@ARM_CLAIMS.claim(
    "C4",
    "the read side is concentrated under every objective",
    "smallest over arms of q, k on their own inputs over isotropic, 2^mean log2; t interval over training "
    "runs, widened for the choice",
)
def objective_agnostic(arms: Arms, options: WeightsOptions) -> Measured:
    """Measure the arm whose read side is least certain to be concentrated.

    An arm that is not decides against the claim; else the one whose interval reaches lowest decides.
    """
    all_values = {
        arm: [_mean(pair, ("q", "k"), "in", "inputs") for pair in pairs.values()]
        for arm, pairs in arms.runs.items()
        if not arm.startswith("white")
    }
    # an arm that leaves q and k as they are has nothing that could be concentrated
    values = {
        arm: finite
        for arm, numbers in all_values.items()
        if (finite := [octaves for octaves in numbers if np.isfinite(octaves).all()])
    }
    if len(values) < 2:
        return Untestable("needs two arms or more whose q, k changed" if arms.runs else NO_ARMS)
    means = {arm: float(np.mean(numbers, 0)[0]) for arm, numbers in values.items()}
    words = ", ".join(f"{arm} {2**mean:.1f}" for arm, mean in means.items())
    if unchanged := [arm for arm in all_values if arm not in values]:
        words += f"; no change of q, k on their inputs: {', '.join(unchanged)}"
    border = math.log2(options.band[1])
    estimates = [_over_runs(numbers, above(border), words, len(values)) for numbers in values.values()]
    measured = [estimate for estimate in estimates if isinstance(estimate, Estimate)]
    against = [estimate for estimate in measured if estimate.high < border]
    if len(measured) < len(estimates) and not against:
        return next(estimate for estimate in estimates if isinstance(estimate, Untestable))
    least = min(against or measured, key=lambda estimate: estimate.low)
    return Estimate(2**least.value, 2**least.low, 2**least.high, above(options.band[1]), words=least.words)


@ARM_CLAIMS.claim(
    "C5",
    "the write side grows with the sharpness of the objective",
    "slope of o, down on the prediction subspace over log2 of the number of negatives; t interval over "
    "training runs",
)
def graded(arms: Arms, options: WeightsOptions) -> Measured:
    """Measure the slope over the number of negatives, in each training run."""
    points: dict[str, list[tuple[float, Array]]] = defaultdict(list)
    for arm, pairs in arms.runs.items():
        if (name := _CONTRASTIVE.fullmatch(arm)) is None:
            continue
        for run, pair in pairs.items():
            octaves = _mean(pair, ("o", "down"), "out", "prediction")
            if np.isfinite(octaves).all():
                points[run].append((math.log2(int(name[1])), octaves))
    slopes = [_slope(numbers) for numbers in points.values() if len({x for x, _ in numbers}) > 1]
    if not slopes:
        reason = "needs arms contrastive_K of several K whose o, down changed, and a prediction subspace"
        return Untestable(reason if arms.runs else NO_ARMS)
    return _over_runs(slopes, above(0.0), f"{len(slopes)} training runs")


def _slope(points: list[tuple[float, Array]]) -> Array:
    x, y = zip(*points, strict=True)
    return np.asarray(np.polyfit(x, y, 1)[0])
