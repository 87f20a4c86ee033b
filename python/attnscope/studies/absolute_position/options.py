# SPDX-License-Identifier: MIT
"""The position study's own settings, and which arms and query sets they mean."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from attnscope.study_api.study import Options, one_of

INPUTS = ("windows", "shuffled", "repeated")
#: Arms that replace the token at position 0, that change another position, that remove reads of 0.
REPLACEMENTS = ("zero", "mean", "token", "gaussian", "special")
CONTROLS = ("control_1", "control_late")
#: Replacements whose vectors are drawn at random.
DRAWN = ("token", "gaussian")
READS = ("unread", "hidden")
ARMS = (*REPLACEMENTS, *CONTROLS, "no_bos", *READS)


class PositionOptions(Options):
    """The `options` of a run of the study.

    Args:
        groups: of texts; estimates compare groups, intervals leave one out.
        queries: first and last early query that the model-wide numbers are taken over.
        inputs: "windows" of text, "shuffled" ones, one token "repeated".
        arms: changes of the model or its text: replacements of the token at position 0 ("zero",
            "mean", "token", "gaussian", "special"), the same at other positions ("control_1",
            "control_late"), "no_bos", and reads of position 0 taken away ("unread", "hidden"); "all".
        vectors: draws of "token" and "gaussian".
        matched: different sets of as many heads as read position 0, in the same layers; with fewer than
            1/alpha − 1 of them no p can decide.
        sinks: a head reads position 0 when it gives it more than this on average.
        reader: the same for the arms "unread" and "hidden", which need one such share.
        null_draws: sign-flipped means that the floor of a distance is taken from.
        permutations: sign flips of a test.
        alpha: level of the tests.
        least_moved: in layer 0 attention may be moved beyond the mask by less than this share of what the
        mask
            moves.
        leakage: the precursor's fits of every text without BOS, and of the same text turned round.
        leakage_samples: texts that the precursor's own test draws, with replacement.
        bands: of rotary frequencies; 0: none.
        lengths: of the pieces that windows are cut into to see how the leakage share falls; none: []. Each
            must divide max_tokens.
        rope: another rotation that every pass runs under: "none", ["ntk", f] or ["interpolate", f]; null: the
            model's own. What a trained model does under it shows the architecture off its training.
        window: keys that a query sees in every pass, within the model's own mask; null: all.
        keep_sums: store the sums over texts in the table `sums`; `sums.profile_of_sums` makes profiles of
            them again, to which those of further texts can be merged.
        nulls: "random_weights": the same architecture with weights drawn anew.
        random_weights: how many of them.
    """

    groups: int = Field(default=16, ge=4)
    queries: tuple[int, int] = (2, 32)
    inputs: Annotated[list[str], one_of(INPUTS)] = Field(list(INPUTS))
    arms: Annotated[list[str], one_of(ARMS)] = Field(list(ARMS))
    vectors: int = Field(default=8, ge=1)
    matched: int = Field(default=20, ge=1)
    sinks: list[Annotated[float, Field(gt=0.0, lt=1.0)]] = Field([0.1, 0.2, 0.3, 0.5])
    reader: float = Field(default=0.3, gt=0.0, lt=1.0)
    null_draws: int = Field(default=200, ge=1)
    permutations: int = Field(default=9999, ge=999)
    leakage: bool = True
    leakage_samples: int = Field(default=50, ge=2)
    rope: Literal["none"] | tuple[Literal["ntk", "interpolate"], Annotated[float, Field(gt=0)]] | None = None
    window: int | None = Field(default=None, ge=1)
    bands: int = Field(default=10, ge=0)
    lengths: list[Annotated[int, Field(ge=6)]] = Field([])
    keep_sums: bool = False
    alpha: float = Field(default=0.05, gt=0.0, lt=1.0)
    least_moved: float = Field(default=0.1, gt=0.0)
    nulls: Annotated[list[str], one_of(("random_weights",))] = Field(["random_weights"])
    random_weights: int = Field(default=8, ge=1)

    @field_validator("queries")
    @classmethod
    def _queries(cls, value: tuple[int, int]) -> tuple[int, int]:
        if not 2 <= value[0] <= value[1]:
            raise ValueError(f"expected 2 <= first <= last, got {list(value)}")
        return value

    @field_validator("lengths")
    @classmethod
    def _lengths(cls, value: list[int]) -> list[int]:
        if len(value) == 1 or len(set(value)) < len(value):
            raise ValueError(f"expected two different lengths or more, or none, got {value}")
        return value

    @field_validator("inputs")
    @classmethod
    def _inputs(cls, value: list[str]) -> list[str]:
        if "windows" not in value:
            raise ValueError(f"expected windows among the inputs, got {value}")
        return value


def query_sets(options: Any, m: int) -> dict[str, tuple[int, int]]:
    """Return names of the sets of early queries, each with its first and last one.

    >>> query_sets(PositionOptions(), 16)
    {'early': (2, 15), '2-8': (2, 8), '2': (2, 2), '3-4': (3, 4), '5-8': (5, 8), '9-15': (9, 15)}
    """
    first, last = options.queries[0], min(options.queries[1], m - 1)
    sets = {"early": (first, last)}
    if last >= 8:
        sets["2-8"] = (2, 8)
    start, stop = 2, 2
    while start <= last:
        end = min(stop, last)
        sets[f"{start}-{end}" if end > start else str(start)] = (start, end)
        start, stop = stop + 1, 2 * stop
    return sets
