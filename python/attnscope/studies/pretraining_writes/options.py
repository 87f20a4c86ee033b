# SPDX-License-Identifier: MIT
"""The study's options."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator

from attnscope.study_api.study import Names, Options, one_of

#: Matrices that every claim is about, in the order of a block.
ROLES = ("q", "k", "v", "o", "gate", "up", "down")
#: How arms are called that were stopped where all have moved as far.
MATCHED = "_matched"
NULLS = ("other_layer", "random_weights", "weights", "foreign")


class RankOneOptions(Options):
    """Changes of rank one in the matrices that write.

    Args:
        layers: of the matrices; negative ones count from the end.
        size: of the change, relative to the matrix.
        directions: drawn of each class.
        texts: that are read, the first ones.
        tokens: two ids, in any order; the second's row of the unembedding less the first's is a further
            direction to write.
    """

    layers: list[int] = Field(default=[-1], min_length=1)
    size: float = Field(default=0.05, gt=0.0)
    directions: int = Field(default=16, ge=1)
    texts: int = Field(default=16, ge=2)
    tokens: tuple[int, int] | None = None

    @field_validator("tokens")
    @classmethod
    def _tokens(cls, pair: tuple[int, int] | None) -> tuple[int, int] | None:
        if pair is not None and (pair[0] == pair[1] or min(pair) < 0):
            raise ValueError(f"expected two different token ids, got {pair[0]} and {pair[1]}")
        return pair


class WeightsOptions(Options):
    """The `options` of a run of this study.

    Args:
        base: what changes are taken from: "first" (of a series; else the first model listed), "previous" of a
            series, a revision, or a model's label.
        roles: as "q" or "down"; empty takes all.
        k: directions of the tested subspace; "d/16" takes a sixteenth of the width of each side.
        moments_of: whose inputs, gradients and unembedding changes are measured in: "before", "after", or
            "both": those of the base, of the tuned checkpoint, and of the last one of its series.
        curve: largest k of the curve over powers of 2; 0 leaves it out.
        skip_first: position 0 is left out of moments.
        groups: of texts, for the jackknife.
        moments: "exact", "sketch", or "auto": a sketch for models wider than 2048.
        fold_norm: the final norm's gain belongs to the prediction subspace.
        center: the part that the logits of all tokens share does not belong to it.
        gradients: also of the loss at the output of every matrix.
        nulls: those besides random subspaces: "other_layer" (inputs of the layer half the depth away),
            "random_weights" (inputs and unembedding of a model of the same configuration), "weights" (the
            base's own matrices on the same subspaces), "foreign" (inputs on texts of other groups than the
            first; the measured inputs are then those on the first group's texts).
        random_weights: how many such models.
        rank_one: changes of rank one in the base; false leaves them out.
        rounded: which sides were rounded when they were stored: "after", "both", or "auto": both within a
            series.
        arms: model -> the training that made it of the base, as {"tuned-0": "dpo"}; models of one arm are
            training runs of it. "ce" is continued pretraining, "contrastive_K" has K negatives, and
            "NAME_matched" is NAME after so many steps that all arms have moved as far.
        band: ratios to an isotropic change between which a change is nearly isotropic; a concentrated
            change is above the second.
        alpha: of tests.
    """

    base: str = Field(default="first", min_length=1)
    roles: Names = Field(default=[])
    k: int | Literal["d/16"] = "d/16"
    curve: int = Field(default=256, ge=0)
    skip_first: bool = True
    groups: int = Field(default=8, ge=1)
    moments: Literal["auto", "exact", "sketch"] = "auto"
    fold_norm: bool = True
    center: bool = True
    gradients: bool = True
    moments_of: Literal["before", "after", "both"] = "before"
    nulls: Annotated[list[str], one_of(NULLS)] = Field(default=list(NULLS[:3]))
    random_weights: int = Field(default=8, ge=1)
    rank_one: RankOneOptions | Literal[False] = Field(default=RankOneOptions())
    rounded: Literal["auto", "after", "both"] = "auto"
    arms: dict[str, str] = Field(default={})
    band: tuple[float, float] = (0.8, 1.25)
    alpha: float = Field(default=0.05, gt=0.0, lt=1.0)

    @field_validator("band")
    @classmethod
    def _band(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] < 1 < value[1]:
            raise ValueError(f"expected a ratio below 1 and one above it, got {value}")
        return value

    @field_validator("k")
    @classmethod
    def _k(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError(f"expected at least 1 direction, got {value}")
        return value

    def directions(self, d: int) -> int:
        """Return the tested k of a side of width d.

        >>> WeightsOptions().directions(100), WeightsOptions(k=3).directions(100)
        (7, 3)
        """
        return min(d, math.ceil(d / 16) if isinstance(self.k, str) else self.k)

    def curve_of(self, d: int) -> list[int]:
        """Return all k of a side: powers of 2 up to the largest, and the tested one.

        >>> WeightsOptions(curve=8).curve_of(48)
        [1, 2, 3, 4, 8]
        """
        most = min(d, self.curve)
        powers = [1 << at for at in range(most.bit_length()) if 1 << at <= most]
        return sorted({*powers, self.directions(d)})
