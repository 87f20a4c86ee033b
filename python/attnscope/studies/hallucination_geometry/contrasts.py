# SPDX-License-Identifier: MIT
"""Two buckets beside each other: which prompts belong together, and which are held out together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.inference.exchange import Exchange, exchange_labels
from attnscope.studies.hallucination_geometry.questions import FOLDS, apart

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
        pairs: which prompts belong together; None where nothing says it.
        templates: number of each prompt's template.
        folds: number of each prompt's fold.
        nested: whether no template stands in both buckets.
    """

    name: str
    table: pd.DataFrame
    labels: Array
    pairs: Array | None
    templates: Array
    folds: Array
    nested: bool

    def exchange(self, statistic: Callable[[Any], Any], draws: int, seed: int) -> Exchange:
        """The exchange test of a statistic of labellings [m, n] -> [m, ...]."""
        how = {"pairs": self.pairs} if self.pairs is not None else {"clusters": self.templates}
        return exchange_labels(statistic, self.labels, draws=draws, seed=seed, **how)

    @property
    def n(self) -> int:
        """Prompts of each bucket."""
        return int(self.labels.sum())


def contrasts(table: pd.DataFrame, options: HallucinationOptions, rng: np.random.Generator) -> list[Contrast]:
    """Every other bucket beside the reference."""
    reference, others = buckets(options)
    found = []
    for other in others:
        own = table[table["bucket"].isin([reference, other])]
        paired = own[own["pair"] != ""].groupby("pair")["bucket"].nunique()
        whole = paired.index[paired == 2]
        if len(whole):
            own = own[own["pair"].isin(whole)]
        else:
            size = int(own["bucket"].value_counts().min())
            parts = [stratified(part, size, rng) for _, part in own.groupby("bucket")]
            own = pd.concat(parts)
        own = own.sort_values("sample").reset_index(drop=True)
        nested = apart(own)
        # where no template stands in both buckets, held-out templates would say nothing of words
        folds = rng.permutation(len(own)) % FOLDS if nested else pd.factorize(own["fold"], sort=True)[0]
        found.append(
            Contrast(
                other, own, (own["bucket"] == other).to_numpy().astype(int),
                pd.factorize(own["pair"])[0] if len(whole) else None,
                pd.factorize(own["template"], sort=True)[0], folds, nested,
            )
        )  # fmt: skip
    return found


def buckets(options: HallucinationOptions) -> tuple[str, list[str]]:
    """The reference and the others; of outcomes, right and wrong."""
    if options.bucket_by == "outcome":
        return "right", ["wrong"]
    return options.reference, list(options.others)


def balanced(table: pd.DataFrame, options: HallucinationOptions, rng: np.random.Generator) -> pd.DataFrame:
    """As many prompts of every bucket: those of whole pairs, or a draw spread over templates."""
    reference, others = buckets(options)
    own = table[table["bucket"].isin([reference, *others])]
    paired = own[own["pair"] != ""].groupby("pair")["bucket"].nunique()
    whole = paired.index[paired == 1 + len(others)]
    if len(whole):
        return own[own["pair"].isin(whole)].sort_values("sample")
    size = int(own["bucket"].value_counts().min())
    parts = [stratified(part, size, rng) for _, part in own.groupby("bucket")]
    return pd.concat(parts).sort_values("sample")


def stratified(part: pd.DataFrame, size: int, rng: np.random.Generator) -> pd.DataFrame:
    """So many rows, as evenly over templates as they allow."""
    if len(part) <= size:
        return part
    order = part.assign(draw=rng.random(len(part)))
    order["turn"] = order.sort_values("draw").groupby("template").cumcount()
    rows = order.sort_values(["turn", "draw"]).index[:size]
    return part.loc[rows].sort_values("sample")


def chosen_prompts(contrast: Contrast, size: int, rng: np.random.Generator) -> pd.DataFrame:
    """So many prompts of either bucket, spread over templates."""
    table = contrast.table.assign(other=contrast.labels)
    return pd.concat([stratified(part, size, rng) for _, part in table.groupby("other")])
