# SPDX-License-Identifier: MIT
"""The claims of a paper, and the rule that turns what was measured of them into verdicts.

A study declares each claim on the function that measures it. The function returns an `Estimate`, or
`Untestable` with the reason; it never decides. `ClaimSet.decide` adjusts the p-values of all claims that are
written together, and applies one rule to every claim of every study:

* **supported**: the estimate and its whole interval lie in the claim's region, the adjusted p that speaks for
  the claim is at most alpha, and no control does as well.
* **contradicted**: the whole interval lies outside the region; without an interval, the adjusted p that
  speaks against the claim is at most alpha.
* **not testable here**: the design cannot decide it: neither interval nor p, too few random draws for any p
  of alpha, or a claim that would be supported but for a control that has fewer than five values.
* **undecided**: everything else.

The numbers in the row are those that decided, and the reason is made from the case that holds.

Example:
    >>> CLAIMS = ClaimSet()
    >>> @CLAIMS.claim("C1", "shares rise", "mean difference")
    ... def shares_rise(rows, options):
    ...     return Estimate(1.2, 0.8, 1.6, region=above(0.0), p_value=0.001)
    >>> row, = CLAIMS.decide({"": None}, None)
    >>> row.verdict, row.p_adjusted
    ('supported', 0.001)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from attnscope.statistics import benjamini_hochberg, holm
from attnscope.study_api.number_text import rounded
from attnscope.study_api.tables import Column, columns

if TYPE_CHECKING:
    from attnscope.study_api.stage_run import StageRun

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
NOT_TESTABLE = "not testable here"
VERDICTS = (SUPPORTED, CONTRADICTED, UNDECIDED, NOT_TESTABLE)

#: Values that a control must have before it can take part in a verdict.
FEWEST_CONTROLS = 5

CLAIM_COLUMNS = (
    Column("statistic", "string", "text", meaning="What was computed."),
    *columns("value", "value", "low", "high"),
    Column("null", meaning="The border of the claim: the value that an absent effect would give."),
    Column("range_low", meaning="Smallest of several values of the statistic (draws, layers); no interval."),
    Column("range_high", meaning="Largest of them."),
    Column(
        "control_mean",
        meaning="Mean of the control's values. Those of a counterpart of the statistic, as an area is of its "
        "excess, are moved by what the two differ by, so that they stand as far from `value`.",
    ),
    Column("control_low", meaning="Smallest value of the control, moved likewise."),
    Column("control_high", meaning="Largest value of the control, moved likewise."),
    *columns("ratio", "p_value", "p_adjusted", low=0.0, high=1.0),
    Column(
        "correction",
        "string",
        "text",
        meaning="Over the claims of a list that have a p-value, those that speak against theirs apart.",
    ),
    Column("verdict", "string", "text", meaning=", ".join(VERDICTS) + "."),
    Column("reason", "string", "text", meaning="In words."),
)


class Rule(NamedTuple):
    """The numbers of the rule, which a study's options set.

    Attributes:
        alpha: level of tests.
        fewest_controls: values that a control must have before it can take part in a verdict.
    """

    alpha: float = 0.05
    fewest_controls: int = FEWEST_CONTROLS

    @classmethod
    def of(cls, options: Any) -> Rule:
        """Return the rule that options set; what they do not name keeps its default.

        >>> from types import SimpleNamespace
        >>> Rule.of(SimpleNamespace(alpha=0.01))
        Rule(alpha=0.01, fewest_controls=5)
        """
        defaults = cls()
        return cls(*(getattr(options, name, getattr(defaults, name)) for name in cls._fields))


class Region(NamedTuple):
    """The values that a claim allows: from `low` to `high`, ends not included.

    Attributes:
        low: −inf where the claim has no lower border.
        high: inf where it has no upper border.
    """

    low: float = -math.inf
    high: float = math.inf

    @property
    def border(self) -> float:
        """The border that the table of claims shows; the upper border of a band."""
        return self.high if math.isfinite(self.high) else self.low

    def contains(self, low: float, high: float) -> bool:
        """Return True if an interval lies in the region.

        >>> above(0.0).contains(0.1, 0.2), above(0.0).contains(-0.1, 0.2)
        (True, False)
        """
        return self.low < low and high < self.high

    def excludes(self, low: float, high: float) -> bool:
        """Return True if an interval lies outside the region.

        >>> above(0.0).excludes(-0.2, -0.1), above(0.0).excludes(-0.1, 0.2), between(0.8, 1.25).excludes(2, 3)
        (True, False, True)
        """
        return high < self.low or low > self.high

    def describe(self) -> str:
        """Return the region in words.

        >>> above(0.0).describe(), below(1.0).describe(), between(0.8, 1.25).describe()
        ('above 0', 'below 1', 'between 0.8 and 1.25')
        """
        if math.isinf(self.high):
            return f"above {rounded(self.low)}"
        if math.isinf(self.low):
            return f"below {rounded(self.high)}"
        return f"between {rounded(self.low)} and {rounded(self.high)}"


def above(border: float) -> Region:
    """Return the region of values larger than a border."""
    return Region(low=border)


def below(border: float) -> Region:
    """Return the region of values smaller than a border."""
    return Region(high=border)


def between(low: float, high: float) -> Region:
    """Return the region of values between two borders."""
    return Region(low, high)


ABOVE_ZERO = above(0.0)


class Control(NamedTuple):
    """The same statistic of models, directions or sets that cannot show the claim's effect.

    Attributes:
        name: plural, in words, such as "models with random weights".
        values: of its draws; values that are not finite do not count.
        measured: the estimate's counterpart where it is not the estimate itself: an AUC where the estimate is
            the AUC's excess over baselines.
        hint: in words, how the control is switched on.
    """

    name: str
    values: Sequence[float]
    measured: float = math.nan
    hint: str = ""

    def finite(self) -> npt.NDArray[np.float64]:
        """Return the values that are finite."""
        values = np.asarray(self.values, dtype=float)
        return np.asarray(values[np.isfinite(values)], dtype=np.float64)

    def beside(self, value: float) -> npt.NDArray[np.float64]:
        """Return the finite values moved so that they are as far from an estimate as from its counterpart.

        >>> Control("models with random weights", [0.5, 0.6], measured=0.8).beside(0.25).round(3).tolist()
        [-0.05, 0.05]
        """
        return self.finite() + (0.0 if math.isnan(self.measured) else value - self.measured)

    def describe(self) -> str:
        """Return number, mean and ends of the values that were seen, and their counterpart if there is one.

        >>> Control("models with random weights", [0.5, 0.58]).describe()
        '2 models with random weights: 0.5, 0.58'
        >>> Control("other heads", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).describe()
        '6 other heads: mean 0.35, from 0.1 to 0.6'
        >>> Control("models with random weights", [0.5] * 5, measured=0.8).describe()
        '5 models with random weights: mean 0.5, from 0.5 to 0.5, where 0.8 is measured'
        """
        values = self.finite()
        if len(values) < FEWEST_CONTROLS:
            return f"{len(values)} {self.name}: {', '.join(map(rounded, values))}".rstrip(": ")
        ends = f"from {rounded(values.min())} to {rounded(values.max())}"
        counterpart = "" if math.isnan(self.measured) else f", where {rounded(self.measured)} is measured"
        return f"{len(values)} {self.name}: mean {rounded(values.mean())}, {ends}{counterpart}"

    def exceedance(self, value: float, region: Region) -> float:
        """Return the p-value of a value among the control's draws, in a claim's direction.

        p is that of one further draw (t on n − 1, variance s²(1 + 1/n)), and 1 where a draw that was seen
        does as well. Being the largest of nine is no test: it happens in one of nine.

        >>> control = Control("models with random weights", [0.50, 0.52, 0.54, 0.51, 0.53])
        >>> round(control.exceedance(0.85, above(0.0)), 6), round(control.exceedance(0.545, above(0.0)), 3)
        (2.2e-05, 0.111)
        >>> control.exceedance(0.53, above(0.0))
        1.0
        """
        from scipy import special

        if math.isfinite(region.low) and math.isfinite(region.high):
            raise ValueError(f"Control.exceedance: region must have one border, got {tuple(region)}")
        sign = 1.0 if math.isinf(region.high) else -1.0
        values = sign * self.finite()
        ahead = sign * value - values
        if ahead.min() <= 0:
            return 1.0
        deviation = float(values.std(ddof=1)) * math.sqrt(1 + 1 / len(values))
        if deviation == 0:
            return 0.0
        return float(special.stdtr(len(values) - 1, -ahead.mean() / deviation))


@dataclass(frozen=True)
class Estimate:
    """A number with everything that decides about a claim.

    Attributes:
        value: of the statistic; what else is given in numbers has its unit.
        low: end of the interval that decides; NaN where a test alone decides.
        high: likewise.
        region: the values that the claim allows.
        p_value: NaN where the interval alone decides.
        speaks: "for" the claim (one-sided), "against" it (small p rejects the claim), or "either" (two-sided:
            for the claim where the value lies in the region, else against it).
        draws: random draws behind p, which cannot give a p below 1/(1 + draws); None for a p from a law.
        controls: each must not do as well.
        spread: smallest and largest of several values; shown as a range, never as an interval.
        objection: in words, a condition of the claim that fails; it takes support away and gives nothing.
        premise: in words, a premise without which the claim has no content; it leaves the claim undecided.
        words: words that are true in every case, such as the layer.
        words_of_verdict: verdict -> words that are true in that case.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    region: Region = ABOVE_ZERO
    p_value: float = math.nan
    speaks: Literal["for", "against", "either"] = "for"
    draws: int | None = None
    controls: Sequence[Control] = ()
    spread: tuple[float, float] = (math.nan, math.nan)
    objection: str = ""
    premise: str = ""
    words: str = ""
    words_of_verdict: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def exact(cls, value: float, region: Region, **fields: Any) -> Estimate:
        """Return an estimate without error, such as the largest violation of an identity.

        A value on the border lies in the region: an identity holds to its tolerance.
        """
        closed = Region(math.nextafter(region.low, -math.inf), math.nextafter(region.high, math.inf))
        return cls(value, value, value, closed, **fields)

    @property
    def has_interval(self) -> bool:
        """True if both ends of the interval are numbers."""
        return not (math.isnan(self.low) or math.isnan(self.high))


