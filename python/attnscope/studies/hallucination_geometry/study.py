# SPDX-License-Identifier: MIT
"""Whether states tell what a model cannot know, and whether its output uses that (arXiv 2603.13911).

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
from attnscope.study_api.stages import Stage
from attnscope.study_api.study import Study
from attnscope.study_api.units import Unit, Units

if TYPE_CHECKING:
    from attnscope.engine.texts.sentence import Sentence
    from attnscope.models import Encoder
    from attnscope.study_api.plan import Plan
    from attnscope.study_api.stage_run import StageRun

_ALL = 10**9


class HallucinationGeometry(Study):
    """The stages; what they compute stands in the modules beside this one."""

    name = "hallucination_geometry"
    Options = HallucinationOptions
    protocols = ("exact", "ruscio2026")
    tables = TABLES

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        if any(one.per == "window" for one in settings.texts):
            raise ConfigError("texts.per: hallucination_geometry asks questions; a window is none")

    def worded(
        self, sentences: Sequence[Sentence], encoder: Encoder, model: str, plan: Plan
    ) -> Sequence[Sentence]:
        """Questions inside their prompts."""
        return questions.worded(sentences, encoder, model, plan, self.options)

    def expects(self, plan: Plan) -> list[str]:
        """What the questions can show, before any model is run."""
        return questions.expectations(plan, self.options)

    def stored_bytes(self, unit: Unit, plan: Plan) -> int:
        """The state behind every layer of each prompt's last token, where it is no row of a table."""
        if unit.stage != "states" or (self.options.keep_states and not unit.variant):
            return 0
        return 8 * len(unit.inputs) * (plan.layers[unit.source] + 1) * plan.widths[unit.source][0]

    def stages(self, units: Units) -> list[Stage]:
        """In the order in which a checkpoint goes through them."""
        options: HallucinationOptions = self.options
        here: Literal["checkpoint"] = "checkpoint"
        controls = ("random_weights",) if options.random else ()
        seeds = max(options.random, 1)
        stored = ("prompts", "states", states.HELD)
        whole = units.texts(block=_ALL)
        every = [
            Stage("checks", whole, self.check, writes=("checks",)),
            Stage("states", units.texts(variants=controls, seeds=seeds), self.collect, writes=stored),
        ]
        asked: tuple[str, ...] = stored
        if options.answers is not False:
            every.append(
                Stage("answers", whole, self.answer, reads=("prompts",), writes=("answers",), within=here)
            )
            asked = (*stored, "answers")
        every.append(
            Stage(
                "clouds", units.texts(block=_ALL, variants=controls, seeds=seeds), self.describe, reads=asked,
                writes=(*CLOUDS, *(f"{name}_variants" for name in CLOUDS)), within=here,
            )
        )  # fmt: skip
        if options.sensitivity is not False:
            along = ("sensitivity", "readout", "contrasts")
            every.append(Stage("along", whole, self.follow, reads=asked, writes=along, within=here))
        if options.interventions is not False:
            every.append(
                Stage(
                    "interventions",
                    whole,
                    self.intervene,
                    reads=asked,
                    writes=("interventions",),
                    within=here,
                )
            )
        reads = tuple(
            dict.fromkeys(table for one in every for table in one.writes if table not in stored[1:])
        )
        return [
            *every,
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
        """What the model says by itself."""
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
        """The model along the boundary."""
        from attnscope.studies.hallucination_geometry.along import follow

        follow(run, self.prompts(unit, run), self.options)

    def intervene(self, unit: Unit, run: StageRun) -> None:
        """What changes in the answers when states or logits are changed."""
        from attnscope.studies.hallucination_geometry.interventions import intervene

        intervene(run, self.prompts(unit, run), self.options)

    def claim(self, unit: Unit, run: StageRun) -> None:
        """What the numbers say of the paper's claims."""
        from attnscope.studies.hallucination_geometry.claims import write

        write(run, self.options)

    def prompts(self, unit: Unit, run: StageRun) -> pd.DataFrame:
        """The prompts of a checkpoint with what is known of them; buckets of outcomes where asked for."""
        table = questions.as_table([one.sentence for one in unit.inputs])
        table["tokens"] = [one.n_tokens for one in unit.inputs]
        table = table.sort_values("sample").reset_index(drop=True)
        table["surprisal"] = float("nan")
        if not unit.variant:
            found = run.read("prompts", ["sample", "surprisal"]).set_index("sample")["surprisal"]
            table["surprisal"] = found.reindex(table["sample"]).to_numpy()
        if self.options.bucket_by == "outcome":
            table = self._outcomes(table, run)
        return table

    def _outcomes(self, table: pd.DataFrame, run: StageRun) -> pd.DataFrame:
        """Prompts that the model answered right or wrong, of templates that have both."""
        answers = run.read("answers", ["sample", "correct"]).set_index("sample")["correct"]
        right = answers.reindex(table["sample"]).astype("boolean").to_numpy(dtype=object, na_value=None)
        own = table.assign(bucket=["right" if one else "wrong" for one in right], pair="")
        own = own[own["answer"] != ""]
        mixed = own.groupby("template")["bucket"].transform("nunique") > 1
        own = own[mixed].reset_index(drop=True)
        counts = {name: int((own["bucket"] == name).sum()) for name in ("right", "wrong")}
        if min(counts.values()) < self.options.least:
            raise ConfigError(
                f"options.bucket_by: outcome needs {self.options.least} prompts answered right and wrong in "
                f"templates that have both, got {counts}"
            )
        questions.check_neighbours(min(counts.values()), self.options)
        return own


#: Tables of which the random-weight control has its own.
CLOUDS = ("clouds", "contrasts", "detection", "betti", "boundaries", "lens")

STUDY = HallucinationGeometry
