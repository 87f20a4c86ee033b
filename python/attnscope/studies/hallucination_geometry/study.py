# SPDX-License-Identifier: MIT
"""Study of states that tell what a model cannot know, and of its output (arXiv 2603.13911).

The boundary between two kinds of questions is a difference of means, so all states come first. Stages of a
checkpoint: `checks` (identities of edits), `states`, `answers`, `clouds` (what the states tell, their
dimension and pieces; random weights too), `along` (the model along the boundary), `interventions`; at the end
of the run, `claims`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from attnscope.errors import ConfigError
from attnscope.studies.hallucination_geometry import questions, states
from attnscope.studies.hallucination_geometry.contrasts import of_both_outcomes
from attnscope.studies.hallucination_geometry.options import HallucinationOptions
from attnscope.studies.hallucination_geometry.tables import TABLES
from attnscope.study_api.selection import without
from attnscope.study_api.stages import Stages
from attnscope.study_api.study import Study
from attnscope.study_api.units import Cut, Unit, Units

if TYPE_CHECKING:
    from attnscope.models import Encoder
    from attnscope.study_api.plan import Plan
    from attnscope.study_api.stage_run import StageRun
    from attnscope.texts.sentence import Sentence

STAGES = Stages()
STATES = ("prompts", "states", states.HELD)
#: Tables of which the random-weight control has its own.
CLOUDS = ("clouds", "contrasts", "detection", "betti", "boundaries", "lens")
VARIANTS = tuple(f"{name}_variants" for name in CLOUDS)
ALONG = ("sensitivity", "readout", "contrasts")


def all_prompts(units: Units, study: HallucinationGeometry) -> Cut:
    """Return all prompts of a checkpoint together."""
    return units.texts(block=10**9)


def blocks_and_controls(units: Units, study: HallucinationGeometry) -> Cut:
    """Return blocks of prompts, of the model and of each control."""
    return units.texts(variants=controls_of(study.options), seeds=max(study.options.random, 1))


def all_prompts_and_controls(units: Units, study: HallucinationGeometry) -> Cut:
    """Return all prompts together, of the model and of each control."""
    return units.texts(block=10**9, variants=controls_of(study.options), seeds=max(study.options.random, 1))


def controls_of(options: HallucinationOptions) -> tuple[str, ...]:
    """Return the names of the controls of a run."""
    return ("random_weights",) if options.random else ()


@STAGES.stage(all_prompts, writes=("checks",))
def checks(study: HallucinationGeometry, unit: Unit, run: StageRun) -> None:
    """Check identities of the model; one that fails ends the checkpoint's part of the run."""
    from attnscope.studies.hallucination_geometry.checks import check_model

    check_model(unit, run, study.options)


@STAGES.stage(blocks_and_controls, name="states", writes=STATES)
def collect_states(study: HallucinationGeometry, unit: Unit, run: StageRun) -> None:
    """Collect the states of a block of prompts."""
    states.collect(unit, run, study.options)


@STAGES.stage(
    all_prompts,
    reads=("prompts",),
    writes=("answers",),
    within="checkpoint",
    when=lambda study: study.options.answers is not False,
)
def answers(study: HallucinationGeometry, unit: Unit, run: StageRun) -> None:
    """Write the model's answers without interventions."""
    from attnscope.studies.hallucination_geometry.answers import answer

    answer(unit, run, study.options)


@STAGES.stage(
    all_prompts_and_controls,
    reads=(*STATES, "answers"),
    writes=(*CLOUDS, *VARIANTS),
    within="checkpoint",
)
def clouds(study: HallucinationGeometry, unit: Unit, run: StageRun) -> None:
    """Measure clouds, and read every layer out."""
    from attnscope.studies.hallucination_geometry.detecting import measure
    from attnscope.studies.hallucination_geometry.lens import read_layers

    prompts = prompts_of(unit, run, study.options)
    measure(run, prompts, study.options)
    if study.options.lens:
        read_layers(run, prompts)


