# SPDX-License-Identifier: MIT
"""Every claim of the study of knowing and saying, with tables from which each verdict follows."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib import figure as mpl
from matplotlib.colors import to_hex, to_rgba_array
from scipy import stats

from attnscope.plots.figure import Options
from attnscope.report.section import Page
from attnscope.results.results import Results
from attnscope.studies.hallucination_geometry.claims import CLAIMS, Evidence
from attnscope.studies.hallucination_geometry.contrasts import of_both_outcomes, with_outcomes
from attnscope.studies.hallucination_geometry.evidence import (
    DRAWS_OF_95,
    exceedance,
    null_ends,
    null_words,
    widen,
)
from attnscope.studies.hallucination_geometry.figures import FIGURES
from attnscope.studies.hallucination_geometry.figures.along import amplification, draw_means, means_by
from attnscope.studies.hallucination_geometry.figures.interventions import bypass_curve
from attnscope.studies.hallucination_geometry.options import HallucinationOptions
from attnscope.studies.hallucination_geometry.sections import SECTIONS, describe_contrast, findings

U, F = "unknown", "factual"
SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
NOT_TESTABLE = "not testable here"


def prompts(count=40):
    return pd.DataFrame(
        {
            "sample": range(2 * count),
            "bucket": [U, F] * count,
            "template": [f"t{at // 8}" for at in range(2 * count)],
        }
    )


def detection(excess=0.2, low=0.1, auc=0.8, length=0.5, words=0.5, reach=0.1):
    scores = {"auc": auc, "auc_length": length, "auc_words": words, "auc_excess": excess}
    return pd.DataFrame(
        [
            {"contrast": U, "layer": layer, "score": name, "auc": value, "low": low, "high": value + reach}
            for layer in (-1, 0, 1)
            for name, value in scores.items()
        ]
    )


def contrasts(p=0.01, reach=0.3, **values):
    quantities = {
        "auc_direction": 0.8,
        "log_dimension_ratio": 1.2,
        "fragmentation_gap": 0.5,
        "log_transport_ratio": 1.0,
        "log_gain_ratio": -1.0,
        "log_rank_ratio": 0.5,
        "refusal_alignment": 0.01,
        **values,
    }
    return pd.DataFrame(
        [
            {
                "contrast": U,
                "layer": layer,
                "quantity": name,
                "k": 10 if "dimension" in name else 0,
                "value": value,
                "low": value - reach,
                "high": value + reach,
                "null_mean": 0.05,
                "null_low": 0.01,
                "null_high": 0.1,
                "p_value": p,
                "p_adjusted": p,
                "labellings": 1e6,
                "n_pairs": 274,
            }
            for layer in (-1, 0, 1)
            for name, value in quantities.items()
        ]
    )


def of_seeds(table, value, column="value", seeds=8, spread=0.005):
    """A control of several initialisations."""
    draw = np.random.default_rng(0)
    return pd.concat(
        [table.assign(seed=seed, **{column: value + draw.normal(0, spread)}) for seed in range(seeds)]
    )


def untrained(auc=0.5, ratio=0.0, seeds=8, **spread):
    scores = detection()[lambda table: table["score"] == "auc"]
    return {
        "detection": of_seeds(scores, auc, "auc", seeds, **spread),
        "contrasts": of_seeds(contrasts(), ratio, "value", seeds, **spread),
    }


def decided(tables, controls=None, options=None, **changes):
    tables = {"prompts": prompts(), **tables}
    options = options or HallucinationOptions(others=[U], **changes)
    controls = untrained() if controls is None else controls
    rows = CLAIMS.decide({U: Evidence(U, F, tables, controls, options)}, options)
    return {row.claim.split()[0]: row for row in rows}


def decide_claim(code, tables, controls=None):
    """One claim without the others' correction."""
    tables = {"prompts": prompts(), **tables}
    options = HallucinationOptions(others=[U])
    evidence = Evidence(U, F, tables, untrained() if controls is None else controls, options)
    answer = CLAIMS.declared[code].measure(evidence, options)
    return CLAIMS.decide_measured({code: answer})[0]


def test_every_claim_of_the_paper_is_declared():
    rows = decided({"detection": detection(), "contrasts": contrasts()})
    assert set(rows) == {"C2b", *(f"C{number}" for number in range(1, 18))}
    assert all(row.reason for row in rows.values() if row.verdict == NOT_TESTABLE)


