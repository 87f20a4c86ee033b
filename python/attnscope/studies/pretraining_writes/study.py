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
from attnscope.study_api.stages import Stages
from attnscope.study_api.study import Study
from attnscope.study_api.units import Cut, Unit, Units

if TYPE_CHECKING:
    from attnscope.config.run_config import RunConfig
    from attnscope.study_api.plan import Plan
    from attnscope.study_api.stage_run import StageRun


STAGES = Stages()
PAIRS = (
    "deltas",
    "fractions",
    "fractions_variants",
    "expert_means",
    "gains",
    "mechanism",
    "left_out",
    "mean_deviations",
)


def texts_of_bases(units: Units, study: PretrainingWrites) -> Cut:
    """Return the texts of the checkpoints whose directions are read, and of their controls."""
    controls = ("random_weights",) if "random_weights" in study.options.nulls else ()
    base = study.options.base if study.options.moments_of == "before" else ""
    return units.texts(variants=controls, seeds=study.options.random_weights, base=base)


@STAGES.stage(texts_of_bases, writes=("sums", "unembeddings", "token_energies", "checks"))
def moments(study: PretrainingWrites, unit: Unit, run: StageRun) -> None:
    """Add the moments of a block of texts."""
    sums.add_texts(unit, run, study.options)


@STAGES.stage(
    lambda units, study: units.checkpoints(),
    name="inputs",
    reads=("sums", "token_energies"),
    writes=("moments",),
)
def describe_inputs(study: PretrainingWrites, unit: Unit, run: StageRun) -> None:
    """Describe what the matrices of a checkpoint read."""
    inputs.describe(unit, run, study.options)


@STAGES.stage(
    lambda units, study: units.checkpoint_pairs(study.options.base),
    reads=("sums", "unembeddings"),
    writes=PAIRS,
)
def deltas(study: PretrainingWrites, unit: Unit, run: StageRun) -> None:
    """Measure the change between the checkpoints of a pair."""
    changes.measure_pair(unit, run, study.options, study.subspaces)


@STAGES.stage(
    lambda units, study: units.texts(block=study.options.rank_one.texts, base=study.options.base),
    name="rank_one",
    reads=("sums",),
    writes=("rank_one",),
    when=lambda study: bool(study.options.rank_one),
)
def change_by_rank_one(study: PretrainingWrites, unit: Unit, run: StageRun) -> None:
    """Measure changes of rank one in the base."""
    rank_one.measure(unit, run, study.options)


@STAGES.stage(
    lambda units, study: units.once(),
    name="claims",
    reads=(
        "deltas",
        "fractions",
        "fractions_variants",
        "mechanism",
        "left_out",
        "mean_deviations",
        "checks",
        "rank_one",
    ),
    writes=("claims",),
)
def decide_claims(study: PretrainingWrites, unit: Unit, run: StageRun) -> None:
    """Decide the claims of every pair and of the run."""
    claims.write(run, study.options)


class PretrainingWrites(Study):
    """Moments of the base, then every pair of checkpoints, then the claims.

    `options` are those of `attnscope.studies.pretraining_writes.options.WeightsOptions`.
    """

    name = "pretraining_writes"
    Options = WeightsOptions
    joins_equal_texts = True
    tables = TABLES
    declared_stages = STAGES

    def __init__(self, settings: RunConfig) -> None:
        super().__init__(settings)
        #: By title, of the checkpoints that the last pair was measured in: pairs of a run share their base.
        self.subspaces: dict[str, Subspaces] = {}

    def stored_bytes(self, unit: Unit, plan: Plan) -> int:
        """Return the bytes of two second moments of what each matrix reads, and of gradients at what it
        writes.
        """
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


STUDY = PretrainingWrites
