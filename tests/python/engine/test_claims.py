# SPDX-License-Identifier: MIT
"""One rule makes every verdict: each state, and what may never stand beside a verdict."""

import itertools
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attnscope.study_api.claims import (
    CONTRADICTED,
    NOT_TESTABLE,
    SUPPORTED,
    UNDECIDED,
    ClaimSet,
    Control,
    Estimate,
    Untestable,
    above,
    below,
    between,
    decide,
)

UNTRAINED = "models with random weights"


def verdict(*values, p=math.nan, **fields):
    return decide(Estimate(*values, p_value=p, **fields))[0]


@pytest.mark.parametrize(
    ("values", "fields", "expected"),
    [
        ((1.0, 0.5, 1.5), {}, SUPPORTED),
        ((1.0, -0.5, 2.5), {}, UNDECIDED),
        ((-1.0, -1.5, -0.5), {}, CONTRADICTED),
        ((-1.0, -1.5, -0.5), {"region": below(0.0)}, SUPPORTED),
        ((1.0, 0.5, 1.5), {"region": below(0.0)}, CONTRADICTED),
        # an interval decides about the border of the claim, not about 0
        ((0.1, 0.05, 0.14), {"region": above(math.log(2)), "p": 0.001}, CONTRADICTED),
        ((0.6, 0.4, 0.8), {"region": above(math.log(2)), "p": 0.001}, UNDECIDED),
        # equivalence: the whole interval in the band, or wholly outside
        ((1.0, 0.9, 1.1), {"region": between(0.8, 1.25)}, SUPPORTED),
        ((1.2, 0.9, 1.4), {"region": between(0.8, 1.25)}, UNDECIDED),
        ((0.5, 0.4, 0.6), {"region": between(0.8, 1.25)}, CONTRADICTED),
        # an interval and a test must both speak
        ((1.0, 0.5, 1.5), {"p": 0.04}, SUPPORTED),
        ((1.0, 0.5, 1.5), {"p": 0.06}, UNDECIDED),
        ((1.0, -0.1, 1.5), {"p": 0.04}, UNDECIDED),
        ((1.0, 0.5, 1.5), {"objection": "the sign changes with k"}, UNDECIDED),
        ((-1.0, -1.5, -0.5), {"objection": "the sign changes with k"}, CONTRADICTED),
        ((1.0, 0.5, 1.5), {"premise": "neither is concentrated"}, UNDECIDED),
        ((-1.0, -1.5, -0.5), {"premise": "neither is concentrated"}, UNDECIDED),
        # a test alone: one-sided tests never contradict
        ((1.0,), {"p": 0.01}, SUPPORTED),
        ((1.0,), {"p": 0.4}, UNDECIDED),
        ((-1.0,), {"p": 0.99}, UNDECIDED),
        ((1.0,), {"p": 0.01, "speaks": "either"}, SUPPORTED),
        ((-1.0,), {"p": 0.01, "speaks": "either"}, CONTRADICTED),
        ((-1.0,), {"p": 0.4, "speaks": "either"}, UNDECIDED),
        # an interval that lies on the other side needs the two-sided test as well
        ((-1.0, -1.5, -0.5), {"p": 0.2, "speaks": "either"}, UNDECIDED),
        ((-1.0, -1.5, -0.5), {"speaks": "either"}, CONTRADICTED),
        # a test against the claim: its silence is no support
        ((0.5,), {"p": 0.001, "speaks": "against"}, CONTRADICTED),
        ((0.5,), {"p": 0.7, "speaks": "against"}, UNDECIDED),
        ((0.1, 0.05, 0.2), {"region": below(0.3), "p": 0.7, "speaks": "against"}, SUPPORTED),
        # by design
        ((1.0,), {}, NOT_TESTABLE),
        ((math.nan, 0.5, 1.5), {}, NOT_TESTABLE),
        ((1.0,), {"p": 0.06, "draws": 18}, NOT_TESTABLE),
        ((1.0,), {"p": 0.05, "draws": 19}, SUPPORTED),
    ],
)
def test_every_state_of_the_rule(values, fields, expected):
    assert verdict(*values, **fields) == expected


