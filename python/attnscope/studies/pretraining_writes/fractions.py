# SPDX-License-Identifier: MIT
"""Fractions of one matrix's change in the tested subspaces, with their nulls and controls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.metrics.weights.alignment_gain import alignment_gain
from attnscope.metrics.weights.low_rank import LowRank
from attnscope.metrics.weights.matrix_spectrum import spectrum_of
from attnscope.metrics.weights.moments import jackknife_interval
from attnscope.metrics.weights.subspace_fraction import (
    Side,
    concentration,
    relative_subspace_fraction,
    subspace_fraction,
)
from attnscope.models.weight_deltas import WeightDelta, whole_matrix
from attnscope.models.weight_entries import WeightMap
from attnscope.models.weights import WeightFolder
from attnscope.studies.pretraining_writes.shared_subspaces import SHARING, SharedSubspaces
from attnscope.studies.pretraining_writes.subspaces import (
    UNIQUE,
    Directions,
    Subspaces,
)

if TYPE_CHECKING:
    from attnscope.studies.pretraining_writes.options import WeightsOptions

#: A share of rounding in ‖ΔW‖² from which a pair enters no claim.
FLOOR = 0.5
#: Table and variant -> rows.
Rows = dict[tuple[str, str], list[dict[str, Any]]]
#: Subspaces whose nulls and controls are measured too.
_CONTROLLED = ("inputs", "prediction")
Matrix = Tensor | LowRank


class Fractions:
    """The rows of one pair.

    Args:
        before: the base's files.
        matrices: the base's map.
        subspaces: that changes are measured in.
        further: subspaces of other checkpoints, by the ending of their names.
        options: of the study.
        rows: table and variant -> rows, to which rows are added.
    """

    def __init__(
        self,
        before: WeightFolder,
        matrices: WeightMap,
        subspaces: Subspaces,
        further: Mapping[str, Subspaces],
        options: WeightsOptions,
        rows: Rows,
    ) -> None:
        self.before, self.map, self.subspaces, self.further = before, matrices, subspaces, further
        self.options, self.rows = options, rows
        self.shared = SharedSubspaces()

    def add(self, delta: WeightDelta, size: Mapping[str, Any]) -> None:
        """Add the rows of one matrix; `size` is its row of `deltas`."""
        keys = {name: size[name] for name in ("layer", "role", "expert")}
        base = None
        if "weights" in self.options.nulls:
            base = whole_matrix(self.before, self.map[delta.layer, delta.role, delta.expert])
        for side, name, directions in self.subspaces.of_matrix(delta.layer, delta.role):
            matrix = self._gained(delta, delta.delta, side, name)
            place = {**keys, "side": side, "subspace": name}
            self._fractions(place, matrix, directions, size["noise_share"])
            self._gains({**keys, "side": side, "moment": name}, matrix, directions, delta)
            if delta.role in SHARING.get((side, name), ()):
                tested = self._tested(directions).to(_kind(matrix))
                self.shared.add(matrix, tested, side=side, subspace=name, layer=delta.layer)
            if name in _CONTROLLED:
                self._nulls(place, delta, matrix)
                if base is not None:
                    self._of_the_base(place, delta, matrix, base, directions, size["decay_share"])
        for end, subspaces in self.further.items():
            for side, name, directions in subspaces.of_matrix(delta.layer, delta.role):
                if name in _CONTROLLED:
                    matrix = self._gained(delta, delta.delta, side, name)
                    place = {**keys, "side": side, "subspace": f"{name}_{end}"}
                    self._fractions(place, matrix, directions, size["noise_share"])
        if base is not None:
            own_weights = ("weights", self.before.path, *keys.values())
            for side, directions in self.subspaces.of_weights(own_weights, base):
                place = {**keys, "side": side, "subspace": "own_weights"}
                self._fractions(place, delta.delta, directions, size["noise_share"])
        self._mechanism(keys, delta)

    def _gained(self, delta: WeightDelta, matrix: Matrix, side: str, name: str) -> Matrix:
        """Return a change times the gain of a norm behind the sub-layer, where that norm scales the
        residual stream.
        """
        entry = self.map[delta.layer, delta.role, delta.expert]
        if entry.out_gain is None or (side, name) != ("out", "prediction"):
            return matrix
        gain = self.before.read(entry.out_gain).float() + self.map.norm_offset
        if isinstance(matrix, LowRank):
            return LowRank(gain[:, None] * matrix.left.float(), matrix.right, matrix.scale)
        return gain[:, None].to(matrix.dtype) * matrix

    def _fractions(self, keys: dict[str, Any], matrix: Matrix, directions: Directions, noise: float) -> None:
        basis = directions.basis.to(_kind(matrix))
        d, most = basis.shape
        tested = self.options.directions(d)
        curve = [k for k in self.options.curve_of(d) if k <= most]
        side: Side = keys["side"]
        fractions_by_k = subspace_fraction(matrix, basis, side=side, k=curve)
        interval = (math.nan, math.nan)
        left = {group: _relative(matrix, other, side) for group, other in directions.left_out.items()}
        for group, relative in left.items():
            self.rows["left_out", ""].append({**keys, "group": group, "relative": relative})
        if len(left) > 1:
            interval = jackknifed(float(fractions_by_k.relative[curve.index(tested)]), list(left.values()))
        for at, k in enumerate(curve):
            fraction, gap = float(fractions_by_k.fraction[at]), directions.gap(k)
            debiased = (fraction - noise * k / d) / (1 - noise) if noise < FLOOR else math.nan
            self.rows["fractions", ""].append(
                {
                    **keys,
                    "k": k,
                    **{name: float(values[at]) for name, values in fractions_by_k._asdict().items()},
                    "low": interval[0] if k == tested else math.nan,
                    "high": interval[1] if k == tested else math.nan,
                    "gap": gap,
                    "unique": not gap < UNIQUE,
                    "debiased": debiased,
                    "share_of_energy": directions.share(k),
                    "tested": k == tested,
                }
            )

    def _gains(
        self, keys: dict[str, Any], matrix: Matrix, directions: Directions, delta: WeightDelta
    ) -> None:
        row = {"alignment_gain": math.nan, "deviation": math.nan, "z": math.nan, "concentration": math.nan}
        side: Side = keys["side"]
        if directions.complete.shape[1]:
            gain = alignment_gain(matrix, directions.moment, side=side)
            row = {
                name: float(value)
                for name, value in zip(("alignment_gain", "deviation", "z"), gain, strict=True)
            }
            row["concentration"] = float(
                concentration(matrix, directions.complete.to(_kind(matrix)), side=side)
            )
        share = math.nan
        if keys["moment"] == "inputs":
            mean = self.subspaces.mean_input(delta.layer, delta.role)
            length = float(mean.norm())
            if length:
                image = (matrix @ (mean / length)[:, None].to(_kind(matrix))).double()
                share = float(image.square().sum() / spectrum_of(matrix, 0).energy)
        self.rows["gains", ""].append({**keys, **row, "mean_share": share})

    def _nulls(self, keys: dict[str, Any], delta: WeightDelta, matrix: Matrix) -> None:
        """Add the fractions at the tested k on subspaces that have no reason to hold the change."""
        options, name, side = self.options, keys["subspace"], keys["side"]
        nulls, role = options.nulls, delta.role
        others: dict[str, list[Directions | None]] = {}
        if name == "inputs":
            if "other_layer" in nulls and self.map.layers > 1:
                far = (delta.layer + self.map.layers // 2) % self.map.layers
                others["other_layer"] = [self.subspaces.of_moment(far, role, side)]
            if "foreign" in nulls:
                others["foreign"] = [self.subspaces.of_moment(delta.layer, role, side, control="foreign")]
            if "random_weights" in nulls:
                others["random_weights"] = [
                    self.subspaces.of_moment(delta.layer, role, side, control="random_weights", draw=draw)
                    for draw in range(options.random_weights)
                ]
        elif "random_weights" in nulls:
            others["random_weights"] = [self.subspaces.prediction(n) for n in range(options.random_weights)]
        for variant, drawn in others.items():
            fits = [
                directions
                for directions in drawn
                if directions is not None and self._fits(matrix, side, directions)
            ]
            if fits:
                values = [_relative(matrix, self._tested(directions), side) for directions in fits]
                self._control(keys, variant, self._tested(fits[0]), values)

    def _of_the_base(
        self,
        keys: dict[str, Any],
        delta: WeightDelta,
        matrix: Matrix,
        base: Tensor,
        directions: Directions,
        along: float,
    ) -> None:
        """Add the base's own matrix on the same directions, and the change less its part along that
        matrix.
        """
        side, name, tested = keys["side"], keys["subspace"], self._tested(directions)
        weights = self._gained(delta, base, side, name)
        self._control(keys, "weights", tested, [_relative(weights, tested, side)])
        if isinstance(matrix, Tensor) and isinstance(weights, Tensor) and math.isfinite(along):
            rest = matrix - along * weights.to(matrix.dtype)
            self._control(keys, "decay_removed", tested, [_relative(rest, tested, side)])

    def _fits(self, matrix: Matrix, side: str, directions: Directions) -> bool:
        return len(directions.basis) == matrix.shape[1 if side == "in" else 0]

    def _tested(self, directions: Directions) -> Tensor:
        return directions.basis[:, : self.options.directions(len(directions.basis))]

    def _control(self, keys: dict[str, Any], variant: str, basis: Tensor, relatives: Sequence[float]) -> None:
        """Add a row of a control; the interval is over random initialisations."""
        d, k = basis.shape
        mean, (low, high) = float(np.mean(relatives)), spread_over(relatives)
        row = {
            **keys,
            "k": k,
            "fraction": mean * k / d,
            "relative": mean,
            "low": low,
            "high": high,
            "tested": True,
        }
        self.rows["fractions", variant].append(row)

    def _mechanism(self, keys: dict[str, Any], delta: WeightDelta) -> None:
        """Add the fraction that independent inputs and gradients would give: the subspace's own share."""
        for side, centered in (("in", delta.role == "k"), ("out", False)):
            directions = self.subspaces.of_moment(delta.layer, delta.role, side, centered=centered)
            if directions is None or not self._fits(delta.delta, side, directions):
                continue
            basis = self._tested(directions)
            observed = _relative(delta.delta, basis, "in" if side == "in" else "out")
            d, k = basis.shape
            predicted = directions.share(k) * d / k
            coherence = math.log2(observed / predicted) if observed > 0 and predicted > 0 else math.nan
            row = {**keys, "side": side, "predicted": predicted, "observed": observed, "coherence": coherence}
            self.rows["mechanism", ""].append(row)


