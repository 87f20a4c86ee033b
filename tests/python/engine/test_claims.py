# SPDX-License-Identifier: MIT
"""What is left of the p-values of claims that are written together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attnscope.engine.claims import UNDECIDED, Claim, adjusted


def claims(**p_values):
    return [Claim(code, "a statistic", UNDECIDED, p_value=p) for code, p in p_values.items()]


def test_the_primary_list_is_holms_and_the_rest_benjamini_and_hochbergs():
    """The smallest of m counts m-fold, the next m − 1-fold; none below the one before it."""
    every = claims(C1=0.01, C7=0.03, C2=0.04, C9=np.nan, C4=0.02, C8=0.01, C10=0.03)
    found, names = adjusted(every, ("C7", "C8"))
    np.testing.assert_allclose(found, [0.04, 0.03, 0.06, np.nan, 0.06, 0.02, 0.06], rtol=1e-12)
    assert names == ["holm", "benjamini_hochberg", "holm", "", "holm", "benjamini_hochberg", "holm"]


def test_without_a_list_of_its_own_every_claim_is_primary():
    found, names = adjusted(claims(a=0.6, b=0.01))
    np.testing.assert_allclose(found, [0.6, 0.02], rtol=1e-12)
    assert names == ["holm", "holm"]


@pytest.mark.parametrize("secondary", [(), ("a",)])
def test_what_was_not_tested_has_no_adjusted_p(secondary):
    found, names = adjusted(claims(a=np.nan), secondary)
    assert np.isnan(found).all()
    assert names == [""]
    assert adjusted([], secondary)[1] == []


@settings(max_examples=60)
@given(
    primary=st.lists(st.floats(0, 1), max_size=8),
    rest=st.lists(st.floats(0, 1), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_each_list_is_adjusted_by_itself_in_any_order(primary, rest, order):
    every = claims(
        **{f"p{at}": p for at, p in enumerate(primary)}, **{f"s{at}": p for at, p in enumerate(rest)}
    )
    order.shuffle(every)
    secondary = [one.claim for one in every if one.claim.startswith("s")]
    found = dict(zip([one.claim for one in every], adjusted(every, secondary)[0], strict=True))
    expected = stats.false_discovery_control(rest)
    np.testing.assert_allclose([found[f"s{at}"] for at in range(len(rest))], expected, rtol=1e-12)
    ranked = sorted(primary)
    for at, p in enumerate(primary):
        below = [(len(primary) - place) * one for place, one in enumerate(ranked) if one <= p]
        assert found[f"p{at}"] == pytest.approx(min(1.0, max(below)), rel=1e-12)
