# SPDX-License-Identifier: MIT
"""Each verdict of the study of knowing and saying on its own null and on a planted effect.

Statistics are simulated and pass through the study's own functions and the common rule, each claim without
the correction over the others, which can only lower the rates. tests/README.md holds the table that this
prints.
"""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from attnscope.studies.hallucination_geometry.claims import CLAIMS, Evidence
from attnscope.studies.hallucination_geometry.evidence import exceedance
from attnscope.studies.hallucination_geometry.options import HallucinationOptions

U, F = "unknown", "factual"
LAYERS, TEMPLATES, SEEDS, DRAWS = 5, 10, 8, 20
OPTIONS = HallucinationOptions(others=[U], dimension_k=[10])
PROMPTS = pd.DataFrame(
    {
        "sample": range(80),
        "bucket": [U, F] * 40,
        "template": [f"t{sample // 8}" for sample in range(80)],
    }
)
#: Largest of correlated layers without an effect, one-sided and in size: the law of exchanged labels.
MAXIMA = {}


def layers(rng, shape=()):
    """Standard normal numbers of layers that share half of their variance."""
    return math.sqrt(0.5) * (rng.standard_normal((*shape, 1)) + rng.standard_normal((*shape, LAYERS)))


def p_of_largest(values, *, size):
    if size not in MAXIMA:
        drawn = layers(np.random.default_rng(99), (999,))
        MAXIMA[size] = (np.abs(drawn) if size else drawn).max(-1)
    return (1 + (MAXIMA[size][:, None] >= (np.abs(values) if size else values)).sum(0)) / 1000


def contrast_rows(quantity, values, errors, p_values, **columns):
    half = stats.t.ppf(0.975, TEMPLATES - 1) * errors
    return pd.DataFrame(
        {
            "contrast": U,
            "layer": range(LAYERS),
            "quantity": quantity,
            "k": 10 if "dimension" in quantity else 0,
            "value": values,
            "low": values - half,
            "high": values + half,
            "p_value": p_values,
            "p_adjusted": p_values,
            "labellings": 999.0,
            "n_pairs": 274,
            **columns,
        }
    )


def seeds_of(quantity, values, column="value", **columns):
    return pd.DataFrame(
        [
            {
                "contrast": U,
                "layer": layer,
                "quantity": quantity,
                "k": 10 if "dimension" in quantity else 0,
                "seed": seed,
                column: value,
                **columns,
            }
            for seed, row in enumerate(values)
            for layer, value in enumerate(row)
        ]
    )


def detected(rng, effect, _):
    """AUC of layers about .5 + effect; the baselines are chance, the worst case of an excess."""
    noise, scale = layers(rng), 0.05
    excess = effect + scale * noise
    rows = [
        {
            "contrast": U,
            "layer": layer,
            "score": score,
            "auc": value + shift,
            "low": value - 1.96 * scale,
            "high": value + 1.96 * scale,
        }
        for layer, value in enumerate(excess)
        for score, shift in (("auc_excess", 0.0), ("auc", 0.5))
    ]
    tests = contrast_rows("auc_direction", excess, scale, p_of_largest(effect / scale + noise, size=False))
    untrained = seeds_of("", 0.5 + scale * layers(rng, (SEEDS,)), "auc", score="auc")
    return {"detection": pd.DataFrame(rows), "contrasts": tests}, {"detection": untrained}


def contrasted(quantity):
    def draw(rng, effect, _):
        noise, scale = layers(rng), 0.1
        errors = scale * np.sqrt(rng.chisquare(TEMPLATES - 1) / (TEMPLATES - 1))
        values = effect + scale * noise
        p_values = p_of_largest(values / scale, size=True)
        untrained = seeds_of(quantity, scale * layers(rng, (SEEDS,)))
        return {"contrasts": contrast_rows(quantity, values, errors, p_values)}, {"contrasts": untrained}

    return draw


def template_noise(rng):
    return np.repeat(0.2 * rng.standard_normal(TEMPLATES), 8) + 0.3 * rng.standard_normal(80)