def _relative(matrix: Matrix, basis: Tensor, side: Side) -> float:
    """Return the relative fraction alone."""
    columns = basis.to(_kind(matrix))
    fraction = relative_subspace_fraction(
        matrix, **({"right": columns} if side == "in" else {"left": columns})
    )
    return float(fraction.both)


def _kind(matrix: Matrix) -> torch.dtype:
    dense = matrix.left if isinstance(matrix, LowRank) else matrix
    return torch.float64 if dense.dtype == torch.float64 else torch.float32


def jackknifed(estimate: float, left_out: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of an estimate whose values without each group are given."""
    values = [torch.tensor(value, dtype=torch.float64, device="cpu") for value in left_out]
    interval = jackknife_interval(torch.tensor(estimate, dtype=torch.float64, device="cpu"), values, 0.95)
    return float(interval.low), float(interval.high)


def spread_over(values: Sequence[float], alpha: float = 0.05) -> tuple[float, float]:
    """Return the t interval of a mean over independent draws, 95 % by default; NaN with fewer than two."""
    from scipy import stats

    finite = np.array([value for value in values if math.isfinite(value)])
    if len(finite) < 2:
        return math.nan, math.nan
    half = float(stats.t.ppf(1 - alpha / 2, len(finite) - 1) * finite.std(ddof=1) / math.sqrt(len(finite)))
    return float(finite.mean()) - half, float(finite.mean()) + half
