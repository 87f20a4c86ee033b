# SPDX-License-Identifier: MIT
"""One pair of checkpoints: how each matrix has changed, and in which directions."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.inference import holm
from attnscope.metrics.weights.alignment_gain import alignment_gain
from attnscope.metrics.weights.low_rank import LowRank
from attnscope.metrics.weights.matrix_spectrum import spectrum_of
from attnscope.metrics.weights.subspace_fraction import Side, concentration, subspace_fraction
from attnscope.models.architecture import weight_map
from attnscope.models.weight_deltas import WeightDelta, weight_deltas, whole_matrix
from attnscope.models.weight_entries import WeightMap
from attnscope.models.weights import WeightFolder
from attnscope.studies.pretraining_writes.subspaces import UNIQUE, Directions, Subspaces
from attnscope.studies.pretraining_writes.sums import Sums, rank_of, title_of

if TYPE_CHECKING:
    from attnscope.engine.stage_run import StageRun
    from attnscope.engine.units import Unit
    from attnscope.studies.pretraining_writes.options import WeightsOptions

#: A share of rounding in ‖ΔW‖² from which a pair enters no claim.
FLOOR = 0.5
Rows = dict[tuple[str, str], list[dict[str, Any]]]


def measure_pair(unit: Unit, run: StageRun, options: WeightsOptions) -> None:
    """Fills `deltas`, `fractions`, `gains`, `mechanism` and `left_out` of one pair."""
    assert unit.checkpoint is not None
    assert unit.other is not None
    pair = _Pair(unit, run, options)
    same = unit.checkpoint.model == unit.other.model
    rounded = options.rounded if options.rounded != "auto" else "both" if same else "after"
    layers = run.settings.layers or None
    broken = []
    for found in weight_deltas(pair.before.path, run.folder(), roles=options.roles or None, layers=layers):
        pair.add(found, rounded)
        if not found.finite:
            broken.append(f"layer {found.layer} {found.role}")
    if broken:
        run.note(
            f"{unit.title}: {len(broken)} matrices hold NaN or infinite entries: {', '.join(broken[:5])}"
        )
    pair.write()


class _Pair:
    """Rows of one pair."""

    def __init__(self, unit: Unit, run: StageRun, options: WeightsOptions) -> None:
        assert unit.other is not None
        self.run, self.options = run, options
        self.reference = title_of(unit.other)
        self.before = WeightFolder(run.folder(unit.other))
        self.map: WeightMap = weight_map(self.before.path)
        sums = Sums(run, self.reference, rank_of(options, self.map))
        self.subspaces = Subspaces(run, sums, self.before.path, options)
        self.rows: Rows = defaultdict(list)

    def add(self, found: WeightDelta, rounded: str) -> None:
        """Everything of one matrix."""
        statistics = found.statistics(rounded)
        spectrum = spectrum_of(found.delta, 1)
        noise = float(statistics.noise_share)
        note = "; ".join(
            words
            for words, holds in (
                ("not finite", not found.finite),
                (f"head {found.tied}", bool(found.tied)),
                (f"{found.added} rows added", found.added > 0),
                (f"{found.removed} rows removed", found.removed > 0),
                (f"{found.changed} tokens changed", found.changed > 0),
            )
            if holds
        )
        keys = {
            "layer": found.layer,
            "role": found.role,
            "expert": -1 if found.expert is None else found.expert,
        }
        energy, before = float(statistics.energy), float(statistics.before_energy)
        self.rows["deltas", ""].append(
            {
                **keys,
                "rows": found.delta.shape[0],
                "columns": found.delta.shape[1],
                "before_dtype": found.before_dtype,
                "after_dtype": found.after_dtype,
                "delta_energy": energy,
                "relative_norm": math.sqrt(energy / before) if before > 0 else math.nan,
                "unchanged_share": float(statistics.unchanged),
                "step_ratio": float(statistics.step_ratio),
                "noise_share": noise,
                "decay_share": float(statistics.along),
                "largest_change": float(statistics.largest),
                "delta_participation_ratio": float(spectrum.participation_ratio),
                "delta_stable_rank": float(spectrum.energy / spectrum.top[0]),
                "exact_spectrum": spectrum.exact,
                "below_floor": bool(noise >= FLOOR),
                "note": note,
            }
        )
        if found.layer < 0 or not found.finite or energy == 0:
            return
        base = None
        for side, name, directions in self.subspaces.of_matrix(found.layer, found.role):
            matrix = self._gained(found, found.delta, side, name)
            own = {**keys, "side": side, "subspace": name}
            self._fractions(own, matrix, directions, noise)
            self._gains({**keys, "side": side, "moment": name}, matrix, directions, found)
            if name in ("inputs", "prediction"):
                if base is None and "weights" in self.options.nulls:
                    entry = self.map[found.layer, found.role, found.expert]
                    base = whole_matrix(self.before, entry)
                self._nulls(own, found, matrix, base)
        self._mechanism(keys, found)

    def _gained(self, found: WeightDelta, matrix: Tensor | LowRank, side: str, name: str) -> Tensor | LowRank:
        """A norm behind the sub-layer multiplies what it writes to the residual stream."""
        entry = self.map[found.layer, found.role, found.expert]
        if entry.out_gain is None or (side, name) != ("out", "prediction"):
            return matrix
        gain = self.before.read(entry.out_gain).float() + self.map.norm_offset
        if isinstance(matrix, LowRank):
            return LowRank(gain[:, None] * matrix.left.float(), matrix.right, matrix.scale)
        return gain[:, None].to(matrix.dtype) * matrix

    def _fractions(
        self, keys: dict[str, Any], matrix: Tensor | LowRank, directions: Directions, noise: float
    ) -> None:
        basis = directions.basis.to(_kind(matrix))
        d, most = basis.shape
        tested = self.options.directions(d)
        curve = [k for k in self.options.curve_of(d) if k <= most]
        side: Side = keys["side"]
        found = subspace_fraction(matrix, basis, side=side, k=curve)
        interval = (math.nan, math.nan)
        for group, other in directions.left_out.items():
            relative = float(subspace_fraction(matrix, other.to(_kind(matrix)), side=side).relative)
            self.rows["left_out", ""].append({**keys, "group": group, "relative": relative})
        if len(directions.left_out) > 1:
            left = [one["relative"] for one in self.rows["left_out", ""][-len(directions.left_out) :]]
            interval = jackknifed(float(found.relative[curve.index(tested)]), left)
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
        self, keys: dict[str, Any], matrix: Tensor | LowRank, directions: Directions, found: WeightDelta
    ) -> None:
        row = {"alignment_gain": math.nan, "deviation": math.nan, "z": math.nan, "concentration": math.nan}
        side: Side = keys["side"]
        if directions.whole.shape[1]:
            whole = directions.whole
            moment = (whole * directions.energies) @ whole.mT
            gain = alignment_gain(matrix, (moment + moment.mT) / 2, side=side)
            row = {
                name: float(value)
                for name, value in zip(("alignment_gain", "deviation", "z"), gain, strict=True)
            }
            row["concentration"] = float(concentration(matrix, whole.to(_kind(matrix)), side=side))
        share = math.nan
        if keys["moment"] == "inputs":
            mean = self.subspaces.mean_input(found.layer, found.role)
            length = float(mean.norm())
            if length:
                image = (matrix @ (mean / length)[:, None].to(_kind(matrix))).double()
                share = float(image.square().sum() / spectrum_of(matrix, 0).energy)
        self.rows["gains", ""].append({**keys, **row, "mean_share": share})

    def _nulls(
        self, keys: dict[str, Any], found: WeightDelta, matrix: Tensor | LowRank, base: Tensor | None
    ) -> None:
        """The same fraction where there is no reason for it, at the tested k."""
        options, name, side = self.options, keys["subspace"], keys["side"]
        others: dict[str, list[Directions | None]] = {}
        if name == "inputs":
            if "other_layer" in options.nulls and self.map.layers > 1:
                far = (found.layer + self.map.layers // 2) % self.map.layers
                others["other_layer"] = [self.subspaces.of_moment(far, found.role, side)]
            if "random_weights" in options.nulls:
                others["random_weights"] = [
                    self.subspaces.of_moment(
                        found.layer, found.role, side, control="random_weights", draw=draw
                    )
                    for draw in range(options.random_weights)
                ]
        elif "random_weights" in options.nulls:
            others["random_weights"] = [self.subspaces.prediction(n) for n in range(options.random_weights)]
        for variant, drawn in others.items():
            values = [self._one(matrix, side, one) for one in drawn if one is not None]
            fits = [value for value in values if value is not None]
            if fits:
                self._control(keys, variant, *np.mean(fits, axis=0))
        own = self.subspaces.of_moment(found.layer, found.role, "in") if name == "inputs" else None
        own = self.subspaces.prediction() if name == "prediction" else own
        if base is not None and own is not None:
            value = self._one(self._gained(found, base, side, name), side, own)
            if value is not None:
                self._control(keys, "weights", *value)

    def _one(
        self, matrix: Tensor | LowRank, side: Side, directions: Directions
    ) -> tuple[float, float, float] | None:
        d, most = directions.basis.shape
        k = min(self.options.directions(d), most)
        if d != matrix.shape[1 if side == "in" else 0]:
            return None
        found = subspace_fraction(matrix, directions.basis[:, :k].to(_kind(matrix)), side=side)
        return float(k), float(found.fraction), float(found.relative)

    def _control(
        self, keys: dict[str, Any], variant: str, k: float, fraction: float, relative: float
    ) -> None:
        row = {**keys, "k": int(k), "fraction": fraction, "relative": relative, "tested": True}
        self.rows["fractions", variant].append(row)

    def _mechanism(self, keys: dict[str, Any], found: WeightDelta) -> None:
        """Where inputs and gradients were independent, the fraction would be the subspace's own share."""
        for side, centered in (("in", found.role == "k"), ("out", False)):
            directions = self.subspaces.of_moment(found.layer, found.role, side, centered=centered)
            if directions is None:
                continue
            value = self._one(found.delta, side, directions)  # type: ignore[arg-type]
            if value is None:
                continue
            k, _, observed = value
            predicted = directions.share(int(k)) * len(directions.basis) / k
            coherence = math.log2(observed / predicted) if observed > 0 and predicted > 0 else math.nan
            row = {**keys, "side": side, "predicted": predicted, "observed": observed, "coherence": coherence}
            self.rows["mechanism", ""].append(row)

    def write(self) -> None:
        """Stores the rows; p-values of tested fractions by Holm over the matrices of a side and subspace."""
        families: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in self.rows["fractions", ""]:
            row["p_adjusted"], row["correction"] = math.nan, ""
            if row["tested"] and math.isfinite(row["p_value"]):
                families[row["side"], row["subspace"]].append(row)
        for rows in families.values():
            adjusted = holm(np.array([row["p_value"] for row in rows]))
            for row, value in zip(rows, adjusted, strict=True):
                row["p_adjusted"], row["correction"] = float(value), "holm"
        for (table, variant), rows in self.rows.items():
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            self.run.write(table, variant=variant, reference=self.reference, **columns)


def _kind(matrix: Tensor | LowRank) -> torch.dtype:
    dense = matrix.left if isinstance(matrix, LowRank) else matrix
    return torch.float64 if dense.dtype == torch.float64 else torch.float32


def jackknifed(estimate: float, left_out: list[float]) -> tuple[float, float]:
    """The 95 % interval of an estimate whose values without one group each are known."""
    from attnscope.metrics.weights.jackknife import jackknife_interval

    values = [torch.tensor(one, dtype=torch.float64) for one in left_out]
    found = jackknife_interval(torch.tensor(estimate, dtype=torch.float64), values, 0.95)
    return float(found.low), float(found.high)