def sensitive(rng, effect, _):
    """The logarithm of sensitivity falls by 1 everywhere, and by the effect more in the other bucket."""
    other = (PROMPTS["bucket"] == U).to_numpy()
    fall = -1.0 + template_noise(rng) + effect * other
    frames = []
    centre = float(fall.mean()) if effect == 0 else -1.0
    for kind, draw, change in (
        ("boundary", -1, fall),
        *(("covariance", at, centre + 0.1 * rng.standard_normal()) for at in range(DRAWS)),
    ):
        for layer in (0, 1):
            frames.append(
                pd.DataFrame(
                    {
                        "contrast": U,
                        "sample": range(80),
                        "layer": layer,
                        "direction": kind,
                        "draw": draw,
                        "relative_fisher": np.exp(layer * change * np.ones(80)),
                    }
                )
            )
    return {"sensitivity": pd.concat(frames)}, {}


def read(rng, effect, _):
    noise = layers(rng)
    values = effect + 0.3 * noise
    tests = contrast_rows("log_gain_ratio", values, 0.0, p_of_largest(values / 0.3, size=True))
    rows = [
        {"contrast": U, "layer": layer, "direction": kind, "readout_gain": gain, "low": 0.5, "high": 2.0}
        for layer in range(LAYERS)
        for kind, gain in (("boundary", 0.9), ("covariance", 1.0))
    ]
    return {"contrasts": tests, "readout": pd.DataFrame(rows)}, {}


def aligned(rng, effect, _):
    """|cosine| of the boundary among 999 directions, two-sided."""
    null = np.abs(rng.standard_normal(999))
    value = abs(rng.standard_normal()) * effect
    p_value = min(1.0, 2 * (1 + min((null <= value).sum(), (null >= value).sum())) / 1000)
    rows = contrast_rows(
        "refusal_alignment",
        np.full(LAYERS, value),
        0.0,
        p_value,
        null_mean=null.mean(),
        null_low=0.0,
        null_high=2.0,
    )
    return {"contrasts": rows}, {}


def transported(rng, effect, _):
    """As `along` writes it: the larger p of two kinds, 1 where they disagree, Bonferroni over layers."""
    values, p_values = effect + layers(rng), []
    for value in values:
        drawn = [rng.standard_normal(DRAWS) for _ in range(2)]
        sides = {value > null.mean() for null in drawn}
        p = max(exceedance(value, null) for null in drawn) if len(sides) == 1 else 1.0
        p_values.append(min(1.0, LAYERS * p))
    return {"contrasts": contrast_rows("log_transport_ratio", values, 0.0, np.array(p_values))}, {}


def lengthened(rng, effect, _):
    draws = [("boundary", -1, effect + 0.1 * rng.standard_normal()), ("isotropic", 0, 0.0)]
    draws += [("labels", at, 0.1 * rng.standard_normal()) for at in range(DRAWS)]
    rows = [
        {
            "contrast": U,
            "sample": 0,
            "layer": 0,
            "direction": kind,
            "draw": draw,
            "amplification": math.exp(log),
        }
        for kind, draw, log in draws
    ]
    return {"sensitivity": pd.DataFrame(rows)}, {}


def answered(arm, kinds, column):
    def draw(rng, effect, _):
        rows, template = [], np.repeat(0.1 * rng.standard_normal(TEMPLATES), 8)
        for kind, draws in kinds.items():
            for at in range(draws) if draws > 1 else (-1,):
                rate = np.clip(
                    0.4 + template + (effect if draws == 1 else 0.0) + 0.05 * rng.standard_normal(), 0, 1
                )
                frame = pd.DataFrame({"sample": range(80), "control": kind, "draw": at, "strength": 1.0})
                frame["hit"] = rng.random(80) < rate
                rows.append(frame)
        table = pd.concat(rows).assign(contrast=U, layer=0, arm=arm, refused=False, changed=False, loop=False)
        return {"interventions": table.assign(**{column: table["hit"]})}, {}

    return draw


def sharpened(rng, effect, _):
    """Entropies that change in the last layer; models with random weights have no change."""

    def lens(change):
        noise = template_noise(rng) + change
        return [
            {"sample": sample, "layer": layer, "prediction_entropy": 5 + noise[sample] * (layer == 2)}
            for sample in range(80)
            for layer in (0, 1, 2)
        ]

    untrained = pd.concat([pd.DataFrame(lens(0.0)).assign(seed=seed) for seed in range(SEEDS)])
    return {"lens": pd.DataFrame(lens(effect))}, {"lens": untrained}