@STAGES.stage(
    all_prompts,
    reads=(*STATES, "answers"),
    writes=ALONG,
    within="checkpoint",
    when=lambda study: study.options.sensitivity is not False,
)
def along(study: HallucinationGeometry, unit: Unit, run: StageRun) -> None:
    """Measure the model along the boundary."""
    from attnscope.studies.hallucination_geometry.direction_sensitivity import follow

    follow(run, prompts_of(unit, run, study.options), study.options)


@STAGES.stage(
    all_prompts,
    reads=(*STATES, "answers"),
    writes=("interventions",),
    within="checkpoint",
    when=lambda study: study.options.interventions is not False,
)
def interventions(study: HallucinationGeometry, unit: Unit, run: StageRun) -> None:
    """Write the changes of answers when states or logits are changed."""
    from attnscope.studies.hallucination_geometry.interventions import intervene

    intervene(run, prompts_of(unit, run, study.options), study.options)


@STAGES.stage(
    lambda units, study: units.once(),
    reads=(
        "checks",
        "prompts",
        "answers",
        *CLOUDS,
        *VARIANTS,
        "sensitivity",
        "readout",
        "interventions",
    ),
    writes=("claims", "emergence"),
)
def claims(study: HallucinationGeometry, unit: Unit, run: StageRun) -> None:
    """Decide the claims."""
    from attnscope.studies.hallucination_geometry.claims import write

    write(run, study.options)


class HallucinationGeometry(Study):
    """The study; its stages are the functions above."""

    name = "hallucination_geometry"
    Options = HallucinationOptions
    causal = True
    protocols = ("exact", "ruscio2026")
    tables = TABLES
    declared_stages = STAGES

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        if any(source.per == "window" for source in settings.texts):
            raise ConfigError("texts.per: hallucination_geometry asks questions; a window is none")

    def prepare_texts(
        self, sentences: Sequence[Sentence], encoder: Encoder, model: str, plan: Plan
    ) -> Sequence[Sentence]:
        """Return questions inside their prompts."""
        return questions.format_questions(sentences, encoder, model, plan, self.options)

    def describe_plan(self, plan: Plan) -> list[str]:
        """Return what the questions can show, before any model is run."""
        return questions.expectations(plan, self.options)

    def stored_bytes(self, unit: Unit, plan: Plan) -> int:
        """Return the bytes of the states of last tokens, where they are no rows of a table."""
        if unit.stage != "states" or (self.options.keep_states and not unit.variant):
            return 0
        return 8 * len(unit.inputs) * (plan.layers[unit.source] + 1) * plan.widths[unit.source][0]


def prompts_of(unit: Unit, run: StageRun, options: HallucinationOptions) -> pd.DataFrame:
    """Return the prompts of a checkpoint with their columns; buckets of outcomes where requested."""
    table = questions.as_table([text.sentence for text in unit.inputs])
    table["tokens"] = [text.n_tokens for text in unit.inputs]
    table = table.sort_values("sample").reset_index(drop=True)
    table["surprisal"] = float("nan")
    if not unit.variant:
        surprisal = run.read("prompts", ["sample", "surprisal"]).set_index("sample")["surprisal"]
        table["surprisal"] = surprisal.reindex(table["sample"]).to_numpy()
    return by_outcome(table, run, options) if options.bucket_by == "outcome" else table


def by_outcome(table: pd.DataFrame, run: StageRun, options: HallucinationOptions) -> pd.DataFrame:
    """Return the prompts that the model answered right or wrong, of templates that have both."""
    outcomes = run.read("answers", ["sample", "correct"]).set_index("sample")["correct"]
    right = outcomes.reindex(table["sample"]).astype("boolean").to_numpy(dtype=object, na_value=None)
    prompts = table.assign(bucket=["right" if is_right else "wrong" for is_right in right], pair="")
    prompts = without(prompts, answer="")
    prompts = of_both_outcomes(prompts).reset_index(drop=True)
    counts = {name: int((prompts["bucket"] == name).sum()) for name in ("right", "wrong")}
    if min(counts.values()) < options.least:
        raise ConfigError(
            f"options.bucket_by: outcome needs {options.least} prompts answered right and wrong in "
            f"templates that have both, got {counts}"
        )
    questions.check_neighbours(min(counts.values()), options)
    return prompts


STUDY = HallucinationGeometry