def test_an_identity_holds_to_its_tolerance():
    tolerance = 1e-6
    for value, expected in ((0.0, SUPPORTED), (tolerance, SUPPORTED), (2e-6, CONTRADICTED)):
        assert decide(Estimate.exact(value, below(tolerance)))[0] == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([], NOT_TESTABLE),
        ([0.52, 0.58], NOT_TESTABLE),
        ([0.50, 0.52, 0.54, 0.51, 0.53], SUPPORTED),
        ([0.50, 0.52, 0.54, 0.51, 0.86], UNDECIDED),
        ([0.5, 0.8, 0.6, 0.7, 0.75], UNDECIDED),  # below each, and within what a sixth would reach
    ],
)
def test_a_control_takes_support_away_and_gives_nothing(seen, expected):
    control = Control(UNTRAINED, seen)
    estimate = Estimate(0.85, 0.8, 0.9, above(0.5), p_value=0.001, controls=(control,))
    decision, reasons = decide(estimate)
    assert decision == expected
    text = "; ".join(reasons)
    largest = max([*seen, 0.85])
    numbers = [float(digits) for digits in re.findall(r"\d+\.\d+", text)]
    assert all(number <= largest for number in numbers), text  # nothing above what was seen
    assert not seen or max(seen) in numbers
    # whatever the control does, it contradicts nothing
    low = Estimate(0.85, 0.4, 0.9, above(0.5), p_value=0.001, controls=(control,))
    assert decide(low)[0] == UNDECIDED


def test_the_control_takes_the_claims_direction_and_its_own_measure():
    """Of claims about small values the smallest control counts; an excess is compared by the whole."""
    control = Control("other heads", [0.4, 0.5, 0.45, 0.47, 0.48])
    assert control.exceedance(0.46, below(1.0)) == 1
    assert control.exceedance(0.1, below(1.0)) < 0.001
    excess = Estimate(0.3, 0.2, 0.4, controls=(control._replace(measured=0.49),))
    assert decide(excess)[0] == UNDECIDED
    assert decide(Estimate(0.3, 0.2, 0.4, controls=(control._replace(measured=0.9),)))[0] == SUPPORTED
    with pytest.raises(ValueError, match=r"Control.exceedance: region must have one border"):
        control.exceedance(0.4, between(0.3, 0.5))


def test_an_exchangeable_draw_is_beyond_the_control_at_its_level():
    """Eight untrained models and a ninth that plays the trained one: five per cent at most."""
    draws = np.random.default_rng(0).standard_normal((4000, 9))
    beyond = [Control(UNTRAINED, row[1:]).exceedance(row[0], above(-9.0)) <= 0.05 for row in draws]
    assert 0.025 < np.mean(beyond) <= 0.06
    assert np.mean(draws.argmax(1) == 0) > 0.09  # being the largest of nine is no level


NUMBERS = st.one_of(st.floats(-3, 3), st.just(math.nan))


@st.composite
def estimates(draw):
    value, border = draw(NUMBERS), draw(st.floats(-1, 1))
    half = draw(st.one_of(st.just(math.nan), st.floats(0, 2)))
    region = draw(st.sampled_from([above(border), below(border)]))
    controls = draw(st.lists(st.lists(st.floats(-3, 3), max_size=7), max_size=2))
    return Estimate(
        value,
        value - half,
        value + half,
        region,
        p_value=draw(st.one_of(st.just(math.nan), st.floats(0, 1))),
        speaks=draw(st.sampled_from(["for", "against", "either"])),
        draws=draw(st.sampled_from([None, 10, 999])),
        controls=tuple(Control(UNTRAINED, seen) for seen in controls),
    )


@settings(max_examples=80, deadline=None)
@given(st.lists(estimates(), min_size=1, max_size=3), st.sampled_from(["primary", "secondary"]))
def test_no_row_contradicts_itself(measured, family):
    """Whatever the numbers are: what stands beside a verdict is what the verdict needs."""
    claims = ClaimSet()
    for at in range(len(measured)):
        claims.claim(f"C{at}", "a sentence", "a statistic", family=family)(lambda evidence, options: None)
    rows = claims.decide_measured({f"C{at}": item for at, item in enumerate(measured)})
    for row, estimate in zip(rows, measured, strict=True):
        low, high = (estimate.low, estimate.high) if estimate.has_interval else (estimate.value,) * 2
        shown = not math.isnan(row.p_adjusted)
        if row.verdict == SUPPORTED:
            assert estimate.region.contains(low, high)
            assert not shown or estimate.speaks == "against" or row.p_adjusted <= 0.05
            assert shown or estimate.has_interval
            for control in estimate.controls:
                values = control.finite()
                assert len(values) >= 5
                ahead = (
                    estimate.value - values if math.isinf(estimate.region.high) else values - estimate.value
                )
                assert ahead.min() > 0
        if row.verdict == CONTRADICTED and estimate.has_interval:
            assert estimate.region.excludes(low, high)
        if row.verdict == CONTRADICTED and not estimate.has_interval:
            assert row.p_adjusted <= 0.05
            assert estimate.speaks != "for"
        if row.verdict == NOT_TESTABLE:
            assert row.reason
        assert shown == bool(row.correction)
        assert np.isnan(row.p_adjusted) or row.p_adjusted >= row.p_value


