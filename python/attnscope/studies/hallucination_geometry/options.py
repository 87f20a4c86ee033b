# SPDX-License-Identifier: MIT
"""The study's own settings."""

from __future__ import annotations

import string
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from attnscope.study_api.study import Names, Options, one_of

NULLS = ("covariance", "template", "gaussian", "labels", "random_weights")
REFUSALS = (
    r"\b(i|we) (do not|don't|cannot|can't|could not|couldn't) (know|tell|answer|say|determine|find)\b",
    r"\b(not sure|unsure|uncertain|unclear|unknown|no idea)\b",
    r"\bthere (is|was) no (such|known)\b",
    r"\b(does|do|did) not exist\b",
)


#: Strengths of interventions.
Strengths = list[Annotated[float, Field(allow_inf_nan=False)]]


class SensitivityOptions(Options):
    """Options of the measures along the boundary.

    Args:
        prompts: of each bucket, spread over the templates.
        directions: random ones of each kind that the boundary is compared with.
        method: "jvp" is exact; "difference" takes steps.
        dtype: the model is copied into it when it is in half precision.
        refusal: words whose first tokens count as a refusal.
    """

    prompts: int = Field(default=48, ge=2)
    directions: int = Field(default=20, ge=1)
    method: Literal["jvp", "difference"] = "jvp"
    dtype: Literal["float32", "float64"] = "float32"
    refusal: Names = Field(default=[" unsure", " unknown", " uncertain", " unclear"])


class AnswerOptions(Options):
    """Options of the answers.

    Args:
        tokens: of each, chosen greedily.
    """

    tokens: int = Field(default=16, ge=1)


class InterventionOptions(Options):
    """Options of the interventions and their sizes.

    Args:
        depths: of the layers, as shares of all.
        prompts: of each bucket.
        gains: of the detector on a refusal token's logit.
        alphas: of the difference of means added to the state, both signs.
        relative_alphas: likewise, as shares of the state's norm.
        lambdas: how far states are drawn to the main directions of the reference.
        controls: draws of each random direction and of random subspaces.
        tokens: generated.
        temperature: 0 takes the likeliest token; above it tokens are drawn, and the unchanged model is asked
            twice, so that the share of answers that change by themselves is known.
        every_step: steer, and add the detector's gain, at every generated token instead of the first.
        target: the word whose first token the detector is wired to; null: the first of
            `sensitivity.refusal`.
    """

    depths: list[float] = Field(default=[0.25, 0.55, 0.85])
    prompts: int = Field(default=120, ge=2)
    gains: Strengths = Field(default=[0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0])
    alphas: Strengths = Field(default=[0.5, 1.0, 2.0])
    relative_alphas: Strengths = Field(default=[0.02, 0.1, 0.5])
    lambdas: Strengths = Field(default=[0.2, 0.5, 1.0])
    controls: int = Field(default=5, ge=1)
    tokens: int = Field(default=24, ge=1)
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    every_step: bool = False
    target: str | None = None

    @field_validator("depths")
    @classmethod
    def _inside(cls, value: list[float]) -> list[float]:
        if not value or not all(0 <= share <= 1 for share in value):
            raise ValueError(f"expected shares between 0 and 1, got {value}")
        return value


