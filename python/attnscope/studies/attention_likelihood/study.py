# SPDX-License-Identifier: MIT
"""Attention and likelihood (Ruscio, Maiorca and Silvestri, arXiv 2303.08288, ICLR 2023 Tiny Papers).

One word of each text is replaced by others of the same length, likely and unlikely ones, and the word's
attention to itself is measured on each. Within a text only the token changes; where two texts exchange words,
only the expectation does.

Stages of a checkpoint: `find` (words and pairs of all texts), `replace` (their replacements, by the
model that gives likelihoods), `check` (identities; where one fails, the checkpoint is left), `measure` (a
pass of each version), `estimate`; at the end of the run, `control` and `claim`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.errors import ConfigError
from attnscope.studies.attention_likelihood import (
    as_published,
    checks,
    claims,
    estimates,
    measure,
    replacements,
    targets,
)
from attnscope.studies.attention_likelihood.estimates import EXACT
from attnscope.studies.attention_likelihood.options import LikelihoodOptions
from attnscope.studies.attention_likelihood.tables import TABLES
from attnscope.study_api.stages import Stages
from attnscope.study_api.study import Study
from attnscope.study_api.units import Cut, Unit, Units

if TYPE_CHECKING:
    from attnscope.study_api.plan import Plan
    from attnscope.study_api.stage_run import StageRun

STAGES = Stages()
SPANS = ("spans", "head_mean_spans")
ESTIMATES = ("associations", "head_mean_associations", "overall", "shifts", "best_layers")
CONTROLS = ("controls", "control_overall")


def all_texts(units: Units, study: AttentionLikelihood) -> Cut:
    """Return all texts of a checkpoint together."""
    return units.texts(block=10**9)


def blocks(units: Units, study: AttentionLikelihood) -> Cut:
    """Return blocks of texts."""
    return units.texts()


def blocks_and_controls(units: Units, study: AttentionLikelihood) -> Cut:
    """Return blocks of texts, of the model and of each control."""
    return units.texts(variants=tuple(study.options.nulls), seeds=study.options.random_weights)


@STAGES.stage(all_texts, writes=("targets",))
def find(study: AttentionLikelihood, unit: Unit, run: StageRun) -> None:
    """Find the word of every text, and the pairs of texts that exchange words.

    A model that gives no maps or no likelihood is refused here, before anything is replaced or measured.
    """
    checks.require_maps(run)
    words_of_texts = targets.find(unit, run, study.options)
    if EXACT in study.settings.protocols and not study.options.likelihood_from:
        replacements.kind_of(run.model(), run.encoder.tokenizer, study.options)
    targets.store(run, words_of_texts)


@STAGES.stage(blocks, reads=("targets",), writes=("versions",), within="checkpoint")
def replace(study: AttentionLikelihood, unit: Unit, run: StageRun) -> None:
    """Make replacements and their likelihood."""
    texts = targets.with_word(unit, run, study.options)
    if as_published.PROTOCOL in study.settings.protocols:
        as_published.make(unit, run, texts, study.options)
    if EXACT in study.settings.protocols:
        replacements.make(run, texts, study.options)


@STAGES.stage(all_texts, reads=("targets", "versions"), writes=("checks",), within="checkpoint")
def check(study: AttentionLikelihood, unit: Unit, run: StageRun) -> None:
    """Check identities of the model; one that fails ends the checkpoint's part of the run."""
    if "versions" in run.stored.tables() and EXACT in study.settings.protocols:
        checks.check(run, targets.with_word(unit, run, study.options), study.options)


@STAGES.stage(
    blocks_and_controls,
    name="measure",
    reads=("targets", "versions", "checks"),
    writes=("words", "surveys", *SPANS, "head_mean_spans_variants"),
    within="checkpoint",
)
def measure_attention(study: AttentionLikelihood, unit: Unit, run: StageRun) -> None:
    """Measure the attention of the words of one block of texts."""
    if as_published.PROTOCOL in study.settings.protocols and not unit.variant:
        as_published.measure(run, run.read("versions"))
    if EXACT in study.settings.protocols:
        measure.measure(unit, run, targets.with_word(unit, run, study.options), study.options)


@STAGES.stage(
    lambda units, study: units.checkpoints(),
    reads=("targets", "words", "surveys", *SPANS),
    writes=ESTIMATES,
    within="checkpoint",
)
def estimate(study: AttentionLikelihood, unit: Unit, run: StageRun) -> None:
    """Estimate correlations and differences over all texts, and test them."""
    estimates.estimate(run, study.options)


@STAGES.stage(
    lambda units, study: units.once(),
    reads=("targets", "words", "head_mean_spans_variants"),
    writes=CONTROLS,
    when=lambda study: bool(study.options.nulls),
)
def control(study: AttentionLikelihood, unit: Unit, run: StageRun) -> None:
    """Estimate the same numbers of models with random weights."""
    estimates.controls(run, study.options)


@STAGES.stage(lambda units, study: units.once(), reads=(*ESTIMATES, "words", *CONTROLS), writes=("claims",))
def claim(study: AttentionLikelihood, unit: Unit, run: StageRun) -> None:
    """Decide the claims."""
    claims.write(run, study.options)


class AttentionLikelihood(Study):
    """The study; its stages are the functions above."""

    name = "attention_likelihood"
    Options = LikelihoodOptions
    protocols = ("exact", "ruscio2023")
    joins_equal_texts = True
    tables = TABLES
    declared_stages = STAGES

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        if any(source.per == "window" for source in settings.texts):
            raise ConfigError(
                "texts.per: attention_likelihood reads texts as they are written, a window has no characters "
                "to find words by; --set texts.per=line"
            )

    def describe_plan(self, plan: Plan) -> list[str]:
        """Return the number of forward passes over the texts."""
        options: LikelihoodOptions = self.options
        passes = 1 + len(options.modes) + options.swap
        lines = []
        for model, source in enumerate(plan.settings.models):
            texts = {
                text.sentence.sample
                for unit in plan.units
                if unit.source == model and unit.stage == "measure"
                for text in unit.inputs
            }
            controls = len(options.nulls) * options.random_weights
            controls_words = (
                f", and {passes} of each of {controls} models with random weights" if controls else ""
            )
            lines.append(
                f"{source.label or source.path}: {passes} measured passes over {len(texts)} texts"
                f"{controls_words}; ranking takes up to "
                f"{1 + (options.max_pieces - 1) * len(options.modes)} more"
            )
        return lines


STUDY = AttentionLikelihood