def test_more_data_never_take_support_away():
    """The same estimate with a shorter interval and a smaller p."""
    order = (CONTRADICTED, UNDECIDED, SUPPORTED)
    for value, border in itertools.product((-0.3, 0.1, 0.5), (0.0, 0.3)):
        verdicts = [
            verdict(value, value - reach, value + reach, region=above(border), p=min(1.0, reach / 4))
            for reach in (2.0, 0.5, 0.15, 0.05, 0.01)
        ]
        steps = [order.index(item) - 1 for item in verdicts]
        assert [abs(step) for step in steps] == sorted(abs(step) for step in steps), (value, border, verdicts)


def declare(**families):
    claims = ClaimSet()
    for code, family in families.items():

        @claims.claim(code, f"sentence of {code}", f"statistic of {code}", family=family)
        def measure(evidence, options, code=code):
            return evidence[code]

    return claims


def test_holm_counts_only_what_speaks_for_a_verdict():
    """No p of an untestable claim, of a design without enough draws, or against a claim counts."""
    claims = declare(C1="primary", C2="primary", C3="primary", C4="primary", C7="secondary")
    evidence = {
        "C1": Estimate(1.0, p_value=0.03),
        "C2": Untestable("no texts", Estimate(1.0, p_value=0.001)),
        "C3": Estimate(1.0, p_value=0.04, speaks="against"),
        "C4": Estimate(1.0, p_value=0.5, draws=3),
        "C7": Estimate(1.0, p_value=0.02),
    }
    rows = {row.claim: row for row in claims.decide({"": evidence}, SimpleNamespace(alpha=0.05))}
    assert rows["C1"].p_adjusted == 0.03
    assert rows["C1"].verdict == SUPPORTED
    assert rows["C3"].p_adjusted == 0.04
    assert rows["C7"].correction == "benjamini_hochberg"
    for code in ("C2", "C4"):
        assert rows[code].verdict == NOT_TESTABLE
        assert math.isnan(rows[code].p_value)


def test_contrasts_share_a_list_and_options_set_the_level():
    claims = declare(C1="primary", C2="primary")
    evidence = {
        name: {"C1": Estimate(1.0, p_value=p), "C2": Estimate(1.0, p_value=3 * p)}
        for name, p in (("unknown", 0.01), ("impossible", 0.02))
    }
    rows = claims.decide(evidence, SimpleNamespace(alpha=0.05))
    assert [row.claim for row in rows] == ["C1 unknown", "C2 unknown", "C1 impossible", "C2 impossible"]
    expected = stats.false_discovery_control([0.01, 0.03, 0.02, 0.06], method="by")  # another correction
    assert not np.allclose([row.p_adjusted for row in rows], expected)
    np.testing.assert_allclose([row.p_adjusted for row in rows], [0.04, 0.06, 0.06, 0.06])
    assert [row.verdict for row in rows] == [SUPPORTED, UNDECIDED, UNDECIDED, UNDECIDED]
    assert {row.verdict for row in claims.decide(evidence, SimpleNamespace(alpha=0.1))} == {SUPPORTED}
    few = {
        "": {code: Estimate(1.0, 0.5, 2.0, controls=[Control("sets", [0.1, 0.5])]) for code in ("C1", "C2")}
    }
    assert claims.decide(few, SimpleNamespace(alpha=0.05))[0].verdict == NOT_TESTABLE
    assert claims.decide(few, SimpleNamespace(fewest_controls=2))[0].verdict == UNDECIDED


def test_a_claim_is_declared_in_a_single_place():
    claims = declare(C1="primary")
    assert claims.sentences == {"C1": "sentence of C1"}
    with pytest.raises(ValueError, match=r"ClaimSet.claim: code 'C1' is declared twice"):
        claims.claim("C1", "again", "statistic")(lambda evidence, options: Untestable("no"))
    with pytest.raises(ValueError, match=r"Untestable: reason must not be empty"):
        Untestable("")


def test_a_range_is_no_interval():
    row = declare(C1="primary").decide({"": {"C1": Estimate(0.7, spread=(0.4, 0.9))}}, None)[0]
    assert (row.range_low, row.range_high) == (0.4, 0.9)
    assert math.isnan(row.low)
    assert row.verdict == NOT_TESTABLE