@dataclass(frozen=True)
class Untestable:
    """The answer to a claim that this run cannot test.

    Attributes:
        reason: in words; never empty.
        estimate: numbers that are shown nevertheless; their p is not.
    """

    reason: str
    estimate: Estimate | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for an empty reason."""
        if not self.reason:
            raise ValueError(f"Untestable: reason must not be empty, got {self.reason!r}")


@dataclass(frozen=True)
class Claim:
    """A claim with what was measured of it and a verdict.

    Attributes:
        claim: its code, such as "C1".
        statistic: what was computed, in words.
        verdict: one of the four.
        reason: in words; never empty where the verdict is `not testable here`.
        value: of the statistic.
        low: end of the interval that decides.
        high: likewise.
        null: the border of the claim.
        p_value: against the null.
        range_low: smallest of several values.
        range_high: largest of them.
        control_mean: mean of the control that came closest.
        control_low: its smallest value.
        control_high: its largest value.
    """

    claim: str
    statistic: str
    verdict: str
    reason: str = ""
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    null: float = math.nan
    p_value: float = math.nan
    range_low: float = math.nan
    range_high: float = math.nan
    control_mean: float = math.nan
    control_low: float = math.nan
    control_high: float = math.nan


@dataclass(frozen=True)
class ClaimRow(Claim):
    """A row of the table `claims`.

    Attributes:
        p_adjusted: over the claims that are written together.
        correction: name of the adjustment, "" without a test.
    """

    p_adjusted: float = math.nan
    correction: str = ""


def decide(
    estimate: Estimate, p_adjusted: float = math.nan, rule: Rule | None = None
) -> tuple[str, list[str]]:
    """Return the verdict on an estimate and the reasons for it, by the rule of this module.

    Args:
        estimate: of the claim's statistic.
        p_adjusted: its p after the correction over all claims; NaN takes its own.
        rule: numbers of the rule; None takes the defaults.

    >>> decide(Estimate(0.4, -0.1, 0.9, region=above(0.0)))
    ('undecided', ['the interval [−0.1, 0.9] is not wholly above 0'])
    """
    rule = rule or Rule()
    if reason := _untestable_reason(estimate, rule.alpha):
        return NOT_TESTABLE, [reason]
    if estimate.premise:
        return UNDECIDED, [estimate.premise]
    p_adjusted = estimate.p_value if math.isnan(p_adjusted) else p_adjusted
    if reason := _contradiction(estimate, p_adjusted, rule.alpha):
        return CONTRADICTED, [reason]
    absent = [control for control in estimate.controls if len(control.finite()) < rule.fewest_controls]
    reasons = _lacks_of_support(estimate, p_adjusted, rule.alpha)
    reasons += _equalled_by_controls(estimate, absent, rule.alpha)
    if reasons:
        return UNDECIDED, reasons
    if absent:
        return NOT_TESTABLE, [_absence(control, rule.fewest_controls) for control in absent]
    return SUPPORTED, [control.describe() for control in estimate.controls]


def _contradiction(estimate: Estimate, p_adjusted: float, alpha: float) -> str:
    """Return the reason for which an estimate contradicts its claim, "" if it does not."""
    significant = p_adjusted <= alpha
    region, outside = estimate.region, estimate.region.excludes(*_ends(estimate))
    if outside and estimate.has_interval and (estimate.speaks == "for" or math.isnan(p_adjusted)):
        return f"{_observation(estimate)} is not {region.describe()}"
    if significant and outside and estimate.speaks != "for":
        return f"{_observation(estimate)} is not {region.describe()}"
    if significant and estimate.speaks == "against" and not estimate.has_interval:
        return f"p {rounded(p_adjusted)} speaks against it"
    return ""


def _lacks_of_support(estimate: Estimate, p_adjusted: float, alpha: float) -> list[str]:
    """Return what an estimate and its test lack to support the claim, controls apart."""
    reasons = []
    if not estimate.region.contains(*_ends(estimate)):
        wholly = "wholly " if estimate.has_interval else ""
        reasons.append(f"{_observation(estimate)} is not {wholly}{estimate.region.describe()}")
    if p_adjusted > alpha and estimate.speaks != "against":
        reasons.append(f"adjusted p {rounded(p_adjusted)} is above {alpha:g}")
    if estimate.speaks == "against" and not estimate.has_interval:
        reasons.append("a test that does not reject is no support")
    if estimate.objection:
        reasons.append(estimate.objection)
    return reasons


def _equalled_by_controls(estimate: Estimate, absent: Sequence[Control], alpha: float) -> list[str]:
    """Return a reason for each control that does, or may do, as well as the estimate."""
    reasons = []
    for control in estimate.controls:
        if control in absent:
            continue
        measured = estimate.value if math.isnan(control.measured) else control.measured
        p_value = control.exceedance(measured, estimate.region)
        if p_value == 1:
            reasons.append(f"{control.describe()}: these do as well as {rounded(measured)}")
        elif p_value > alpha:
            reasons.append(
                f"{control.describe()}: another may do as well as {rounded(measured)} (p {p_value:.2g})"
            )
    return reasons


def _ends(estimate: Estimate) -> tuple[float, float]:
    """Return the ends of an estimate's interval, its value twice if it has none."""
    return (estimate.low, estimate.high) if estimate.has_interval else (estimate.value, estimate.value)


