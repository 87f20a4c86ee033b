# SPDX-License-Identifier: MIT
"""How often each claim is supported or contradicted without an effect, and how often one is found.

Per-text numbers are drawn, and go through the study's own intervals, tests, controls and rule. Without an
effect the model is one more initialisation: it has an offset of its own, as its controls have. The rates are
in the tests' README.
"""

import numpy as np
import pandas as pd
import pytest
from test_likelihood_verdicts import STATISTICS, moved

from attnscope.engine.run_study import run
from attnscope.statistics.groups import mean_product
from attnscope.studies.attention_likelihood import associations, shifts
from attnscope.studies.attention_likelihood.claims import CLAIMS, Evidence
from attnscope.studies.attention_likelihood.options import LikelihoodOptions
from attnscope.study_api.claims import Rule
from folders import model_folder
from likelihood_study import settings, texts_of

OPTIONS = LikelihoodOptions(permutations=999, bootstrap=200)
TEXTS, CONTROLS, LAYERS = 40, 8, 3
#: Two-sided 99.9 % reach of a rate of .05 over so many trials is allowed.
TRIALS = 200
LARGEST = 0.05 + 3.3 * (0.05 * 0.95 / TRIALS) ** 0.5

pytestmark = pytest.mark.slow


def heavy(rng, *shape):
    """Noise with heavier tails than a normal law, of variance 1."""
    return rng.standard_t(5, shape) / (5 / 3) ** 0.5


def verdicts(rng, effect, offset):
    """Verdict of each claim for one model: an effect in units of a text's noise, an offset of each model."""
    rows, controls = [{"statistic": "swap_nats", "estimate": 8.0, "n": TEXTS}], {}
    for statistic, sign in STATISTICS.values():
        if statistic == "shift_of_rest":
            continue
        values = sign * effect + offset * rng.standard_normal() + heavy(rng, TEXTS)
        rows.append({"statistic": statistic, **associations.mean_with_sign_test(values, OPTIONS, 0)})
        draws_of_controls = offset * rng.standard_normal((CONTROLS, 1)) + heavy(rng, CONTROLS, TEXTS)
        controls[statistic] = draws_of_controls.mean(1).tolist()
    draws = [
        shift + offset * rng.standard_normal(2 * LAYERS) + heavy(rng, TEXTS, 2 * LAYERS)
        for shift in [effect, *[0.0] * CONTROLS]
    ]
    rows.append({"statistic": "shift_of_rest", **shifts.size_of_change(draws[0], OPTIONS, 0)})
    controls["shift_of_rest"] = [
        shifts.signed_root(mean_product(draw @ draw.T / draw.shape[1])) for draw in draws[1:]
    ]
    layers = pd.DataFrame(
        [
            {
                "design": design,
                "predictor": predictor,
                "measure": "share",
                "layer": 0,
                "estimate": 0.0,
                "slope": 0.0,
                "z": 1.0,
                "p_adjusted": 1.0,
            }
            for design, predictor in (("within", "log_likelihood"), ("swap", "at home"))
        ]
    )
    evidence = Evidence(layers, moved(), pd.DataFrame(rows), controls)
    measured = CLAIMS.measure({"": evidence}, OPTIONS)
    return {row.claim: row.verdict for row in CLAIMS.decide_measured(measured, Rule.of(OPTIONS))}


def rates(effect, offset, seed):
    rng = np.random.default_rng(seed)
    outcomes = pd.DataFrame([verdicts(rng, effect, offset) for _ in range(TRIALS)])
    table = {verdict: (outcomes == verdict).mean() for verdict in ("supported", "contradicted")}
    print(f"effect {effect}, offset {offset}\n{pd.DataFrame(table)}")
    return table


def test_without_an_effect_neither_verdict_is_more_frequent_than_its_level():
    outcomes = rates(0.0, 0.0, 0)
    assert (outcomes["supported"] <= LARGEST).all()
    assert (outcomes["contradicted"] <= LARGEST).all()


def test_one_more_initialisation_supports_nothing():
    """Its own offset is real, so that it may contradict; no more of it is support than chance gives."""
    assert (rates(0.0, 0.5, 1)["supported"] <= LARGEST).all()


def test_a_planted_effect_is_found_and_its_opposite_contradicts():
    assert (rates(1.0, 0.0, 2)["supported"] >= 0.9).all()
    opposite = rates(-1.0, 0.0, 3)
    assert (opposite["contradicted"].drop("C5") >= 0.9).all()
    assert (opposite["supported"].drop("C5") == 0).all()


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_model_with_random_weights_supports_nothing(name, seed, tmp_path):
    folder = model_folder(tmp_path / "m", name, seed=seed)
    texts = texts_of(tmp_path / "t.txt", count=24)
    options = {"nulls": ["random_weights"], "random_weights": 8, "least_nats": 0.0}
    results = run(settings(folder, texts, tmp_path, block=24, **options), progress=False)
    claims = results.table("claims").set_index("claim")
    print(name, seed, claims["verdict"].to_dict())
    supported = claims[claims["verdict"] == "supported"]
    # five verdicts of a level of .05 each
    assert len(supported) <= 1, supported[["value", "low", "high", "reason"]].to_string()