@pytest.mark.parametrize(
    ("changes", "p", "controls", "verdict", "reason"),
    [
        ({}, 0.01, None, SUPPORTED, r"layer 0, AUC 0.80; 8 models with random weights: mean 0.5"),
        # one of two layers: .1·t(.9875)/t(.975) of ten templates on either side
        ({"excess": -0.3, "low": -0.4}, 0.01, None, CONTRADICTED, r"\[−0.419, −0.181\] is not above 0"),
        ({"excess": -0.05, "low": -0.4}, 0.01, None, UNDECIDED, "is not wholly above 0"),
        ({}, 0.2, None, UNDECIDED, "adjusted p 0.2 is above 0.05"),
        ({"low": -0.1}, 0.01, None, UNDECIDED, "is not wholly above 0"),
        ({}, 0.01, {"auc": 0.9}, UNDECIDED, "mean 0.902, from 0.89.* to 0.90.*: these do as well as 0.8"),
        ({}, 0.01, {"auc": 0.7, "spread": 0.08}, UNDECIDED, "random weights: mean"),
        ({}, 0.01, {"seeds": 2}, NOT_TESTABLE, r"2 models with random weights: 0.501, 0.499; it needs 5"),
        ({}, 0.01, {}, NOT_TESTABLE, r"not measured: .* \(options.nulls: \[random_weights\]\)"),
        ({"length": 0.95}, 0.01, None, NOT_TESTABLE, "length alone tells unknown from factual with AUC 0.95"),
        ({"length": 0.05}, 0.01, None, NOT_TESTABLE, "length alone .* AUC 0.95: no claim"),
        ({"words": 0.7}, 0.01, None, NOT_TESTABLE, "a count of words alone .* AUC 0.70"),
    ],
)
def test_detection(changes, p, controls, verdict, reason):
    controls = {} if controls == {} else untrained(**(controls or {}))
    row = decide_claim("C1", {"detection": detection(**changes), "contrasts": contrasts(p)}, controls)
    assert row.verdict == verdict
    assert re.search(reason, row.reason), row.reason
    printed = [float(word) for word in re.findall(r"\d\.\d+", row.reason)]
    assert max(printed, default=0) <= 0.96  # nothing above what was seen


def test_the_control_of_detection_is_in_the_unit_of_the_excess():
    """Areas of random weights stood beside an excess over baselines: .5 beside .2, in one row."""
    row = decide_claim("C1", {"detection": detection(), "contrasts": contrasts()})
    assert (row.value, row.verdict) == (0.2, SUPPORTED)
    # their area is .5 where .8 is measured, whose excess is .2
    assert row.control_mean == pytest.approx(-0.1, abs=0.01)
    assert row.control_low <= row.control_mean <= row.control_high < row.value
    assert "mean 0.5" in row.reason
    assert "where 0.8 is measured" in row.reason


@pytest.mark.parametrize(
    ("draws", "coverage"), [(2, 1 / 3), (20, 19 / 21), (39, 0.95), (100, 0.95), (999, 0.95)]
)
def test_a_further_draw_lies_between_the_ends_of_a_null_as_often_as_is_said(draws, coverage):
    """Quantiles of 20 draws, interpolated, held .86 of further ones under the name of 95 %."""
    drawn = np.random.default_rng(draws).standard_normal((draws + 1, 20_000))
    low, high = null_ends(drawn[1:])
    assert ((low <= drawn[0]) & (drawn[0] <= high)).mean() == pytest.approx(coverage, abs=0.012)
    percent = 95 if draws >= DRAWS_OF_95 else round(100 * coverage)
    assert f"{percent} %" in null_words(draws)


def test_a_null_without_a_finite_draw_has_no_ends():
    assert np.isnan(null_ends(np.full((5, 2), np.nan))).all()
    assert np.isnan(null_ends([])).all()
    assert null_ends([[1.0, np.nan], [2.0, np.nan]])[:, 0].tolist() == [1.0, 2.0]


def bars_of(container):
    """The ends of the bars that are drawn of some points: those of points without an interval are none."""
    segments = [segment for segment in container.lines[2][0].get_segments() if np.isfinite(segment).all()]
    return [(float(segment[0, 1]), float(segment[1, 1])) for segment in segments if len(segment)]


@pytest.mark.parametrize("reach", [0.1, np.nan])
def test_a_dimension_without_an_interval_has_no_bar(reach):
    """Bars of length 0, as of a number that is known exactly, stood where no interval could be computed."""
    rows = [
        {"model": "m", "layer": layer, "bucket": bucket, "value": 2.0, "n": 20}
        for bucket in (F, U)
        for layer in (0, 1)
    ]
    clouds = pd.DataFrame(rows).assign(null="", quantity="local_dimension", k=10, protocol="exact", step=-1)
    clouds = clouds.assign(low=2.0 - reach, high=2.0 + reach, revision="")
    tests = contrasts(log_dimension_ratio=0.1).assign(null_low=-0.2, null_high=0.2)
    tests = tests.assign(model="m", revision="", step=-1)
    drawn = FIGURES["dimension_by_depth"](Results({"clouds": clouds, "contrasts": tests}))
    lengths = [
        high - low for container in drawn.figure.axes[0].containers for low, high in bars_of(container)
    ]
    assert lengths == pytest.approx([] if np.isnan(reach) else [0.2] * 4)
    assert ("Points without a bar have no interval" in drawn.caption) == np.isnan(reach)


