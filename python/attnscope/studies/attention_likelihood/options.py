# SPDX-License-Identifier: MIT
"""The likelihood study's options."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator

from attnscope._nearest import nearest
from attnscope.study_api.study import Names, Options, one_of

#: Modes of replacement by rank among the candidates, from the least likely on.
RANKED = ("lowest", "low", "mid", "high", "highest")
#: Modes that every run has.
REAL, SWAP = "real", "swap"
NULLS = ("random_weights",)
WORDS = ("middle", "random")


class LikelihoodOptions(Options):
    """The `options` of a run of the study.

    Args:
        word: which word of a text: "middle", "random", or "column:NAME" for a column of the source.
        min_letters: of a word.
        max_pieces: tokens of a word.
        min_left: ordinary tokens before it.
        modes: of replacement: "lowest", "low", "mid", "high", "highest", or "nats:X", the candidate whose
            −log q is nearest X.
        swap: texts exchange words in pairs, which tells expectation from identity.
        candidates: "same_form": pieces that begin a word, or go on, as the real one does; "all": any id that
            is not special.
        context: the condition of the likelihood: "left" (causal models), "masked" (masked-language
            models), "auto".
        two_sided: also the likelihood of the rest of the text given the word (causal models).
        likelihood_from: a model of the same vocabulary that gives likelihoods and replacements; "" is the
            model itself.
        survey: test for every token of the original text if its attention to itself follows its
            likelihood (causal models).
        nulls: "random_weights": models of the same configuration on the trained model's versions, of a
            series those of its last checkpoint.
        random_weights: number of these models.
        bootstrap: drawings of intervals.
        permutations: of tests.
        alpha: of tests.
        least_nats: smallest cost of the exchange of words at which its test decides anything.
    """

    word: str = "middle"
    min_letters: int = Field(default=3, ge=1)
    max_pieces: int = Field(default=4, ge=1)
    min_left: int = Field(default=4, ge=1)
    modes: Names = Field(default=[*RANKED, "nats:3", "nats:6"], min_length=1)
    swap: bool = True
    candidates: Literal["same_form", "all"] = "same_form"
    context: Literal["auto", "left", "masked"] = "auto"
    two_sided: bool = False
    likelihood_from: str = ""
    survey: bool = False
    nulls: Annotated[list[str], one_of(NULLS)] = Field(default=[])
    random_weights: int = Field(default=8, ge=1)
    bootstrap: int = Field(default=2000, ge=1)
    permutations: int = Field(default=2000, ge=999)
    alpha: float = Field(default=0.05, gt=0.0, lt=1.0)
    least_nats: float = Field(default=2.0, ge=0.0)

    @field_validator("word")
    @classmethod
    def _word(cls, value: str) -> str:
        if value not in WORDS and not (value.startswith("column:") and value != "column:"):
            hint = nearest(value, [*WORDS, "column:NAME"])
            raise ValueError(f"expected middle, random or column:NAME, got {value!r}{hint}")
        return value

    @field_validator("modes")
    @classmethod
    def _modes(cls, names: list[str]) -> list[str]:
        for name in names:
            if name.startswith("nats:"):
                _positive(name)
            elif name not in RANKED:
                raise ValueError(f"there is no mode {name!r}{nearest(name, [*RANKED, 'nats:3'])}")
        if len(set(names)) < len(names):
            raise ValueError(f"expected each mode once, got {names}")
        return names


def _positive(mode: str) -> float:
    """Return the nats of a mode `nats:X`."""
    try:
        nats = float(mode.removeprefix("nats:"))
    except ValueError:
        nats = math.nan
    if not (nats > 0 and math.isfinite(nats)):
        raise ValueError(f"{mode!r}: nats: needs a positive number, as in 'nats:3'")
    return nats