class HallucinationOptions(Options):
    """`options` of a run of the study.

    Args:
        prompt: what a question is put into.
        chat: use the tokenizer's chat template instead.
        reference: the bucket that the others are compared with.
        others: those.
        bucket_by: "label" takes the buckets of the file; "outcome" makes `right` and `wrong` of the answers
            that the model gives to the reference's questions.
        bucket: column of the file with the prompt's bucket.
        template: column with the wording that the question was made of.
        pair: column with the number that a prompt and its partner share.
        answer: column with the right answers.
        fold: column with the part of a cross-validation.
        match_tokens: most tokens by which a prompt of `unknown` may differ from its partner; null: any.
        allow_endings: go on with prompts that end in different tokens.
        least: prompts that a bucket must have.
        dimension_k: neighbours of the local dimension.
        primary_k: the one that is tested.
        metric: of the topology.
        cloud_points: most points of a bucket in the topology.
        min_size: points of a cluster.
        nulls: what clouds and models are compared with.
        null_draws: of each null cloud.
        random_weights: initialisations of the control.
        permutations: labellings of the exchange test.
        readout_k: main directions of the unembedding.
        sensitivity: along the boundary; false leaves it out.
        lens: read every layer out as the last one is.
        answers: how they are made; false makes none.
        interventions: false leaves them out.
        keep_states: keep the states as a table of the run.
        alpha: level of the claims.
        fewest_controls: draws that a control must have before it can take part in a verdict.
        band: share of each bucket's points nearest to the boundary, of which the Betti curves are; null: all.
            The paper takes .4.
    """

    prompt: str = "Question: {question}\nAnswer:"
    chat: bool = False
    reference: str = "factual"
    others: Names = Field(default=["impossible", "unknown"])
    bucket_by: Literal["label", "outcome"] = "label"
    bucket: str = "bucket"
    template: str = "template"
    pair: str = "pair"
    answer: str = "answer"
    fold: str = "fold"
    match_tokens: int | None = Field(default=0, ge=0)
    allow_endings: bool = False
    least: int = Field(default=20, ge=4)
    dimension_k: list[int] = Field(default=[5, 10, 20, 30])
    primary_k: int = 10
    metric: Literal["cosine", "euclidean"] = "cosine"
    cloud_points: int = Field(default=400, ge=4)
    min_size: int = Field(default=5, ge=1)
    nulls: Annotated[list[str], one_of(NULLS)] = Field(default=["covariance", "template", "random_weights"])
    null_draws: int = Field(default=20, ge=1)
    random_weights: int = Field(default=8, ge=1)
    permutations: int = Field(default=999, ge=19)
    readout_k: list[Annotated[int, Field(ge=1)]] = Field(default=[16, 64, 100, 200])
    sensitivity: SensitivityOptions | Literal[False] = SensitivityOptions()
    lens: bool = True
    answers: AnswerOptions | Literal[False] = AnswerOptions()
    interventions: InterventionOptions | Literal[False] = InterventionOptions()
    keep_states: bool = True
    alpha: float = Field(default=0.05, gt=0.0, lt=1.0)
    fewest_controls: int = Field(default=5, ge=2)
    band: float | None = Field(default=None, gt=0, le=1)

    @field_validator("prompt")
    @classmethod
    def _holds(cls, value: str) -> str:
        if "{question}" not in value:
            raise ValueError(f"expected a text that holds {{question}}, got {value!r}")
        try:
            places = {name for _, name, _, _ in string.Formatter().parse(value) if name is not None}
        except ValueError as error:
            raise ValueError(f"{error}; a brace of the text is doubled, got {value!r}") from None
        if others := sorted(places - {"question"}):
            got = f"got {{{others[0]}}}"
            raise ValueError(f"nothing but {{question}} is filled in, a brace of the text is doubled, {got}")
        return value

    @model_validator(mode="after")
    def _check_options(self) -> HallucinationOptions:
        if self.primary_k not in self.dimension_k:
            raise ValueError(f"expected primary_k among dimension_k {self.dimension_k}, got {self.primary_k}")
        if min(self.dimension_k) < 2 or self.dimension_k != sorted(set(self.dimension_k)):
            raise ValueError(f"expected ascending dimension_k from 2 on, got {self.dimension_k}")
        if self.reference in self.others or not self.others:
            raise ValueError(f"expected others besides {self.reference!r}, got {self.others}")
        if len(set(self.others)) < len(self.others):
            raise ValueError(f"expected each of others once, got {self.others}")
        if self.bucket_by == "outcome" and self.answers is False:
            raise ValueError("bucket_by outcome needs answers, got answers: false")
        return self

    @property
    def random(self) -> int:
        """Initialisations of the random-weight control, 0 where it is off."""
        return self.random_weights if "random_weights" in self.nulls else 0
