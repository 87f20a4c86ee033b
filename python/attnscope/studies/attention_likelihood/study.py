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

from typing import TYPE_CHECKING, Any, Literal

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
from attnscope.study_api.stages import Stage
from attnscope.study_api.study import Study
from attnscope.study_api.units import Cut, Unit, Units

if TYPE_CHECKING:
    from attnscope.study_api.plan import Plan
    from attnscope.study_api.stage_run import StageRun

PER_CHECKPOINT: Literal["checkpoint"] = "checkpoint"


class AttentionLikelihood(Study):
    """The study's stages."""

    name = "attention_likelihood"
    Options = LikelihoodOptions
    protocols = ("exact", "ruscio2023")
    tables = TABLES

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        if any(source.per == "window" for source in settings.texts):
            raise ConfigError(
                "texts.per: attention_likelihood reads texts as they are written, a window has no characters "
                "to find words by; --set texts.per=line"
            )

    def stages(self, units: Units) -> list[Stage]:
        """Return the stages of a checkpoint in their order."""
        options: LikelihoodOptions = self.options
        variants = tuple(options.nulls)
        all_texts, blocks = units.texts(block=10**9), units.texts()
        measured = units.texts(variants=variants, seeds=options.random_weights)
        once: Cut = units.checkpoints()
        spans = ("spans", "head_mean_spans")
        estimated = ("associations", "head_mean_associations", "overall", "shifts", "best_layers")
        stages = [
            Stage("find", all_texts, self.find, writes=("targets",)),
            Stage(
                "replace",
                blocks,
                self.replace,
                reads=("targets",),
                writes=("versions",),
                within=PER_CHECKPOINT,
            ),
            Stage("check", all_texts, self.check, ("targets", "versions"), ("checks",), PER_CHECKPOINT),
            Stage(
                "measure",
                measured,
                self.measure,
                ("targets", "versions", "checks"),
                ("words", "surveys", *spans, "head_mean_spans_variants"),
                PER_CHECKPOINT,
            ),
            Stage(
                "estimate",
                once,
                self.estimate,
                ("targets", "words", "surveys", *spans),
                estimated,
                PER_CHECKPOINT,
            ),
        ]
        judged: tuple[str, ...] = (*estimated, "words")
        if variants:
            reads = ("targets", "words", "head_mean_spans_variants")
            written = ("controls", "control_overall")
            stages.append(Stage("control", units.once(), self.control, reads, written))
            judged = (*judged, *written)
        stages.append(Stage("claim", units.once(), self.claim, judged, ("claims",)))
        return stages

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

    def find(self, unit: Unit, run: StageRun) -> None:
        """Find the word of every text, and the pairs of texts that exchange words."""
        targets.store(run, targets.find(unit, run, self.options))

    def replace(self, unit: Unit, run: StageRun) -> None:
        """Make replacements and their likelihood."""
        texts = targets.with_word(unit, run, self.options)
        if as_published.PROTOCOL in self.settings.protocols:
            as_published.make(unit, run, texts, self.options)
        if EXACT in self.settings.protocols:
            replacements.make(run, texts, self.options)

    def check(self, unit: Unit, run: StageRun) -> None:
        """Identities of the model; one that fails ends the checkpoint's part of the run."""
        if "versions" in run.stored.tables() and EXACT in self.settings.protocols:
            checks.check(run, targets.with_word(unit, run, self.options), self.options)

    def measure(self, unit: Unit, run: StageRun) -> None:
        """Attention of the words of one block of texts."""
        if as_published.PROTOCOL in self.settings.protocols and not unit.variant:
            as_published.measure(run, run.read("versions"))
        if EXACT in self.settings.protocols:
            measure.measure(unit, run, targets.with_word(unit, run, self.options), self.options)

    def estimate(self, unit: Unit, run: StageRun) -> None:
        """Correlations, differences and tests over all texts."""
        estimates.estimate(run, self.options)

    def claim(self, unit: Unit, run: StageRun) -> None:
        """Write the table `claims`."""
        claims.write(run, self.options)

    def control(self, unit: Unit, run: StageRun) -> None:
        """Estimate the same numbers of models with random weights."""
        estimates.controls(run, self.options)


STUDY = AttentionLikelihood