def test_means_of_amplification_are_geometric_only_where_all_are_above_zero():
    rows = [
        {
            "model": "m",
            "contrast": contrast,
            "layer": layer,
            "sample": sample,
            "direction": kind,
            "draw": draw,
        }
        for contrast in (U, "impossible")
        for layer in (0, 1)
        for sample in (0, 1)
        for kind, draw in (("boundary", -1), ("labels", 0), ("labels", 1), ("isotropic", 0), ("isotropic", 1))
    ]
    table = pd.DataFrame(rows).assign(amplification=1.0, revision="", step=-1)
    table.loc[table["sample"] == 1, "amplification"] = 4.0
    for zeros, words in (
        (0, "Geometric means and"),
        (1, f"Geometric means ({U}: arithmetic ones, as some are 0)"),
    ):
        if zeros:
            table.loc[0, "amplification"] = 0.0
        drawn = amplification(Results({"sensitivity": table}), Options())
        assert words in drawn.caption
        assert "the range of 2 draws (33 % of further ones)" in drawn.caption
        means = [ax.containers[0].lines[0].get_ydata()[0] for ax in drawn.figure.axes]
        # of 1 and 4, and of 0 and 4
        assert means == pytest.approx([2.0, 2.0])
        assert_the_legend_has_every_colour(drawn.figure)


def assert_the_legend_has_every_colour(figure):
    """What is drawn in panels under one name has one colour, so that a legend above all can show it."""
    colors = {}
    for ax in figure.axes:
        for artist, name in zip(*ax.get_legend_handles_labels(), strict=True):
            parts = artist.lines[:1] if hasattr(artist, "lines") else [artist]
            shades = [
                part.get_color() if hasattr(part, "get_color") else part.get_facecolor() for part in parts
            ]
            colors.setdefault(name, set()).add(to_hex(np.atleast_2d(to_rgba_array(shades[0]))[0]))
    assert {name: len(shades) for name, shades in colors.items()} == dict.fromkeys(colors, 1)
    assert {text.get_text() for text in figure.legends[0].get_texts()} == set(colors)


def test_a_detector_has_one_colour_in_all_panels():
    """A contrast without the first detector drew the second in its colour, and the legend was wrong."""
    rows = wired("probe").assign(model="m", revision="", step=-1)
    moved = rows.assign(contrast="impossible", sample=rows["sample"] + 1000)
    table = pd.concat([rows, moved[moved["control"] != "probe"]])
    table["forced"] = table["forced"].astype(float)
    prompts_of_rows = pd.DataFrame(
        {"model": "m", "revision": "", "step": -1, "sample": table["sample"].unique()}
    )
    prompts_of_rows["bucket"] = np.where(
        prompts_of_rows["sample"] % 2 == 1, F, np.where(prompts_of_rows["sample"] < 1000, U, "impossible")
    )
    results = Results({"interventions": table, "prompts": prompts_of_rows})
    assert_the_legend_has_every_colour(bypass_curve(results, Options()).figure)


def test_states_that_enter_the_first_block_are_no_layer_of_the_choice():
    """All prompts end in the same token: their excess of 0 with an interval of no length is no finding."""
    table = detection(excess=-0.2, low=-0.4)
    table.loc[table["layer"] == -1, ["auc", "low", "high"]] = 0.0
    row = decide_claim("C1", {"detection": table, "contrasts": contrasts()})
    assert row.value == -0.2


def test_nested_templates_allow_nothing():
    tests = contrasts().assign(labellings=10.0, p_value=np.nan, p_adjusted=np.nan)
    row = decide_claim("C1", {"detection": detection(), "contrasts": tests})
    assert (row.verdict, row.reason) == (NOT_TESTABLE, "the buckets are confounded with their templates")


@pytest.mark.parametrize(
    ("value", "p", "random", "twice", "higher"),
    [
        (1.2, 0.01, 0.0, SUPPORTED, SUPPORTED),
        (0.5, 0.01, 0.0, UNDECIDED, SUPPORTED),  # higher, but the interval holds a ratio of 2
        (0.095, 0.01, 0.0, CONTRADICTED, SUPPORTED),  # a ratio of 1.1 is not two to three
        (1.2, 0.3, 0.0, SUPPORTED, UNDECIDED),
        (1.2, 0.01, 1.3, UNDECIDED, UNDECIDED),
        (-0.8, 0.01, 0.0, CONTRADICTED, CONTRADICTED),
        (-0.8, 0.3, 0.0, CONTRADICTED, UNDECIDED),
        (0.0, 0.9, 0.0, CONTRADICTED, UNDECIDED),
    ],
)
def test_dimension(value, p, random, twice, higher):
    reach = min(0.3, max(abs(value) / 3, 0.01))
    tables = {"contrasts": contrasts(p, reach, log_dimension_ratio=value)}
    claims = [decide_claim(code, tables, untrained(ratio=random)) for code in ("C2", "C2b")]
    assert [row.verdict for row in claims] == [twice, higher]
    assert claims[0].null == pytest.approx(math.log(2))
    assert f"ratio {math.exp(value):.2f}" in claims[0].reason


def test_every_number_of_neighbours_must_agree():
    tests = contrasts(reach=0.1)
    other = tests[tests["quantity"] == "log_dimension_ratio"].assign(k=30, value=-0.2, low=-0.3, high=-0.1)
    tables = {"contrasts": pd.concat([tests, other])}
    for code in ("C2", "C2b"):
        row = decide_claim(code, tables)
        assert row.verdict == UNDECIDED
        assert "the sign changes with the number of neighbours" in row.reason
        assert row.low <= -0.3


