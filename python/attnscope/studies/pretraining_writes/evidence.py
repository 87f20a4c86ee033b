# SPDX-License-Identifier: MIT
"""Evidence of claims: means over the matrices of a pair, with jackknife intervals over groups of texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attnscope.statistics.groups import Array
from attnscope.studies.pretraining_writes.fractions import jackknifed, spread_over
from attnscope.studies.pretraining_writes.tables import PAIR
from attnscope.study_api.number_text import estimate_text, two_places
from attnscope.study_api.selection import matching, where


class Mean(NamedTuple):
    """A mean of log2 relative fractions: octaves above isotropic.

    Attributes:
        value: in octaves.
        low: jackknife over groups of texts; NaN with one group.
        high: likewise.
        deviation: of the mean over random subspaces, in octaves.
        expected: mean over random subspaces, in octaves: logarithms of fractions that stray around isotropic
            lie below 0, those of a change of rank one in few directions far below.
    """

    value: float
    low: float
    high: float
    deviation: float
    expected: float = 0.0

    def interval(self, choices: int = 1) -> tuple[float, float]:
        """Return the interval that holds both errors: that of the texts and that of the change.

        The jackknife is how far the mean would move with other texts. The change itself is a single draw: a
        change without preferred directions gives its expected value only up to the deviation over random
        subspaces. The interval holds the mean itself, however far that value is from 0.

        Args:
            choices: means among which this is the largest or smallest; the error of the change is widened.
        """
        from scipy import special

        change = float(special.ndtri(1 - 0.025 / choices)) * self.deviation
        texts = (0.0, 0.0) if math.isnan(self.low) else (self.value - self.low, self.high - self.value)
        below, above = (math.hypot(side, change) for side in texts)
        return self.value - max(0.0, below + self.expected), self.value + max(0.0, above - self.expected)

    @property
    def is_concentrated(self) -> bool:
        """True if the whole interval is above isotropic."""
        return self.interval()[0] > 0

    def words(self) -> str:
        """Return the ratio to isotropic and its interval."""
        low, high = self.interval()
        return estimate_text(2**self.value, 2**low, 2**high, two_places)

    def exceedance(self) -> float:
        """Return the p of so large a mean over random subspaces, one-sided."""
        from scipy import special

        if not self.deviation > 0:
            return math.nan
        return float(special.ndtr((self.expected - self.value) / self.deviation))


def interval_over(
    values: Sequence[float], unbiased: Sequence[float], alpha: float = 0.05
) -> tuple[float, float]:
    """Return the t interval of a mean of logarithms over pairs or training runs, 95 % by default.

    Args:
        values: in octaves.
        unbiased: the same less what random subspaces give, which may lie far below 0; the interval is of
            these, and holds the mean of `values` itself.
        alpha: the chance that it misses.
    """
    low, high = spread_over(unbiased, alpha)
    mean = float(np.mean(values))
    return min(low, mean), max(high, mean)


class Pair:
    """The tables of one pair.

    Attributes:
        keys: model, revision, step and reference.
        noise: rounding's share of all change.
        unchanged: share of all entries.
        step_ratio: rms of changes over that of steps, of all entries.
        mechanism: its rows.
        groups: of texts, over which the jackknife runs.
    """

    def __init__(self, keys: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> None:
        self.keys = dict(keys)
        tables_of_pair = {
            name: matching(tables.get(name, pd.DataFrame()), self.keys)
            for name in ("deltas", "fractions", "left_out", "mechanism", "mean_deviations")
        }
        self._controls = matching(tables.get("fractions_variants", pd.DataFrame()), self.keys)
        deltas = tables_of_pair["deltas"]
        blocks = deltas[deltas["layer"] >= 0]
        energy = blocks["delta_energy"]
        entries = blocks["rows"] * blocks["columns"]
        has_noise = blocks["noise_share"].notna() & (energy > 0)
        noise = (blocks["noise_share"] * energy)[has_noise].sum()
        self.energy = float(energy.sum())
        self.noise = float(noise / energy[has_noise].sum()) if has_noise.any() else 0.0
        self.unchanged = float((blocks["unchanged_share"] * entries).sum() / entries.sum())
        steps = (energy / blocks["step_ratio"] ** 2)[blocks["step_ratio"] > 0].sum()
        self.step_ratio = math.sqrt(self.energy / steps) if steps > 0 else math.nan
        fractions = tables_of_pair["fractions"]
        self.groups = (
            int(tables_of_pair["left_out"]["group"].nunique()) if len(tables_of_pair["left_out"]) else 0
        )
        self._fractions = fractions[fractions["tested"].astype(bool)] if len(fractions) else fractions
        self._left_out, self.mechanism = tables_of_pair["left_out"], tables_of_pair["mechanism"]
        self._deviations = tables_of_pair["mean_deviations"]

    def _rows(self, roles: Sequence[str], side: str, subspace: str, null: str) -> pd.DataFrame:
        table = self._fractions
        if null:
            table = self._controls
            table = where(table, variant=null) if len(table) else table
        if not len(table):
            return table
        rows = where(table, role=roles, side=side, subspace=subspace)
        return rows[rows["relative"] > 0]

    def mean(self, roles: Sequence[str], side: str, subspace: str, null: str = "") -> Mean | None:
        """Return the mean of log2 of the relative fractions of some roles; None without any."""
        rows = self._rows(roles, side, subspace, null)
        if not len(rows):
            return None
        value = float(np.log2(rows["relative"]).mean())
        if null:
            return Mean(value, math.nan, math.nan, math.nan)
        low, high = jackknifed(value, list(self._without(rows, side, subspace).values()))
        return Mean(value, low, high, *self._null(rows, roles, side, subspace))

    def contrast(self, roles: Sequence[str], others: Sequence[str], side: str, subspace: str) -> Mean | None:
        """Return the mean of some roles less that of others, on the same groups of texts."""
        sides = [self._rows(names, side, subspace, "") for names in (roles, others)]
        if any(not len(rows) for rows in sides):
            return None
        values = [float(np.log2(rows["relative"]).mean()) for rows in sides]
        without = [self._without(rows, side, subspace) for rows in sides]
        left = [without[0][group] - without[1][group] for group in without[0] if group in without[1]]
        low, high = jackknifed(values[0] - values[1], left)
        # what q, k read is turned without what o, down read: these are other spaces
        first, second = (
            self._null(rows, names, side, subspace)
            for rows, names in zip(sides, (roles, others), strict=True)
        )
        spread = math.hypot(first[0], second[0])
        return Mean(values[0] - values[1], low, high, spread, first[1] - second[1])

    def _null(
        self, rows: pd.DataFrame, roles: Sequence[str], side: str, subspace: str
    ) -> tuple[float, float]:
        """Return deviation and mean of the mean of log2 r over random subspaces.

        Matrices whose inputs are their own are independent. Subspaces of one space are turned together
        (`shared_subspaces`), which widens the deviation as it widens that of the mean of r itself.
        """
        share = (rows["fraction"] / rows["relative"]).to_numpy(dtype=float)
        deviations, means = log_moments(share, rows["deviation"].to_numpy(dtype=float))
        independent = float(np.sqrt(np.square(rows["deviation"] / share).sum()))
        deviation = float(np.sqrt(np.square(deviations).sum())) / len(rows)
        table = self._deviations
        shared = where(table, side=side, subspace=subspace, roles=" ".join(roles)) if len(table) else table
        if len(shared) and independent > 0:
            deviation *= float(shared["deviation"].iloc[0]) * len(rows) / independent
        return deviation, float(means.mean())

    def _without(self, rows: pd.DataFrame, side: str, subspace: str) -> dict[int, float]:
        """Return the same mean without each group, by group."""
        table = self._left_out
        if not len(table):
            return {}
        left_out = where(table, side=side, subspace=subspace)
        left_out = left_out.merge(rows[["layer", "role", "expert"]], on=["layer", "role", "expert"])
        means = np.log2(left_out["relative"]).groupby(left_out["group"]).mean()
        return {int(group): float(value) for group, value in means.items()}

    def logit_isotropic(self, roles: Sequence[str]) -> float:
        """Return the relative fraction that independent errors of all logits would give the last layer."""
        rows = self._rows(roles, "out", "prediction", "")
        return float((rows["share_of_energy"] * rows["relative"] / rows["fraction"]).mean())


def log_moments(share: Array, deviation: Array) -> tuple[Array, Array]:
    """Return deviation and mean of log2 f·d/k of fractions f of random subspaces, in octaves.

    The fractions have mean k/d = `share` and this deviation. A change of rank one has a beta law, and for
    others one with the same two moments is close.

    >>> deviation, mean = log_moments(np.array([1 / 16]), np.array([1e-4]))  # hardly strays
    >>> bool(abs(deviation[0] - 16e-4 / np.log(2)) < 1e-6), bool(abs(mean[0]) < 1e-5)
    (True, True)
    """
    from scipy import special

    with np.errstate(divide="ignore", invalid="ignore"):
        size = share * (1 - share) / np.square(deviation) - 1
        inside = share * size
        means = special.digamma(inside) - special.digamma(size) - np.log(share)
        deviations = np.sqrt(special.polygamma(1, inside) - special.polygamma(1, size))
    # all directions of a space hold all of any matrix
    fixed = ~(deviation > 0)
    return np.where(fixed, 0.0, deviations) / math.log(2), np.where(fixed, 0.0, means) / math.log(2)


def pairs_of(tables: Mapping[str, pd.DataFrame]) -> list[Pair]:
    """Return every pair of a run, in the order of its table of changes."""
    keys = tables["deltas"][list(PAIR)].drop_duplicates().to_dict("records")
    return [Pair({str(name): value for name, value in row.items()}, tables) for row in keys]