#: Code: simulation, its null (the border of the claim), and the planted effect.
SIMULATIONS = {
    "C1": (detected, 0.0, 0.35),
    "C2": (contrasted("log_dimension_ratio"), math.log(2), 1.3),
    "C2b": (contrasted("log_dimension_ratio"), 0.0, 0.5),
    "C3": (contrasted("log_rank_ratio"), 0.0, 0.5),
    "C4": (contrasted("fragmentation_gap"), 0.0, 0.5),
    "C5": (sensitive, 0.0, -2.0),
    "C6": (read, 0.0, -2.0),
    "C7": (aligned, 1.0, 0.001),
    "C13": (transported, 0.0, 8.0),
    "C14": (lengthened, 0.0, 0.6),
    "C15": (
        answered("steering", {"boundary": 1, "isotropic": 5, "covariance": 5, "labels": 5}, "changed"),
        0.0,
        0.4,
    ),
    "C16": (answered("compression", {"reference": 1, "haar": 5}, "refused"), 0.0, 0.45),
    "C17": (sharpened, 0.0, -1.0),
}


def rates(code, effect, trials, seed=0):
    simulate = SIMULATIONS[code][0]
    verdicts = []
    for trial in range(trials):
        tables, controls = simulate(np.random.default_rng([seed, trial]), effect, trial)
        evidence = Evidence(U, F, {"prompts": PROMPTS, **tables}, controls, OPTIONS)
        answer = CLAIMS.declared[code].measure(evidence, OPTIONS)
        verdicts.append(CLAIMS.decide_measured({code: answer})[0].verdict)
    return [verdicts.count(verdict) / trials for verdict in ("supported", "contradicted")]


@pytest.mark.slow
@pytest.mark.parametrize("code", SIMULATIONS)
def test_levels_and_power_of_a_verdict(code):
    """Supported and contradicted at most at the level of .05, up to 2.3 errors of 400 draws; found if "
    "planted."""
    _, null, planted = SIMULATIONS[code]
    trials = 400
    supported, contradicted = rates(code, null, trials)
    power = rates(code, planted, 60, seed=1)[0]
    print(f"| {code} | {supported:.3f} | {contradicted:.3f} | {power:.2f} |")
    bound = 0.05 + 2.3 * math.sqrt(0.05 * 0.95 / trials)
    assert supported <= bound
    assert contradicted <= bound
    assert power >= 0.8


def told_by_words(rng):
    """AUC of 24 layers about .8, and of words .8 too: exchanged labels and random weights tell no bucket."""
    count, scale = 24, 0.05
    noise = math.sqrt(0.5) * (rng.standard_normal(1) + rng.standard_normal(count))
    half = stats.t.ppf(0.975, TEMPLATES - 1) * scale * math.sqrt(rng.chisquare(9) / 9)
    rows = [
        {"layer": layer, "score": score, "auc": value, "low": value - half, "high": value + half}
        for layer, excess in enumerate(scale * noise)
        for score, value in (("auc_excess", excess), ("auc", 0.8 + excess))
    ]
    tests = {"contrast": U, "layer": range(count), "quantity": "auc_direction", "p_value": 0.001}
    untrained = {"contrast": U, "layer": 0, "score": "auc", "seed": range(SEEDS), "auc": 0.5}
    return (
        {
            "detection": pd.DataFrame(rows).assign(contrast=U),
            "contrasts": pd.DataFrame({**tests, "p_adjusted": 0.001, "labellings": 999.0}),
        },
        {"detection": pd.DataFrame(untrained)},
    )


def test_the_layer_of_the_largest_excess_is_no_excess_by_its_choice():
    """States that tell what words tell have an excess of 0 in each of many layers, and a largest above it."""
    verdicts = []
    for trial in range(200):
        tables, controls = told_by_words(np.random.default_rng([7, trial]))
        evidence = Evidence(U, F, {"prompts": PROMPTS, **tables}, controls, OPTIONS)
        measured = CLAIMS.declared["C1"].measure(evidence, OPTIONS)
        verdicts.append(CLAIMS.decide_measured({"C1": measured})[0].verdict)
    print(f"C1, words tell as much: supported {verdicts.count('supported') / 200:.3f}")
    assert verdicts.count("supported") <= 200 * (0.05 + 2.3 * math.sqrt(0.05 * 0.95 / 200))
    assert verdicts.count("contradicted") <= 200 * 0.05


@pytest.mark.parametrize("code", ["C1", "C13"])
def test_a_simulation_runs(code):
    _, null, planted = SIMULATIONS[code]
    assert rates(code, null, 10)[0] <= 0.2
    assert rates(code, planted, 4, seed=1)[0] >= 0.75