def test_the_choice_of_a_layer_is_paid_for():
    """Of L layers the largest is chosen: the t interval is that of confidence 1 − .05/L."""
    low, high = widen(0.0, -1.0, 1.0, 4, 10)
    quantiles = stats.t.ppf([1 - 0.025 / 4, 0.975], 9)
    assert high == pytest.approx(quantiles[0] / quantiles[1])
    assert low == pytest.approx(-high)


@pytest.mark.parametrize(
    ("value", "reach", "verdict"), [(0.1, 0.3, UNDECIDED), (0.8, 0.3, SUPPORTED), (-0.8, 0.3, CONTRADICTED)]
)
def test_rank(value, reach, verdict):
    row = decide_claim("C3", {"contrasts": contrasts(reach=reach, log_rank_ratio=value)})
    assert row.verdict == verdict
    assert "n is equal here (274)" in row.reason


@pytest.mark.parametrize(
    ("gap", "p", "random", "verdict"),
    [
        (0.5, 0.01, 0.0, SUPPORTED),
        (0.5, 0.2, 0.0, UNDECIDED),
        (-0.5, 0.01, 0.0, CONTRADICTED),
        (0.5, 0.01, 0.6, UNDECIDED),
        (0.2, 0.06, 0.0, UNDECIDED),
    ],
)
def test_pieces(gap, p, random, verdict):
    tables = {"contrasts": contrasts(p, fragmentation_gap=gap)}
    assert decide_claim("C4", tables, untrained(ratio=random)).verdict == verdict


def sensitivity(shift_of_other, shift_of_reference, chance=0.0, layers=(0, 1)):
    table, noise = prompts(), np.random.default_rng(0).normal(0, 0.2, 80)
    change = {U: shift_of_other, F: shift_of_reference}
    draws = [("boundary", -1, 0.0), *(("covariance", at, chance + at / 50) for at in range(6))]
    return pd.DataFrame(
        [
            {
                "contrast": U,
                "sample": row.sample,
                "layer": layer,
                "direction": kind,
                "draw": draw,
                "refusal_alignment": np.nan,
                "amplification": np.nan,
                "relative_fisher": math.exp(
                    layer * (shift if kind != "boundary" else change[row.bucket] + noise[row.sample])
                ),
            }
            for row in table.itertuples(index=False)
            for layer in layers
            for kind, draw, shift in draws
        ]
    )


@pytest.mark.parametrize(
    ("shift_of_other", "shift_of_reference", "chance", "verdict", "reason"),
    [
        (1.0, 1.0, 0.0, CONTRADICTED, "the fall itself 1.0"),
        (-2.0, -2.0, 0.0, UNDECIDED, "less that of factual"),
        (-3.0, -0.5, 0.0, SUPPORTED, "less that of factual −2.5"),
        (-0.5, -3.0, 0.0, CONTRADICTED, "less that of factual 2.[45]"),
        (0.0, 0.0, 0.0, UNDECIDED, "is not wholly below 0"),
        (-3.0, -0.5, -4.0, UNDECIDED, "random directions of the covariance: .* these do as well"),
    ],
)
def test_sensitivity_falls(shift_of_other, shift_of_reference, chance, verdict, reason):
    row = decide_claim("C5", {"sensitivity": sensitivity(shift_of_other, shift_of_reference, chance)})
    assert math.isnan(row.p_value)  # no p of another question
    assert row.verdict == verdict
    assert re.search(reason, row.reason), row.reason


@pytest.mark.parametrize(
    ("gain", "ratio", "p", "verdict"),
    [
        (2.0, 1.0, 0.01, CONTRADICTED),
        (2.0, 1.0, 0.6, UNDECIDED),
        (0.3, -1.0, 0.01, SUPPORTED),
        (0.3, -1.0, 0.4, UNDECIDED),
        (1.02, -1.0, 0.01, UNDECIDED),
    ],
)
def test_gain(gain, ratio, p, verdict):
    rows = [
        {
            "contrast": U,
            "layer": layer,
            "direction": name,
            "k": 4,
            "readout_gain": value,
            "low": 0.5,
            "high": 3.0,
        }
        for layer in (0, 1, 2)
        for name, value in (("boundary", gain), ("covariance", 1.0))
    ]
    tables = {"readout": pd.DataFrame(rows), "contrasts": contrasts(p, log_gain_ratio=ratio)}
    row = decide_claim("C6", tables)
    assert row.verdict == verdict
    assert row.p_value == p
    assert f"gain {gain:.2g}; directions of the same covariance 0.5 to 3" in row.reason
    assert "more than a random direction" not in row.reason


@pytest.mark.parametrize(
    ("cosine", "p", "verdict"),
    [(0.5, 0.01, CONTRADICTED), (0.02, 0.3, UNDECIDED), (0.001, 0.01, SUPPORTED), (0.001, 0.06, UNDECIDED)],
)
def test_gradients(cosine, p, verdict):
    assert decide_claim("C7", {"contrasts": contrasts(p, refusal_alignment=cosine)}).verdict == verdict


def test_what_has_no_refusal_token_says_so():
    checks = pd.DataFrame({"check": ["refusal_token"], "reason": ["expected words, got pieces"]})
    for code in ("C7", "C10"):
        row = decide_claim(code, {"checks": checks})
        assert (row.verdict, row.reason) == (NOT_TESTABLE, "expected words, got pieces")


