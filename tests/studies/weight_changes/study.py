# SPDX-License-Identifier: MIT
"""Two checkpoints, weights only: how much every matrix has moved, and along how many directions."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import load_file

from attnscope.study_api.stages import Stage
from attnscope.study_api.study import Options, Study
from attnscope.study_api.tables import Column, Table

PAIR = ("model", "revision", "step", "base_revision", "base_step")


class WeightOptions(Options):
    """Which base, and how much of the change's energy its rank holds."""

    base: str = "first"
    energy: float = 0.9


class WeightChanges(Study):
    """`changes` of every matrix of every pair, `total` over the run."""

    name = "weight_changes"
    Options = WeightOptions
    tables = (
        Table(
            "changes",
            keys=(*PAIR, "matrix"),
            columns=(
                Column("relative_change", kind="ratio", label="relative change", symbol="‖ΔW‖/‖W‖", low=0.0),
                Column("rank", kind="count", meaning="Singular values that hold the energy."),
            ),
        ),
        Table(
            "total", keys=("matrix",), columns=(Column("mean_change", low=0.0), Column("pairs", kind="count"))
        ),
    )

    def stages(self, units):
        """Every pair, then the run as a whole."""
        return [
            Stage(
                "compare",
                units.checkpoint_pairs(self.options.base),
                self.compare,
                writes=("changes", "absolute"),
            ),
            Stage("total", units.once(), self.total, reads=("changes", "absolute"), writes=("total",)),
        ]

    def compare(self, unit, run):
        """One pair, matrix by matrix."""
        after, before = (
            load_file(run.folder(checkpoint) / "model.safetensors")
            for checkpoint in (unit.checkpoint, unit.other)
        )
        for name in sorted(before):
            if before[name].ndim == 2:
                change = after[name].astype(float) - before[name].astype(float)
                energy = np.cumsum(np.linalg.svd(change, compute_uv=False) ** 2)
                total_norm = np.linalg.norm(before[name].astype(float))
                rank = int((energy < self.options.energy * energy[-1]).sum()) + 1
                run.write(
                    "changes", matrix=name, relative_change=np.linalg.norm(change) / total_norm, rank=rank
                )
                run.reduce("absolute", np.linalg.norm(change), matrix=name)

    def total(self, unit, run):
        """Means over pairs, from the partial sums."""
        pairs = run.read("changes", ["matrix", "rank"]).groupby("matrix").size()
        for (name,), sums in run.reduced("absolute", by=("matrix",)).items():
            assert sums.count == pairs[name]
            run.write("total", matrix=name, mean_change=float(sums.mean), pairs=sums.count)


STUDY = WeightChanges
