# SPDX-License-Identifier: MIT
"""The division of a study: stages, and the units of work of each.

A stage is one function called once for each of its units: a checkpoint with a block of texts, a checkpoint, a
pair of checkpoints, or the run as a whole. Units are planned before the run, do not know each other, and are
stored one by one; a stage that reads a table of an earlier one starts when that is stored.

Example:
    >>> from attnscope.study_api.units import Units
    >>> Units().texts().kind, Units().checkpoint_pairs().base
    ('texts', 'first')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from attnscope.models import Checkpoint, Encoded
from attnscope.texts.sentence import Sentence

Kind = Literal["texts", "checkpoints", "pairs", "once"]


@dataclass(frozen=True)
class Input:
    """A text as one model reads it.

    Attributes:
        first_equal: number of the first text that the model reads alike, None where it is not known.
    """

    sentence: Sentence
    encoded: Encoded
    first_equal: int | None = None

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.encoded.ids)

    @property
    def is_repeated(self) -> bool:
        """True if an earlier text is read alike."""
        return self.first_equal not in (None, self.sentence.sample)


@dataclass(frozen=True)
class Unit:
    """The unit of work.

    Attributes:
        id: hash of everything that decides its numbers, the ids of all units it reads among it.
        folder: name of the folder that it is stored in.
        stage: name of its stage.
        checkpoint: which weights; None for the run as a whole.
        other: the checkpoint that it is compared with, in a stage over pairs.
        source: position of the model in the settings, -1 without one.
        inputs: the texts.
        variant: "" for what is measured, else the control: `random_weights`.
        seed: position of the control's seed.
    """

    id: str
    folder: str
    stage: str
    checkpoint: Checkpoint | None = None
    other: Checkpoint | None = None
    source: int = -1
    inputs: tuple[Input, ...] = ()
    variant: str = ""
    seed: int = 0

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts."""
        return sum(text.n_tokens for text in self.inputs)

    @property
    def model(self) -> tuple[Any, ...]:
        """Key of the model that this unit needs loaded; of the run as a whole, its stage."""
        return self.checkpoint, self.variant, self.seed, self.stage if self.checkpoint is None else ""

    @property
    def title(self) -> str:
        """Name of the checkpoint, pair or control."""
        if self.checkpoint is None:
            return self.stage
        if self.variant:
            return f"{self.checkpoint.model}, {self.variant.replace('_', ' ')}"
        return self.checkpoint.title + (f" against {self.other.title}" if self.other else "")


@dataclass(frozen=True)
class Cut:
    """A way to cut a stage into units; made by `Units`."""

    kind: Kind
    block: int | None = None
    variants: tuple[str, ...] = ()
    seeds: int = 1
    longest: bool = False
    base: str = ""


class Units:
    """The ways to cut a stage into units."""

    def texts(
        self,
        block: int | None = None,
        variants: Sequence[str] = (),
        seeds: int = 8,
        *,
        longest: bool = False,
        base: str = "",
    ) -> Cut:
        """Cut into every checkpoint with every block of texts.

        Args:
            block: texts of a unit; None takes the settings'.
            variants: controls that read the texts too: `random_weights`, once for a series of checkpoints.
            seeds: how many of each control.
            longest: whether a text's numbers depend on the length of the longest of all.
            base: only the checkpoints that `checkpoint_pairs(base)` compares others with; "" takes every one.
        """
        if unknown := set(variants) - {"random_weights"}:
            raise ValueError(f"texts: variants must be among random_weights, got {sorted(unknown)}")
        return Cut("texts", block, tuple(variants), seeds, longest, base)

    def checkpoints(self) -> Cut:
        """Cut into checkpoints, without texts."""
        return Cut("checkpoints")

    def checkpoint_pairs(self, base: str = "first") -> Cut:
        """Cut into pairs of checkpoints.

        Args:
            base: "first" of its series (of a model that is no series: the first model listed), "previous" of
                its series, or the revision or the model that all are compared with.
        """
        return Cut("pairs", base=base)

    def once(self) -> Cut:
        """Make one unit of the run as a whole."""
        return Cut("once")
