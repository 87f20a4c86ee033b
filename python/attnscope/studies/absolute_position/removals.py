# SPDX-License-Identifier: MIT
"""Share of the base arm's residual that each arm removes, on the same texts and under the base arm's weights.

A row of `removed` is one arm with one vector or set of heads. `removed_arms` takes the draws of an arm
together: its interval holds the texts (jackknife over groups) and, where vectors were drawn, the spread of
the draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope.metrics.positions.position_profile import PositionProfile, Weights
from attnscope.statistics.groups import jackknife_interval
from attnscope.statistics.residuals import removal_intervals, removal_replicates, require_groups
from attnscope.studies.absolute_position.options import DRAWN, query_sets
from attnscope.studies.absolute_position.sums import passes_of, profile_of, tokens_of

if TYPE_CHECKING:
    from attnscope.study_api.stage_run import StageRun

Array = np.ndarray[Any, Any]
MEASURES: tuple[Weights, ...] = ("uniform", "felt", "moved")
SHARES = ("energy", "size", "pattern")
#: Rows of `removed_arms` that take several arms together: all of a kind, and replacements less one control.
ALL_REPLACEMENTS, ALL_CONTROLS, DIFFERENCE = "replacements", "controls", "replacements_less"


class BaseArm:
    """The base arm's profile, with its weighted residuals made once for all arms."""

    def __init__(self, profile: PositionProfile) -> None:
        require_groups("removed", profile)
        self.profile = profile
        self._vectors: dict[tuple[Any, ...], torch.Tensor] = {}

    def replicates(
        self, arm: PositionProfile, queries: tuple[int, int], measure: Weights, without: tuple[int, ...]
    ) -> Array:
        """Return `removal_replicates` of an arm."""
        key = (queries, measure, without)
        if key not in self._vectors:
            self._vectors[key] = self.profile.vectors(queries, measure, without, self.profile)
        changed = self.profile.vectors(queries, measure, without, arm)
        with np.errstate(invalid="ignore", divide="ignore"):  # a size without one group may be 0
            return removal_replicates(self._vectors[key], changed, self.profile.layers)


def removals(run: StageRun, options: Any) -> None:
    """Write the tables `removed` and `removed_arms` of a checkpoint."""
    only = {"variant": "", "input": "windows"}
    n = tokens_of(run)
    base = BaseArm(profile_of(run, n, options.groups, arm="base", draw=0, **only))
    layers = base.profile.layers
    sets = query_sets(options, base.profile.m)
    of_arms: dict[tuple[str, str], list[Array]] = {}
    for arm, draw, kind, place in passes_of(run, ("arm", "draw", "kind", "position"), **only):
        if arm == "base":
            continue
        other = profile_of(run, n, options.groups, arm=arm, draw=draw, **only)
        without = (place,) if kind == "control" else ()
        for queries in ("early", "2-8"):
            for measure in MEASURES:
                # further draws of an arm keep their residual alone
                if queries not in sets or (measure == "moved" and draw > 0):
                    continue
                replicates = base.replicates(other, sets[queries], measure, without)
                *intervals_of_layers, together = removal_intervals(replicates)
                keys = {"arm": arm, "draw": draw, "queries": queries, "measure": measure, "kind": kind}
                for layer, intervals in zip(layers, intervals_of_layers, strict=True):
                    run.write("removed", scope="layer", layer=layer, **keys, **_columns(intervals))
                if any(layer >= 1 for layer in layers):
                    run.write("removed", scope="from_1", layer=1, **keys, **_columns(together))
                if (queries, measure) == ("early", "uniform") and kind != "read":
                    of_arms.setdefault((arm, kind), []).append(replicates[..., -1])
    for row in arm_rows(of_arms):
        run.write("removed_arms", **row)


def arm_rows(replicates: Mapping[tuple[str, str], Sequence[Array]]) -> list[dict[str, Any]]:
    """Return the rows of `removed_arms`: every arm, all replacements, all controls, and the differences.

    Args:
        replicates: by arm and kind, of each draw [1 + G, 3], from all groups and without each.
    """
    means = {
        key: (np.mean(draws, axis=0), _draw_variance(key[0], draws)) for key, draws in replicates.items()
    }
    rows = [
        _arm_row(arm, kind, *means[arm, kind], np.stack([draw[0] for draw in draws]))
        for (arm, kind), draws in replicates.items()
    ]
    together: dict[str, tuple[Array, Array]] = {}
    for name, kind in ((ALL_REPLACEMENTS, "replacement"), (ALL_CONTROLS, "control")):
        members = [part for (_, kind_of_arm), part in means.items() if kind_of_arm == kind]
        if members:
            mean = np.mean([part[0] for part in members], axis=0)
            variance = np.sum([part[1] for part in members], axis=0) / len(members) ** 2
            together[name] = (mean, variance)
            rows.append(_arm_row(name, "all", mean, variance, np.stack([part[0][0] for part in members])))
    if ALL_REPLACEMENTS in together:
        first, variance = together[ALL_REPLACEMENTS]
        for (arm, kind), (second, variance_of_control) in means.items():
            if kind == "control":
                apart = first - second
                rows.append(
                    _arm_row(
                        f"{DIFFERENCE}_{arm}", "difference", apart, variance + variance_of_control, apart[:1]
                    )
                )
    return rows


def _draw_variance(arm: str, draws: Sequence[Array]) -> Array:
    """Return the variance that drawing vectors at random adds to an arm's mean, [3]."""
    if arm not in DRAWN or len(draws) < 2:
        return np.zeros(3)
    return np.asarray(np.stack([draw[0] for draw in draws]).var(0, ddof=1) / len(draws))


def _arm_row(arm: str, kind: str, replicates: Array, variance: Array, values: Array) -> dict[str, Any]:
    """Return one row: mean, interval, and the range of the draws or arms that it is a mean of."""
    estimate, low, high = jackknife_interval(replicates[0], replicates[1:], added_variance=variance)
    row: dict[str, Any] = {"arm": arm, "kind": kind, "count": len(values)}
    for at, name in enumerate(SHARES):
        row |= {
            f"{name}_removed": estimate[at],
            f"{name}_removed_low": low[at],
            f"{name}_removed_high": high[at],
            f"{name}_least": values[:, at].min(),
            f"{name}_most": values[:, at].max(),
        }
    return row


def _columns(intervals: Sequence[Any]) -> dict[str, Any]:
    """Return the columns of `removed` of one scope."""
    columns: dict[str, Any] = {}
    for name, part in zip(SHARES, intervals, strict=True):
        columns |= {
            f"{name}_removed": part.estimate,
            f"{name}_removed_low": part.low,
            f"{name}_removed_high": part.high,
        }
    return columns


def control_removals(run: StageRun, base: PositionProfile, options: Any, **only: Any) -> dict[str, Array]:
    """Return energy, size and pattern that replacements remove in a model with random weights, by arm, [3].

    Args:
        only: the keys of the model and of its draw.
    """
    arm = BaseArm(base)
    queries = query_sets(options, base.m)["early"]
    shares = {}
    for name, kind in passes_of(run, ("arm", "kind"), **only):
        if kind == "replacement":
            other = profile_of(run, base.n, options.groups, arm=name, draw=0, **only)
            shares[name] = arm.replicates(other, queries, "uniform", ())[0, :, -1]
    return shares