@pytest.mark.parametrize(
    ("cosine", "reach", "exchanged", "verdict"),
    [
        (0.996, 0.001, 0.4, SUPPORTED),
        (0.6, 0.1, 0.4, CONTRADICTED),
        (0.995, 0.01, 0.4, UNDECIDED),
        (0.996, 0.001, 0.9999, CONTRADICTED),
    ],
)
def test_stability(cosine, reach, exchanged, verdict):
    rows = [
        {
            "contrast": U,
            "layer": layer,
            "stability": value,
            "stability_low": value - reach,
            "stability_high": value + reach,
            "stability_null": exchanged,
            "stability_null_high": exchanged,
        }
        for layer, value in ((0, np.nan), (1, cosine), (2, 0.999))
    ]
    row = decide_claim("C9", {"boundaries": pd.DataFrame(rows)})
    assert row.verdict == verdict
    assert "exchanged labels: mean" in row.reason


def wired(knows, layers=(0,), gains=(0, 2, 5, 5.5, 20)):
    """One detector forces unknown prompts at a small gain; all force everything at a large one."""
    table, rng = prompts(), np.random.default_rng(0)
    rows = []
    for layer in layers:
        for row in table.itertuples(index=False):
            for control in ("probe", "constant", "length"):
                least = 5 + (rng.random() if control != knows else -3 * (row.bucket == U))
                rows += [
                    {
                        "contrast": U,
                        "layer": layer,
                        "arm": "bypass",
                        "control": control,
                        "sample": row.sample,
                        "strength": gain,
                        "forced": gain >= least,
                    }
                    for gain in gains
                ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("knows", "verdict"), [("probe", SUPPORTED), ("length", CONTRADICTED), ("none", UNDECIDED)]
)
def test_bypass_is_judged_by_whom_it_hits(knows, verdict):
    rows = wired(knows)
    row = decide_claim("C10", {"interventions": rows})
    assert "a refusal by construction" in row.reason
    forced = rows.assign(unknown=rows["sample"] % 2 == 0).astype({"forced": float})
    rates = forced.pivot_table(index=["control", "strength"], columns="unknown", values="forced")
    j = (rates[True] - rates[False]).groupby("control").max().clip(lower=0)
    assert row.value == pytest.approx(j["probe"] - max(j["constant"], j["length"]))
    assert row.verdict == verdict
    if knows == "probe":
        assert row.p_value == 0.001
        assert row.low > 0.5
    else:
        assert row.p_value > 0.2


def test_bypass_pays_for_its_layers_and_needs_labellings():
    assert decide_claim("C10", {"interventions": wired("probe", (0, 1, 2))}).p_value == 0.001
    nested = prompts().assign(template=lambda table: table["bucket"])
    row = decide_claim("C10", {"prompts": nested, "interventions": wired("probe")})
    assert row.verdict == NOT_TESTABLE
    assert "labellings are too few" in row.reason
    forceless = decide_claim("C10", {"interventions": wired("probe", gains=(0, 1))})
    assert (forceless.value, forceless.verdict) == (0, UNDECIDED)


def moved(arm, rates, strengths=(1.0, -1.0), column="changed"):
    """Shares of changed answers by kind of direction, five draws of each random one."""
    rng, rows = np.random.default_rng(1), []
    for kind, rate in rates.items():
        for draw in range(5) if kind not in ("boundary", "reference") else (-1,):
            for sample in range(80):
                rows += [
                    {
                        "contrast": U,
                        "layer": 0,
                        "arm": arm,
                        "control": kind,
                        "draw": draw,
                        "sample": sample,
                        "strength": strength,
                        "loop": False,
                        "changed": False,
                        "refused": False,
                        column: rng.random() < rate,
                    }
                    for strength in strengths
                ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("boundary", "labels", "verdict"),
    [(0.9, 0.2, SUPPORTED), (0.5, 0.5, UNDECIDED), (0.1, 0.8, CONTRADICTED), (0.6, 0.58, UNDECIDED)],
)
def test_steering(boundary, labels, verdict):
    rows = moved(
        "steering", {"boundary": boundary, "isotropic": labels, "covariance": labels, "labels": labels}
    )
    row = decide_claim("C15", {"interventions": rows})
    assert row.verdict == verdict
    share = rows[rows["control"] == "boundary"]["changed"].mean()
    assert row.reason.startswith(f"{share:.2f} of answers change")
    # value and control are differences from the mean of all random directions
    by_draw = rows[rows["control"] != "boundary"].groupby(["control", "draw"])["changed"].mean()
    differences = by_draw - by_draw.mean()
    assert row.value == pytest.approx(share - by_draw.mean())
    closest = differences.groupby("control").max().idxmax()
    assert row.control_high == pytest.approx(differences[closest].max())
    assert row.control_low == pytest.approx(differences[closest].min())


