# SPDX-License-Identifier: MIT
"""Every claim of the study of knowing and saying, with tables from which each verdict follows."""

import numpy as np
import pandas as pd
import pytest

from attnscope.studies.hallucination_geometry.claims import Evidence, claims
from attnscope.studies.hallucination_geometry.options import HallucinationOptions

U, F = "unknown", "factual"


def prompts(count=40):
    return pd.DataFrame(
        {
            "sample": range(2 * count),
            "bucket": [U, F] * count,
            "template": [f"t{at // 8}" for at in range(2 * count)],
        }
    )


def detection(excess=0.2, low=0.1, auc=0.8, length=0.5, words=0.5):
    scores = {"auc": auc, "auc_length": length, "auc_words": words, "auc_excess": excess}
    return pd.DataFrame(
        [{"contrast": U, "layer": layer, "score": name, "auc": value, "low": low, "high": value + 0.1}
         for layer in (0, 1) for name, value in scores.items()]
    )  # fmt: skip


def contrasts(p=0.01, **values):
    quantities = {"auc_direction": 0.8, "log_dimension_ratio": 0.8, "fragmentation_gap": 0.1,
                  "log_transport_ratio": 1.0, "log_gain_ratio": -1.0, **values}  # fmt: skip
    return pd.DataFrame(
        [{"contrast": U, "layer": layer, "quantity": name, "k": 10 if "dimension" in name else 0,
          "value": value, "low": value - 0.3, "high": value + 0.3, "p_value": p, "p_adjusted": p,
          "labellings": 1e6}
         for layer in (0, 1) for name, value in quantities.items()]
    )  # fmt: skip


def judged(code, tables, controls=None, **options):
    tables = {"prompts": prompts(), **tables}
    how = HallucinationOptions(others=[U], **options)
    found = claims(Evidence(U, F, tables, controls or {}, how))
    return next(one for one in found if one.claim == code)


def of_seeds(table, **columns):
    """A control of eight initialisations."""
    draw = np.random.default_rng(0)
    name, value = next(iter(columns.items()))
    return pd.concat([table.assign(seed=seed, **{name: value + draw.normal(0, 0.005)}) for seed in range(8)])


def test_every_claim_of_the_paper_is_there():
    tables = {"prompts": prompts(), "detection": detection(), "contrasts": contrasts()}
    found = list(claims(Evidence(U, F, tables, {}, HallucinationOptions(others=[U]))))
    assert [one.claim for one in found] == [
        *(f"C{at}" for at in (1, 2, 3, 4, 5, 6, 7, 9, 10)), "C13", "C8", "C12"
    ]  # fmt: skip
    assert all(one.reason for one in found if one.verdict == "not testable here")


@pytest.mark.parametrize(
    ("changes", "p", "random", "verdict", "reason"),
    [
        ({}, 0.01, None, "supported", "layer 0, AUC 0.80"),
        ({"excess": -0.1}, 0.01, None, "contradicted", "no layer knows more than its baselines"),
        ({}, 0.2, None, "undecided", "exchanged labels give as much"),
        ({"low": -0.1}, 0.01, None, "undecided", "its interval holds 0"),
        ({}, 0.01, 0.9, "contradicted", "models with random weights reach 0.9"),
        ({}, 0.01, 0.5, "supported", "layer 0"),
        (
            {"length": 0.95},
            0.01,
            None,
            "not testable here",
            "length alone tells unknown from factual with AUC 0.95",
        ),
        ({"length": 0.05}, 0.01, None, "not testable here", "length alone .* AUC 0.95: no claim"),
        ({"words": 0.7}, 0.01, None, "not testable here", "a count of words alone .* AUC 0.70"),
    ],
)
def test_detection(changes, p, random, verdict, reason):
    controls = None
    if random is not None:
        controls = {"detection": of_seeds(detection()[lambda d: d["score"] == "auc"], auc=random)}
    tables = {"detection": detection(**changes), "contrasts": contrasts(p)}
    found = judged("C1", tables, controls)
    assert found.verdict == verdict
    import re

    assert re.search(reason, found.reason)


