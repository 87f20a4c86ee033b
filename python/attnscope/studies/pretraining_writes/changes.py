# SPDX-License-Identifier: MIT
"""One pair of checkpoints: how far each matrix has moved, and, by `fractions`, in which directions."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.inference import holm
from attnscope.metrics.weights.matrix_spectrum import spectrum_of
from attnscope.models.architecture import weight_map
from attnscope.models.weight_deltas import WeightDelta, weight_deltas
from attnscope.models.weight_entries import WeightEntry
from attnscope.models.weights import WeightFolder
from attnscope.studies.pretraining_writes.fractions import FLOOR, Fractions, Rows
from attnscope.studies.pretraining_writes.subspaces import Subspaces
from attnscope.studies.pretraining_writes.sums import Sums, rank_of, title_of

if TYPE_CHECKING:
    from attnscope.models import Checkpoint
    from attnscope.studies.pretraining_writes.options import WeightsOptions
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Unit


def measure_pair(unit: Unit, run: StageRun, options: WeightsOptions, kept: dict[str, Subspaces]) -> None:
    """Fills `deltas`, `fractions`, `expert_means`, `gains`, `mechanism` and `left_out` of one pair.

    Args:
        kept: subspaces of the checkpoints of the last pair, by title; left with those of this one.
    """
    assert unit.checkpoint is not None
    assert unit.other is not None
    before, after = run.folder(unit.other), run.folder()
    base = WeightFolder(before)
    found_map = weight_map(base.path)
    rank = rank_of(options, found_map)

    used: dict[str, Subspaces] = {}

    def subspaces(of: Checkpoint) -> Subspaces:
        title = title_of(of)
        found = kept.get(title) or Subspaces(run, Sums(run, title, rank), run.folder(of), options)
        found.continued(run)
        used[title] = found
        return found

    own = subspaces(unit.checkpoint if options.moments_of == "after" else unit.other)
    further = {}
    if options.moments_of == "both":
        further["after"] = subspaces(unit.checkpoint)
        series = [one for one in run.checkpoints if one.model == unit.checkpoint.model]
        if len(series) > 1:
            further["last"] = subspaces(max(series, key=lambda one: one.step))
    kept.clear()
    kept.update(used)
    rows: Rows = defaultdict(list)
    fractions = Fractions(base, found_map, own, further, options, rows)
    same = unit.checkpoint.model == unit.other.model
    rounded = options.rounded if options.rounded != "auto" else "both" if same else "after"
    biases = _Biases(base, after)
    broken = []
    for found in weight_deltas(
        base.path, after, roles=options.roles or None, layers=run.settings.layers or None
    ):
        row = _size(found, rounded)
        row["bias_change"] = biases.change(found_map[found.layer, found.role, found.expert])
        rows["deltas", ""].append(row)
        if not found.finite:
            broken.append(f"layer {found.layer} {found.role}")
        elif found.layer >= 0 and row["delta_energy"] > 0:
            fractions.add(found, row)
    if broken:
        run.note(
            f"{unit.title}: {len(broken)} matrices hold NaN or infinite entries: {', '.join(broken[:5])}"
        )
    _write(run, rows, title_of(unit.other))


def _size(found: WeightDelta, rounded: str) -> dict[str, Any]:
    """The row of `deltas`."""
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
    energy, before = float(statistics.energy), float(statistics.before_energy)
    return {
        "layer": found.layer,
        "role": found.role,
        "expert": -1 if found.expert is None else found.expert,
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


class _Biases:
    """Changes of the biases that stand beside matrices, which are no matrices' changes."""

    def __init__(self, base: WeightFolder, after: Path) -> None:
        self._base = base
        adapter = (after / "adapter_config.json").is_file()
        self._after = None if adapter else WeightFolder(after)

    def change(self, entry: WeightEntry) -> float:
        """‖Δb‖ of a matrix's own outputs; NaN where either side has no bias of this name."""
        name = entry.tensor.removesuffix("weight") + "bias"
        if self._after is None or name not in self._base.shapes or name not in self._after.shapes:
            return math.nan
        change = self._after.read(name).double() - self._base.read(name).double()
        if entry.index is not None:
            change = change[entry.index]
        if entry.rows is not None:
            runs = [change[first:end] for first, end in entry.rows.runs()]
            return math.sqrt(sum(float(one.square().sum()) for one in runs))
        return float(change.norm())


def _write(run: StageRun, rows: Rows, reference: str) -> None:
    """Stores the rows; p-values of tested fractions by Holm over the matrices of a side and subspace."""
    families: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows["fractions", ""]:
        row["p_adjusted"], row["correction"] = math.nan, ""
        if row["tested"] and math.isfinite(row["p_value"]):
            families[row["side"], row["subspace"]].append(row)
    for family in families.values():
        adjusted = holm(np.array([row["p_value"] for row in family]))
        for row, value in zip(family, adjusted, strict=True):
            row["p_adjusted"], row["correction"] = float(value), "holm"
    rows["expert_means", ""] = _expert_means(rows)
    for (table, variant), own in rows.items():
        if own:
            columns = {name: [row[name] for row in own] for name in own[0]}
            run.write(table, variant=variant, reference=reference, **columns)


def _expert_means(rows: Rows) -> list[dict[str, Any]]:
    """Fractions of all routed experts of a layer together, ΣE·f/ΣE."""
    energies = {(row["layer"], row["role"], row["expert"]): row["delta_energy"] for row in rows["deltas", ""]}
    of_experts: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    names = ("layer", "role", "side", "subspace", "k")
    for row in rows["fractions", ""]:
        if row["expert"] >= 0:
            of_experts[tuple(row[name] for name in names)].append(row)
    found = []
    for key, own in of_experts.items():
        weights = np.array([energies[row["layer"], row["role"], row["expert"]] for row in own])
        means = {
            name: float(np.average([row[name] for row in own], weights=weights))
            for name in ("fraction", "relative")
        }
        found.append({**dict(zip(names, key, strict=True)), "experts": len(own), **means})
    return found
