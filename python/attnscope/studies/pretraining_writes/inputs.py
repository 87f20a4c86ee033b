# SPDX-License-Identifier: MIT
"""A summary of the inputs of the base's matrices, and of the loss's gradients at their outputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attnscope.metrics.weights.moments import Moments, participation, site_of
from attnscope.metrics.weights.subspace_fraction import overlap
from attnscope.models.architecture import weight_map
from attnscope.studies.pretraining_writes.subspaces import RESIDUAL, Subspaces
from attnscope.studies.pretraining_writes.sums import Sums, rank_of, title_of
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from attnscope.studies.pretraining_writes.options import WeightsOptions
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Unit


def describe(unit: Unit, run: StageRun, options: WeightsOptions) -> None:
    """Write `moments` of a checkpoint that others are compared with; nothing of another one."""
    assert unit.checkpoint is not None
    energies = run.read("token_energies")
    energies = where(energies, model=unit.checkpoint.model, revision=unit.checkpoint.revision)
    if energies.empty:
        return
    of = title_of(unit.checkpoint)
    matrices = weight_map(run.folder())
    sums = Sums(run, of, rank_of(options, matrices))
    subspaces = Subspaces(run, sums, run.folder(), options)
    errors = energies.groupby(["layer", "role"])["identity_error"].max()
    energies = where(energies, side="in")
    by_site = energies.groupby(["layer", "role"])
    shares = (by_site["largest_energy"].max() / by_site["energy"].sum()).rename("share").reset_index()
    largest = {
        (int(row["layer"]), site_of(row["role"], "in")): row["share"] for row in shares.to_dict("records")
    }
    prediction = subspaces.prediction()
    for entry in matrices:
        if entry.layer < 0 or entry.expert not in (None, 0):
            continue
        moments = sums.layer(entry.layer)
        for side in ("in", "out"):
            if not moments.has(entry.layer, entry.role, side):
                continue
            directions = subspaces.of_moment(entry.layer, entry.role, side)
            assert directions is not None
            mean = moments.mean(entry.layer, entry.role, side)
            k = options.directions(len(directions.basis))
            shared = math.nan
            if prediction is not None and RESIDUAL.get(entry.role) == side:
                shared = float(overlap(directions.basis[:, :k], prediction.basis[:, :k]))
            run.write(
                "moments",
                layer=entry.layer,
                role=entry.role,
                side=side,
                tokens=moments.tokens(entry.layer, entry.role, side),
                trace=moments.trace(entry.layer, entry.role, side),
                input_participation_ratio=participation(moments.energies(entry.layer, entry.role, side)),
                largest_token_share=largest.get((entry.layer, site_of(entry.role, "in")), math.nan)
                if side == "in"
                else math.nan,
                mean_input_share=float(mean.square().sum()) / moments.trace(entry.layer, entry.role, side),
                stability=_stability(moments, entry.layer, entry.role, side, k),
                prediction_overlap=shared,
                identity_error=float(errors.get((entry.layer, entry.role), math.nan)),
            )


def _stability(moments: Moments, layer: int, role: str, side: str, k: int) -> float:
    """Return the overlap of the subspaces of two halves of the groups."""
    halves = (Moments(moments.rank, moments.seed), Moments(moments.rank, moments.seed))
    for key, group, sums in moments.items():
        halves[group % 2].store_sums(key, group, sums)
    if not all(half.has(layer, role, side) for half in halves):
        return math.nan
    try:
        first, second = (half.basis(layer, role, side, k) for half in halves)
    except ValueError:  # too few tokens in a half
        return math.nan
    return float(overlap(first, second))