def _observation(estimate: Estimate) -> str:
    """Return an estimate's interval in words, its value if it has none."""
    if not estimate.has_interval:
        return rounded(estimate.value)
    return f"the interval [{rounded(estimate.low)}, {rounded(estimate.high)}]"


def _untestable_reason(estimate: Estimate, alpha: float) -> str:
    """Return why an estimate cannot decide its claim by design, "" if it can."""
    if math.isnan(estimate.value):
        return "the value is not defined"
    if not estimate.has_interval and math.isnan(estimate.p_value):
        return "neither an interval nor a test"
    if estimate.draws is not None and alpha * (1 + estimate.draws) < 1:
        return f"{estimate.draws} random draws give no p of {alpha:g} or less"
    return ""


def _absence(control: Control, fewest: int) -> str:
    """Return why a control cannot take part, in words."""
    count = len(control.finite())
    text = f"the control has {control.describe()}; it needs {fewest}"
    if not count:
        text = f"the control was not measured: {control.name}"
    return f"{text} ({control.hint})" if control.hint else text


#: Measures a claim on the evidence of a checkpoint, pair or contrast, under a study's options.
Measure = Callable[[Any, Any], "Estimate | Untestable"]


class _Declared(NamedTuple):
    """A claim as a study declares it."""

    sentence: str
    statistic: str
    family: str
    measure: Measure