def test_the_axis_of_changed_answers_holds_every_random_direction():
    """One of several changes all answers: the range of its kind reaches 1, their mean does not."""
    rows = moved("steering", {"boundary": 0.0, "isotropic": 0.0})
    rows.loc[(rows["control"] == "isotropic") & (rows["draw"] == 0), "changed"] = True
    tables = {"interventions": rows.assign(model="m", revision="", step=-1, contrast=U)}
    drawn = FIGURES["steering_curve"](Results(tables))
    (ax,) = drawn.figure.axes
    assert "contrasts" not in drawn.caption
    assert "bands: random directions of the same length, the range of " in drawn.caption
    several = pd.concat([tables["interventions"], tables["interventions"].assign(contrast="impossible")])
    caption = FIGURES["steering_curve"](Results({"interventions": several})).caption
    assert f"prompts, mean over the contrasts {U}, impossible; bands" in caption
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == 1.0 < ax.get_ylim()[1]


def test_captions_say_nothing_of_a_control_that_is_not_drawn():
    """Without random weights the caption of a run still said what their range was."""
    table = detection().assign(model="m", revision="", step=-1, n=80)
    drawn = FIGURES["confounds"](Results({"detection": table}))
    assert "intervals over templates." in drawn.caption
    untrained_rows = of_seeds(table[table["score"] == "auc"], 0.5, "auc")
    drawn = FIGURES["confounds"](Results({"detection": table, "detection_variants": untrained_rows}))
    assert "intervals over templates; of random weights, the range of initialisations." in drawn.caption


def test_figures_along_the_boundary_count_the_prompts_of_each_contrast():
    """The slope's axis counted the prompts of all contrasts, and sensitivity gave one bucket's for all."""
    samples = {("unknown", "factual"): [0, 1], ("unknown", "unknown"): [2, 3]}
    samples |= {("impossible", "factual"): [0, 1], ("impossible", "impossible"): [4]}
    keys = {"model": "m", "revision": "", "step": -1}
    rows = [
        {**keys, "contrast": contrast, "bucket": bucket, "sample": sample, "layer": layer, "draw": draw}
        | {"direction": direction, "directional_fisher": 1.0, "relative_fisher": 2.0, "transport_kl": 0.1}
        | {"refusal_slope": 0.5, "entropy_slope": 0.1}
        for (contrast, bucket), numbers in samples.items()
        for sample in numbers
        for layer in (0, 1)
        for direction, draw in (("boundary", -1), ("covariance", 0), ("labels", 0))
    ]
    table = pd.DataFrame(rows)
    prompts = table[[*keys, "sample", "bucket"]].drop_duplicates()
    results = Results({"sensitivity": table.drop(columns="bucket"), "prompts": prompts})
    assert "Means over at least 1 prompts of each bucket" in FIGURES["sensitivity_by_depth"](results).caption
    drawn = FIGURES["refusal_slope"](results)
    assert "means over at least 3 prompts of each contrast" in drawn.caption
    assert [ax.get_xlabel() for ax in drawn.figure.axes] == ["layer"] * 2


@pytest.mark.parametrize(
    ("reference", "haar", "verdict"), [(0.9, 0.1, SUPPORTED), (0.0, 0.0, UNDECIDED), (0.1, 0.9, CONTRADICTED)]
)
def test_compression(reference, haar, verdict):
    rows = moved("compression", {"reference": reference, "haar": haar}, (0.2, 1.0), "refused")
    row = decide_claim("C16", {"interventions": rows})
    assert row.verdict == verdict
    # differences as the value is, whose mean over subspaces is 0
    assert row.control_mean == pytest.approx(0.0, abs=1e-12)


EXCHANGED = (1.0, 1.1, 0.9, 0.95, 1.05)


@pytest.mark.parametrize(
    ("boundary", "labels", "verdict"),
    [
        (1.5, EXCHANGED, SUPPORTED),
        (1.0, EXCHANGED, UNDECIDED),
        (0.5, EXCHANGED, CONTRADICTED),
        (1.5, (1.0, 1.1), NOT_TESTABLE),
    ],
)
def test_amplification(boundary, labels, verdict):
    draws = [
        ("boundary", -1, boundary),
        ("isotropic", 0, 1.0),
        *(("labels", at, v) for at, v in enumerate(labels)),
    ]
    rows = [
        {
            "contrast": U,
            "sample": sample,
            "layer": layer,
            "direction": kind,
            "draw": draw,
            "amplification": value if layer < 2 else np.nan,
        }
        for sample in range(4)
        for layer in range(3)
        for kind, draw, value in draws
    ]
    row = decide_claim("C14", {"sensitivity": pd.DataFrame(rows)})
    assert row.verdict == verdict
    if verdict != NOT_TESTABLE:
        assert row.value == pytest.approx(math.log(boundary) - np.log(labels).mean())
        assert f"× {boundary:.2f}" in row.reason


def read_out(change, *, seed=0, **columns):
    """Rows of `lens`: entropies that change by so much, with noise of each prompt, in the last layer."""
    noise = np.random.default_rng(seed).normal(0, 0.5, 80)
    rows = [
        {"sample": sample, "layer": layer, "prediction_entropy": 5 + (change + noise[sample]) * (layer == 2)}
        for sample in range(80)
        for layer in (-1, 0, 1, 2)
    ]
    return pd.DataFrame(rows).assign(**columns)


