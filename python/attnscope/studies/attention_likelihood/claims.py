# SPDX-License-Identifier: MIT
"""Measures of the paper's claims; the verdict is made by `attnscope.study_api.claims`.

Every claim has one number over all layers, chosen before anything is seen: its sign in single layers is told
in the reason. Models with random weights, on the trained model's versions of the texts (those of the last
checkpoint of a series), must not show as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd

from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.studies.attention_likelihood.options import SWAP
from attnscope.studies.attention_likelihood.tables import Association
from attnscope.studies.overall import Statistic, statistic_of
from attnscope.study_api.claims import (
    CONTRADICTED,
    SUPPORTED,
    UNDECIDED,
    ClaimRow,
    ClaimSet,
    Control,
    Estimate,
    Region,
    Untestable,
    above,
    below,
)
from attnscope.study_api.number_text import counted, estimate_text, number
from attnscope.study_api.rows import rows_as
from attnscope.study_api.selection import where, without

if TYPE_CHECKING:
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions
    from attnscope.study_api.stage_run import StageRun

CLAIMS = ClaimSet()
#: How models with random weights are called in reasons, and how they are switched on.
UNTRAINED, HINT = "models with random weights", "--set options.nulls=[random_weights]"
_NONE_LESS_LIKELY = "no mode is less likely than the real words"


@dataclass(frozen=True)
class Evidence:
    """The tables of one checkpoint under the exact protocol.

    Attributes:
        associations: rows of `head_mean_associations`.
        shifts: rows of `shifts`.
        statistics: rows of `overall`.
        controls: statistic -> values of the models with random weights.
    """

    associations: pd.DataFrame
    shifts: pd.DataFrame
    statistics: pd.DataFrame
    controls: Mapping[str, list[float]]

    def statistic(self, name: str) -> Statistic | None:
        """Return a number over all layers; None where it has no value."""
        return statistic_of(self.statistics, name)

    def estimate(
        self,
        statistic: str,
        region: Region,
        *,
        words: str = "",
        words_of_verdicts: Mapping[str, str] | None = None,
    ) -> Estimate | None:
        """Return a number over all layers with its interval, p and control; None where it has no value."""
        row = self.statistic(statistic)
        if row is None:
            return None
        control = Control(UNTRAINED, self.controls.get(statistic, []), hint=HINT)
        return Estimate(
            row.estimate,
            row.low,
            row.high,
            region,
            row.p_value,
            speaks="either",
            controls=[control],
            words=words,
            words_of_verdict=words_of_verdicts or {},
        )


def write(run: StageRun, options: LikelihoodOptions) -> None:
    """Write the table `claims` of every checkpoint."""
    if "shifts" not in run.stored.tables():
        return
    names = ("head_mean_associations", "shifts", "overall")
    tables = {name: run.read(name) for name in names}
    controls = pd.DataFrame(columns=["model", "statistic", "estimate"])
    if "control_overall" in run.stored.tables():
        controls = run.read("control_overall")
    exact = {name: where(table, protocol="exact") for name, table in tables.items()}
    for values, _ in exact["shifts"].groupby([*CHECKPOINT_KEYS], dropna=False, sort=False):
        keys = dict(zip(CHECKPOINT_KEYS, values, strict=True))
        rows = {name: where(table, **keys) for name, table in exact.items()}
        by_statistic = where(controls, model=keys["model"]).groupby("statistic")["estimate"]
        evidence = Evidence(
            rows["head_mean_associations"],
            rows["shifts"],
            rows["overall"],
            {str(name): [float(value) for value in draws] for name, draws in by_statistic},
        )
        CLAIMS.write(run, {"": evidence}, options, protocol="exact", **keys)


def layers_of(rows: pd.DataFrame) -> str:
    """Return the numbers of the layers in words.

    >>> layers_of(pd.DataFrame({"layer": [2, 0, 2]})), layers_of(pd.DataFrame({"layer": []}))
    ('layers 0, 2', 'no layer')
    """
    layers = sorted({int(layer) for layer in rows["layer"]})
    if not layers:
        return "no layer"
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"


def _signs(rows: pd.DataFrame, column: str, alpha: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows beyond chance: those above 0 and those below."""
    certain = rows[rows["p_adjusted"] <= alpha]
    return certain[certain[column] > 0], certain[certain[column] < 0]