@dataclass
class ClaimSet:
    """The claims of a paper: each with its sentence, what is computed, and the function that measures it.

    Attributes:
        declared: code -> declaration, in the order of the report.
    """

    declared: dict[str, _Declared] = field(default_factory=dict)

    @property
    def sentences(self) -> dict[str, str]:
        """Code -> sentence of the claim."""
        return {code: claim.sentence for code, claim in self.declared.items()}

    def claim(
        self, code: str, sentence: str, statistic: str, *, family: str = "primary"
    ) -> Callable[[Measure], Measure]:
        """Declare the decorated function as the measurement of a claim.

        Args:
            code: such as "C1".
            sentence: the claim in words.
            statistic: what is computed.
            family: the claims whose p-values are adjusted together: "secondary" by Benjamini and Hochberg,
                every other family by Holm.
        """

        def declare(measure: Measure) -> Measure:
            if code in self.declared:
                raise ValueError(f"ClaimSet.claim: code {code!r} is declared twice")
            self.declared[code] = _Declared(sentence, statistic, family, measure)
            return measure

        return declare

    def measure(self, evidence: Mapping[str, Any], options: Any) -> dict[str, Estimate | Untestable]:
        """Return what was measured of every claim: full code -> estimate.

        Args:
            evidence: suffix of the code -> what the functions take; {"": evidence} where there is only one.
            options: of the study.
        """
        return {
            f"{code} {suffix}".rstrip(): claim.measure(item, options)
            for suffix, item in evidence.items()
            for code, claim in self.declared.items()
        }

    def decide(self, evidence: Mapping[str, Any], options: Any) -> list[ClaimRow]:
        """Measure every claim, adjust the p-values, and decide by `Rule.of(options)`."""
        return self.decide_measured(self.measure(evidence, options), Rule.of(options))

    def decide_measured(
        self, measured: Mapping[str, Estimate | Untestable], rule: Rule | None = None
    ) -> list[ClaimRow]:
        """Return the rows of claims whose estimates are at hand, such as simulated ones."""
        rule = rule or Rule()
        tested = {
            code: answer
            for code, answer in measured.items()
            if isinstance(answer, Estimate)
            and not math.isnan(answer.p_value)
            and not _untestable_reason(answer, rule.alpha)
        }
        adjusted = self._adjust(tested)
        return [
            self._row(code, answer, *adjusted.get(code, (math.nan, "")), rule)
            for code, answer in measured.items()
        ]

    def _adjust(self, tested: Mapping[str, Estimate]) -> dict[str, tuple[float, str]]:
        """Return code -> adjusted p and name of the correction.

        Each family has two lists: p-values that speak for their claims, and those that speak against them.
        """
        lists: dict[tuple[str, bool], list[str]] = {}
        for code, estimate in tested.items():
            family = self.declared[code.split()[0]].family
            lists.setdefault((family, estimate.speaks == "against"), []).append(code)
        adjusted = {}
        for (family, _), codes in lists.items():
            p_values = np.array([tested[code].p_value for code in codes])
            secondary = family == "secondary"
            values = benjamini_hochberg(p_values) if secondary else holm(p_values)
            name = "benjamini_hochberg" if secondary else "holm"
            adjusted.update({code: (float(p), name) for code, p in zip(codes, values, strict=True)})
        return adjusted

    def _row(
        self, code: str, answer: Estimate | Untestable, p_adjusted: float, correction: str, rule: Rule
    ) -> ClaimRow:
        """Return the row of a claim."""
        statistic = self.declared[code.split()[0]].statistic
        if isinstance(answer, Untestable):
            numbers = {} if answer.estimate is None else _numbers(answer.estimate)
            return ClaimRow(code, statistic, NOT_TESTABLE, answer.reason, **numbers)
        verdict, reasons = decide(answer, p_adjusted, rule)
        sentences = [answer.words, *reasons, answer.words_of_verdict.get(verdict, "")]
        p_value = math.nan if math.isnan(p_adjusted) else answer.p_value
        tests: dict[str, Any] = {"p_value": p_value, "p_adjusted": p_adjusted, "correction": correction}
        reason = "; ".join(filter(None, sentences))
        return ClaimRow(code, statistic, verdict, reason, **_numbers(answer), **tests)

    def write(self, run: StageRun, evidence: Mapping[str, Any], options: Any, /, **keys: Any) -> None:
        """Write the rows of a checkpoint or pair under its keys."""
        for row in self.decide(evidence, options):
            run.write("claims", **{"protocol": "exact", **keys}, **vars(row))