def untrained_lens(change, seeds=8):
    return {"lens": pd.concat([read_out(change, seed=1 + seed).assign(seed=seed) for seed in range(seeds)])}


@pytest.mark.parametrize(
    ("change", "untrained", "verdict"),
    [
        (-2.0, untrained_lens(0.0), SUPPORTED),
        (-2.0, untrained_lens(-2.1), UNDECIDED),
        (-2.0, {}, NOT_TESTABLE),
        (-2.0, untrained_lens(0.0, seeds=4), NOT_TESTABLE),
        (0.0, untrained_lens(0.0), UNDECIDED),
        (2.0, untrained_lens(0.0), CONTRADICTED),
    ],
)
def test_commitment(change, untrained, verdict):
    """Predictions that sharpen in untrained models alike are no effect of training."""
    lens = read_out(change)
    row = decide_claim("C17", {"lens": lens}, untrained)
    assert row.verdict == verdict
    noise = np.random.default_rng(0).normal(0, 0.5, 80)
    assert row.value == pytest.approx(change + noise[::2].mean())
    if verdict == UNDECIDED and change:
        assert "8 models with random weights" in row.reason
        assert "do as well" in row.reason


def test_claims_share_a_list():
    """Beside the smallest p the others count as often as there are primary claims that were tested."""
    tables = {"detection": detection(), "contrasts": contrasts(0.0124), "interventions": wired("probe")}
    held = decided(tables)
    tables["contrasts"] = contrasts(0.0126)
    lost = decided(tables)
    tested = [code for code, row in held.items() if np.isfinite(row.p_value) and row.correction == "holm"]
    assert tested == ["C1", "C2b", "C4", "C10", "C13"]
    for code in ("C1", "C2b", "C4"):
        assert held[code].verdict == SUPPORTED, code
        assert lost[code].verdict == UNDECIDED, code
    assert lost["C10"].verdict == SUPPORTED


@pytest.mark.parametrize(
    ("value", "p", "verdict"), [(1.0, 0.01, SUPPORTED), (-1.0, 0.01, CONTRADICTED), (1.0, 0.3, UNDECIDED)]
)
def test_expressed_or_silent(value, p, verdict):
    assert decide_claim("C13", {"contrasts": contrasts(p, log_transport_ratio=value)}).verdict == verdict


def test_equal_adjusted_p_leave_the_choice_of_the_layer_to_those_of_the_layers():
    """Corrected over layers several p are 1: the layer of the smallest p is not the first of these."""
    table = contrasts(1.0, log_transport_ratio=1.0)
    layers = {0: (0.9, 0.45), 1: (0.5, 0.28)}
    for layer, (value, p_value) in layers.items():
        table.loc[table["layer"] == layer, ["value", "p_value"]] = value, p_value
    assert decide_claim("C13", {"contrasts": table}).value == 0.5
    page = Page(Results({"contrasts": table.assign(model="m", step=-1, correction="")}), {})
    geometry = next(section for section in SECTIONS if section.id == "geometry")
    shown = next(block.content.frame for block in page.written(geometry) if block.kind == "table")
    assert shown.loc[shown["quantity"] == "log transport ratio", ["layer", "value", "p"]].values.tolist() == [
        ["1", "0.500", "0.280"]
    ]


def test_a_draw_of_its_null_stands_out_at_the_level():
    draws = np.random.default_rng(0).standard_normal((3000, 21))
    p_values = np.array([exceedance(row[0], row[1:]) for row in draws])
    assert 0.04 < (p_values <= 0.05).mean() < 0.06
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_what_was_not_measured_is_not_testable():
    for code, row in decided({}).items():
        assert (row.verdict, bool(row.reason)) == (NOT_TESTABLE, True), code


def paragraph(tables, controls=None, options=None):
    rows = decided({"detection": detection(), **tables}, controls, options)
    table = pd.DataFrame([vars(row) for row in rows.values()])
    return describe_contrast(table, U, F)


@pytest.mark.parametrize("seed", range(40))
def test_main_numbers_never_contradict_the_claims(seed):
    """Whatever the tables hold, the paragraph states what C1 and C13 have, and nothing else."""
    rng = np.random.default_rng(seed)
    excess = 0.2 * rng.standard_normal()
    scores = detection(excess, excess - abs(0.2 * rng.standard_normal()), 0.5 + excess)
    rows = contrasts(rng.choice([0.001, 0.03, 0.4]), log_transport_ratio=rng.standard_normal())
    if rng.random() < 0.3:
        rows = rows[rows["quantity"] != "log_transport_ratio"]
    controls = untrained(auc=rng.choice([0.5, 0.8]), seeds=int(rng.choice([2, 8])))
    claims = decided({"detection": scores, "contrasts": rows}, controls)
    text = describe_contrast(pd.DataFrame([vars(row) for row in claims.values()]), U, F)
    first, expression = claims["C1"].verdict, claims["C13"].verdict
    assert text.startswith("States tell ") == (first == SUPPORTED)
    assert text.startswith("States do not tell ") == (first == CONTRADICTED)
    assert ("may be chance" in text) == (first != SUPPORTED)
    assert ("it is expressed" in text) == (first == expression == SUPPORTED)
    assert ("it is silent" in text) == (first == SUPPORTED and expression == CONTRADICTED)


