# SPDX-License-Identifier: MIT
"""Contrasts of two buckets: the pairs of their prompts, and the prompts that are held out together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.statistics.exchange import Exchange, exchange_labels
from attnscope.studies.hallucination_geometry.questions import FOLDS, apart
from attnscope.study_api.selection import where, without

if TYPE_CHECKING:
    from collections.abc import Callable

    from attnscope.studies.hallucination_geometry.options import HallucinationOptions

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Contrast:
    """Prompts of the reference and of another bucket, as many of each.

    Attributes:
        name: of the other bucket.
        table: of the prompts.
        labels: 1 for the other bucket.
        pairs: number of each prompt's pair; None where the file has none.
        templates: number of each prompt's template.
        folds: number of each prompt's fold.
        nested: True if no template is in both buckets.
    """

    name: str
    table: pd.DataFrame
    labels: Array
    pairs: Array | None
    templates: Array
    folds: Array
    nested: bool

    def exchange(self, statistic: Callable[[Any], Any], draws: int, seed: int) -> Exchange:
        """Return the exchange test of a statistic of labellings [m, n] -> [m, ...]."""
        how = {"pairs": self.pairs} if self.pairs is not None else {"clusters": self.templates}
        return exchange_labels(statistic, self.labels, draws=draws, seed=seed, **how)

    def of_rows(self, rows: Array) -> Contrast:
        """Return the contrast of some of its prompts; rows: boolean [n]."""
        return replace(
            self,
            table=self.table[rows],
            labels=self.labels[rows],
            pairs=None if self.pairs is None else self.pairs[rows],
            templates=self.templates[rows],
            folds=self.folds[rows],
        )

    @property
    def n(self) -> int:
        """Prompts of each bucket."""
        return int(self.labels.sum())


def contrasts(table: pd.DataFrame, options: HallucinationOptions, rng: np.random.Generator) -> list[Contrast]:
    """Return every other bucket with the reference."""
    reference, others = buckets(options)
    all_contrasts = []
    for other in others:
        prompts = where(table, bucket=[reference, other])
        paired = without(prompts, pair="").groupby("pair")["bucket"].nunique()
        complete_pairs = paired.index[paired == 2]
        if len(complete_pairs):
            prompts = where(prompts, pair=complete_pairs)
        else:
            size = int(prompts["bucket"].value_counts().min())
            parts = [stratified(part, size, rng) for _, part in prompts.groupby("bucket")]
            prompts = pd.concat(parts)
        prompts = prompts.sort_values("sample").reset_index(drop=True)
        nested = apart(prompts)
        # where no template is in both buckets, held-out templates are no test of words
        folds = (
            rng.permutation(len(prompts)) % FOLDS if nested else pd.factorize(prompts["fold"], sort=True)[0]
        )
        all_contrasts.append(
            Contrast(
                other,
                prompts,
                (prompts["bucket"] == other).to_numpy().astype(int),
                pd.factorize(prompts["pair"])[0] if len(complete_pairs) else None,
                pd.factorize(prompts["template"], sort=True)[0],
                folds,
                nested,
            )
        )
    return all_contrasts


def buckets(options: HallucinationOptions) -> tuple[str, list[str]]:
    """Return the reference and the others; of outcomes, right and wrong."""
    if options.bucket_by == "outcome":
        return "right", ["wrong"]
    return options.reference, list(options.others)


def with_outcomes(prompts: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
    """Return prompts of any checkpoints in the buckets that their answers put them into; those whose answer
    nothing judges are in none.
    """
    keys = [key for key in (*CHECKPOINT_KEYS, "sample") if key in prompts and key in answers]
    right = prompts[keys].merge(answers[[*keys, "correct"]], on=keys, how="left")["correct"]
    names = np.where(right.fillna(False).astype(bool).to_numpy(), "right", "wrong").astype(object)
    names[right.isna().to_numpy()] = None
    return prompts.assign(bucket=names)


def of_both_outcomes(prompts: pd.DataFrame) -> pd.DataFrame:
    """Return the prompts of templates that the model answered right and wrong; others are not compared."""
    return prompts[prompts.groupby("template")["bucket"].transform("nunique") > 1]


def balanced(table: pd.DataFrame, options: HallucinationOptions, rng: np.random.Generator) -> pd.DataFrame:
    """Return as many prompts of every bucket: those of whole pairs, or a draw spread over templates."""
    reference, others = buckets(options)
    prompts = where(table, bucket=[reference, *others])
    paired = without(prompts, pair="").groupby("pair")["bucket"].nunique()
    complete_pairs = paired.index[paired == 1 + len(others)]
    if len(complete_pairs):
        return where(prompts, pair=complete_pairs).sort_values("sample")
    size = int(prompts["bucket"].value_counts().min())
    parts = [stratified(part, size, rng) for _, part in prompts.groupby("bucket")]
    return pd.concat(parts).sort_values("sample")


def stratified(part: pd.DataFrame, size: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return a number of rows, as evenly over templates as they allow."""
    if len(part) <= size:
        return part
    order = part.assign(draw=rng.random(len(part)))
    order["turn"] = order.sort_values("draw").groupby("template").cumcount()
    rows = order.sort_values(["turn", "draw"]).index[:size]
    return part.loc[rows].sort_values("sample")


def chosen_prompts(contrast: Contrast, size: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return a number of prompts of either bucket, spread over templates."""
    table = contrast.table.assign(other=contrast.labels)
    return pd.concat([stratified(part, size, rng) for _, part in table.groupby("other")])