@CLAIMS.claim(
    "C1",
    "attention of a word to itself varies with the likelihood of what stands there",
    "correlation of likelihood and share within texts, mean over layers",
)
def follows_likelihood(evidence: Evidence, options: LikelihoodOptions) -> Estimate | Untestable:
    """Measure the correlation over the versions of a text."""
    rows = evidence.associations
    rows = where(rows, design="within", predictor="log_likelihood")
    if rows.empty or rows["z"].isna().all():
        return Untestable("no text has three versions whose attention differs")
    above_0, below_0 = _signs(rows, "estimate", options.alpha)
    best = strongest_association(rows)
    words = (
        f"above 0 in {layers_of(above_0)}, below 0 in {layers_of(below_0)} (family-wise); strongest in layer "
        f"{best.layer}: ρ {number(best.estimate)}, {number(best.slope)} share per nat"
    )
    words_of_verdicts = {"supported": "each version is another token, so that this needs no expectation"}
    estimate = evidence.estimate("within", above(0.0), words=words, words_of_verdicts=words_of_verdicts)
    return estimate or Untestable("no text has three versions whose attention differs")


@CLAIMS.claim(
    "C2",
    "an unexpected word attends less to itself",
    "share of less likely words − that of real ones, mean over layers and modes",
)
def unlikely_attend_less(evidence: Evidence, options: LikelihoodOptions) -> Estimate | Untestable:
    """Measure the change of the share in all modes that are less likely than the real words."""
    rows = _less_likely(evidence.shifts)
    rows = where(rows, measure="share")
    above_0, below_0 = _signs(rows, "difference", options.alpha)
    words = f"lowered in {layers_of(below_0)}, raised in {layers_of(above_0)} (any mode, Holm)"
    estimate = evidence.estimate("shift_of_share", below(0.0), words=words)
    return Untestable(_NONE_LESS_LIKELY) if rows.empty or estimate is None else estimate


@CLAIMS.claim(
    "C3",
    "the more so in higher layers",
    "correlation within texts, mean of the last third of the layers − that of the first third",
)
def stronger_in_higher_layers(evidence: Evidence, options: LikelihoodOptions) -> Estimate | Untestable:
    """Measure how the correlation differs between the ends of the depth."""
    estimate = evidence.estimate("depth", above(0.0))
    if estimate is None:
        return Untestable("depth has thirds from three layers on")
    return estimate if estimate.has_interval else Untestable("fewer than five texts: no interval", estimate)


@CLAIMS.claim(
    "C4",
    "it is the expectation that counts, not which token stands there",
    "swap: share at home − in the other text, mean over layers",
)
def expectation_counts(evidence: Evidence, options: LikelihoodOptions) -> Estimate | Untestable:
    """Measure what a word's share gains at home, where effects of token and text cancel."""
    swap, cost = evidence.statistic("swap"), evidence.statistic("swap_nats")
    if swap is None or cost is None:
        return Untestable("no two texts can exchange their words")
    nats, pairs = cost.estimate, int(swap.n)
    rows = evidence.associations
    rows = where(rows, design="swap", measure="share")
    above_0, below_0 = _signs(rows, "estimate", options.alpha)
    words = (
        f"{counted(pairs, 'pair')} at {number(nats)} nats; above 0 in {layers_of(above_0)}, below 0 in "
        f"{layers_of(below_0)} (Holm)"
    )
    estimate = evidence.estimate("swap", above(0.0), words=words)
    if estimate is None or not estimate.has_interval:
        return Untestable(f"{counted(pairs, 'pair')} of texts: no interval", estimate)
    if nats < options.least_nats:
        reason = (
            f"an exchanged word costs {number(nats)} nats, below {options.least_nats:g}: to this model the "
            f"text "
            f"says little of its word ({counted(pairs, 'pair')})"
        )
        return Untestable(reason, estimate)
    return estimate


