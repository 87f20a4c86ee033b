# SPDX-License-Identifier: MIT
"""Study of the changes that training leaves in the weights (Ruscio, Khedouri and Thompson, arXiv 2605.16600).

It measures how much of each matrix's change is in the main directions of its inputs and of the model's
predictions. The full text of the paper could not be read and no code of it was found, so that there is one
protocol, `exact`, and no published number to compare with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.studies.pretraining_writes import changes, claims, inputs, rank_one, sums
from attnscope.studies.pretraining_writes.options import WeightsOptions
from attnscope.studies.pretraining_writes.subspaces import KEPT_BYTES, Subspaces
from attnscope.studies.pretraining_writes.tables import TABLES
from attnscope.study_api.stages import Stage
from attnscope.study_api.study import Study
from attnscope.study_api.units import Unit, Units

if TYPE_CHECKING:
    from attnscope.config.run_config import RunConfig
    from attnscope.study_api.plan import Plan
    from attnscope.study_api.stage_run import StageRun


class PretrainingWrites(Study):
    """Moments of the base, then every pair of checkpoints, then the claims.

    `options` are those of `attnscope.studies.pretraining_writes.options.WeightsOptions`.
    """

    name = "pretraining_writes"
    Options = WeightsOptions
    tables = TABLES

    def __init__(self, settings: RunConfig) -> None:
        super().__init__(settings)
        #: By title, of the checkpoints that the last pair was measured in: pairs of a run share their base.
        self._subspaces: dict[str, Subspaces] = {}

    def stored_bytes(self, unit: Unit, plan: Plan) -> int:
        """Two second moments of what each matrix reads, and of gradients at what it writes."""
        if unit.stage != "moments":
            return 0
        width, inner = plan.widths[unit.source]
        sides = [width, width, width, inner]  # q, o, gate and down; others read what one of them does
        if self.options.gradients and not unit.variant:
            sides += [*sides, width, width, inner]
        most = sums.columns_of(self.options, max(width, inner)) or max(width, inner)
        groups = plan.groups(unit, self.options.groups)
        return 16 * plan.layers[unit.source] * groups * sum(side * min(side, most) for side in sides)

    def kept_bytes(self, plan: Plan) -> int:
        """Return the memory of the sums that pairs read again, and of their directions."""
        sources = {
            (unit.checkpoint.title if unit.checkpoint else "", unit.variant, unit.seed): unit
            for unit in plan.units
            if unit.stage == "moments"
        }
        total = sum(self.stored_bytes(unit, plan) for unit in sources.values())
        return min(total, sums.KEPT_BYTES) + min(total // 4, KEPT_BYTES)

    def stages(self, units: Units) -> list[Stage]:
        """Texts through the base; pairs without any text."""
        options: WeightsOptions = self.options
        controls = ("random_weights",) if "random_weights" in options.nulls else ()
        read = options.base if options.moments_of == "before" else ""
        texts = units.texts(variants=controls, seeds=options.random_weights, base=read)
        stages = [
            Stage(
                "moments", texts, self._moments, writes=("sums", "unembeddings", "token_energies", "checks")
            ),
            Stage(
                "inputs",
                units.checkpoints(),
                self._inputs,
                reads=("sums", "token_energies"),
                writes=("moments",),
            ),
            Stage(
                "deltas",
                units.checkpoint_pairs(options.base),
                self._deltas,
                reads=("sums", "unembeddings"),
                writes=(
                    "deltas",
                    "fractions",
                    "fractions_variants",
                    "expert_means",
                    "gains",
                    "mechanism",
                    "left_out",
                ),
            ),
        ]
        reads: tuple[str, ...] = (
            "deltas",
            "fractions",
            "fractions_variants",
            "mechanism",
            "left_out",
            "checks",
        )
        if options.rank_one:
            blocks = units.texts(block=options.rank_one.texts, base=options.base)
            stages.append(Stage("rank_one", blocks, self._rank_one, reads=("sums",), writes=("rank_one",)))
            reads = (*reads, "rank_one")
        return [*stages, Stage("claims", units.once(), self._claims, reads=reads, writes=("claims",))]

    def _moments(self, unit: Unit, run: StageRun) -> None:
        sums.add_texts(unit, run, self.options)

    def _inputs(self, unit: Unit, run: StageRun) -> None:
        inputs.describe(unit, run, self.options)

    def _deltas(self, unit: Unit, run: StageRun) -> None:
        changes.measure_pair(unit, run, self.options, self._subspaces)

    def _rank_one(self, unit: Unit, run: StageRun) -> None:
        rank_one.measure(unit, run, self.options)

    def _claims(self, unit: Unit, run: StageRun) -> None:
        claims.write(run, self.options)


STUDY = PretrainingWrites