def _numbers(estimate: Estimate) -> dict[str, Any]:
    """Return the columns of an estimate apart from its test."""
    numbers = {
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "null": estimate.region.border,
        "range_low": estimate.spread[0],
        "range_high": estimate.spread[1],
    }
    seen = [control for control in estimate.controls if len(control.finite())]
    if seen:
        sign = 1.0 if math.isinf(estimate.region.high) else -1.0
        all_values = [control.beside(estimate.value) for control in seen]
        values = max(all_values, key=lambda values: float((sign * values).max()))
        numbers |= {
            "control_mean": float(values.mean()),
            "control_low": float(values.min()),
            "control_high": float(values.max()),
        }
    return numbers


def adjusted(
    claims: Sequence[Claim], secondary: Collection[str] = ()
) -> tuple[npt.NDArray[np.float64], list[str]]:
    """Return adjusted p-values of claims that are written together, and the corrections' names.

    Both are NaN and "" where nothing was tested.

    Args:
        claims: all of them.
        secondary: codes of those that are not of the list which the study was made to test.
    """
    p_values = np.array([claim.p_value for claim in claims], dtype=float)
    primary = np.array([claim.claim not in secondary for claim in claims], dtype=bool)
    of_list = holm(np.where(primary, p_values, np.nan))
    others = benjamini_hochberg(np.where(primary, np.nan, p_values))
    values = np.where(primary, of_list, others)
    names = np.where(np.isnan(values), "", np.where(primary, "holm", "benjamini_hochberg"))
    return values, names.tolist()


def write_claims(
    run: StageRun, claims: Iterable[Claim], secondary: Collection[str] = (), /, **keys: Any
) -> None:
    """Write rows whose verdicts a study has decided without `ClaimSet`, p-values adjusted by `adjusted`."""
    rows = list(claims)
    for row, value, correction in zip(rows, *adjusted(rows, secondary), strict=True):
        tests = {"p_adjusted": value, "correction": correction}
        run.write("claims", **{"protocol": "exact", **keys, **vars(row), **tests})
