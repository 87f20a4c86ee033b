# SPDX-License-Identifier: MIT
"""Measure of one pair of checkpoints: how far each matrix has moved and, by `fractions`, in which
directions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.errors import ConfigError
from attnscope.metrics.weights.matrix_spectrum import spectrum_of
from attnscope.models import LoadError
from attnscope.models.architecture import weight_map
from attnscope.models.weight_deltas import WeightDelta, weight_deltas
from attnscope.models.weight_entries import WeightEntry
from attnscope.models.weights import WeightFolder
from attnscope.statistics import holm
from attnscope.studies.pretraining_writes.fractions import FLOOR, Fractions, Rows
from attnscope.studies.pretraining_writes.subspaces import Subspaces
from attnscope.studies.pretraining_writes.sums import Sums, rank_of, title_of

if TYPE_CHECKING:
    from attnscope.models import Checkpoint
    from attnscope.studies.pretraining_writes.options import WeightsOptions
    from attnscope.study_api.stage_run import StageRun
    from attnscope.study_api.units import Unit


def measure_pair(unit: Unit, run: StageRun, options: WeightsOptions, cache: dict[str, Subspaces]) -> None:
    """Write `deltas`, `fractions`, `expert_means`, `gains`, `mechanism`, `left_out` and `mean_deviations` of
    one pair.

    Args:
        cache: subspaces of the checkpoints of the last pair, by title; replaced by those of this pair.
    """
    assert unit.checkpoint is not None
    assert unit.other is not None
    before, after = run.folder(unit.other), run.folder()
    try:
        base = WeightFolder(before)
        matrices = weight_map(base.path)
        changed = weight_deltas(
            base.path, after, roles=options.roles or None, layers=run.settings.layers or None
        )
    except ValueError as error:
        # the other pairs of a run can be measured; where there is none, nothing can
        kind = LoadError if len(run.checkpoints) > 2 else ConfigError
        raise kind(f"{unit.title}: {error}") from None
    rank = rank_of(options, matrices)

    used: dict[str, Subspaces] = {}

    def open_subspaces(of: Checkpoint) -> Subspaces:
        title = title_of(of)
        subspaces_of_checkpoint = cache.get(title) or Subspaces(
            run, Sums(run, title, rank), run.folder(of), options
        )
        subspaces_of_checkpoint.continued(run)
        used[title] = subspaces_of_checkpoint
        return subspaces_of_checkpoint

    subspaces = open_subspaces(unit.checkpoint if options.moments_of == "after" else unit.other)
    further = {}
    if options.moments_of == "both":
        further["after"] = open_subspaces(unit.checkpoint)
        series = [checkpoint for checkpoint in run.checkpoints if checkpoint.model == unit.checkpoint.model]
        if len(series) > 1:
            further["last"] = open_subspaces(max(series, key=lambda checkpoint: checkpoint.step))
    cache.clear()
    cache.update(used)
    rows: Rows = defaultdict(list)
    fractions = Fractions(base, matrices, subspaces, further, options, rows)
    is_one_series = unit.checkpoint.model == unit.other.model
    rounded = options.rounded if options.rounded != "auto" else "both" if is_one_series else "after"
    biases = _Biases(base, after)
    broken = []
    for delta in changed:
        row = _size(delta, rounded)
        row["bias_change"] = biases.change(matrices[delta.layer, delta.role, delta.expert])
        rows["deltas", ""].append(row)
        if not delta.finite:
            broken.append(f"layer {delta.layer} {delta.role}")
        elif delta.layer >= 0 and row["delta_energy"] > 0:
            fractions.add(delta, row)
    if broken:
        run.note(
            f"{unit.title}: {len(broken)} matrices hold NaN or infinite entries: {', '.join(broken[:5])}"
        )
    rows["mean_deviations", ""] = fractions.shared.rows()
    _write(run, rows, title_of(unit.other))


def _size(delta: WeightDelta, rounded: str) -> dict[str, Any]:
    """Return the row of `deltas`."""
    statistics = delta.statistics(rounded)
    spectrum = spectrum_of(delta.delta, 1)
    noise = float(statistics.noise_share)
    note = "; ".join(
        words
        for words, holds in (
            ("not finite", not delta.finite),
            (f"head {delta.tied}", bool(delta.tied)),
            (f"{delta.added} rows added", delta.added > 0),
            (f"{delta.removed} rows removed", delta.removed > 0),
            (f"{delta.changed} tokens changed", delta.changed > 0),
        )
        if holds
    )
    energy, before = float(statistics.energy), float(statistics.before_energy)
    return {
        "layer": delta.layer,
        "role": delta.role,
        "expert": -1 if delta.expert is None else delta.expert,
        "rows": delta.delta.shape[0],
        "columns": delta.delta.shape[1],
        "before_dtype": delta.before_dtype,
        "after_dtype": delta.after_dtype,
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
    """The changes of the biases, which belong to no matrix's change."""

    def __init__(self, base: WeightFolder, after: Path) -> None:
        self._base = base
        adapter = (after / "adapter_config.json").is_file()
        self._after = None if adapter else WeightFolder(after)

    def change(self, entry: WeightEntry) -> float:
        """Return ‖Δb‖ of a matrix's own outputs; NaN where either side has no bias of this name."""
        name = entry.tensor.removesuffix("weight") + "bias"
        if self._after is None or name not in self._base.shapes or name not in self._after.shapes:
            return math.nan
        change = self._after.read(name).double() - self._base.read(name).double()
        if entry.index is not None:
            change = change[entry.index]
        if entry.rows is not None:
            runs = [change[first:end] for first, end in entry.rows.runs()]
            return math.sqrt(sum(float(run.square().sum()) for run in runs))
        return float(change.norm())


def _write(run: StageRun, rows: Rows, reference: str) -> None:
    """Write the rows; p-values of tested fractions by Holm over the matrices of a side and subspace."""
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
    for (table, variant), columns_of_rows in rows.items():
        if columns_of_rows:
            columns = {name: [row[name] for row in columns_of_rows] for name in columns_of_rows[0]}
            run.write(table, variant=variant, reference=reference, **columns)


def _expert_means(rows: Rows) -> list[dict[str, Any]]:
    """Return the fractions of all routed experts of a layer together, ΣE·f/ΣE."""
    energies = {(row["layer"], row["role"], row["expert"]): row["delta_energy"] for row in rows["deltas", ""]}
    of_experts: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    names = ("layer", "role", "side", "subspace", "k")
    for row in rows["fractions", ""]:
        if row["expert"] >= 0:
            of_experts[tuple(row[name] for name in names)].append(row)
    means_of_layers = []
    for key, rows_of_layer in of_experts.items():
        weights = np.array([energies[row["layer"], row["role"], row["expert"]] for row in rows_of_layer])
        means = {
            name: float(np.average([row[name] for row in rows_of_layer], weights=weights))
            for name in ("fraction", "relative")
        }
        means_of_layers.append({**dict(zip(names, key, strict=True)), "experts": len(rows_of_layer), **means})
    return means_of_layers