def test_sentences_are_made_of_the_case_that_holds():
    """ "Silent" and "expressed" need a measurement on their side; "what follows may be chance" a first "
    "claim."""
    expressed = paragraph({"contrasts": contrasts(0.001)})
    assert "more than random directions" in expressed
    assert expressed.endswith("(× 2.72, p 0.0040): it is expressed.")
    silent = paragraph({"contrasts": contrasts(0.001, log_transport_ratio=-1.0)})
    assert "less than random directions" in silent
    assert silent.endswith("it is silent.")
    undecided = contrasts(0.001)
    undecided.loc[undecided["quantity"] == "log_transport_ratio", ["p_value", "p_adjusted"]] = 0.19
    undecided_text = paragraph({"contrasts": undecided})
    assert undecided_text.endswith("whether the output uses the difference is undecided (× 2.72, p 0.190).")
    missing = contrasts(0.001)
    missing = missing[missing["quantity"] != "log_transport_ratio"]
    undecided_text = paragraph({"contrasts": missing})
    assert undecided_text.endswith("the difference was not measured: options.sensitivity is off.")
    for text in (undecided_text, paragraph({"contrasts": undecided})):
        assert "silent" not in text
        assert "expressed" not in text
    others = [
        paragraph({"contrasts": contrasts(0.3)}),
        paragraph({"contrasts": contrasts(0.001)}, untrained(auc=0.9)),
        paragraph({"contrasts": contrasts(0.001)}, untrained(seeds=2)),
        paragraph({"detection": detection(excess=-0.3, low=-0.4), "contrasts": contrasts(0.001)}),
    ]
    starts = (
        "It is undecided whether",
        "It is undecided whether",
        "This run cannot say",
        "States do not tell",
    )
    for text, start in zip(others, starts, strict=True):
        assert text.startswith(start)
        assert text.endswith("What follows may be chance.")
        assert "silent" not in text
        assert "not there" not in text
    assert "random weights: mean 0.902, from" in others[1]
    confounded = paragraph({"detection": detection(length=0.9), "contrasts": contrasts(0.001)})
    assert "no claim about uncertainty" in confounded
    assert paragraph({"detection": pd.DataFrame()}).startswith("unknown: one template")


def test_sentences_of_outcomes_name_the_bucket_that_answers_make():
    """Right answers are what wrong ones are compared with, whatever the option `reference` is called."""
    rows = decided({"detection": detection(), "contrasts": contrasts(0.001)})
    table = pd.DataFrame([vars(row) for row in rows.values()]).assign(model="m", revision="", step=-1)
    results = SimpleNamespace(
        study={"options": {"bucket_by": "outcome"}}, tables=lambda: ["claims"], table=lambda name: table
    )
    assert f"States tell {U} from right beyond words" in findings(results)[0]


def test_templates_of_outcomes_are_those_that_are_compared():
    """Questions that nothing judges, and templates of one outcome, take no part and widen no interval."""
    table = pd.DataFrame({"sample": range(8), "template": ["a", "a", "b", "b", "c", "c", "d", "d"]})
    answers = pd.DataFrame(
        {
            "sample": range(8),
            "correct": pd.array([True, False] * 2 + [True] * 2 + [None] * 2, dtype="boolean"),
        }
    )
    judged = with_outcomes(table, answers)
    assert judged["bucket"].fillna("").tolist() == ["right", "wrong"] * 2 + ["right"] * 2 + [""] * 2
    assert of_both_outcomes(judged.dropna(subset=["bucket"]))["sample"].tolist() == [0, 1, 2, 3]


def test_random_directions_are_drawn_as_means_of_the_same_kind():
    """A geometric mean of the boundary beside arithmetic ones of random directions lay too low."""
    rows = pd.DataFrame({"layer": 0, "draw": 0, "x": [1.0, 100.0]})
    assert means_by(rows, ["layer", "draw"], "x", logarithmic=True).item() == pytest.approx(10.0)
    assert means_by(rows, ["layer", "draw"], "x").item() == pytest.approx(50.5)


@pytest.mark.parametrize("logarithmic", [False, True])
def test_bars_over_few_prompts_are_those_of_student(logarithmic):
    """Bars of 1.96 standard errors hold the mean of two prompts in .7 of draws, and not in .95."""
    two, five = [1.0, 2.5], [1.0, 2.0, 4.0, 8.0, 3.0]
    rows = pd.DataFrame({"layer": [0] * 2 + [1] * 5 + [2], "x": [*two, *five, 7.0]})
    ax = mpl.Figure().subplots()
    draw_means(ax, rows, "x", "black", "boundary", logarithmic=logarithmic)
    bars = bars_of(ax.containers[0])  # one prompt has none
    for bar, values in zip(bars, (two, five), strict=True):
        numbers = np.log(values) if logarithmic else np.array(values)
        ends = stats.t.interval(0.95, len(values) - 1, numbers.mean(), stats.sem(numbers))
        np.testing.assert_allclose(bar, np.exp(ends) if logarithmic else ends, rtol=1e-12)
    assert ax.containers[0].lines[0].get_ydata()[2] == pytest.approx(7.0)