def test_nested_templates_allow_nothing():
    tests = contrasts().assign(labellings=10.0, p_value=np.nan, p_adjusted=np.nan)
    found = judged("C1", {"detection": detection(), "contrasts": tests})
    assert (found.verdict, found.reason) == (
        "not testable here", "the buckets are confounded with their templates"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "p", "random", "verdict", "reason"),
    [
        (0.8, 0.01, None, "supported", "ratio 2.23"),
        (0.8, 0.01, 0.8, "contradicted", "random weights give 2.2"),
        (0.8, 0.01, 0.1, "supported", "ratio 2.23"),
        (-0.8, 0.01, None, "contradicted", "the sign is the other"),
        (0.1, 0.3, None, "contradicted", "not twice as large"),
        (0.6, 0.3, None, "undecided", "exchanged labels give as much"),
    ],
)
def test_dimension(value, p, random, verdict, reason):
    tests = contrasts(p, log_dimension_ratio=value)
    controls = random and {"contrasts": of_seeds(tests, value=random)}
    found = judged("C2", {"contrasts": tests}, controls)
    assert found.verdict == verdict
    assert reason in found.reason


def test_a_sign_that_changes_with_the_neighbours_contradicts_dimension():
    tests = contrasts()
    other = tests[tests["quantity"] == "log_dimension_ratio"].assign(k=30, value=-0.2)
    found = judged("C2", {"contrasts": pd.concat([tests, other])})
    assert (found.verdict, "changes with k" in found.reason) == ("contradicted", True)


@pytest.mark.parametrize(("ratio", "verdict"), [(1.1, "contradicted"), (1.8, "undecided")])
def test_rank(ratio, verdict):
    table = pd.DataFrame(
        [{"layer": layer, "bucket": bucket, "null": "", "quantity": "effective_rank", "protocol": "exact",
          "value": value} for layer in (0, 1) for bucket, value in ((U, 10 * ratio), (F, 10.0))]
    )  # fmt: skip
    found = judged("C3", {"clouds": table})
    assert found.verdict == verdict
    assert found.value == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("gap", "p", "random", "verdict"),
    [(0.1, 0.01, None, "supported"), (0.1, 0.2, None, "contradicted"), (-0.1, 0.01, None, "contradicted"),
     (0.1, 0.01, 0.1, "contradicted"), (0.1, 0.01, 0.0, "supported")],
)  # fmt: skip
def test_pieces(gap, p, random, verdict):
    tests = contrasts(p, fragmentation_gap=gap)
    controls = None if random is None else {"contrasts": of_seeds(tests, value=random)}
    assert judged("C4", {"contrasts": tests}, controls).verdict == verdict


@pytest.mark.parametrize(
    ("own", "other", "verdict", "reason"),
    [
        (1.0, 1.0, "contradicted", "rises with depth"),
        (-2.0, -2.0, "contradicted", "factual falls as much"),
        (-3.0, -0.5, "supported", "factual falls less, by 2.5"),
        (0.0, 0.0, "undecided", "holds 0"),
    ],
)
def test_sensitivity_falls(own, other, verdict, reason):
    table, noise = prompts(), np.random.default_rng(0).normal(0, 0.2, 80)
    change = {U: own, F: other}
    rows = [
        {"contrast": U, "sample": row.sample, "layer": layer, "direction": "boundary",
         "refusal_alignment": np.nan,
         "relative_fisher": np.exp(layer * (change[row.bucket] + noise[row.sample]))}
        for row in table.itertuples(index=False) for layer in (0, 1)
    ]  # fmt: skip
    tests = contrasts(0.3, log_fisher_ratio=0.1)
    found = judged("C5", {"sensitivity": pd.DataFrame(rows), "contrasts": tests})
    assert found.p_value == 0.3
    assert found.verdict == verdict
    assert reason in found.reason


@pytest.mark.parametrize(
    ("gain", "p", "verdict"), [(2.0, 0.01, "contradicted"), (0.3, 0.01, "supported"), (0.3, 0.4, "undecided")]
)
def test_gain(gain, p, verdict):
    rows = [{"contrast": U, "layer": layer, "direction": name, "k": 4, "readout_gain": value}
            for layer in (0, 1, 2) for name, value in (("boundary", gain), ("covariance", 1.0))]  # fmt: skip
    found = judged("C6", {"readout": pd.DataFrame(rows), "contrasts": contrasts(p)})
    assert found.verdict == verdict
    assert found.p_value == p
    assert "layer 0" in found.reason


@pytest.mark.parametrize(
    ("cosine", "verdict", "reason"),
    [(0.5, "contradicted", "does align"), (0.02, "contradicted", "nothing is blocked"),
     (0.0, "supported", "less aligned than random")],
)  # fmt: skip
def test_gradients(cosine, verdict, reason):
    draws = np.linspace(0.01, 0.1, 20)
    values = [("boundary", -1, cosine), *(("covariance", at, one) for at, one in enumerate(draws))]
    rows = [{"contrast": U, "sample": 0, "layer": layer, "direction": name, "draw": at,
             "relative_fisher": 1.0, "refusal_alignment": value}
            for layer in (0, 1) for name, at, value in values]  # fmt: skip
    found = judged("C7", {"sensitivity": pd.DataFrame(rows)})
    assert found.verdict == verdict
    assert reason in found.reason
    assert found.p_value == pytest.approx((1 + (draws <= cosine).sum()) / 21)