@CLAIMS.claim(
    "C5",
    "attention of the word to the rest changes",
    "size of the change of attention to special tokens and to the rest, less likely words − real ones: "
    "root of the "
    "unbiased mean square over layers and both targets, negative where the square is",
)
def attention_to_the_rest_changes(evidence: Evidence, options: LikelihoodOptions) -> Estimate | Untestable:
    """Measure the size of the change, whatever its direction."""
    rows = _less_likely(evidence.shifts)
    words = []
    for measure, label in (("special", "special tokens"), ("context", "the rest")):
        raised, lowered = _signs(where(rows, measure=measure), "difference", options.alpha)
        words.append(f"to {label}: more in {layers_of(raised)}, less in {layers_of(lowered)}")
    estimate = evidence.estimate("shift_of_rest", above(0.0), words="; ".join(words))
    if rows.empty:
        return Untestable(_NONE_LESS_LIKELY)
    if estimate is None:
        return Untestable("fewer than three texts have a less likely word: no size without their noise")
    # a size has one side
    return replace(estimate, speaks="for")


def strongest_association(rows: pd.DataFrame) -> Association:
    """Return the association of the layer with the largest |z|."""
    return max(rows_as(Association, rows.dropna(subset="z")), key=lambda association: abs(association.z))


def _less_likely(shifts: pd.DataFrame) -> pd.DataFrame:
    """Return the shifts of modes that are less likely than the real words; an exchange is no such mode."""
    return without(shifts[shifts["log_likelihood_difference"] < 0], mode=SWAP)


def least_likely(shifts: pd.DataFrame) -> str:
    """Return the mode of the least likely words in a model's shifts.

    An exchange of words is no such mode, unless there is no other.
    """
    replaced = without(shifts, mode=SWAP)
    rows = replaced if len(replaced) else shifts
    return str(rows.sort_values("log_likelihood_difference")["mode"].iloc[0])


def swap_words(swap: Statistic, nats: float, claim: ClaimRow | None) -> str:
    """Return the outcome of the exchange of words, in words, by the verdict on C4.

    Args:
        swap: the gain in share at home.
        nats: cost of the exchange.
        claim: the row of C4; None where none is stored, so that the numbers are given alone.

    >>> undecided = ClaimRow("C4", "", "undecided")
    >>> words = swap_words(Statistic(0.003, -0.027, 0.026, n=5), 8.0, undecided)
    >>> words.partition(": ")[2].partition(": ")[2]
    'no effect found; one above 0.027 of the attention is excluded (5 pairs).'
    """
    estimate = estimate_text(swap.estimate, swap.low, swap.high)
    numbers = f"swap: {estimate} of the word's attention at {number(nats)} nats"
    pairs = counted(swap.n, "pair")
    if claim is None:
        return f"{numbers} ({pairs})."
    # without an interval both comparisons are False
    holds_0 = swap.low <= 0 <= swap.high
    largest = number(max(abs(swap.low), abs(swap.high)))
    reason = claim.reason.removesuffix(".")
    undecided = f"no effect found; one above {largest} of the attention is excluded" if holds_0 else reason
    words = {
        SUPPORTED: "an expected word attends more to itself than the same word elsewhere",
        CONTRADICTED: "an expected word attends less to itself than the same word elsewhere",
        UNDECIDED: undecided,
    }.get(claim.verdict, f"not testable here, {reason}")
    # a reason may end with the number of pairs
    return f"{numbers}: {words.removesuffix(f' ({pairs})')} ({pairs})."
