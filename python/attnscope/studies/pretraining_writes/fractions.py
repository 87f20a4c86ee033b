# SPDX-License-Identifier: MIT
"""In which directions one matrix's change lies, beside what nulls and controls give."""

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
    """Rows of one pair.

    Args:
        before: the base's files.
        found: the base's map.
        subspaces: that changes are measured in.
        further: those of other checkpoints, by what their names end in.
        options: of the study.
        rows: where they are put.
    """

    def __init__(
        self,
        before: WeightFolder,
        found: WeightMap,
        subspaces: Subspaces,
        further: Mapping[str, Subspaces],
        options: WeightsOptions,
        rows: Rows,
    ) -> None:
        self.before, self.map, self.subspaces, self.further = before, found, subspaces, further
        self.options, self.rows = options, rows

    def add(self, found: WeightDelta, size: Mapping[str, Any]) -> None:
        """Everything of one matrix; `size` is its row of `deltas`."""
        keys = {name: size[name] for name in ("layer", "role", "expert")}
        base = None
        if "weights" in self.options.nulls:
            base = whole_matrix(self.before, self.map[found.layer, found.role, found.expert])
        for side, name, directions in self.subspaces.of_matrix(found.layer, found.role):
            matrix = self._gained(found, found.delta, side, name)
            own = {**keys, "side": side, "subspace": name}
            self._fractions(own, matrix, directions, size["noise_share"])
            self._gains({**keys, "side": side, "moment": name}, matrix, directions, found)
            if name in _CONTROLLED:
                self._nulls(own, found, matrix)
                if base is not None:
                    self._of_the_base(own, found, matrix, base, directions, size["decay_share"])
        for end, subspaces in self.further.items():
            for side, name, directions in subspaces.of_matrix(found.layer, found.role):
                if name in _CONTROLLED:
                    matrix = self._gained(found, found.delta, side, name)
                    own = {**keys, "side": side, "subspace": f"{name}_{end}"}
                    self._fractions(own, matrix, directions, size["noise_share"])
        if base is not None:
            own_weights = ("weights", self.before.path, *keys.values())
            for side, directions in self.subspaces.of_weights(own_weights, base):
                own = {**keys, "side": side, "subspace": "own_weights"}
                self._fractions(own, found.delta, directions, size["noise_share"])
        self._mechanism(keys, found)

    def _gained(self, found: WeightDelta, matrix: Matrix, side: str, name: str) -> Matrix:
        """A norm behind the sub-layer multiplies what it writes to the residual stream."""
        entry = self.map[found.layer, found.role, found.expert]
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
        found = subspace_fraction(matrix, basis, side=side, k=curve)
        interval = (math.nan, math.nan)
        left = {group: _relative(matrix, other, side) for group, other in directions.left_out.items()}
        for group, relative in left.items():
            self.rows["left_out", ""].append({**keys, "group": group, "relative": relative})
        if len(left) > 1:
            interval = jackknifed(float(found.relative[curve.index(tested)]), list(left.values()))
        for at, k in enumerate(curve):
            fraction, gap = float(found.fraction[at]), directions.gap(k)
            debiased = (fraction - noise * k / d) / (1 - noise) if noise < FLOOR else math.nan
            self.rows["fractions", ""].append(
                {
                    **keys,
                    "k": k,
                    **{name: float(values[at]) for name, values in found._asdict().items()},
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
        self, keys: dict[str, Any], matrix: Matrix, directions: Directions, found: WeightDelta
    ) -> None:
        row = {"alignment_gain": math.nan, "deviation": math.nan, "z": math.nan, "concentration": math.nan}
        side: Side = keys["side"]
        if directions.whole.shape[1]:
            gain = alignment_gain(matrix, directions.moment, side=side)
            row = {
                name: float(value)
                for name, value in zip(("alignment_gain", "deviation", "z"), gain, strict=True)
            }
            row["concentration"] = float(concentration(matrix, directions.whole.to(_kind(matrix)), side=side))
        share = math.nan
        if keys["moment"] == "inputs":
            mean = self.subspaces.mean_input(found.layer, found.role)
            length = float(mean.norm())
            if length:
                image = (matrix @ (mean / length)[:, None].to(_kind(matrix))).double()
                share = float(image.square().sum() / spectrum_of(matrix, 0).energy)
        self.rows["gains", ""].append({**keys, **row, "mean_share": share})

    def _nulls(self, keys: dict[str, Any], found: WeightDelta, matrix: Matrix) -> None:
        """The same fraction where there is no reason for it, at the tested k."""
        options, name, side = self.options, keys["subspace"], keys["side"]
        nulls, role = options.nulls, found.role
        others: dict[str, list[Directions | None]] = {}
        if name == "inputs":
            if "other_layer" in nulls and self.map.layers > 1:
                far = (found.layer + self.map.layers // 2) % self.map.layers
                others["other_layer"] = [self.subspaces.of_moment(far, role, side)]
            if "foreign" in nulls:
                others["foreign"] = [self.subspaces.of_moment(found.layer, role, side, control="foreign")]
            if "random_weights" in nulls:
                others["random_weights"] = [
                    self.subspaces.of_moment(found.layer, role, side, control="random_weights", draw=draw)
                    for draw in range(options.random_weights)
                ]
        elif "random_weights" in nulls:
            others["random_weights"] = [self.subspaces.prediction(n) for n in range(options.random_weights)]
        for variant, drawn in others.items():
            fits = [one for one in drawn if one is not None and self._fits(matrix, side, one)]
            if fits:
                values = [_relative(matrix, self._tested(one), side) for one in fits]
                self._control(keys, variant, self._tested(fits[0]), values)

    def _of_the_base(
        self,
        keys: dict[str, Any],
        found: WeightDelta,
        matrix: Matrix,
        base: Tensor,
        directions: Directions,
        along: float,
    ) -> None:
        """The base's own matrix on the same directions, and the change less its part along that matrix."""
        side, name, tested = keys["side"], keys["subspace"], self._tested(directions)
        weights = self._gained(found, base, side, name)
        self._control(keys, "weights", tested, [_relative(weights, tested, side)])
        if isinstance(matrix, Tensor) and isinstance(weights, Tensor) and math.isfinite(along):
            rest = matrix - along * weights.to(matrix.dtype)
            self._control(keys, "decay_removed", tested, [_relative(rest, tested, side)])

    def _fits(self, matrix: Matrix, side: str, directions: Directions) -> bool:
        return len(directions.basis) == matrix.shape[1 if side == "in" else 0]

    def _tested(self, directions: Directions) -> Tensor:
        return directions.basis[:, : self.options.directions(len(directions.basis))]

    def _control(self, keys: dict[str, Any], variant: str, basis: Tensor, relatives: Sequence[float]) -> None:
        """A row of a control; the interval is over random initialisations."""
        d, k = basis.shape
        mean, (low, high) = float(np.mean(relatives)), spread_over(relatives)
        row = {
            **keys, "k": k, "fraction": mean * k / d, "relative": mean, "low": low, "high": high,
            "tested": True,
        }  # fmt: skip
        self.rows["fractions", variant].append(row)

    def _mechanism(self, keys: dict[str, Any], found: WeightDelta) -> None:
        """Where inputs and gradients were independent, the fraction would be the subspace's own share."""
        for side, centered in (("in", found.role == "k"), ("out", False)):
            directions = self.subspaces.of_moment(found.layer, found.role, side, centered=centered)
            if directions is None or not self._fits(found.delta, side, directions):
                continue
            basis = self._tested(directions)
            observed = _relative(found.delta, basis, "in" if side == "in" else "out")
            d, k = basis.shape
            predicted = directions.share(k) * d / k
            coherence = math.log2(observed / predicted) if observed > 0 and predicted > 0 else math.nan
            row = {**keys, "side": side, "predicted": predicted, "observed": observed, "coherence": coherence}
            self.rows["mechanism", ""].append(row)


def _relative(matrix: Matrix, basis: Tensor, side: Side) -> float:
    """The relative fraction alone, without what it is read with."""
    columns = basis.to(_kind(matrix))
    found = relative_subspace_fraction(matrix, **({"right": columns} if side == "in" else {"left": columns}))
    return float(found.both)


def _kind(matrix: Matrix) -> torch.dtype:
    dense = matrix.left if isinstance(matrix, LowRank) else matrix
    return torch.float64 if dense.dtype == torch.float64 else torch.float32


def jackknifed(estimate: float, left_out: list[float]) -> tuple[float, float]:
    """The 95 % interval of an estimate whose values without one group each are known."""
    values = [torch.tensor(one, dtype=torch.float64, device="cpu") for one in left_out]
    found = jackknife_interval(torch.tensor(estimate, dtype=torch.float64, device="cpu"), values, 0.95)
    return float(found.low), float(found.high)


def spread_over(values: Sequence[float], alpha: float = 0.05) -> tuple[float, float]:
    """Return the t interval of a mean over independent draws, 95 % by default; NaN with fewer than two."""
    from scipy import stats

    own = np.array([value for value in values if math.isfinite(value)])
    if len(own) < 2:
        return math.nan, math.nan
    half = float(stats.t.ppf(1 - alpha / 2, len(own) - 1) * own.std(ddof=1) / math.sqrt(len(own)))
    return float(own.mean()) - half, float(own.mean()) + half