@pytest.mark.parametrize(("cosine", "verdict"), [(0.995, "supported"), (0.6, "contradicted")])
def test_stability(cosine, verdict):
    rows = [{"contrast": U, "layer": layer, "stability": value, "stability_null": 0.9}
            for layer, value in ((0, np.nan), (1, cosine), (2, 0.999))]  # fmt: skip
    assert judged("C9", {"boundaries": pd.DataFrame(rows)}).verdict == verdict


def wired(knows, layers=(0,), gains=(0, 2, 5, 5.5, 20)):
    """One detector forces unknown prompts at a small gain; all force everything at a large one."""
    table, rng = prompts(), np.random.default_rng(0)
    rows = []
    for layer in layers:
        for row in table.itertuples(index=False):
            for control in ("probe", "constant", "length"):
                least = 5 + (rng.random() if control != knows else -3 * (row.bucket == U))
                rows += [{"contrast": U, "layer": layer, "arm": "bypass", "control": control,
                          "sample": row.sample, "strength": gain, "forced": gain >= least}
                         for gain in gains]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("knows", "verdict"), [("probe", "supported"), ("length", "contradicted"), ("none", "undecided")]
)
def test_bypass_is_judged_by_whom_it_hits(knows, verdict):
    rows = wired(knows)
    found = judged("C10", {"interventions": rows})
    assert "a refusal by construction" in found.reason
    forced = rows.assign(unknown=rows["sample"] % 2 == 0).astype({"forced": float})
    rates = forced.pivot_table(index=["control", "strength"], columns="unknown", values="forced")
    j = (rates[True] - rates[False]).groupby("control").max().clip(lower=0)
    assert found.value == pytest.approx(j["probe"] - max(j["constant"], j["length"]))
    assert found.verdict == (verdict if knows != "none" or found.value > 0 else "contradicted")
    if knows == "probe":
        assert found.p_value == 0.001
        assert found.low > 0.5
    else:
        assert found.p_value > 0.2


def test_bypass_pays_for_its_layers_and_needs_labellings():
    one = judged("C10", {"interventions": wired("probe", (0, 1, 2))})
    assert one.p_value == 0.001
    nested = prompts().assign(template=lambda d: d["bucket"])
    found = judged("C10", {"prompts": nested, "interventions": wired("probe")})
    assert np.isnan(found.p_value)
    assert found.verdict == "undecided"
    forceless = judged("C10", {"interventions": wired("probe", gains=(0, 1))})
    assert forceless.value == 0
    assert forceless.verdict == "contradicted"


def test_claims_are_decided_by_what_the_primary_list_leaves():
    """Beside one p of .001 the four others count fourfold."""
    from attnscope.studies.hallucination_geometry.claims import judged as every

    def found(p):
        tables = {"prompts": prompts(), "detection": detection(), "contrasts": contrasts(p),
                  "interventions": wired("probe")}  # fmt: skip
        evidence = Evidence(U, F, tables, {}, HallucinationOptions(others=[U]))
        return {one.claim: one for one in every([evidence])}

    held, lost = found(0.0124), found(0.0126)
    tested = [code for code, one in held.items() if np.isfinite(one.p_value)]
    assert tested == [f"{code} {U}" for code in ("C1", "C2", "C4", "C10", "C13")]
    for code in ("C1", "C2", "C4"):
        assert held[f"{code} {U}"].verdict == "supported", code
        assert lost[f"{code} {U}"].verdict != "supported", code
    assert lost[f"C10 {U}"].verdict == "supported"


@pytest.mark.parametrize(
    ("value", "p", "verdict"),
    [(1.0, 0.01, "supported"), (-1.0, 0.01, "contradicted"), (1.0, 0.3, "undecided")],
)
def test_expressed_or_silent(value, p, verdict):
    assert judged("C13", {"contrasts": contrasts(p, log_transport_ratio=value)}).verdict == verdict


def test_what_was_not_measured_is_not_testable():
    for code in ("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C9", "C10", "C13", "C8", "C12"):
        found = judged(code, {})
        assert (found.verdict, bool(found.reason)) == ("not testable here", True)
