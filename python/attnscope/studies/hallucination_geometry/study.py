# SPDX-License-Identifier: MIT
"""Study of states that tell what a model cannot know, and of its output (arXiv 2603.13911).

The boundary between two kinds of questions is a difference of means, so all states come first. Stages of a
checkpoint: `checks` (identities of edits), `states`, `answers`, `clouds` (what the states tell, their
dimension and pieces; random weights too), `along` (the model along the boundary), `interventions`; at the end
of the run, `claims`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from attnscope.errors import ConfigError
from attnscope.studies.hallucination_geometry import questions, states
from attnscope.studies.hallucination_geometry.options import HallucinationOptions
from attnscope.studies.hallucination_geometry.tables import TABLES
from attnscope.study_api.selection import without
from attnscope.study_api.stages import Stage
from attnscope.study_api.study import Study
from attnscope.study_api.units import Unit, Units

if TYPE_CHECKING:
    from attnscope.models import Encoder
    from attnscope.study_api.plan import Plan
    from attnscope.study_api.stage_run import StageRun
    from attnscope.texts.sentence import Sentence

_ALL = 10**9


class HallucinationGeometry(Study):
    """The study's stages."""

    name = "hallucination_geometry"
    Options = HallucinationOptions
    protocols = ("exact", "ruscio2026")
    tables = TABLES

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        if any(source.per == "window" for source in settings.texts):
            raise ConfigError("texts.per: hallucination_geometry asks questions; a window is none")

    def prepare_texts(
        self, sentences: Sequence[Sentence], encoder: Encoder, model: str, plan: Plan
    ) -> Sequence[Sentence]:
        """Questions inside their prompts."""
        return questions.format_questions(sentences, encoder, model, plan, self.options)

    def describe_plan(self, plan: Plan) -> list[str]:
        """Return what the questions can show, before any model is run."""
        return questions.expectations(plan, self.options)

    def stored_bytes(self, unit: Unit, plan: Plan) -> int:
        """Return the bytes of the states of last tokens, where they are no rows of a table."""
        if unit.stage != "states" or (self.options.keep_states and not unit.variant):
            return 0
        return 8 * len(unit.inputs) * (plan.layers[unit.source] + 1) * plan.widths[unit.source][0]

    def stages(self, units: Units) -> list[Stage]:
        """Return the stages of a checkpoint in their order."""
        options: HallucinationOptions = self.options
        per_checkpoint: Literal["checkpoint"] = "checkpoint"
        controls = ("random_weights",) if options.random else ()
        seeds = max(options.random, 1)
        stored = ("prompts", "states", states.HELD)
        all_texts = units.texts(block=_ALL)
        stages = [
            Stage("checks", all_texts, self.check, writes=("checks",)),
            Stage("states", units.texts(variants=controls, seeds=seeds), self.collect, writes=stored),
        ]
        tables_read: tuple[str, ...] = stored
        if options.answers is not False:
            stages.append(
                Stage(
                    "answers",
                    all_texts,
                    self.answer,
                    reads=("prompts",),
                    writes=("answers",),
                    within=per_checkpoint,
                )
            )
            tables_read = (*stored, "answers")
        stages.append(
            Stage(
                "clouds",
                units.texts(block=_ALL, variants=controls, seeds=seeds),
                self.describe,
                reads=tables_read,
                writes=(*CLOUDS, *(f"{name}_variants" for name in CLOUDS)),
                within=per_checkpoint,
            )
        )
        if options.sensitivity is not False:
            along = ("sensitivity", "readout", "contrasts")
            stages.append(
                Stage("along", all_texts, self.follow, reads=tables_read, writes=along, within=per_checkpoint)
            )
        if options.interventions is not False:
            stages.append(
                Stage(
                    "interventions",
                    all_texts,
                    self.intervene,
                    reads=tables_read,
                    writes=("interventions",),
                    within=per_checkpoint,
                )
            )
        reads = tuple(
            dict.fromkeys(table for stage in stages for table in stage.writes if table not in stored[1:])
        )
        return [
            *stages,
            Stage("claims", units.once(), self.claim, reads=reads, writes=("claims", "emergence")),
        ]

    def check(self, unit: Unit, run: StageRun) -> None:
        """Identities of the model; one that fails ends the checkpoint's part of the run."""
        from attnscope.studies.hallucination_geometry.checks import check_model

        check_model(unit, run, self.options)

    def collect(self, unit: Unit, run: StageRun) -> None:
        """States of a block of prompts."""
        states.collect(unit, run, self.options)

    def answer(self, unit: Unit, run: StageRun) -> None:
        """Write the model's answers without interventions."""
        from attnscope.studies.hallucination_geometry.answers import answer

        answer(unit, run, self.options)

    def describe(self, unit: Unit, run: StageRun) -> None:
        """Measure clouds, and read every layer out."""
        from attnscope.studies.hallucination_geometry.detecting import measure
        from attnscope.studies.hallucination_geometry.lens import read_layers

        prompts = self.prompts(unit, run)
        measure(run, prompts, self.options)
        if self.options.lens:
            read_layers(run, prompts)

    def follow(self, unit: Unit, run: StageRun) -> None:
        """Measure the model along the boundary."""
        from attnscope.studies.hallucination_geometry.direction_sensitivity import follow

        follow(run, self.prompts(unit, run), self.options)

    def intervene(self, unit: Unit, run: StageRun) -> None:
        """Write the changes of answers when states or logits are changed."""
        from attnscope.studies.hallucination_geometry.interventions import intervene

        intervene(run, self.prompts(unit, run), self.options)

    def claim(self, unit: Unit, run: StageRun) -> None:
        """Write the table `claims`."""
        from attnscope.studies.hallucination_geometry.claims import write

        write(run, self.options)

    def prompts(self, unit: Unit, run: StageRun) -> pd.DataFrame:
        """Return the prompts of a checkpoint with their columns; buckets of outcomes where requested."""
        table = questions.as_table([text.sentence for text in unit.inputs])
        table["tokens"] = [text.n_tokens for text in unit.inputs]
        table = table.sort_values("sample").reset_index(drop=True)
        table["surprisal"] = float("nan")
        if not unit.variant:
            surprisal = run.read("prompts", ["sample", "surprisal"]).set_index("sample")["surprisal"]
            table["surprisal"] = surprisal.reindex(table["sample"]).to_numpy()
        if self.options.bucket_by == "outcome":
            table = self._outcomes(table, run)
        return table

    def _outcomes(self, table: pd.DataFrame, run: StageRun) -> pd.DataFrame:
        """Prompts that the model answered right or wrong, of templates that have both."""
        answers = run.read("answers", ["sample", "correct"]).set_index("sample")["correct"]
        right = answers.reindex(table["sample"]).astype("boolean").to_numpy(dtype=object, na_value=None)
        prompts = table.assign(bucket=["right" if is_right else "wrong" for is_right in right], pair="")
        prompts = without(prompts, answer="")
        mixed = prompts.groupby("template")["bucket"].transform("nunique") > 1
        prompts = prompts[mixed].reset_index(drop=True)
        counts = {name: int((prompts["bucket"] == name).sum()) for name in ("right", "wrong")}
        if min(counts.values()) < self.options.least:
            raise ConfigError(
                f"options.bucket_by: outcome needs {self.options.least} prompts answered right and wrong in "
                f"templates that have both, got {counts}"
            )
        questions.check_neighbours(min(counts.values()), self.options)
        return prompts


#: Tables of which the random-weight control has its own.
CLOUDS = ("clouds", "contrasts", "detection", "betti", "boundaries", "lens")

STUDY = HallucinationGeometry
